"""Priced ways out: following a line gives the bytes that it promises; --update auto finds the deepest that fits."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from testing.networks import models
from testing.networks.chains import random_chain, random_shares
from testing.places import ROOT, SHARED
from tests.e2e.broken import write
from tests.e2e.command import Outcome, run
from tests.e2e.marks import needs_shared
from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner, Price
from tinytrain_compile.driver.search import fit
from tinytrain_compile.driver.search.choose import deepest
from tinytrain_compile.driver.search.fit import Neighbours
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import UpdatePlan
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.plan.planner import arena_bound
from tinytrain_compile.plan.remat.stage import Rematerialiser
from tinytrain_compile.plan.streams.search import bound_with_streams, may_stream
from tinytrain_compile.quantize import prepare
from tinytrain_compile.sparse import layers_of, resolve_update
from tinytrain_compile.target.loader import load_target

LINE = re.compile(r"^    (--.*?) +-> +([\d,]+) B, (.*)$|^    (--.*?) +-> +([\d,]+) B  (.*)$", re.MULTILINE)
DIGITS = ROOT / "examples" / "digits"


def ways(text: str) -> list[tuple[str, int, str]]:
    """Options, bytes and note of every line below "what would fit"; a long note goes on in the next line."""
    block = re.sub(r"\n {8,}", " ", text[text.index("would fit") :])
    found = [[group for group in match if group] for match in LINE.findall(block)]
    return [(options, int(size.replace(",", "")), note) for options, size, note in found]


def needed(outcome: Outcome) -> int:
    """What the plan of a dry run needs, whether or not that fits."""
    if outcome.exit_code == 0:
        return int(re.search(r"^RAM +([\d,]+) B", outcome.out, re.MULTILINE)[1].replace(",", ""))  # type: ignore[index]
    assert outcome.error_id == "E0401", outcome.err
    return int(re.search(r"training needs (\d+) B", outcome.err)[1])  # type: ignore[index]


def follow_all(path: Path, *flags: str) -> dict[str, int]:
    """Follow every line of a block; returns line -> bytes."""
    failed = run(path, "--dry-run", *flags).check_error("E0401", 3)
    lines = ways(failed.err)
    assert lines, failed.err
    for options, size, note in lines:
        followed = run(path, "--dry-run", *flags, *options.split())
        assert needed(followed) == size, f"{options}: promised {size}; {followed.err or followed.out}"
        assert (followed.exit_code == 0) == ("still over" not in note), options
    return {options: size for options, size, _ in lines}


def wide_image() -> onnx.ModelProto:
    """A network whose largest map is its image."""
    net = models.Network("wide", "float[1,3,32,32] x", "float[1,4] y", seed=3)
    small = net.relu(net.conv("stem", "x", (8, 3, 3, 3), "pads = [1, 1, 1, 1], strides = [4, 4]"))
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({net.node('mean', f'mean = GlobalAveragePool ({small})')})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 8, 4)})")
    return net.model()


NETS: dict[str, tuple[onnx.ModelProto, tuple[str, ...]]] = {
    "ds_cnn, auto": (models.ds_cnn(channels=6, blocks=1, size=(11, 5)), ("--arena", "900", "--optimizer", "adam")),
    "ds_cnn, batch": (
        models.ds_cnn(channels=6, blocks=1, size=(11, 5)),
        ("--update", "all", "--arena", "5KB", "--batch", "4", "--optimizer", "momentum"),
    ),
    "mlp, no second runs": (
        models.mlp(inputs=12, hidden=20, classes=5),
        ("--update", "all", "--arena", "3000", "--remat", "off", "--optimizer", "adamw"),
    ),
    "ds_cnn, no rows": (
        models.ds_cnn(channels=8, blocks=1, size=(40, 10)),
        ("--update", "head", "--arena", "5000", "--stream", "off"),
    ),
    "a large image": (wide_image(), ("--update", "head", "--arena", "6KB")),
}


@pytest.mark.parametrize("name", NETS)
def test_following_a_line_gives_its_bytes(name: str, tmp_path: Path) -> None:
    model, flags = NETS[name]
    followed = follow_all(write(model, tmp_path), *flags)
    assert len(followed) >= 3
    rows = {"ds_cnn, no rows": "--stream auto", "a large image": "--input-lines"}
    assert [line for line in followed if line in rows.values()] == [*filter(None, [rows.get(name)])]


def test_following_a_line_gives_its_bytes_in_int8() -> None:
    calib = ("--quant", "int8", "--calib", str(DIGITS / "calib.npz"))
    followed = follow_all(DIGITS / "digits.onnx", *calib, "--update", "all", "--arena", "17KB", "--batch", "2")
    assert any("--weight-store" in line or "--update" in line for line in followed), followed


@needs_shared
def test_second_runs_are_offered_only_where_they_fit() -> None:
    """The int8 MCUNet with its 49 kB scheme: `--remat min` was said to need 203,008 B beside 172,560 B without."""
    path = SHARED / "models" / "mcunet-5fps-10c-qdq.onnx"
    scheme = str(SHARED / "schemes" / "mcunet-5fps-49kb.toml")
    options = CompileOptions(model=path, quant="int8", update=scheme, arena_bytes=131_072)
    model = replace_graph(load_model(path, FrontendOptions()))
    asked = Planner(model, options, load_target("cortex-m7"), Externals())
    candidate = asked.exact(scheme)
    assert candidate.plan.arena_bytes < 203_008
    beside = Neighbours(asked, candidate)
    assert all(way.arena_bytes <= options.arena_bytes for way in beside.ways(beside.recomputing()))


@pytest.mark.parametrize(("arena", "needed_for_good"), [("2200", True), ("3200", False)])
def test_no_smallest_arena_is_searched_where_second_runs_do_not_fit(
    arena: str, needed_for_good: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line that is shown only if it fits takes no search for how little is possible; none if weights do not fit."""
    path = write(models.ds_cnn(channels=6, blocks=1, size=(11, 5)), tmp_path)
    tries: list[Rematerialiser] = []
    made = Rematerialiser.__init__

    def noted(self: Rematerialiser, *arguments: Any) -> None:
        tries.append(self)
        made(self, *arguments)

    def smallest(_self: Rematerialiser) -> Any:
        raise AssertionError("nobody is told how small it could be")

    monkeypatch.setattr(Rematerialiser, "__init__", noted)
    monkeypatch.setattr(Rematerialiser, "minimal", smallest)
    flags = ("--update", "all", "--remat", "off", "--stream", "off", "--arena", arena, "--dry-run")
    failed = run(path, *flags).check_error("E0401", 3)
    assert "--remat" not in failed.err.partition("what would fit")[2]
    assert (not tries) == needed_for_good


