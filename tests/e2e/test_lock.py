"""--lock: the same plan again, and one line about a lock that is damaged, foreign, or made for something else."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks import models
from testing.networks.chains import random_chain
from tests.e2e.broken import write
from tests.e2e.command import run, tree

FAST = ("--verify", "none")
REPORTS = ("report.json", "report.html", "plan.json", "manifest.json")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, a first output, and its plan as plan.lock."""
    folder = tmp_path_factory.mktemp("lock")
    write(models.mlp(), folder)
    run(folder / "net.onnx", "-o", folder / "out", "--arena", "2KB", *FAST).check_success()
    (folder / "plan.lock").write_bytes((folder / "out" / "plan.json").read_bytes())
    return folder


def plan_of(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "plan.json").read_text(encoding="utf-8"))


def test_a_lock_gives_the_same_code(place: Path, tmp_path: Path) -> None:
    """What --update auto chose is in the lock too; another seed would otherwise be free to give another plan."""
    arguments = (place / "net.onnx", "--arena", "2KB", "--lock", place / "plan.lock", *FAST)
    for seed in ("0", "77"):
        run(*arguments, "--seed", seed, "-o", tmp_path / seed).check_success()
    old, new, other = (tree(folder) for folder in (place / "out", tmp_path / "0", tmp_path / "77"))
    assert old.keys() == new.keys()
    assert [path for path in old if old[path] != new[path] and path not in REPORTS] == []
    assert new == {**other, **{path: new[path] for path in ("verify/vectors.bin", "manifest.json", "report.json")}}
    first, again = plan_of(place / "out"), plan_of(tmp_path / "0")
    assert {**again, "order_proven": first["order_proven"]} == first


def test_a_lock_gives_the_same_code_for_a_scheme_that_lists_biases_first(place: Path, tmp_path: Path) -> None:
    """Sums of a batch are cleared in the order in which they lie, not in that in which their layers were listed."""
    batch = ("--batch", "2", *FAST)
    run(place / "net.onnx", "--update", "all", *batch, "-o", tmp_path / "first").check_success()
    (tmp_path / "all.toml").write_text('[[update]]\nlayer = "*"\nbias = true\nweight = "all"\n')
    asked = ("--update", tmp_path / "all.toml", "--lock", tmp_path / "first" / "plan.json")
    run(place / "net.onnx", *asked, *batch, "-o", tmp_path / "again").check_success()
    old, new = tree(tmp_path / "first"), tree(tmp_path / "again")
    assert old["net_train.c"] == new["net_train.c"]
    assert (tmp_path / "first" / "net_train.c").read_text().count("memset") > 1


def test_a_lock_keeps_what_is_computed_twice(tmp_path: Path) -> None:
    """The graph with its second runs is built again from the lock, and judged anew."""
    model = write(models.resnet8(), tmp_path)
    first, again = tmp_path / "first", tmp_path / "again"
    run(model, "--update", "all", "--remat", "min", "-o", first, *FAST).check_success()
    run(model, "--lock", first / "plan.json", "-o", again, *FAST).check_success()
    old, new = tree(first), tree(again)
    assert [path for path in old if old[path] != new[path] and path not in REPORTS] == []
    plan = plan_of(first)
    assert len(plan["second_runs"]) > 2 and plan_of(again)["second_runs"] == plan["second_runs"]
    for damage in (
        lambda p: p["second_runs"].pop(),
        lambda p: p["graph"].reverse(),
        lambda p: p["second_runs"][0].update(of=p["second_runs"][1]["of"]),
    ):
        wrong = json.loads(json.dumps(plan))
        damage(wrong)
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        run(model, "--lock", tmp_path / "wrong.json", "-o", tmp_path / "no", *FAST).check_error("E0106", 2)


