"""report.html and finetune.html in headless Chromium: scripts run, text is readable in light and dark, all fits."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from testing.browser import CHROMIUM, Framed, dark, look
from tests.report.hand import VERIFIED, deep_summary, two_layers_summary
from tinytrain_compile.ir.buffers import PartRam, RamUse, RuntimeBuffer
from tinytrain_compile.ir.cost import LayerReason, NodeTimes, ParetoPoint, PlanChoice, StepCost, UpdateChoice
from tinytrain_compile.ir.learning import Finding, Learned, Score, Tried
from tinytrain_compile.ir.summary import Agreement, Suggestion, Summary
from tinytrain_compile.report.pages.finetune import finding_html
from tinytrain_compile.report.pages.html import report_html

PHONE = 420
"""Pixels of a narrow screen."""

pytestmark = pytest.mark.skipif(
    CHROMIUM is None and not os.environ.get("CI"),  # CI installs it: without it the test fails there
    reason="chromium is not installed (scripts/install_tools.sh)",
)


def full() -> Summary:
    """Return a report with every section."""
    points = tuple(ParetoPoint(n, n - 8, 10, n / 4, n / 3, "auto", 1, 32, 1) for n in (100, 300, 4000))
    reason = LayerReason("fc1", "bias", 1.0, "in/2", 2.5, 1152, 3_000_000)
    update = UpdateChoice("a prior", 1.0, 2.0, layers=(reason,), why=("--arena is the limit",))
    choice = PlanChoice(StepCost(2_000_000, 0, 0, 300_000, 0), update=update, pareto=points)
    uses = (RamUse("arena", 368, "sram1"), RamUse("50 kept samples", 200, "sram1"), RamUse("stack", 4096, "sram1"))
    verify = replace(VERIFIED, losses=(2.0, 1.0), result="fail")
    summary = two_layers_summary(
        verify=verify,
        choice=choice,
        quant="int8",
        own_samples=9,
        notes=("a note",),
        suggestions=(Suggestion("--arena 400", 396, "the least for all of it " * 4),),
    )
    buffers = (RuntimeBuffer("replay", "50 kept samples", 200),)
    summary = summary.with_fact(PartRam(uses, 65536, buffers=buffers)).with_fact(
        Agreement(9, 9, 0.5, 0.6, 0.9, 0.1, 2.0)
    )
    return summary.with_fact(NodeTimes({node.name: 1000 for node in summary.plan.order}))


def finding(replay: bool) -> Finding:
    """Return what `finetune` found, with or without old samples."""
    curve = (Score(2.0, 0.4), Score(1.0, 0.7), Score(0.8, 0.9))
    tried = tuple(Tried(1, 0.0, 10.0**-n, 3, curve, n == 1, settles=True, warm_up=0.1) for n in range(1, 5))
    old = curve[::-1] if replay else ()
    learned = tuple(Learned(kept, curve, old, 0.01, 700) for kept in ((0, 50) if replay else (0,)))
    return Finding(
        (tried, tried[:3]), tried[1], 0.01, learned, 50 if replay else 0, 20, 400, 100, "cortex-m7", update="last:1"
    )


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], list[str]]:
    """Return what the browser sees in all pages, after one start."""
    long_names = deep_summary(40, "a_long_name_of_a_block_" * 3 + "/block")
    pages = {
        "full": report_html(full()),
        "deep": report_html(long_names),
        "over": report_html(two_layers_summary(arena_limit_bytes=300)),
        "finetune": finding_html(finding(replay=True), "net.onnx"),
        "no-replay": finding_html(finding(replay=False), "net.onnx"),
    }
    frames = {f"{name}-{PHONE}": Framed(page, PHONE) for name, page in pages.items()}
    frames |= {f"{name}-dark": Framed(dark(pages[name])) for name in ("full", "over", "finetune")}
    frames |= {f"{name}-light": Framed(pages[name]) for name in ("full", "over", "finetune")}
    frames["handled"] = Framed(pages["full"])
    script = Path(__file__).with_name("pages.js").read_text(encoding="utf-8")
    return look(frames, script, tmp_path_factory.mktemp("browser"))


def test_scripts_run_without_errors(found: tuple[dict[str, Any], list[str]]) -> None:
    """Errors of scripts, and whatever the pages' own policy refuses, are on the console."""
    pages, console = found
    assert console == []
    assert {name: page["problem"] for name, page in pages.items() if "problem" in page} == {}


def test_nothing_is_wider_than_the_screen(found: tuple[dict[str, Any], list[str]]) -> None:
    narrow = {name: page for name, page in found[0].items() if name.endswith(f"-{PHONE}")}
    assert len(narrow) == 5
    assert {name: page["width"] for name, page in narrow.items() if page["width"] > PHONE} == {}
    assert {name: page["tooWide"] for name, page in narrow.items() if page["tooWide"]} == {}


def test_text_is_readable_in_light_and_dark(found: tuple[dict[str, Any], list[str]]) -> None:
    """WCAG 2 asks for a contrast of 4.5 (level AA)."""
    assert all(page["text"]["seen"] > 50 for page in found[0].values())
    poor = {name: page["text"]["poor"] for name, page in found[0].items() if page["text"]["poor"]}
    assert poor == {}


def test_the_memory_picture_folds_searches_and_zooms(found: tuple[dict[str, Any], list[str]]) -> None:
    hands = found[0]["handled"]["handled"]
    assert hands["foldedAtFirst"] and hands["unfolded"] and hands["foldedAgain"]
    assert hands["buttonAtFirst"] == "show the permanent 152 B"
    assert hands["search"] == "1 of 1 | fc1", "its buffer holds relu too"
    assert hands["nothing"].startswith("not found | No buffer")
    assert hands["permanent"] == "1 of 1 | fc1_w"
    assert hands["unfoldedBySearch"]
    assert hands["band"] and hands["zoomed"] == pytest.approx(2.0, abs=0.05)
    assert hands["ticks"] and not {"0 B", "384 B"} & set(hands["ticks"]), "only the addresses in the band"
    assert hands["whole"] == 1.0


def test_charts(found: tuple[dict[str, Any], list[str]]) -> None:
    assert [found[0][f"{name}-{PHONE}"]["charts"] for name in ("full", "finetune", "no-replay")] == [1, 3, 2]


def test_the_recommendation_comes_first_and_replay_only_if_it_was_compared() -> None:
    with_replay, without = finding_html(finding(True), "net.onnx"), finding_html(finding(False), "net.onnx")
    assert "without replay" in with_replay and "with 50 old samples replayed" in with_replay
    assert "replay" not in without.partition("<main>")[2]
    assert without.index("Recommendation") < without.index("Test samples") < without.index("What was tried")
    assert "before training 40.0%" in without
    assert 'class="taken"' in without
