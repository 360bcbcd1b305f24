"""int8 training end to end: numpy, host C and six cores agree to the byte."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testing.places import ROOT
from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.exact import DIFFERENT, MODELS, SCHEMES, STEPS, check_exact, check_on, in_turn, in_turn_or_slow, scheme
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import NUMERIC, build, sources, write_files
from tests.quantize import nets
from tinytrain_compile.data.samples import load_inputs, load_samples, random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.quantize import QuantOptions, calibrate, prepare, quantise
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.training import TrainingOptions, build_training
from tinytrain_compile.verify.check import verify

# ---- small models ---------------------------------------------------------------------------------------------------


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "head"), [("cnn", "fp32"), ("qdq", "int8")])
def test_all_cores_equal_numpy(name: str, head: str) -> None:
    reports = check_on(nets.int8_train(MODELS[name](), head=head, learning_rate=0.05), *chain.BOARDS)
    assert tuple(reports) == chain.BOARDS
    check_exact(reports)


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("head", "boards"), [("fp32", chain.BOARDS), ("int8", DIFFERENT)], ids=["fp32", "int8"])
def test_a_hundred_steps_of_digits(head: str, boards: tuple[str, ...]) -> None:
    """The example's network and data: weights, biases, exponents, noise and losses equal numpy after every step."""
    folder = ROOT / "examples" / "digits"
    model = load_model(folder / "digits.onnx", FrontendOptions())
    graph = calibrate(model.graph, load_inputs(folder / "calib.npz", model))
    known = replace(model, graph=prepare(graph, head == "fp32"))
    update = resolve_update(known.graph, str(folder / "scheme.toml"))
    train = quantise(build_training(known, update, TrainingOptions(learning_rate=0.01)), QuantOptions())
    samples = load_samples(folder / "data.npz", known, train)
    reference = run_reference(train, samples, 100)
    lowered = chain.kernels_by_core(train)
    losses: set[tuple[float, ...]] = set()
    for board in boards:
        core = load_target(board)
        made = chain.project(train, board, lowered(board))
        report = verify(made.bundle, core, samples, reference, "qemu", steps=100, batch=1)
        assert (report.result, report.steps, report.max_error) == ("pass", 100, 0.0), board
        losses.add(report.losses)
    assert len(losses) == 1 and len(set(*losses)) > 90


VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("regions", {}),
    ("mlp", {"head": "int8"}),
    ("max pool", {"batch": 4}),
    ("overlapping", {"head": "int8"}),
    ("encoder", {"head": "int8"}),
    ("qdq", {"head": "int8", "batch": 4}),
    ("cnn", {"store": "q8.8"}),
    ("qdq", {"head": "int8", "batch": 4, "store": "q8.8"}),
    ("cnn", {"batch": 4, "accumulate": "inplace"}),
    ("cnn", {"optimizer": "momentum"}),
    ("qdq", {"optimizer": "momentum", "head": "int8", "batch": 4}),
    ("qdq", {"optimizer": "momentum", "store": "q8.8", "head": "int8"}),
    ("qdq", {"head": "int8", "batch": 3, "accumulate": "inplace", "store": "q8.8"}),
    ("weighted", {"head": "int8"}),
    ("cnn", {"head": "int8", "loss": "mse"}),
    ("qdq", {"head": "int8", "loss": "bce", "batch": 2}),
    ("cnn", {"store": "mixed", "batch": 2}),
]


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "options", "board"), in_turn(VARIANTS))
def test_variants_on_boards(name: str, options: dict[str, Any], board: str) -> None:
    train = nets.int8_train(MODELS[name](), learning_rate=0.05, **options)
    check_exact(check_on(train, board))


HEADS_AND_BATCHES = [[("fp32", 1), ("int8", 3)], [("int8", 1), ("fp32", 3)]]


