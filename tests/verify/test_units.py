"""Parts of verification that need no compiler: comparison, stack search, vector and result files, generated texts."""

from __future__ import annotations

import dataclasses
import struct
import subprocess
from pathlib import Path

import numpy as np
import pytest

from testing.cores import BUILT
from tests.verify import library_stack, tiny_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface, Samples, StateSlot
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import Target
from tinytrain_compile.verify.compare import (
    ReferenceRun,
    Rounded,
    State,
    Step,
    compare_bytes,
    compare_reference,
    compare_steps,
)
from tinytrain_compile.verify.firmware import verification_files, verification_input
from tinytrain_compile.verify.run import RunResult, parse_output
from tinytrain_compile.verify.stack import read_call_graph, stack_bound
from tinytrain_compile.verify.symbols import library_table
from tinytrain_compile.verify.tools import find_tools, first_line

M0, M7 = load_target("cortex-m0plus"), load_target("cortex-m7")
SLOTS = (StateSlot("w", 16, 8, "float32"), StateSlot("count", 24, 4, "int32"), StateSlot("mask", 28, 2, "bits"))
INTERFACE = Interface("m", 2, 2, "int32_t", 1, 64, 14, 8, False, SLOTS)
NAN_A, NAN_B = (np.array([bits], np.uint32).view(np.float32)[0] for bits in (0x7FC00000, 0xFFC00001))


def run(
    weights: tuple[float, float] = (1.0, 2.0), count: int = 3, mask: bytes = b"\x05\x01", loss: float = 0.5
) -> RunResult:
    state = {"w": np.array(weights, np.float32).tobytes(), "count": struct.pack("<i", count), "mask": mask}
    output = np.array([0.25, 0.75], np.float32)
    return RunResult(np.array([0.5, loss], np.float32), output, output, (state, state), (), 100)


def reference(weights: tuple[float, float] = (1.0, 2.0), loss: float = 0.5) -> ReferenceRun:
    output = np.array([[0.25, 0.75]])
    return ReferenceRun([0.5, loss], output, output, [{"w": np.array(weights)}] * 2)


class Steps:
    """A float32 reference: from any state to `weights`, which float32 may miss by `allowed`."""

    def __init__(self, weights: tuple[float, float] = (1.0, 2.0), allowed: float = 0.0, loss: float = 0.5) -> None:
        self.weights, self.allowed, self.loss = np.array(weights), allowed, loss

    def initial(self) -> State:
        return {"w": np.zeros(2, np.float32)}

    def infer(self, _state: State) -> np.ndarray:
        return np.array([[0.25, 0.75]])

    def step(self, number: int, _state: State) -> Step:
        return Step(np.array([0.5 if number == 0 else self.loss]), {"w": self.weights})

    def rounded(self, number: int, state: State) -> Rounded:
        return Rounded(self.step(number, state), {"w": np.full(2, self.allowed)}, np.zeros(1))

    def rounded_output(self, state: State) -> tuple[np.ndarray, float]:
        return self.infer(state), 0.0


# ---- comparison -----------------------------------------------------------------------------------------------------


def test_equal_runs_compare_equal() -> None:
    compare_bytes(run(), run(), INTERFACE, "board")
    assert compare_reference(run(), reference(), INTERFACE) == 0.0


def test_any_nan_equals_any_nan() -> None:
    compare_bytes(run((NAN_A, 2.0)), run((NAN_B, 2.0)), INTERFACE, "board")
    with pytest.raises(CompileError, match="'w', step 0, index 0"):
        compare_bytes(run((NAN_A, 2.0)), run(), INTERFACE, "board")


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (
            run((1.0, np.nextafter(np.float32(2), np.float32(3)))),
            r"'w', step 0, index 1: board has 2.00000024 \(0x40000001\)",
        ),
        (run((-0.0, 2.0)), r"'w', step 0, index 0: board has -0 \(0x80000000\), the host 1 \(0x3f800000\)"),
        (run(count=4), "'count', step 0, index 0: board has 4, the host 3"),
        (run(mask=b"\x05\x81"), "'mask', step 0, index 1: board has 129, the host 1"),
        (run(loss=0.25), "loss, step 1, index 0"),
    ],
)
def test_the_first_difference_is_named(other: RunResult, message: str) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        compare_bytes(other, run(), INTERFACE, "board")
    assert caught.value.code == "E0601"


