"""Several plans in one image (--plans): the same state whichever computes it, and shared kernels and constants."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.networks import models
from testing.networks.chains import random_chain
from testing.places import ROOT
from testing.runs import run_steps
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import NUMERIC, STRICT, build, needs_gcc
from tests.quantize import nets
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.driver.code import generate as code
from tinytrain_compile.emit.watch import Watch
from tinytrain_compile.files.resources import read_text
from tinytrain_compile.parts.plans.sizes import AllPlans, told_apart
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import Mode, compile_project, flash_sizes, link_project, write_files
from tinytrain_compile.verify.run import run_image
from tinytrain_compile.verify.tools import find_tools

pytestmark = needs_gcc
UPDATES = 6
SWITCH = (ROOT / "testing" / "plans" / "switch.c").read_text(encoding="utf-8")
CASES: dict[str, dict[str, Any]] = {
    "float32, second runs": {"update": "all", "optimizer": "adam", "lr": 0.05},
    "float32, batch": {"update": "all", "batch": 2, "code": "size"},
    "int8, rows": {"update": "last:3", "quant": "int8", "optimizer": "momentum", "lr": 0.05, "slices": "on"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("plans")


@cache
def made(name: str, folder: Path, verify: str = "host") -> tuple[tt.Compiled, int]:
    """A project with two plans, and the arena of its model without a limit."""
    options, chain = dict(CASES[name]), "rows" in name
    path = write(random_chain(4) if chain else models.resnet8(4, 16), folder, f"{len(name)}.onnx")
    if chain:
        np.savez(folder / "calib.npz", x=nets.calibration(random_chain(4)))
        options["calib"] = folder / "calib.npz"
    whole = tt.compile(path, verify="none", stream="off", remat="off", report="json", **options)
    large, transient = (whole.report["memory"][key] for key in ("arena_bytes", "transient_bytes"))
    small = large * 7 // 8 if chain else large - transient // 8
    return tt.compile(path, plans=f"{small},{large}", verify=verify, name="m", **options), large


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if "batch" in name else ()) for name in CASES]
)
def test_plans_give_the_same_state(name: str, folder: Path) -> None:
    """After every update, and when training moves from one plan to the other and back."""
    compiled, large = made(name, folder)
    plans = compiled.report["plans"]
    assert [plan["arena_bytes"] for plan in plans] == sorted(plan["arena_bytes"] for plan in plans)
    assert plans[1]["arena_bytes"] <= large and compiled.report["memory"]["arena_bytes"] == plans[1]["arena_bytes"]
    means = [plan["second_runs"] + len(plan["streams"]) for plan in plans]
    assert means[0] > means[1]
    train = compiled.project.summary.train
    samples = in_slots(compiled.project.bundle.interface, random_samples(train, UPDATES * train.batch, 3))
    with compiled.twin(0) as small, compiled.twin() as largest, compiled.twin(0) as moved:
        assert small.instance.interface.arena_bytes < largest.instance.interface.arena_bytes
        for update in range(UPDATES):
            chosen = slice(update * train.batch, (update + 1) * train.batch)
            x, y = samples.x[chosen], samples.y[chosen]
            losses = [twin.instance.train(x, y).tobytes() for twin in (small, largest)]
            assert losses[0] == losses[1] and small.instance.save() == largest.instance.save()
            if update % 2 == 0:
                moved.instance.load(largest.instance.save())
            else:
                moved.instance.train(x, y)
                assert moved.instance.save() == largest.instance.save()
        assert small.instance.infer(samples.x).tobytes() == largest.instance.infer(samples.x).tobytes()


@needs_qemu
@pytest.mark.parametrize("mode", ["host", "qemu"])
@pytest.mark.parametrize("name", ["float32, second runs", "int8, rows"])
def test_switching_in_one_image(name: str, mode: Mode, folder: Path, tmp_path: Path) -> None:
    """testing/plans/switch.c, on this machine and on the board: a run that moved has the state of one that stayed."""
    compiled = made(name, folder)[0]
    project, target, tools = compiled.project, load_target("cortex-m7"), find_tools(load_target("cortex-m7"))
    samples = in_slots(project.bundle.interface, random_samples(project.summary.train, UPDATES, 3))
    vectors = b"".join(a[i : i + 1].tobytes() for i in range(UPDATES) for a in (samples.x, samples.y))
    bundle = replace(project.bundle, files={**project.bundle.files, "verify/switch.c": SWITCH})
    port = "verify/startup.c" if mode == "qemu" else "verify/host.c"
    built = link_project(
        compile_project(bundle, target, mode, tools, tmp_path, ("verify/switch.c", port)), target, tools
    )
    output = run_image(built, target, tools, vectors)
    half = len(output) // 2
    assert half > 0 and output[:half] == output[half:]
    with compiled.twin() as twin:
        assert output[:half] != twin.instance.save()
        for i in range(UPDATES):
            twin.instance.train(samples.x[i : i + 1], samples.y[i : i + 1])
        assert output[:half] == twin.instance.save()


def test_every_plan_is_cut_for_itself(folder: Path) -> None:
    """A number of cycles for each part of each plan; the header has the most of any plan."""
    files = made("int8, rows", folder)[0].files
    tables = list[list[int]]()
    for plan in range(2):
        text = str(files[f"m_plan_{plan}.c"])
        found = re.search(r"part_cycles\[(\d+)\] = \{(.*?)\};", text, re.DOTALL)
        assert found is not None
        tables.append([int(number) for number in re.findall(r"\d+", found[2])])
        assert len(tables[-1]) == int(found[1]) == text.count("    case ") > 10
    assert len(tables[0]) != len(tables[1])
    header = str(files["m_train.h"])
    assert f"M_STEP_CYCLES {max(map(sum, tables))}u" in header
    assert f"M_SLICE_LONGEST {max(map(max, tables))}u" in header


def test_what_is_shared_is_there_once(folder: Path) -> None:
    """Constants are those of one plan, and code is less than that of two projects by all kernels that both call."""
    compiled, _ = made("float32, second runs", folder)
    bundle, target, tools = compiled.project.bundle, load_target("cortex-m7"), find_tools(load_target("cortex-m7"))
    if tools.cross_cc is None:
        pytest.skip("no cross compiler")
    path = folder / f"{len('float32, second runs')}.onnx"
    largest = compiled.report["plans"][1]["arena_bytes"]
    options = CASES["float32, second runs"]
    alone = tt.compile(path, arena=largest, verify="none", report="json", name="m", **options)
    both, one = (flash_sizes(each, target, tools) for each in (bundle, alone.project.bundle))
    kernels = {name for name in one.functions if name in both.functions and both.functions[name] == one.functions[name]}
    assert len(kernels) > 30
    assert both.const_bytes < one.const_bytes * 1.05
    assert both.code_bytes < one.code_bytes * 1.5


def test_the_report_names_the_streams_of_each_plan(folder: Path) -> None:
    """In report.json and in a note; each as a build with that --arena alone has it."""
    compiled, _ = made("int8, rows", folder)
    path, options = folder / f"{len('int8, rows')}.onnx", dict(CASES["int8, rows"], calib=folder / "calib.npz")
    plans = compiled.report["plans"]
    alone = tt.compile(path, arena=plans[0]["arena_bytes"], verify="none", report="json", name="m", **options)
    streams = [stream["origin"] for stream in alone.report["plan"]["streams"]["streams"]]
    assert streams and plans[0]["streams"] == streams
    assert plans[1]["streams"] == []
    note = next(note for note in compiled.report["notes"] if "plans in one image" in note)
    small, large = (f"{plan['arena_bytes']:,} B" for plan in plans)
    assert f"{small} (row by row: {', '.join(streams)}), {large};" in note


def test_the_watch_sees_every_plan(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Debug builds: one image with the tables of all plans, and no report under any of them."""
    monkeypatch.setattr(
        code, "EmitOptions", partial(code.EmitOptions, debug_header=read_text("runtime_c", "tt_debug.h"))
    )
    compiled, _ = made.__wrapped__("int8, rows", folder, verify="none")
    bundle, train = compiled.project.bundle, compiled.project.summary.train
    samples = random_samples(train, 2, 0)
    for interface in (*bundle.smaller, bundle.interface):
        of_one = replace(bundle, interface=interface)
        done = run_steps(
            of_one, load_target("cortex-m7"), samples, 2, None, 1, tmp_path / interface.arena_macro, "debug"
        )
        assert done.status == "ok" and len(done.states) == 2