def test_a_lock_keeps_what_is_not_copied(tmp_path: Path) -> None:
    """Parts of a buffer are built again from the lock; where each lies is judged anew."""
    model = write(models.tower(), tmp_path)
    first, again = tmp_path / "first", tmp_path / "again"
    run(model, "--update", "last:2", "-o", first, *FAST).check_success()
    run(model, "--lock", first / "plan.json", "--update", "last:2", "-o", again, *FAST).check_success()
    old, new = tree(first), tree(again)
    assert [path for path in old if old[path] != new[path] and path not in REPORTS] == []
    plan = plan_of(first)
    assert [node["name"] for node in plan["order"] if node["op"] == "ConcatView"] == ["join"]
    (parent,) = (buffer for buffer in plan["buffers"] if "within" in buffer)
    assert plan_of(again)["buffers"] == plan["buffers"]
    branch = next(name for name, start in parent["within"].items() if start > 0)
    for damage in (
        lambda p: p["buffers"][plan["buffers"].index(parent)].pop("within"),
        lambda p: p["buffers"][plan["buffers"].index(parent)]["within"].update({branch: 8}),
        lambda p: next(node for node in p["order"] if node["op"] == "Clip").update(op="ConcatView"),
    ):
        wrong = json.loads(json.dumps(plan))
        damage(wrong)
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        run(model, "--lock", tmp_path / "wrong.json", "--update", "last:2", "-o", tmp_path / "no", *FAST).check_error(
            "E0106", 2
        )


@pytest.mark.parametrize(("remat", "arena"), [("off", "9KB"), ("min", "8KB")])
def test_a_lock_keeps_what_lies_in_other_memories(remat: str, arena: str, tmp_path: Path) -> None:
    """Page moves and places are built again from the lock, and judged anew."""
    model = write(models.tower() if remat == "min" else models.resnet8(4, size=8), tmp_path)
    first, again, memory = tmp_path / "first", tmp_path / "again", ("--memory", "sram2=256KB")
    run(model, "--update", "all", "--arena", arena, *memory, "--remat", remat, "-o", first, *FAST).check_success()
    run(model, "--lock", first / "plan.json", *memory, "-o", again, *FAST).check_success()
    old, new = tree(first), tree(again)
    assert [path for path in old if old[path] != new[path] and path not in REPORTS] == []
    plan = plan_of(first)
    moves = plan["page_moves"]
    assert {move["op"] for move in moves} == {"PageOut", "PageIn"}
    assert ("second_runs" in plan) == (remat == "min")
    same = ("buffers", "memories", "page_moves", "arena_bytes", "lower_bound_bytes", "gap_bytes", "load_bytes")
    assert [plan_of(again)[key] for key in same] == [plan[key] for key in same]
    costs = [json.loads((folder / "report.json").read_text())["plan"]["model"] for folder in (first, again)]
    assert {**costs[0], "limit_us": None} == {**costs[1], "limit_us": None}
    outs = [i for i, node in enumerate(plan["order"]) if node["op"] == "PageOut"]
    for damage in (
        lambda p: p["page_moves"].pop(),
        lambda p: p["page_moves"][0].update(of=next(m["of"] for m in moves if m["of"] != moves[0]["of"])),
        lambda p: p["page_moves"][0].update(of="learning_rate"),
        lambda p: p["page_moves"][0].update(memory="arena"),
        lambda p: p["page_moves"][0].update(op="Reshape"),
        lambda p: p["memories"].clear(),
        lambda p: p["order"].insert(0, p["order"].pop(outs[0])),
        lambda p: next(b for b in p["buffers"] if b["memory"] == "sram2").update(memory="arena"),
    ):
        wrong = json.loads(json.dumps(plan))
        damage(wrong)
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        run(model, "--lock", tmp_path / "wrong.json", *memory, "-o", tmp_path / "no", *FAST).check_error("E0106", 2)
    for flags, reason in (((), "add --memory sram2=SIZE"), (("--memory", "sram2=1KB"), "of 1024 B")):
        refused = run(model, "--lock", first / "plan.json", *flags, "-o", tmp_path / "no", *FAST)
        assert reason in refused.check_error("E0106", 2).err