def replace_graph(model: ImportedModel) -> ImportedModel:
    return replace(model, graph=prepare(model.graph, True))


def test_ways_out_of_a_step_that_is_too_long(tmp_path: Path) -> None:
    path = write(models.ds_cnn(channels=6, blocks=1, size=(11, 5)), tmp_path)
    flags = ("--dry-run", "--update", "all", "--max-step-time", "100us")
    failed = run(path, *flags).check_error("E0402", 3)
    lines = re.findall(r"^    (--.*?) +-> +([\d,]+) B, (.*)$", failed.err, re.MULTILINE)
    assert lines, failed.err
    for options, size, note in lines:
        followed = run(path, *flags, *options.split())
        if "still" not in note:
            assert needed(followed) == int(size.replace(",", "")), options


# ---- the deepest update ---------------------------------------------------------------------------------------------


@needs_shared
def test_a_deeper_update_may_need_less() -> None:
    """last:5 needs more than last:6 (377,120 and 361,008 B): bisection stopped at last:4."""
    path = SHARED / "models" / "mcunet-5fps-10c-qdq.onnx"
    flags = ("--quant", "int8", "--arena", "365000", "--remat", "off", "--stream", "off", "--dry-run")
    refused = run(path, *flags, "--update", "all").check_error("E0401", 3)
    assert "--update last:6 " in refused.err


