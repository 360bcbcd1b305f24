"""The whole check on the hand-written model: all boards agree, and every planted fault is found."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from testing.cores import NAMES, missing_tools
from testing.runs import run_steps
from tests.verify import tiny_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify import build
from tinytrain_compile.verify.build import compile_project
from tinytrain_compile.verify.check import static_figures, verify
from tinytrain_compile.verify.firmware import HOST_FLAGS
from tinytrain_compile.verify.tools import find_tools

BOARDS = NAMES
M7 = load_target("cortex-m7")
needs_qemu = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
DATA = tiny_model.samples()
LOOP_END = "    y[0] = sum;"
STEP_END = "    return *loss == *loss ?"


def check(mode: str = "qemu", target: str = "cortex-m7", **faults: tuple[str, str]) -> None:
    """Verify the tiny model with planted faults: (old, new) texts in tiny_train.c or tiny_kernels.c."""
    bundle = tiny_model.bundle(**faults)  # type: ignore[arg-type]
    verify(bundle, load_target(target), DATA, tiny_model.reference(DATA, 3), mode, steps=3)  # type: ignore[arg-type]


def failure(mode: str = "qemu", target: str = "cortex-m7", **faults: tuple[str, str]) -> tuple[str, str]:
    with pytest.raises(CompileError) as caught:
        check(mode, target, **faults)
    text = str(caught.value)
    assert "\n" not in text
    assert "/tmp" not in text
    return caught.value.code, text


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", BOARDS)
def test_boards_equal_host_and_reference(name: str) -> None:
    target = load_target(name)
    report = verify(tiny_model.bundle(), target, DATA, tiny_model.reference(DATA, 4), "qemu", steps=4)
    assert (report.mode, report.steps, report.result) == ("qemu", 4, "pass")
    assert target.qemu is not None
    assert report.message.startswith(f"reference == host == QEMU {target.qemu.machine}   host max |err| ")
    assert report.message.endswith("   QEMU bit-exact   PASS")
    np.testing.assert_allclose(report.losses, tiny_model.reference(DATA, 4).losses, rtol=1e-5)
    assert report.stack_bytes is not None
    assert report.stack_measured_bytes is not None
    assert 0 < report.stack_measured_bytes <= report.stack_bytes <= target.stack_budget_bytes
    assert report.code_bytes is not None
    assert 300 < report.code_bytes < 1000
    assert report.const_bytes == 20 + 64  # weight and bias, CRC table
    assert report.max_error is not None
    assert report.max_error < 1e-6


def test_host_only() -> None:
    report = verify(tiny_model.bundle(), M7, DATA, tiny_model.reference(DATA, 2), "host", steps=2)
    assert (report.mode, report.result) == ("host", "pass")
    assert report.stack_bytes is None


def test_host_target_needs_no_board() -> None:
    report = verify(tiny_model.bundle(), load_target("host"), DATA, tiny_model.reference(DATA, 2), "qemu", steps=2)
    assert (report.mode, report.result) == ("host", "pass")
    assert "skipped" not in report.message


def test_mode_none() -> None:
    report = verify(tiny_model.bundle(), M7, DATA, None, "none")
    assert (report.mode, report.steps, report.result) == ("none", 0, "skipped")


@needs_qemu
@pytest.mark.qemu
def test_accumulation_and_learning_rate() -> None:
    """Two samples in a step (the tiny model updates in both), a rate of 0.01 instead of 0.05."""
    reference = tiny_model.reference(DATA, 3, batch=2, rate=np.float32(0.01))
    bundle = tiny_model.bundle(accumulates=True)
    report = verify(bundle, M7, DATA, reference, "qemu", steps=3, batch=2, learning_rate=0.01)
    assert len(report.losses) == 3
    assert report.losses[0] == pytest.approx((reference.losses[0] + reference.losses[1]) / 2, rel=1e-6)


def test_results_hold_every_step(tmp_path: Path) -> None:
    run = run_steps(tiny_model.bundle(), load_target("host"), DATA, 3, None, 1, tmp_path)
    expected = tiny_model.reference(DATA, 3)
    assert run.status == "ok"
    assert run.losses.shape == (3,)
    weights = [np.frombuffer(state["fc.weight"], np.float32) for state in run.states]
    np.testing.assert_allclose(weights, [state["fc.weight"] for state in expected.states], rtol=1e-6)
    assert np.frombuffer(run.states[2]["learning_rate"], np.float32)[0] == np.float32(0.05)
    np.testing.assert_allclose(run.output_last, expected.output_last, rtol=1e-6)


# ---- planted faults -------------------------------------------------------------------------------------------------


@needs_qemu
@pytest.mark.qemu
def test_a_kernel_that_differs_on_the_target() -> None:
    fault = (LOOP_END, "#ifdef __arm__\n    sum += 1e-7f;\n#endif\n" + LOOP_END)
    code, text = failure(kernels=fault)
    assert code == "E0601"
    assert "output before training, index 0: QEMU mps2-an500 has" in text


@needs_qemu
@pytest.mark.qemu
def test_an_update_that_differs_in_one_element_late() -> None:
    fault = (STEP_END, "#ifdef __arm__\n    if (m->reserved++ == 1) { F32(16)[2] += 1e-6f; }\n#endif\n" + STEP_END)
    code, text = failure(train=fault)
    assert code == "E0601"
    assert "'fc.weight', step 1, index 2: QEMU mps2-an500 has" in text


def test_c_that_disagrees_with_the_reference() -> None:
    code, text = failure("host", kernels=("w[i] - rate[0]", "w[i] - 1.01f * rate[0]"))
    assert code == "E0601"
    assert "'fc.weight', step 0, index" in text
    assert "; more than rounding explains" in text


@pytest.mark.parametrize(
    ("place", "side"),
    [
        ("F32(-4)[0]", "4 guard bytes below it, 0 above it, 0 in"),
        ("F32(72)[1]", "0 guard bytes below it, 4 above it, 0 in"),
    ],
)
@pytest.mark.parametrize("mode", ["host", pytest.param("qemu", marks=[pytest.mark.qemu, needs_qemu])])
def test_a_write_outside_the_arena(mode: str, place: str, side: str) -> None:
    only = "__arm__" if mode == "qemu" else "__STDC__"
    code, text = failure(mode, train=(STEP_END, f"#ifdef {only}\n    {place} = 3.0f;\n#endif\n" + STEP_END))
    assert code == "E0601"
    assert "writes outside the arena" in text
    assert side in text


def test_nan_loss() -> None:
    data = Samples(DATA.x.copy(), DATA.y)
    data.x[2, 0] = np.nan  # type: ignore[index]
    with pytest.raises(CompileError, match="the loss is not a number in step 2") as caught:
        verify(tiny_model.bundle(), M7, data, tiny_model.reference(data, 4), "host", steps=4)
    assert caught.value.code == "E0603"


def test_a_status_that_is_not_ok() -> None:
    code, text = failure("host", train=("TINY_OK : TINY_ERR_NAN", "TINY_ERR : TINY_ERR_NAN"))
    assert code == "E0601"
    assert "training, step 0: status 1" in text


BIG_FRAME = (
    "    float gradient[4];",
    "    volatile float big[{0}]; big[0] = big[{0} - 1] = 0.0f;\n    float gradient[4];",
)


@needs_qemu
@pytest.mark.qemu
def test_a_stack_over_the_budget() -> None:
    code, text = failure(train=(BIG_FRAME[0], BIG_FRAME[1].format(2000)))
    assert code == "E0601"
    assert "the budget of cortex-m7 is 4096 (tiny_accumulate > tiny_train_step > tiny_k_dot)" in text


@needs_qemu
@pytest.mark.qemu
def test_a_stack_over_that_of_a_board() -> None:
    bundle = tiny_model.bundle(train=(BIG_FRAME[0], BIG_FRAME[1].format(2000)))
    board = load_target("nucleo-f746zg")
    with pytest.raises(
        CompileError, match=r"calls need 8\d\d\d B, nucleo-f746zg has 4096 B \(over by 3\d\d\d B"
    ) as caught:
        verify(bundle, board, DATA, tiny_model.reference(DATA, 4), "qemu", steps=4)
    assert caught.value.code == "E0404" and "stack in dtcm" in str(caught.value)


@needs_qemu
@pytest.mark.qemu
def test_the_painted_stack_sees_an_overflow_of_the_budget(tmp_path: Path) -> None:
    bundle = tiny_model.bundle(train=(BIG_FRAME[0], BIG_FRAME[1].format(2000)))
    run = run_steps(bundle, M7, DATA, 1, None, 1, tmp_path, "qemu")
    assert run.stack_measured_bytes is not None
    assert 8000 <= run.stack_measured_bytes <= 8100
    assert run.stack_measured_bytes > M7.stack_budget_bytes


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", BOARDS)
def test_a_stack_far_below_its_region_damages_painted_ram(name: str, tmp_path: Path) -> None:
    """QEMU's boards do not fault outside their RAM, so free RAM is watched (the static bound finds this first)."""
    bundle = tiny_model.bundle(train=(BIG_FRAME[0], BIG_FRAME[1].format(50000)))
    run = run_steps(bundle, load_target(name), DATA, 1, None, 1, tmp_path, "qemu")
    assert run.status.startswith("writes outside the arena or the stack: 0 guard bytes below it, 0 above it, ")
    assert not run.status.endswith(" 0 in free RAM")