def test_runs_of_different_length() -> None:
    short = dataclasses.replace(run(), states=run().states[:1])
    with pytest.raises(CompileError, match="same number of steps"):
        compare_bytes(short, run(), INTERFACE, "board")
    with pytest.raises(ValueError, match="reference: 2 losses and 2 states"):
        compare_reference(short, reference(), INTERFACE)


def test_integers_agree_to_the_byte_with_the_reference() -> None:
    with pytest.raises(CompileError, match="'w', step 0, index 1: the C code gives"):
        compare_reference(run((1.0, np.nextafter(np.float32(2), np.float32(3)))), reference(), INTERFACE)
    assert compare_reference(run((np.nan, 2.0)), reference((np.nan, 2.0)), INTERFACE) == 0.0


def test_the_bound_of_a_step_is_one_of_its_change() -> None:
    """Step 0 goes from 0 to 100: 0.009 off is 1e-4 of that. Step 1 changes nothing, so there it is far too much."""
    text = r"'w', step 1, index 1: the C code gives 1.0089.*allowed .*more than rounding explains"
    with pytest.raises(CompileError, match=text):
        compare_steps(run((100.0, 1.009)), Steps((100.0, 1.0)), INTERFACE)
    one = dataclasses.replace(run((100.0, 1.009)), states=run((100.0, 1.009)).states[:1], losses=run().losses[:1])
    assert compare_steps(one, Steps((100.0, 1.0)), INTERFACE) == pytest.approx(9e-5, rel=1e-3)
    with pytest.raises(CompileError, match=r"'w', step 0, index 1"):
        compare_steps(run((100.0, 1.011)), Steps((100.0, 1.0)), INTERFACE)


def test_what_rounding_explains_is_allowed_and_no_more() -> None:
    assert compare_steps(run((1.0, 2.009)), Steps((1.0, 2.0), allowed=0.01), INTERFACE) < 1e-4
    with pytest.raises(CompileError, match=r"'w', step 0, index 1: .* allowed 0.0081"):
        compare_steps(run((1.0, 2.009)), Steps((1.0, 2.0), allowed=0.0079), INTERFACE)


def test_losses_keep_their_bound() -> None:
    compare_steps(run(loss=0.50009), Steps(), INTERFACE)
    with pytest.raises(CompileError, match=r"loss, step 1, index 0: .*allowed 0.0001\)"):
        compare_steps(run(loss=0.5002), Steps(), INTERFACE)


def test_nan_and_infinity_against_the_reference() -> None:
    assert compare_steps(run((np.nan, 2.0)), Steps((np.nan, 2.0)), INTERFACE) < 1e-4
    assert compare_steps(run((np.inf, 2.0)), Steps((np.inf, 2.0)), INTERFACE) < 1e-4
    for wrong in (np.nan, np.inf):
        with pytest.raises(CompileError, match="'w', step 0, index 0: the C code gives"):
            compare_steps(run((wrong, 2.0)), Steps(), INTERFACE)
        with pytest.raises(CompileError, match="'w', step 0, index"):
            compare_steps(run(), Steps((wrong, 2.0)), INTERFACE)


# ---- stack ----------------------------------------------------------------------------------------------------------


def graph_file(folder: Path, text: str) -> Path:
    (folder / "a.ci").write_text(text)
    return folder / "a.o"


def node(name: str, size: int, kind: str = "static") -> str:
    return f'node: {{ title: "{name}" label: "{name}\\na.c:1:1\\n{size} bytes ({kind})" }}\n'


def edge(source: str, target: str) -> str:
    return f'edge: {{ sourcename: "{source}" targetname: "{target}" label: "a.c:2:2" }}\n'


