"""Low-rank activations end to end: C == numpy == board, checkpoints, losses that are no number, the command."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import NUMERIC, build, sources, write_files
from tests.learn.exporting import arrays, changed, outputs
from tests.training.low_rank_nets import everywhere, few_patterns, graph, kinds, points, shared
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.activations import MODES, LowRank
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.training import fuse_updates

RANKS = {4: (3, 3, 2, 1), 2: (2, 1)}


def followed(shape: tuple[int, ...]) -> LowRank:
    return LowRank(RANKS[len(shape)])


def fixed(shape: tuple[int, ...]) -> LowRank:
    """Random subspaces of all modes but the samples."""
    rng = np.random.default_rng(1)
    ranks = RANKS[len(shape)][:-1]
    axes = (axis for _, axis in MODES[len(shape)][:-1])
    bases = {
        axis: np.linalg.qr(rng.standard_normal((shape[axis], rank)))[0].T
        for rank, axis in zip(ranks, axes, strict=True)
        if rank < shape[axis]
    }
    return LowRank(ranks, "subspace", bases)


def train_graph(how: Any = followed, **options: Any) -> TrainGraph:
    exact = graph(kinds(), {}, **options)
    return fuse_updates(graph(kinds(), everywhere(exact, how), **{"rate": 0.05, **options}))


CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "asi": (followed, {}),
    "asi, two at a time, momentum": (followed, {"batch": 2, "micro_batch": 2, "optimizer": "momentum"}),
    "subspace, adam, batch 2": (fixed, {"batch": 2, "optimizer": "adam"}),
}


@pytest.mark.parametrize("name", CASES)
def test_c_equals_the_reference(name: str) -> None:
    how, options = CASES[name]
    train = train_graph(how, **options)
    one = train_graph(how, **{**options, "micro_batch": 1}) if train.micro_batch > 1 else None
    report = chain.check(chain.project(train, one=one), mode="host", steps=5)
    assert report.result == "pass" and report.max_error is not None and report.max_error < 1e-5


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["cortex-m4", "cortex-m55"])
def test_a_board_gives_the_bytes_of_the_host(board: str) -> None:
    made = chain.project(train_graph(), board)
    assert "QEMU bit-exact" in chain.check(made, board, steps=4).message


def subspaces(train: TrainGraph) -> set[str]:
    return {node.inputs[0].name for node in train.graph.nodes if node.op == "KeepSubspace"}


def test_subspaces_follow_and_are_saved(tmp_path: Path) -> None:
    """The check program saves, loads and compares; subspaces are part of that, and every one of them moves."""
    train = train_graph()
    made = chain.project(train)
    assert len(subspaces(train)) == 4 * 3 + 1
    assert subspaces(train) <= {slot.name for slot in made.bundle.interface.state}
    result = run_steps(made.bundle, load_target("host"), random_samples(train, 4, 0), 3, None, 1, tmp_path)
    assert result.status == "ok"
    assert all(result.states[0][name] != result.states[2][name] for name in subspaces(train))
    assert not subspaces(train_graph(fixed))


def test_a_loss_that_is_no_number_moves_no_subspace(tmp_path: Path) -> None:
    train = train_graph()
    samples = random_samples(train, 3, 0)
    x = samples.x.copy()
    x[0] = np.nan
    result = run_steps(chain.project(train).bundle, load_target("host"), Samples(x, samples.y), 3, None, 1, tmp_path)
    finite = np.isfinite(result.losses).ravel()
    assert not finite[0] and finite[2]
    initial = {name: train.graph.constants[name].tobytes() for name in subspaces(train)}
    assert {name: bytes(result.states[0][name]) for name in initial} == initial
    last = {name: np.frombuffer(result.states[2][name], np.float32) for name in initial}
    assert all(np.isfinite(u).all() for u in last.values())
    assert any(bytes(result.states[2][name]) != initial[name] for name in initial)


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
static int step(net_t *m, unsigned number, float *loss)
{
    const net_label_t label[1] = {1};
    for (size_t k = 0; k < NET_INPUT_ELEMENTS; ++k) {
        net_input(m)->values[k] = (float)((int)((unsigned)k * 37u + number * 11u) % 17 - 8) / 8.0f;
    }
    return net_train_step(m, label, loss) == NET_OK;
}
int main(void)
{
    net_t *m[2];
    float losses[2] = {0.0f, 1.0f};
    for (int i = 0; i < 2; ++i) {
        void *const mem[1] = {arenas[i]};
        const size_t size[1] = {NET_ARENA_BYTES};
        if (net_init_memories(&m[i], mem, size) != NET_OK) {
            return 1;
        }
    }
    for (unsigned number = 0; number < 2; ++number) {
        if (!step(m[0], number, &losses[0])) {
            return 2;
        }
    }
    if (net_save(m[0], put, NULL) != NET_OK) {
        return 3;
    }
    at = 0;
#ifndef NOT_LOADED
    if (net_load(m[1], get, NULL) != NET_OK) {
        return 4;
    }
#endif
    (void)get;
    for (unsigned number = 2; number < 5; ++number) {
        if (!step(m[0], number, &losses[0]) || !step(m[1], number, &losses[1])) {
            return 5;
        }
    }
    return losses[0] == losses[1] && memcmp(arenas[0], arenas[1], NET_ARENA_BYTES) == 0 ? 0 : 6;
}
"""


