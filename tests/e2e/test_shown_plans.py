"""What is shown of a plan: phases of int8 nodes, the picture of several memories, and the list of steps (-v)."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from testing.networks import models
from testing.places import ROOT
from tests.e2e.broken import write
from tests.e2e.command import run
from tinytrain_compile.report.layout import WIDTH, shorten

DIGITS = ROOT / "examples" / "digits"


@pytest.fixture(scope="module")
def integers(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    out = tmp_path_factory.mktemp("int8") / "out"
    calib = ("--quant", "int8", "--calib", DIGITS / "calib.npz", "--optimizer", "momentum", "--batch", "2")
    done = run(DIGITS / "digits.onnx", *calib, "--update", "all", "--head", "int8", "--verify", "none", "-v", "-o", out)
    return done.check_success().out, out


def test_integer_errors_are_backward_and_updates_are_updates(integers: tuple[str, Path]) -> None:
    order = json.loads((integers[1] / "plan.json").read_text())["order"]
    roles = {(step["op"], step["role"]) for step in order}
    backward = {op for op, role in roles if role == "backward"}
    updates = {op for op, role in roles if role == "update"}
    assert {"QConvGradInput", "QSoftmaxError"} <= backward
    assert {"ExponentUpdate", "QBiasSum", "QMomentum"} <= updates
    assert not any("Error" in op or "GradInput" in op for op in updates), updates
    assert backward.isdisjoint(updates)


def test_every_step_is_listed(integers: tuple[str, Path]) -> None:
    text, out = integers
    plan = json.loads((out / "plan.json").read_text())
    table = text[text.index("\nstep  ") :].partition("\n\nnext ")[0].strip("\n")
    assert max(len(line) for line in table.splitlines()) <= WIDTH
    table = re.sub(r"\n {7,}(?=[^ ])", " ", re.sub(r"\n +frees ", "  frees ", table))  # a step, whole
    listed = [re.split(r"\s{2,}", line.strip()) for line in table.splitlines()[1:]]
    ending = [(b["name"], b["last_step"]) for b in plan["buffers"] if b["kind"] in ("tensor", "input")]
    for number, (cells, step, load) in enumerate(zip(listed, plan["order"], plan["load_bytes"], strict=True)):
        name = cells[1]
        assert cells[:5] == [str(number), shorten(step["name"], len(name)), step["op"], step["role"], f"{load:,}"]
        assert name == step["name"] or len(name) >= 16, "too short to tell layers apart"
        items = [item for item in ("".join(cells[5:]).removeprefix("frees ")).split(", ") if item]
        known = [name for name, step in ending if step == number]
        assert items == [shorten(name, len(item)) for name, item in zip(known, items, strict=True)]
        assert all(len(item) >= min(len(name), 16) for name, item in zip(known, items, strict=True))


def test_a_picture_of_several_memories_does_not_contradict_itself(tmp_path: Path) -> None:
    path = write(models.resnet8(channels=4, size=12), tmp_path)
    flags = ("--update", "all", "--arena", "9KB", "--memory", "sram2=64KB", "--remat", "off", "--verify", "none")
    run(path, *flags, "-o", tmp_path / "out").check_success()
    page = (tmp_path / "out" / "report.html").read_text()
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    top = dict.fromkeys(("arena", "sram2"), 0)
    for buffer in plan["buffers"]:
        top[buffer["memory"]] = max(top[buffer["memory"]], buffer["offset"] + buffer["size_bytes"])
    assert top["arena"] == plan["arena_bytes"] <= 9216 < sum(top.values())
    captions = re.findall(r'class="caption t-(\w+)"[^>]*>([^<]*)<', page)
    lines = [text for kind, text in captions if kind in ("arena", "limit", "bound")]
    assert lines == [f"arena used {top['arena']:,} B of 9,216 B", f"sram2 used {top['sram2']:,} B of 65,536 B"]
    # The bound and the bar are of all memories, and say so; the bar holds what it shows.
    assert f"Lower bound of all memories {plan['lower_bound_bytes']:,} B" in page
    whole = int(re.search(r'class="bar" viewBox="0 0 (\d+) 1"', page)[1])  # type: ignore[index]
    bar = page[page.index('class="bar"') : page.index("</svg>", page.index('class="bar"'))]
    assert sum(int(width) for width in re.findall(r'width="(\d+)" height="1"', bar)) <= whole
    # Each memory's axis begins at 0.
    ticks = re.findall(r'<text x="58" y="[\d.]+%" dy="-?\d+">([^<]*)<', page)
    assert ticks.count("0 B") == 2