def test_the_deepest_path_is_found(tmp_path: Path) -> None:
    text = node("m_step", 24) + node("a.c:part", 100) + node("m_k", 16) + node("m_other", 130)
    text += (
        edge("m_step", "m_k") + edge("m_step", "a.c:part") + edge("a.c:part", "memcpy") + edge("m_k", "__aeabi_fmul")
    )
    graph = read_call_graph([graph_file(tmp_path, text)])
    bound = stack_bound(graph, "m", {"memcpy": 20, "__aeabi_fmul": 64})
    assert (bound.size_bytes, bound.path) == (144, ("m_step", "a.c:part", "memcpy"))
    with_tables = stack_bound(
        graph, "m", {"memcpy": 20, "__aeabi_fmul": 64, "__gnu_thumb1_case_si": 32}, ["__gnu_thumb1_case_si"]
    )
    assert with_tables.size_bytes == 162  # m_other, which may use a jump table


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (node("m_a", 8) + edge("m_a", "m_b") + node("m_b", 8) + edge("m_b", "m_a"), "recursion: m_a > m_b > m_a"),
        (node("m_a", 8, "dynamic"), "m_a has a stack frame of variable size"),
        (node("m_a", 8) + edge("m_a", "strlen"), "strlen has no entry"),
        (node("m_a", 8) + edge("m_a", "__indirect_call"), "call through a pointer: m_a"),
    ],
)
def test_what_cannot_be_bounded(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=message) as caught:
        stack_bound(read_call_graph([graph_file(tmp_path, text)]), "m", {})
    assert caught.value.code == "E0601"


def test_bounded_dynamic_frames_and_callbacks_are_fine(tmp_path: Path) -> None:
    text = (
        node("m_save", 40, "dynamic,bounded")
        + edge("m_save", "a.c:put")
        + node("a.c:put", 8)
        + edge("a.c:put", "__indirect_call")
    )
    bound = stack_bound(read_call_graph([graph_file(tmp_path, text)]), "m", {})
    assert bound.size_bytes == 48


def test_the_stack_of_a_part_has_the_callbacks_that_it_gives_away(tmp_path: Path) -> None:
    """m_save calls back into the store: whoever calls through the pointer, what lies below is the store's own."""
    text = node("m_save", 40) + edge("m_save", "__indirect_call")
    text += node("m_store_save", 24) + edge("m_store_save", "m_save")
    text += node("a.c:take_nothing", 8) + node("a.c:save_piece", 100) + edge("a.c:save_piece", "__indirect_call")
    bound = stack_bound(read_call_graph([graph_file(tmp_path, text)]), "m", {})
    assert bound.size_bytes == 24 + 40 + 100


def test_functions_that_are_alike_have_one_frame(tmp_path: Path) -> None:
    """GCC folds them into one and writes down no frame for the other, which the call graph still names."""
    compiler = find_tools(M7).cross_cc
    if compiler is None:
        pytest.skip(find_tools(M7).missing_for_qemu())
    body = "(char *p)\n{\n    volatile char room[40];\n    room[1] = p[0];\n    p[1] = room[1];\n}\n"
    one, two = (f"__attribute__((noinline)) static void {name}{body}" for name in ("one", "two"))
    both = "void m_step(char *p);\nvoid m_step(char *p)\n{\n    one(p);\n    two(p + 9);\n    one(p + 5);\n}\n"
    (tmp_path / "a.c").write_text(one + two + both)
    flags = ["-mcpu=cortex-m4", "-mthumb", "-O2", "-fcallgraph-info=su", "-fstack-usage", "-c", "a.c"]
    subprocess.run([compiler, *flags], cwd=tmp_path, check=True)
    graph = read_call_graph([tmp_path / "a.o"])
    assert {"a.c:one", "a.c:two"} <= graph.frames.keys() and 0 in graph.frames.values(), "one of them was folded"
    assert stack_bound(graph, "m", {}).size_bytes >= 40


@pytest.mark.parametrize("target", {target.gcc_flags: target for target in BUILT}.values(), ids=lambda each: each.name)
def test_the_library_table_covers_the_installed_tools(target: Target) -> None:
    if find_tools(target).cross_cc is None:
        pytest.skip(find_tools(target).missing_for_qemu())
    table, derived = library_table(target), library_stack.derive(target)
    assert len(derived) > 15
    low = {name: size for name, size in derived.items() if table[name] < size}
    assert low == {}, f"{target.gcc_flags}: the table is too low"


# ---- files ----------------------------------------------------------------------------------------------------------