def test_a_checkpoint_goes_on_to_the_byte(tmp_path: Path) -> None:
    """Two steps, saved, three more: an instance that loads ends with the same bytes, one without it does not."""
    made = chain.project(train_graph())
    write_files(tmp_path, made.bundle.files)
    (tmp_path / "resumed.c").write_text(RESUMED)
    for flags, code in (((), 0), (("-DNOT_LOADED",), 6)):
        build(["gcc", "-std=c11", *NUMERIC, *flags, "resumed.c", *sources(made.bundle), "-o", "resumed"], tmp_path)
        assert subprocess.run([tmp_path / "resumed"], check=False).returncode == code


# ---- the command ----------------------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model, samples of few patterns, and a scheme."""
    write(kinds(), tmp_path, "kinds.onnx")
    few_patterns(tmp_path / "own.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def entry(**keys: object) -> str:
    return "[[update]]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items())


BATCH = ("--batch", "8", "--micro-batch", "8")


@pytest.mark.parametrize("kind", ["asi", "subspace"])
def test_ranks_keep_to_the_error_that_was_asked_for(place: Path, kind: str) -> None:
    flags = ("--update", "all", "--activations", kind, "--data", "own.npz", *BATCH, "--verify", "host")
    found: dict[str, list[dict[str, Any]]] = {}
    for bound in ("0.05", "0.3"):
        out = run("kinds.onnx", *flags, "--rank-error", bound, "-o", f"out{bound}").check_success().out
        report = json.loads((place / f"out{bound}" / "report.json").read_text())
        found[bound] = report["low_rank"]
        assert "low rank" in out and report["verify"]["result"] == "pass"
        for item in found[bound]:
            assert item["error"] <= float(bound)
            assert item["kept_bytes"] < item["exact_bytes"]
            listed = [trial["error"] for trial in item["trials"] if trial["ranks"] == item["ranks"]]
            assert listed == [item["error"]] and len(item["trials"]) > 1
            assert (item["state_bytes"] > 0, item["const_bytes"] > 0) == (kind == "asi", kind == "subspace")
    kept = {bound: {item["layer"]: item["kept_bytes"] for item in items} for bound, items in found.items()}
    assert len(kept["0.05"]) >= 2 and kept["0.05"].keys() <= kept["0.3"].keys()
    assert sum(kept["0.3"][name] for name in kept["0.05"]) < sum(kept["0.05"].values())


@pytest.mark.parametrize("kind", ["asi", "subspace"])
@pytest.mark.parametrize("quant", ["fp32", "int8"])
def test_a_shared_weight_learns_from_copies_and_goes_back_into_its_file(place: Path, quant: str, kind: str) -> None:
    """Layers that share it have the same ranks, and the error is that of their sum; each keeps a copy of its own input.
    A checkpoint of several samples in a call is exported by what the project remembers. A float head's input is
    float32 where it is kept exactly, and has a copy like any other."""
    write(shared(), place, "shared.onnx")
    options: dict[str, Any] = {"calib": Path("own.npz")} if quant == "int8" else {}
    options |= {"activations": kind, "rank_error": 0.8, "data": "own.npz", "batch": 16, "micro_batch": 8}
    compiled = tt.compile("shared.onnx", quant=quant, update="all", verify="host", **options)
    summary = compiled.project.summary
    assert summary.verify.result == "pass"
    items = {item.layer: item for item in summary.train.low_rank}
    assert items.keys() == {"first/Conv", "second/Conv", "fc/Gemm"}
    one, other = items["first/Conv"], items["second/Conv"]
    assert one.ranks == other.ranks and one.error == other.error and 0 < (one.error or 0) <= 0.8
    trial = next(each for each in one.trials if each.ranks == one.ranks)
    assert trial.size_bytes == sum(item.kept_bytes + item.state_bytes for item in (one, other))
    assert one.exact_bytes == other.exact_bytes == 8 * 400 * (1 if quant == "int8" else 4)
    assert items["fc/Gemm"].exact_bytes == 8 * 400 * 4
    assert all(item.kept_bytes + item.state_bytes < item.exact_bytes for item in items.values())
    assert all(0 < (item.error or 0) <= 0.8 for item in items.values())
    compiled.save("out")
    with compiled.twin() as twin, np.load("own.npz") as own:
        for start in (0, 8):
            twin.train_step(own["x"][start : start + 16], own["y"][start : start + 16], lr=0.05)
        x, wanted = own["x"][:4], twin.predict(own["x"][:4])
        twin.save("device.bin")
        learned = twin.state_dict()
    given = ("--calib", "own.npz") if quant == "int8" else ()
    run("export", "shared.onnx", "--checkpoint", "device.bin", *given).check_success()
    written = Path("trained.onnx").read_bytes()
    assert changed(Path("shared.onnx"), written) == learned.keys() == {"both_weight", "fc_weight", "fc_bias"}
    if quant == "fp32":
        np.testing.assert_allclose(outputs(written, x), wanted, rtol=0, atol=1e-5 * np.abs(wanted).max())
    found = arrays(onnx.load_from_string(written))
    assert all(np.array_equal(found[name], array) for name, array in learned.items())


def test_int8_counts_int8_bytes(place: Path) -> None:
    """What is kept is compared with a byte for each element, and four of a float32 head's; layers of all kinds."""
    flags = ("--quant", "int8", "--calib", "own.npz", "--update", "all", "--data", "own.npz", "--activations", "asi")
    run("kinds.onnx", *flags, "--rank-error", "0.6", *BATCH, "--verify", "host").check_success()
    report = json.loads((place / "out" / "report.json").read_text())
    items = report["low_rank"]
    assert len(items) > 1 and report["verify"]["result"] == "pass"
    for item in items:
        size_bytes = 4 if item["layer"].startswith("fc") else 1
        assert item["exact_bytes"] == size_bytes * np.prod(item["shape"]) > item["kept_bytes"] + item["state_bytes"]
        assert item["error"] <= 0.6


NARROW, DENSE, SHARED = "narrow/Conv", "fc/Gemm", "once/Conv"
SAMPLES = ("--head", "int8", "--batch", "8", "--micro-batch", "8")
INSIDE: dict[str, tuple[str, list[int], tuple[str, ...], str]] = {
    "sgd": (NARROW, [16, 1, 2], (), "ConvGradWeightQRoundedUpdate"),
    "fractions": (NARROW, [16, 1, 2], ("--weight-store", "q8.8"), "ConvGradWeightQRoundedUpdateFine"),
    "channels in a subspace": (NARROW, [2, 2, 2], (), "SubspaceGradWeightQRoundedUpdate"),
    "a batch": (NARROW, [16, 1, 2], ("--batch", "2"), "ConvGradWeightQRoundedSum"),
    "momentum": (NARROW, [16, 1, 2], ("--optimizer", "momentum"), "QRoundGradient"),
    "clipped": (NARROW, [16, 1, 2], ("--clip-norm", "1"), "QRoundGradient"),
    "scales": (NARROW, [16, 1, 2], ("--rescale", "on"), "ConvGradWeightQRoundedUpdate"),
    "dense": (DENSE, [320, 2], SAMPLES, "ConvGradWeightQRoundedSum"),
    "dense, features in a subspace": (DENSE, [5, 2], SAMPLES, "SubspaceGradWeightQRoundedSum"),
    "shared": (SHARED, [16, 1, 1], (), "QRoundGradient"),
    "shared, a batch": (SHARED, [16, 1, 1], ("--batch", "2"), "ConvGradWeightQRoundedSum"),
}


ON_BOARD = ("sgd", "fractions", "channels in a subspace", "a batch", "momentum")
_QEMU = (needs_qemu, pytest.mark.qemu)


@pytest.mark.parametrize("name", [pytest.param(name, marks=_QEMU if name in ON_BOARD else ()) for name in INSIDE])
def test_int8_gradients_in_subspaces(place: Path, name: str) -> None:
    """Whatever follows the gradient; QEMU or the host against the reference."""
    layer, ranks, flags, op = INSIDE[name]
    write(points(shares=layer == SHARED), place, "points.onnx")
    rng = np.random.default_rng(0)
    np.savez("points.npz", x=rng.standard_normal((32, 4, 8, 8)).astype(np.float32), y=rng.integers(0, 3, 32))
    (place / "own.toml").write_text(
        entry(layer="*/Conv", weight="all")
        + entry(layer="fc/Gemm", weight="all")
        + entry(layer=layer, weight="all", activation="asi", ranks=ranks)
    )
    mode = "qemu" if name in ON_BOARD else "host"
    quant = ("--quant", "int8", "--calib", "points.npz", "--data", "points.npz")
    run("points.onnx", *quant, "--update", "own.toml", *flags, "--verify", mode).check_success()
    report = json.loads((place / "out" / "report.json").read_text())
    assert report["verify"]["result"] == "pass"
    order = json.loads((place / "out" / "plan.json").read_text())["order"]
    weight = {NARROW: "narrow_weight", DENSE: "fc_weight", SHARED: "both_weight"}[layer]
    assert any(node["op"] == op and node["name"].startswith(weight) for node in order), order
    assert not [node for node in order if node["op"] == "QModeExpand"]


def test_a_scheme_says_it_layer_by_layer(place: Path) -> None:
    (place / "own.toml").write_text(
        entry(layer="*/Conv", weight="all")
        + entry(layer="point/Conv", weight="all", activation="asi", ranks=[3, 2])
        + entry(layer="depthwise/Conv", weight="all", activation="exact")
    )
    run("kinds.onnx", "--update", "own.toml", "--verify", "none").check_success()
    report = json.loads((place / "out" / "report.json").read_text())
    assert [(item["layer"], item["ranks"], item["error"]) for item in report["low_rank"]] == [
        ("point/Conv", [3, 2, 5, 1], None)
    ]
    assert 'activation = "asi"\nranks = [3, 2]' in report["scheme"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ("--activations asi --update all", "measures its ranks on samples"),
        ("--activations asi --data own.npz --arena 64KB", "is not weighed by --update auto"),
        ("--rank-error 0.2 --update all", "is about --activations"),
    ],
)
def test_what_cannot_be_honoured_is_refused(place: Path, flags: str, says: str) -> None:
    assert says in run("kinds.onnx", *flags.split(), "--dry-run").check_error("E0113", 2).err
    assert not (place / "out").exists()


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"weight": "all", "activation": "low"}, '`activation` is "exact", "asi" or "subspace"'),
        ({"weight": "all", "ranks": [2]}, "`ranks` are for activation"),
        ({"weight": "all", "activation": "asi", "ranks": [0]}, "`ranks` is a list of one to four numbers"),
        ({"weight": "all", "activation": "asi", "ranks": []}, "`ranks` is a list of one to four numbers"),
        ({"bias": True, "activation": "asi", "ranks": [2]}, "the entry trains none"),
        ({"weight": "all", "activation": "subspace", "ranks": [3, 2, 2, 1]}, "samples come in any order"),
        ({"weight": 2, "axis": "in", "activation": "asi", "ranks": [2]}, "needs whole inputs"),
        ({"weight": 2, "layer": "depthwise/Conv", "activation": "asi", "ranks": [2]}, "has no low-rank form"),
    ],
)
def test_a_scheme_that_makes_no_sense_is_refused(place: Path, keys: dict[str, Any], says: str) -> None:
    (place / "bad.toml").write_text(entry(**{"layer": "point/Conv", **keys}))
    assert says in run("kinds.onnx", "--update", "bad.toml", "--dry-run").check_error("E0302", 2).err