@pytest.mark.parametrize(("name", "options"), in_turn_or_slow(MODELS, HEADS_AND_BATCHES))
def test_every_model_head_and_batch_on_the_host(name: str, options: tuple[str, int]) -> None:
    head, batch = options
    train = nets.int8_train(MODELS[name](), head=head, batch=batch, learning_rate=0.05)
    assert train.integer and not train.exponents_known
    floats = nets.nodes_of(train, "SgdUpdate")
    assert (train.inverse_count is not None) == (batch > 1 and bool(floats))
    check_exact(check_on(train, "host", steps=5), 5)


@pytest.mark.parametrize("batch", [1, 2])
@pytest.mark.parametrize("names", [("out", "in"), ("in", "out"), ("leading out", "leading in")])
def test_channel_slices(names: tuple[str, str], batch: int, tmp_path: Path) -> None:
    check_slices(names, tmp_path, batch=batch)


@pytest.mark.parametrize(
    "options",
    [
        {"store": "q8.8"},
        {"store": "q8.8", "batch": 2},
        {"store": "mixed"},
        {"optimizer": "momentum"},
        {"optimizer": "momentum", "batch": 2},
        {"optimizer": "momentum", "batch": 2, "accumulate": "inplace", "store": "q8.8"},
    ],
    ids=str,
)
def test_channel_slices_of_other_rules(options: dict[str, Any], tmp_path: Path) -> None:
    check_slices(("out", "in"), tmp_path, **options)


def check_slices(names: tuple[str, str], folder: Path, **options: Any) -> None:
    """Only the chosen channels are stored and trained, and numpy and host agree."""
    train = nets.int8_train(nets.cnn(), scheme(folder, *names), learning_rate=0.05, **options)
    stored = {v.name: v.shape for v in train.graph.state if v.dtype == "int8"}
    for layer, name, whole in (("point", names[0], (6, 1, 1, 6)), ("last", names[1], (12, 3, 3, 6))):
        axis, channels = SCHEMES[name]
        count = channels if isinstance(channels, int) else len(channels)
        expected = (count, *whole[1:]) if axis == "out" else (*whole[:3], count)
        assert stored[f"{layer}_weight.updated"] == expected
    assert stored["deep_weight.updated"] == (2, 3, 3, 1)
    check_exact(check_on(train, "host"))


@needs_qemu
@pytest.mark.qemu
def test_channel_slices_of_an_integer_head_on_a_board(tmp_path: Path) -> None:
    path = tmp_path / "scheme.toml"
    path.write_text(
        '[[update]]\nlayer = "fc/Gemm"\nweight = [1, 3]\naxis = "out"\nbias = true\n'
        '[[update]]\nlayer = "point/Conv"\nweight = 3\naxis = "in"\n'
    )
    train = nets.int8_train(nets.cnn(), str(path), head="int8", learning_rate=0.05)
    check_exact(check_on(train, "cortex-m33"))


def test_seeds_differ_in_the_rounding_only() -> None:
    """Another seed: other noise, hence other weights, but the same first loss."""
    trains = [nets.int8_train(nets.cnn(), seed=seed, learning_rate=0.05) for seed in (0, 1)]
    samples = random_samples(trains[0], STEPS, 0)
    first, second = (run_reference(train, samples, STEPS) for train in trains)
    assert first.losses[0] == second.losses[0]
    assert first.losses[-1] != second.losses[-1]
    check_exact(check_on(trains[1], "host"))


def test_a_checkpoint_holds_all_that_training_needs(tmp_path: Path) -> None:
    """The check program saves, loads and compares; exponents and noise are in the state that it saves."""
    train = nets.int8_train(nets.cnn(), learning_rate=0.05)
    made = chain.project(train, kernels=chain.kernels_of(train))
    names = {slot.name: slot.dtype for slot in made.bundle.interface.state}
    assert names["noise"] == "int32"
    exponents = {node.inputs[0].name for node in nets.nodes_of(train, "ExponentUpdate")}
    assert len(exponents) == 10 and exponents <= set(names)
    result = run_steps(made.bundle, load_target("host"), random_samples(train, 4, 0), 4, None, 1, tmp_path)
    assert result.status == "ok"
    assert len(result.states) == 4
    moved = {name for name in names if result.states[0][name] != result.states[3][name]}
    assert {"stem_weight", "deep_weight", "fc_weight", "noise"} <= moved
    assert "learning_rate" not in moved