def test_the_vector_file() -> None:
    samples = Samples(np.array([[1, 2], [3, 4]], np.float32), np.array([5, 6], np.int32))
    data = verification_input(INTERFACE, samples, steps=3, batch=1, learning_rate=0.5)
    assert struct.unpack_from("<IIIIf", data) == (0x56495454, 3, 1, 1, 0.5)
    assert struct.unpack_from("<2f", data, 20) == (1.0, 2.0)
    assert struct.unpack_from("<2fi2fi2fi", data, 28) == (1, 2, 5, 3, 4, 6, 1, 2, 5)
    assert len(data) == 28 + 36
    assert struct.unpack_from("<If", verification_input(INTERFACE, samples, 1, 1, None), 12) == (0, 0.0)


def test_images_are_flattened_and_wrong_shapes_refused() -> None:
    image = Samples(np.zeros((1, 1, 2, 1), np.float32), np.zeros(1, np.int64))
    assert len(verification_input(INTERFACE, image, 1, 1, None)) == 28 + 12
    with pytest.raises(CompileError, match="x: 3 elements in a sample, the model takes 2") as caught:
        verification_input(INTERFACE, Samples(np.zeros((1, 3), np.float32), np.zeros(1, np.int32)), 1, 1, None)
    assert caught.value.code == "E0105"


def record(tag: int, payload: bytes) -> bytes:
    return struct.pack("<II", tag, len(payload)) + payload


OUTPUT = b"".join(
    [
        record(1, struct.pack("<I", 0)),
        record(2, struct.pack("<I2f", 0, 0.25, 0.75)),
        record(3, struct.pack("<If", 0, 0.5)),
        record(5, struct.pack("<2fi2s", 1.0, 2.0, 3, b"\x05\x01")),
        record(2, struct.pack("<I2f", 0, 0.5, 0.5)),
        record(6, struct.pack("<I", 0)),
        record(7, struct.pack("<III", 0, 0, 0)),
        record(9, struct.pack("<I", 0)),
        record(8, struct.pack("<I", 96)),
    ]
)


def test_the_result_file() -> None:
    result = parse_output(OUTPUT, INTERFACE, "test")
    assert result.status == "ok"
    assert result.losses.tolist() == [0.5]
    assert result.output_last.tolist() == [0.5, 0.5]
    assert result.states[0]["mask"] == b"\x05\x01"
    assert result.stack_measured_bytes == 96


@pytest.mark.parametrize("cut", [0, 5, 40, len(OUTPUT) - 30])
def test_an_incomplete_result_file(cut: int) -> None:
    with pytest.raises(CompileError, match="incomplete") as caught:
        parse_output(OUTPUT[:cut], INTERFACE, "test")
    assert caught.value.code == "E0602"


@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m7", "cortex-m55", "host"])
def test_generated_texts_are_complete_and_plain(name: str) -> None:
    files = verification_files(tiny_model.bundle(), load_target(name))
    expected = {"main.c", "port.h", "host.c", "Makefile", "README.md"} | (
        {"startup.c", "link.ld"} if name != "host" else set()
    )
    assert {path.removeprefix("verify/") for path in files} == expected
    for path, text in files.items():
        assert "@" not in text.replace("$@", ""), path
        assert "/work" not in text, path
        assert text.endswith("\n"), path
    assert files == verification_files(tiny_model.bundle(), load_target(name))


def test_names_from_the_model_cannot_leave_a_comment() -> None:
    slot = StateSlot('a */ #error "x" /*\n', 16, 4, "float32")
    bundle = tiny_model.bundle()
    interface = dataclasses.replace(bundle.interface, state=(slot,))
    main = verification_files(dataclasses.replace(bundle, interface=interface), M7)["verify/main.c"]
    assert "{16u, 4u, 0u}, /* a __ _error _x_ ___ */\n" in main


def test_first_line_drops_folders_and_noise() -> None:
    text = (
        "/usr/x/ld: /tmp/b.o: in function `f':\n/tmp/k.c:3: undefined reference to `g'\ncollect2: error: ld returned 1"
    )
    assert first_line(text) == "k.c:3: undefined reference to `g'"
    assert first_line("") == "no message"
    assert first_line("one\ntwo\n") == "two"