@needs_qemu
@pytest.mark.qemu
def test_a_write_far_from_the_arena() -> None:
    code, text = failure(train=(STEP_END, "#ifdef __arm__\n    F32(1000000)[0] = 3.0f;\n#endif\n" + STEP_END))
    assert code == "E0601"
    assert "4 in free RAM" in text


MALLOC = "    extern void *malloc(size_t); float *copy = malloc(4); copy[0] = sum; sum = *(volatile float *)copy;\n"
FORBIDDEN = {
    "static RAM is used by calls": (LOOP_END, "    static float calls; calls += 1.0f; sum += calls;\n" + LOOP_END),
    "calls malloc": (LOOP_END, MALLOC + LOOP_END),
    "calls sinf": (LOOP_END, "    extern float sinf(float); sum = sinf(sum);\n" + LOOP_END),
    "uses the type double": (LOOP_END, "    volatile double d = 0.5; sum = (float)(d * 3.0);\n" + LOOP_END),
    "lacks the prefix tiny_": ("void tiny_k_dot", "void helper(void);\nvoid helper(void) {}\nvoid tiny_k_dot"),
}


@pytest.mark.parametrize("message", FORBIDDEN)
def test_forbidden_symbols_on_the_host(message: str) -> None:
    code, text = failure("host", kernels=FORBIDDEN[message])
    assert code == "E0601"
    assert message in text


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("message", [message for message in FORBIDDEN if "double" not in message])
def test_forbidden_symbols_on_the_target(message: str, tmp_path: Path) -> None:
    compiled = compile_project(tiny_model.bundle(kernels=FORBIDDEN[message]), M7, "qemu", find_tools(M7), tmp_path)
    with pytest.raises(CompileError, match=message):
        static_figures(compiled, tiny_model.interface(), M7)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("name", "code", "message"),
    [
        ("cortex-m7", "sum = (float)((DOUBLE)sum * (DOUBLE)w[0] + (DOUBLE)w[1]);", "computes in double precision"),
        ("cortex-m3", "sum = (float)((DOUBLE)sum * (DOUBLE)w[0] + (DOUBLE)w[1]);", "computes in double precision"),
        ("cortex-m7", "extern float __aeabi_fmul(float, float); sum = __aeabi_fmul(sum, sum);", "floats in software"),
    ],
)
def test_float_rules_on_the_target(name: str, code: str, message: str, tmp_path: Path) -> None:
    target = load_target(name)
    code = code.replace("DOUBLE", "__typeof__(1.0)")  # the name itself is refused in any source
    bundle = tiny_model.bundle(kernels=(LOOP_END, f"    {code}\n{LOOP_END}"))
    compiled = compile_project(bundle, target, "qemu", find_tools(target), tmp_path)
    with pytest.raises(CompileError, match=message):
        static_figures(compiled, tiny_model.interface(), target)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (
            "float tiny_r(float x); float tiny_r(float x) { return x > 2 ? tiny_r(x * 0.5f) * tiny_r(x - 1) : x; }",
            "recursion",
        ),
        ("float tiny_r(int n); float tiny_r(int n) { volatile float v[n]; v[0] = 1; return v[n - 1]; }", "ISO C90|vla"),
        (
            "float tiny_r(size_t n); float tiny_r(size_t n) { volatile float *v = __builtin_alloca(n); v[0] = 1; "
            "return v[n / 8]; }",
            "frame of variable size",
        ),
        (
            "float tiny_r(float (*f)(void)); float tiny_r(float (*f)(void)) { return f() + 1.0f; }",
            "call through a pointer",
        ),
        ("uint64_t tiny_r(float x); uint64_t tiny_r(float x) { return (uint64_t)x; }", "__aeabi_f2ulz"),
    ],
)
def test_what_makes_the_stack_bound_impossible(fault: str, message: str) -> None:
    _, text = failure(kernels=("void tiny_k_dot", f"{fault}\nvoid tiny_k_dot"))
    assert any(part in text for part in message.split("|"))


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (("write(ctx, F32(16), 24)", "write(ctx, F32(12), 24)"), "m_load of a fresh checkpoint failed"),
        (("return crc == tt_crc32(0, F32(16), 24) ?", "return crc != 1u ?"), "m_load accepted a damaged checkpoint"),
        (("return 24 + 4;", "return 24 + 8;"), "did not write m_state_size bytes"),
        (("read(ctx, F32(16), 24) != 0", "read(ctx, F32(44), 24) != 0"), "m_load of a fresh checkpoint failed"),
    ],
)
def test_checkpoint_faults(fault: tuple[str, str], message: str) -> None:
    code, text = failure("host", train=fault)
    assert code == "E0601"
    assert message in text