def test_scratch_follows_a_node_that_gets_another_name(folder: Path) -> None:
    """The tables of the watch, which finds scratch by a node's name, are those of the plan as it was."""
    summary = made("int8, rows", folder)[0].project.summary
    known = summary.fact(AllPlans)
    assert known is not None
    plan, _ = known.plans[0]
    others = tuple(replace(node, origin=f"another {node.origin}") for node in plan.order)
    ((_, renamed),) = told_apart(replace(plan, order=others), [(summary.train, plan)])
    assert all(node.name.endswith("@plan0") for node in renamed.order)
    assert any(buffer.kind == "scratch" for buffer in plan.buffers)
    assert Watch(renamed).tables() == Watch(plan).tables()


@pytest.mark.parametrize("standard", ["c11", "gnu11", "c17"])
def test_compiles_strictly(standard: str, folder: Path, tmp_path: Path) -> None:
    bundle = made("int8, rows", folder)[0].project.bundle
    write_files(tmp_path, bundle.files)
    strict = [f"-std={standard}" if flag.startswith("-std") else flag for flag in STRICT]
    files = sorted(name for name in bundle.files if name.endswith(".c") and "kernels" not in name)
    build(["gcc", *strict, *NUMERIC, "-O1", "-Wmissing-prototypes", "-c", *files], tmp_path)


@pytest.mark.parametrize(
    ("flags", "code", "says"),
    [
        ("--plans 64KB", "E0101", "is not two to eight different sizes"),
        ("--plans 64KB,64KB --update all", "E0101", "is not two to eight different sizes"),
        ("--plans 64KB,128KB", "E0113", "all plans train the same layers"),
        ("--plans 64KB,128KB --update all --arena 1MB", "E0113", "not possible with --arena"),
        ("--plans 64KB,128KB --update all --inference-only", "E0113", "not possible with --inference-only"),
        ("--plans 64KB,128KB --update all --batch 4 --micro-batch 3", "E0101", "does not divide --batch 4"),
        ("--plans 64KB,128KB --update all --runtime monitor,delta", "E0113", "not possible with --runtime delta"),
        ("--plans 64KB,128KB --update all", "E0113", "a larger plan is no other"),
    ],
)
def test_what_is_refused(flags: str, code: str, says: str, tmp_path: Path) -> None:
    path = write(models.mlp(), tmp_path)
    assert says in run(str(path), *flags.split(), "--dry-run").check_error(code, 2).err


def test_a_plan_that_does_not_fit(tmp_path: Path) -> None:
    path = write(models.mlp(), tmp_path)
    done = run(str(path), "--update", "all", "--plans", "512,64KB", "--dry-run").check_error("E0401", 3)
    assert "no more than 512 B" in done.err