def planner(model: onnx.ModelProto, folder: Path, **options: object) -> Planner:
    path = Path(write(model, folder))
    asked = CompileOptions(model=path, **options)  # type: ignore[arg-type]
    return Planner(load_model(path, FrontendOptions()), asked, load_target("cortex-m7"), Externals())


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_the_deepest_of_all_depths(share: float, tmp_path: Path) -> None:
    """Against full plans of every depth."""
    model = models.ds_cnn(channels=6, blocks=1, size=(11, 5))
    free = planner(model, tmp_path)
    count = len(layers_of(free.model.graph))
    limit = int(free.exact("all").plan.arena_bytes * share)
    limited = planner(model, tmp_path, arena_bytes=limit)
    needs = {depth: limited.exact(f"last:{depth}").plan.arena_bytes for depth in range(1, count + 1)}
    found = deepest(planner(model, tmp_path, arena_bytes=limit), count)
    fitting = [depth for depth, need in needs.items() if need <= limit]
    assert (found[0] if found else 0) == max(fitting, default=0)


@pytest.mark.parametrize(("without_help", "plans"), [(1000, 9), (1100, 5)])
def test_few_depths_get_full_plans(
    without_help: int, plans: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 200 layers each depth may fit by quick plans, or nearly so, and only the first does: at most twice the full
    plans that are made today (`plans`), each of which takes as long as a compilation."""
    asked = planner(models.mlp(inputs=12, hidden=20, classes=5), tmp_path, arena_bytes=1000)
    fitting, full = asked.exact("last:1"), list[str]()
    large = replace(fitting, plan=replace(fitting.plan, arena_bytes=2000))

    def exact(_self: Planner, spec: str) -> Candidate:
        full.append(spec)
        return replace(fitting, plan=replace(fitting.plan, arena_bytes=1000)) if spec == "last:1" else large

    monkeypatch.setattr(Planner, "price", lambda _, spec: Price(1000 if spec == "last:1" else 2000, 0))
    monkeypatch.setattr(Planner, "unhelped_price", lambda _, spec: Price(1000 if spec == "last:1" else without_help, 0))
    monkeypatch.setattr(Planner, "fitting", lambda _, spec: full.append(spec))
    monkeypatch.setattr(Planner, "exact", exact)
    found = deepest(asked, 200)
    assert found is not None and found[0] == 1
    assert 1 < len(full) <= 2 * plans


@pytest.mark.parametrize("name", ["ds_cnn", "mlp"])
def test_no_plan_is_below_its_bound(name: str, tmp_path: Path) -> None:
    small = {
        "ds_cnn": models.ds_cnn(channels=6, blocks=1, size=(11, 5)),
        "mlp": models.mlp(inputs=12, hidden=20, classes=5),
    }
    for remat in ("off", "min"):
        asked = planner(small[name], tmp_path, remat=remat, stream="off")
        for spec in ("last:1", "last:3", "all"):
            train = asked.train(resolve_update(asked.model.graph, spec))
            bound = arena_bound(train.graph, asked.settings(train, True), remat == "off")
            assert 0 < bound <= asked.exact(spec).plan.arena_bytes


@pytest.mark.parametrize("name", ["ds_cnn", "inverted"])
def test_no_plan_is_below_its_bound_with_streams(name: str, tmp_path: Path) -> None:
    """Whatever is computed row by row or twice: what can be neither says how little can do."""
    made = models.ds_cnn(channels=8, blocks=2, size=(25, 5)) if name == "ds_cnn" else models.inverted(12, 4, 2)
    for remat in ("off", "min"):
        asked, shares = planner(made, tmp_path, remat=remat, stream="min"), list[float]()
        for spec in ("last:1", "last:3", "all", "bias"):
            train = asked.train(resolve_update(asked.model.graph, spec))
            assert may_stream(train.graph)
            bound = bound_with_streams(train.graph, asked.settings(train, True))
            shares.append(bound / asked.exact(spec).plan.arena_bytes)
        assert max(shares) <= 1 and max(shares) > 0.5


@pytest.mark.parametrize("seed", [22, 30])
def test_what_the_smallest_streams_fit_is_not_refused(seed: int, tmp_path: Path) -> None:
    """Parts of layers: what lives beside layers may be too large where none of them is by itself."""
    model, scheme = random_chain(seed), tmp_path / "shares.toml"
    scheme.write_text(random_shares(model, seed))
    least, whole = (
        planner(model, tmp_path, stream=stream, remat="off").exact(str(scheme)).plan.arena_bytes
        for stream in ("min", "off")
    )
    for part in (0.0, 0.5, 0.9):
        room = int(least + (whole - least) * part) // 8 * 8
        found = planner(model, tmp_path, arena_bytes=room, remat="off").exact(str(scheme))
        assert found.plan.arena_bytes <= room


def test_nothing_is_planned_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The line `--update last:N` is the plan that the search has made; an auto that does not fit is tried once."""
    made: list[tuple[str, str]] = []
    real = Planner.planned

    def planned(self: Planner, update: UpdatePlan, *more: Any, **named: Any) -> Candidate:
        if not (named.get("quick") or True in more):  # prices are of quick plans
            made.append((repr(replace(self.options, update="")), update.label))
        return real(self, update, *more, **named)

    monkeypatch.setattr(Planner, "planned", planned)
    path = write(models.mlp(inputs=12, hidden=20, classes=5), tmp_path)
    for flags in ("--update all --arena 3000 --remat off --optimizer adam", "--arena 200"):
        made.clear()
        failed = run(path, "--dry-run", *flags.split()).check_error("E0401", 3)
        assert len(made) > 2
        assert sorted(set(made)) == sorted(made), failed.err
    monkeypatch.undo()
    asked = planner(models.mlp(inputs=12, hidden=20, classes=5), tmp_path)
    assert asked.with_options(update="last:1").exact("head") is asked.exact("head")
    assert asked.with_options(seed=1).exact("head") is not asked.exact("head")


def test_the_block_and_the_report_agree(tmp_path: Path) -> None:
    """plan.json of a followed line says the same."""
    path, flags = write(NETS["ds_cnn, batch"][0], tmp_path), NETS["ds_cnn, batch"][1]
    options, size, _ = ways(run(path, "--dry-run", *flags).check_error("E0401", 3).err)[0]
    run(path, *flags, *options.split(), "--verify", "none", "-o", tmp_path / "out").check_success()
    assert json.loads((tmp_path / "out" / "plan.json").read_text())["arena_bytes"] == size


SMALLEST = {"--optimise memory": ("--optimise", "memory"), "--remat min": ("--remat", "min")}


@pytest.mark.parametrize("flags", SMALLEST.values(), ids=SMALLEST.keys())
def test_a_message_searches_few_smallest_arenas(
    flags: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each is most of the work of a compilation: the plan that does not fit, and one more; six if nobody counts."""
    searched: list[Rematerialiser] = []
    real = Rematerialiser.minimal

    def minimal(self: Rematerialiser) -> Any:
        searched.append(self)
        return real(self)

    monkeypatch.setattr(Rematerialiser, "minimal", minimal)
    model = models.ds_cnn(channels=6, blocks=1, size=(11, 5))
    asked = (*flags, "--update", "all", "--optimizer", "adam", "--batch", "2", "--arena", "2600")
    path = write(model, tmp_path)
    failed = run(path, "--dry-run", *asked).check_error("E0401", 3)
    assert len(searched) <= 3, failed.err
    assert any("--update last" in line for line, *_ in ways(failed.err)), failed.err
    monkeypatch.undo()
    assert len(follow_all(path, *asked)) >= 2


@pytest.mark.parametrize("flags", SMALLEST.values(), ids=SMALLEST.keys())
def test_the_smallest_arena_does_not_depend_on_what_is_there(flags: tuple[str, ...], tmp_path: Path) -> None:
    path = write(models.ds_cnn(channels=6, blocks=1, size=(11, 5)), tmp_path)
    sizes = {needed(run(path, "--dry-run", "--update", "all", *flags, "--arena", size)) for size in ("1KB", "9KB")}
    assert len(sizes) == 1


def test_a_step_that_is_too_long_with_no_way_out_is_an_error_like_any(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All lines may be refused by other options (--micro-batch with --optimise memory): there was an E0901."""
    monkeypatch.setattr(fit, "faster", lambda *_: ())
    path = write(models.mlp(inputs=12, hidden=20, classes=5), tmp_path)
    failed = run(path, "--dry-run", "--update", "all", "--max-step-time", "1us").check_error("E0402", 3)
    assert "allow a longer step" in failed.err
