"""--optimise, --max-step-time and what is tried on the command line: promises, reports, and errors with ways out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu

ARENA = 18 << 10
MEMORIES = ("--update", "all", "--arena", str(ARENA), "--memory", "sram2=256KB")
ONCE = ("--remat", "off")
"""Nothing is computed twice: the search for that takes most of the time."""


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write(models.resnet8(channels=4, size=16), tmp_path_factory.mktemp("objectives")))


@pytest.fixture(scope="module")
def reports(resnet: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """report.json of the same compilation under every objective; "fit" is without --optimise, and may use remat."""
    found: dict[str, dict[str, Any]] = {}
    for objective in ("fit", "memory", "time", "energy"):
        out = tmp_path_factory.mktemp(objective) / "out"
        flags = () if objective == "fit" else (*ONCE, "--optimise", objective)
        run(resnet, *MEMORIES, *flags, "--verify", "none", "-o", out).check_success()
        found[objective] = json.loads((out / "report.json").read_text())
    return found


def test_every_objective_is_best_at_its_own(reports: dict[str, dict[str, Any]]) -> None:
    assert {name: report["plan"]["objective"] for name, report in reports.items()} == {name: name for name in reports}
    arena = {name: report["memory"]["arena_bytes"] for name, report in reports.items()}
    time = {name: report["plan"]["model"]["step_us"] for name, report in reports.items()}
    energy = {name: report["plan"]["model"]["step_uj"] for name, report in reports.items()}
    assert arena["memory"] < min(arena["time"], arena["energy"]) <= ARENA
    assert time["time"] < time["energy"] < time["memory"]
    assert energy["energy"] < energy["time"] < energy["memory"]
    assert time["time"] <= time["fit"]
    assert reports["time"]["plan"]["paging"] is not None


def test_the_report_says_where_the_time_goes(reports: dict[str, dict[str, Any]]) -> None:
    """0.6 M float MACs at 2 cycles and 216 MHz are 6 ms; memories and page moves as in their own entries."""
    report = reports["time"]
    model = report["plan"]["model"]
    assert model["step_us"] == pytest.approx(model["compute_us"] + model["access_us"] + model["paging_us"])
    assert model["paging_us"] == pytest.approx(report["plan"]["paging"]["extra_us"])
    assert model["access_us"] == pytest.approx(sum(region["extra_us"] for region in report["memory"]["regions"][1:]))
    macs = report["work"]["forward_macs"] + report["work"]["backward_macs"]
    assert macs * 2 / 216 < model["compute_us"] < 2 * macs * 2 / 216
    assert model["limit_us"] is None


def test_every_attempt_is_priced(reports: dict[str, dict[str, Any]]) -> None:
    attempts = reports["fit"]["plan"]["ladder"]
    assert [attempt["how"] for attempt in attempts] == ["as asked", "recompute, up to 25% more MACs", "page to sram2"]
    sizes = [attempt["arena_bytes"] for attempt in attempts]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[-1] == reports["fit"]["memory"]["arena_bytes"] <= ARENA < sizes[-2]


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("objective", ["memory", "energy"])
def test_the_plan_of_an_objective_trains(resnet: Path, objective: str, tmp_path: Path) -> None:
    done = run(resnet, *MEMORIES, *ONCE, "--optimise", objective, "-o", tmp_path / "out").check_success()
    verified = json.loads((tmp_path / "out" / "report.json").read_text())["verify"]
    assert (verified["mode"], verified["result"]) == ("qemu", "pass")
    assert "\ntime " in done.out and "by the target's figures, not measured" in done.out


def test_smallest_arena_needs_no_limit(resnet: Path) -> None:
    flags = ("--update", "all", *ONCE, "--memory", "sram2=16KB", "--dry-run")
    done = run(resnet, *flags, "--optimise", "memory").check_success()
    used = int(next(line for line in done.out.splitlines() if line.startswith("RAM ")).split()[1].replace(",", ""))
    assert 25_000 < used < 40_000, "49,736 B without help; 16 KB of them can go"
    run(resnet, *flags).check_error("E0113", 2)


# ---- --max-step-time ------------------------------------------------------------------------------------------------


def test_too_slow_a_step_is_an_error_with_ways_out(resnet: Path, tmp_path: Path) -> None:
    flags = (*MEMORIES, *ONCE, "--verify", "none", "-o", tmp_path / "out")
    failed = run(resnet, *flags, "--max-step-time", "9ms").check_error("E0402", 3)
    assert "smallest modelled step time found: 10.19 ms" in failed.err
    assert "a model from the target file, not a measurement" in failed.err
    assert not (tmp_path / "out").exists()
    ways = [line.split("->")[0].split() for line in failed.err.split("priced by planning it:")[1].splitlines()[1:]]
    assert [way[0] for way in ways] == ["--update", "--arena", "--max-step-time"]
    for way in ways:
        run(resnet, *flags, "--max-step-time", "9ms", *way).check_success()


def test_paging_counts_towards_the_longest_step(resnet: Path) -> None:
    """Computing alone takes 8.7 ms: 9.5 ms are enough in one memory, and too little with page moves."""
    run(resnet, "--update", "all", *ONCE, "--max-step-time", "9500us", "--dry-run").check_success()
    run(resnet, *MEMORIES, *ONCE, "--max-step-time", "9500us", "--dry-run").check_error("E0402", 3)


def test_auto_updates_less_to_be_in_time(resnet: Path, tmp_path: Path) -> None:
    flags = ("--verify", "none", "--max-step-time", "6ms", "-o", tmp_path / "out")
    done = run(resnet, *flags).check_success()
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    plan, update = report["plan"], report["update_totals"]
    assert plan["model"]["step_us"] <= plan["model"]["limit_us"] == 6_000
    assert plan["ladder"][-1]["how"] == "--update update.toml" and update["label"] == "auto: update.toml"
    assert 0 < update["parameters"] < update["total_parameters"]
    assert "\ntried " in done.out


@pytest.mark.parametrize("text", ["0ms", "5", "ms", "-1s", "1 hour", "1e3ms"])
def test_what_is_no_time_is_said_to_be_so(resnet: Path, text: str) -> None:
    run(resnet, "--max-step-time", text, "--dry-run").check_error("E0101", 2)


# ---- what does not fit ----------------------------------------------------------------------------------------------


def test_what_does_not_fit_lists_every_attempt(tmp_path: Path) -> None:
    flags = ("--update", "all", "--arena", "8KB", "--memory", "sram2=4KB", "--dry-run")
    failed = run(write(models.resnet8(channels=4, size=8), tmp_path), *flags).check_error("E0401", 3)
    table = failed.err.split("tried, in this order:\n")[1].splitlines()
    assert [line.split("->")[0].strip() for line in table[:3]] == [
        "as asked",
        "recompute, up to 25% more MACs",
        "page to sram2",
    ]
    assert all(line.endswith("too large") and " B " in line for line in table[:3])


def test_given_flags_are_kept_whatever_is_tried(resnet: Path) -> None:
    flags = ("--update", "all", "--arena", "20KB", "--dry-run")
    failed = run(resnet, *flags, "--remat", "off").check_error("E0401", 3)
    table = failed.err.split("tried, in this order:\n")[1].splitlines()
    assert [line.split("->")[0].strip() for line in table[:2]] == ["as asked", "what would fit:"]


def test_a_lock_leaves_nothing_to_optimise(resnet: Path) -> None:
    run(resnet, "--lock", "plan.json", "--optimise", "time").check_error("E0113", 2)