@needs_qemu
@pytest.mark.qemu
def test_a_trap_is_reported_as_a_fault() -> None:
    code, text = failure(kernels=(LOOP_END, "#ifdef __arm__\n    __builtin_trap();\n#endif\n" + LOOP_END))
    assert code == "E0602"
    assert "hardware fault (fault: exception 0x00000003" in text


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", ["cortex-m0plus", "cortex-m3", "cortex-m23", "cortex-m33"])
def test_unaligned_access_faults_on_cores_without_it(name: str) -> None:
    """Each pair has the same board; Armv6-M code and that of the M23 run with CCR.UNALIGN_TRP set."""
    bytes_as_word = "const volatile int32_t *p = (const void *)((const unsigned char *)w + 1); (void)*p;"
    fault = (LOOP_END, f"#ifdef __arm__\n    {bytes_as_word}\n#endif\n{LOOP_END}")
    if name in ("cortex-m3", "cortex-m33"):
        check(target=name, kernels=fault)
    else:
        code, text = failure(target=name, kernels=fault)
        assert code == "E0602"
        assert "hardware fault" in text


@needs_qemu
@pytest.mark.qemu
def test_armv6m_objects_are_checked_by_their_attributes() -> None:
    target = dataclasses.replace(
        load_target("cortex-m0plus"),
        gcc_flags=("-mcpu=cortex-m0plus", "-mthumb", "-mfloat-abi=soft", "-mcpu=cortex-m3"),
    )
    with pytest.raises(CompileError, match="not code for armv6-m"):
        verify(tiny_model.bundle(), target, DATA, None, "qemu", steps=1)