def test_a_lock_may_be_the_plan_that_is_replaced(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(place / "net.onnx", "-o", out, "--update", "head", *FAST).check_success()
    before = plan_of(out)
    run(place / "net.onnx", "-o", out, "--update", "head", "--lock", out / "plan.json", *FAST).check_success()
    assert plan_of(out)["buffers"] == before["buffers"]
    (out / "my.lock").write_bytes((out / "plan.json").read_bytes())
    run(place / "net.onnx", "-o", out, "--lock", out / "my.lock", *FAST).check_success()
    assert plan_of(out)["buffers"] == before["buffers"]
    assert (out / "my.lock").is_file(), "what the user put there stays"


def test_a_locked_plan_that_does_not_fit_is_said_to_be_so(place: Path, tmp_path: Path) -> None:
    lock = place / "plan.lock"
    outcome = run(place / "net.onnx", "-o", tmp_path / "out", "--arena", "1000", "--lock", lock, *FAST)
    outcome.check_error("E0401", 3)


def other_buffer(plan: dict[str, Any], **changes: int) -> None:
    tensors = [entry for entry in plan["buffers"] if entry["kind"] == "tensor"]
    max(tensors, key=lambda entry: entry["size_bytes"]).update(changes)


def swapped(plan: dict[str, Any]) -> None:
    plan["order"][0], plan["order"][-1] = plan["order"][-1], plan["order"][0]


DAMAGED: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "a tensor over the state": ("overlap", lambda p: other_buffer(p, offset=16)),
    "nothing runs": ("only the model has a node", lambda p: p["order"].clear()),
    "another order": ("order not topological", swapped),
    "a buffer is gone": ("missing value", lambda p: p["buffers"].pop()),
    "a life beyond the end": ("lives outside", lambda p: other_buffer(p, last_step=10**6)),
    "an offset below 0": ("is not a plan", lambda p: other_buffer(p, offset=-8)),
    "an offset that is text": ("is not a plan", lambda p: p["buffers"][0].update(offset="0")),
    "no buffers at all": ("is not a plan", lambda p: p.pop("buffers")),
    "a kind that is none": ("is not a plan", lambda p: p["buffers"][0].update(kind="heap")),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_a_damaged_lock_is_one_line(place: Path, tmp_path: Path, damage: str) -> None:
    reason, change = DAMAGED[damage]
    plan = plan_of(place / "out")
    change(plan)
    lock = tmp_path / "plan.lock"
    lock.write_text(json.dumps(plan), encoding="utf-8")
    outcome = run(place / "net.onnx", "-o", tmp_path / "out", "--lock", lock, *FAST).check_error("E0106", 2)
    assert reason in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("content", [b"", b"{}", b"[1]", b"\xff\xfe", b"[" * 100_000, b'{"order": [], "buffers": 3}'])
def test_what_is_no_lock_is_one_line(place: Path, tmp_path: Path, content: bytes) -> None:
    (tmp_path / "plan.lock").write_bytes(content)
    arguments = (place / "net.onnx", "-o", tmp_path / "out", "--lock", tmp_path / "plan.lock", *FAST)
    assert "is not a plan" in run(*arguments).check_error("E0106", 2).err


def test_a_lock_of_something_else_says_so(place: Path, tmp_path: Path) -> None:
    lock = ("--lock", place / "plan.lock", *FAST)
    for options in (("--update", "head"), ("--optimizer", "adam"), ("--batch", "2")):
        outcome = run(place / "net.onnx", "-o", tmp_path / "out", *options, *lock).check_error("E0106", 2)
        assert "compile without --lock" in outcome.err
    missing = run(place / "net.onnx", "-o", tmp_path / "out", "--lock", tmp_path / "nothing", *FAST)
    assert "cannot be read" in missing.check_error("E0106", 2).err


def test_a_lock_keeps_second_runs_row_by_row(tmp_path: Path) -> None:
    """Errors as a stream, beside a second run of what they need."""
    model = random_chain(11)
    net = write(model, tmp_path)
    shape = [8, *(axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim[1:])]
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(7).normal(size=shape).astype(np.float32))
    asked = ("--quant", "int8", "--calib", tmp_path / "own.npz", "--update", "all", *FAST)
    first, again = tmp_path / "first", tmp_path / "again"
    run(net, *asked, "--remat", "min", "-o", first).check_success()
    run(net, *asked, "--lock", first / "plan.json", "-o", again).check_success()
    old, new = tree(first), tree(again)
    assert [path for path in old if old[path] != new[path] and path not in REPORTS] == []
    plan = plan_of(first)
    assert plan["streams"] and plan["second_runs"]
    assert plan_of(again)["buffers"] == plan["buffers"]
    for damage in (
        lambda p: p["second_runs"].pop(),
        lambda p: p["streams"].pop(),
        lambda p: p["streams"][0]["nodes"].pop(),
        lambda p: p["second_runs"][0].update(of=p["streams"][0]["name"]),
    ):
        wrong = json.loads(json.dumps(plan))
        damage(wrong)
        (tmp_path / "wrong.json").write_text(json.dumps(wrong))
        run(net, *asked, "--lock", tmp_path / "wrong.json", "-o", tmp_path / "no").check_error("E0106", 2)