RESUMED = """#include "net_train.h"
#include <string.h>
static unsigned char saved[1 << 16];
static size_t at;
static _Alignas(16) unsigned char arenas[2][NET_ARENA_BYTES];
static int put(void *context, const void *data, size_t size)
{
    (void)context;
    memcpy(saved + at, data, size);
    at += size;
    return 0;
}
static int get(void *context, void *data, size_t size)
{
    (void)context;
    memcpy(data, saved + at, size);
    at += size;
    return 0;
}
int main(void)
{
    float losses[2];
    for (int i = 0; i < 2; ++i) {
        net_t *m;
        const net_label_t label[1] = {1};
        void *const mem[1] = {arenas[i]};
        const size_t size[1] = {NET_ARENA_BYTES};
        if (net_init_memories(&m, mem, size) != NET_OK) {
            return 1;
        }
        at = 0; /* only the second instance goes on from a checkpoint */
        if (i == 1 && (net_save(m, put, NULL) != NET_OK || (at = 0, net_load(m, get, NULL)) != NET_OK)) {
            return 2;
        }
        for (int step = 0; step < 3; ++step) {
            for (size_t k = 0; k < NET_INPUT_ELEMENTS; ++k) {
                net_input(m)->values[k] = (int8_t)((int)(k * 37u + (unsigned)step * 11u) % 255 - 127);
            }
            if (net_train_step(m, label, &losses[i]) != NET_OK) {
                return 3;
            }
        }
    }
    return losses[0] == losses[1] && memcmp(arenas[0], arenas[1], NET_ARENA_BYTES) == 0 ? 0 : 4;
}
"""


def test_a_checkpoint_from_before_the_first_step_starts_like_a_fresh_model(tmp_path: Path) -> None:
    """The exponents are not known yet, and the checkpoint says so: the next step finds them as after m_init."""
    train = nets.int8_train(nets.cnn(), learning_rate=0.05)
    made = chain.project(train, kernels=chain.kernels_of(train))
    write_files(tmp_path, made.bundle.files)
    (tmp_path / "resumed.c").write_text(RESUMED)
    build(["gcc", "-std=c11", *NUMERIC, "resumed.c", *sources(made.bundle), "-o", "resumed"], tmp_path)
    assert subprocess.run([tmp_path / "resumed"], check=False).returncode == 0


FAULTS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("const int32_t rounded = (value + 128) >> 8;", "const int32_t rounded = value >> 8;", {"store": "q8.8"}),
    ("weight * 256 + *fraction - move", "weight * 256 - move", {"store": "q8.8", "batch": 2}),
    ("(fine + noise) >> 8, -127", "(fine + noise / 256) >> 8, -127", {"optimizer": "momentum"}),
    ("31 + state[2] - unit", "31 + state[0] - unit", {"optimizer": "momentum", "batch": 2}),
    (
        "(weight * 256 - move + noise) >> 8",
        "(weight * 256 - move + noise / 256) >> 8",
        {"batch": 2, "accumulate": "inplace"},
    ),
)
"""(C of the runtime, a fault in it, the update rule that must show it)"""


@pytest.mark.parametrize(("sound", "broken", "options"), FAULTS, ids=lambda part: "" if isinstance(part, str) else None)
def test_a_fault_in_a_rounding_fails_the_check(sound: str, broken: str, options: dict[str, Any]) -> None:
    train = nets.int8_train(nets.cnn(), learning_rate=0.05, **options)
    made = chain.project(train, kernels=chain.kernels_of(train))
    text = made.bundle.files["tt_fixed.h"]
    assert text.count(sound) == 1
    files = {**made.bundle.files, "tt_fixed.h": text.replace(sound, broken)}
    faulty = replace(made, bundle=replace(made.bundle, files=files))
    with pytest.raises(CompileError, match="E0601"):
        chain.check(faulty, "cortex-m7", "host", 5)
    chain.check(made, "cortex-m7", "host", 5)