def test_an_endless_loop_is_stopped(tmp_path: Path) -> None:
    bundle = tiny_model.bundle(kernels=(LOOP_END, "    while (*(const volatile float *)w == w[0]) { }\n" + LOOP_END))
    with pytest.raises(CompileError, match="still running after 2 s") as caught:
        run_steps(bundle, load_target("host"), DATA, 1, None, 1, tmp_path, timeout_s=2)
    assert caught.value.code == "E0602"


def test_a_crash_on_the_host() -> None:
    code, text = failure("host", kernels=(LOOP_END, "    __builtin_trap();\n" + LOOP_END))
    assert code == "E0602"
    assert "ended by signal" in text


def test_a_compiler_error_is_quoted() -> None:
    code, text = failure("host", kernels=(LOOP_END, "    int unused = 3.5f;\n" + LOOP_END))
    assert code == "E0602"
    assert "compiling tiny_kernels.c: tiny_kernels.c:" in text


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("size", "message"), [(64, "not of the planned size, 64 bytes"), (80, "planned size")])
def test_the_linker_holds_the_arena_to_the_plan(size: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the flags that a user has: unoptimised, GCC warns of too small an arena before anything is linked."""
    monkeypatch.setattr(build, "HOST_FLAGS", HOST_FLAGS)
    with pytest.raises(CompileError, match=message) as caught:
        verify(tiny_model.bundle(arena_bytes=size), M7, DATA, None, "qemu", steps=1)
    assert caught.value.code == "E0602"


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", BOARDS)
def test_an_arena_of_two_megabytes(name: str) -> None:
    size = 2 << 20
    bundle = tiny_model.bundle(arena_bytes=size, compiled_bytes=size)
    report = verify(bundle, load_target(name), DATA, tiny_model.reference(DATA, 1), "qemu", steps=1)
    assert (report.mode, report.result) == ("qemu", "pass")


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("size", [(4 << 20) - 20000, 8 << 20])
def test_an_arena_larger_than_the_board(size: int) -> None:
    bundle = tiny_model.bundle(arena_bytes=size, compiled_bytes=size)
    with pytest.raises(CompileError, match="too big for the check board: use --verify host") as caught:
        verify(bundle, M7, DATA, None, "qemu", steps=1)
    assert caught.value.code == "E0602"
