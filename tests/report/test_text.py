"""The terminal blocks, line by line."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace

import onnx
import pytest
from rich.cells import cell_len

from testing.networks import models
from tests.quantize import nets
from tests.report.hand import LAYERS, VERIFIED, deep_summary, two_layers_summary
from tinytrain_compile.ir.cost import Attempt, PlanChoice, RuleTried, StepCost, UpdateChoice
from tinytrain_compile.ir.stages import MemoryPlan
from tinytrain_compile.ir.summary import (
    Agreement,
    BoardUse,
    DerivativeAgreement,
    LayerUpdate,
    Record,
    Suggestion,
    Unverified,
    VerifyReport,
)
from tinytrain_compile.report.data import report_json
from tinytrain_compile.report.layout import macs_text, printable, shorten
from tinytrain_compile.report.pages.html import report_html
from tinytrain_compile.report.text import fit_verdict, proof, success_text
from tinytrain_compile.report.trained import layer_counts, loss_name
from tinytrain_compile.report.ways_out import does_not_fit_text
from tinytrain_compile.target.loader import load_target


def test_success_block_of_a_verified_model() -> None:
    assert success_text(two_layers_summary(verify=VERIFIED), ending="PASS   out/ (22 files)") == [
        "net.onnx for cortex-m7, fp32                              PASS   out/ (22 files)",
        "",
        "RAM        368 B of 400 (92.0%)",
        "           lower bound 336 B, gap 32 B: placement not proven, order proven",
        "           minimal",
        "           144 gradients + 128 updated weights + 32 i/o + 32 in gaps + 16 header",
        "           + 8 activations + 8 optimizer state",
        "           at step 9 of 11, d_w (GemmGradWeight of fc1);",
        "           132 B kept between steps",
        "stack      480 B                         worst case; 400 B used in QEMU",
        "flash      2,560 B                       2,048 code + 512 constants",
        "work       88 MAC a step                 44 forward + 44 backward",
        "",
        "model      2 fc   44 parameters   1x8 -> 1x3",
        "target     FPU sp, DSP",
        "trains     1 of 2 layers, 32 of 44 parameters (72.7%)   --update last:1",
        "           fc1",
        "loss       cross-entropy (from the options)   sgd, lr 0.1, batch 1",
        "",
        "note       loss: cross-entropy, the default for an output of shape (1, 3)",
        "",
        "checks     C on this machine vs numpy reference  max error 1.0e-07  ok",
        "           C in QEMU mps2-an500 vs this machine  identical bytes    ok",
        "           3 steps on random samples: the losses say nothing about learning;",
        "           --data takes yours",
    ]


def test_the_parts_of_the_ram_are_all_of_it() -> None:
    lines = success_text(two_layers_summary())
    parts = " ".join(lines[lines.index("           minimal") + 1 :][:2])
    assert sum(int(size) for size in re.findall(r"\d+", parts)) == 368


def test_a_narrow_terminal_gets_checks_in_two_lines() -> None:
    step = DerivativeAgreement(8, 0, 0.1, "within 0.1%", 9.0)
    lines = success_text(two_layers_summary(verify=replace(VERIFIED, derivative=step)), 60)
    assert "work       88 MAC a step   44 forward + 44 backward" in lines, "no column that wastes the room"
    at = lines.index("checks     C on this machine vs numpy reference")
    assert lines[at + 1] == "             max error 1.0e-07  ok"
    assert "             8 of 8 tensors within 0.1%  ok" in lines


@pytest.mark.parametrize(
    ("verify", "word", "row"),
    [
        (VERIFIED, "PASS", "C in QEMU mps2-an500 vs this machine  identical bytes    ok"),
        (replace(VERIFIED, mode="host"), "PASS on this machine", "C on this machine vs numpy reference"),
        (replace(VERIFIED, left_out=("not compared: Foo",)), "PASS", "not compared: Foo"),
        (
            replace(VERIFIED, mode="host", unverified=Unverified("no emulator", ("on this machine",))),
            "PASS on this machine, not verified on this core",
            "not verified on this core: no emulator; verified instead: the same",
        ),
        (VerifyReport("none", 0, "skipped", "not verified"), "NOT CHECKED", "checks     not verified"),
        (VerifyReport("qemu", 3, "fail", "w differs"), "FAIL", "checks     w differs   FAIL"),
    ],
)
def test_the_headline_has_the_verdict_and_the_checks_say_why(verify: VerifyReport, word: str, row: str) -> None:
    lines = success_text(two_layers_summary(verify=verify))
    assert re.split(r"\s{3,}", lines[0])[-1] == word
    assert any(row in line for line in lines)


def test_every_report_says_that_the_core_was_not_verified_and_what_was() -> None:
    found = Unverified("no <emulator>", ("on this machine",))
    missing, there = (two_layers_summary(verify=replace(VERIFIED, unverified=one)) for one in (found, None))
    assert report_json(missing)["verify"]["unverified"] == {"why": "no <emulator>", "instead": ("on this machine",)}
    page = report_html(missing)
    assert page.index("not verified on this core</span></h1>") < page.index("</header>")
    assert "not verified on this core: no &lt;emulator&gt;; verified instead: the same C on this machine</p>" in page
    assert report_json(there)["verify"]["unverified"] is None
    assert all("not verified on" not in text for text in (report_html(there), " ".join(success_text(there))))


def test_losses_of_random_samples_are_not_shown_as_learning() -> None:
    """0.50 -> 25.5 beside a green PASS, drawn as a curve, was the loss of random numbers."""
    rising = replace(VERIFIED, losses=(0.5, 3.0, 25.5))
    random, own = (two_layers_summary(verify=rising, own_samples=own) for own in (0, 600))
    said = "\n".join(success_text(random))
    assert "3 steps on random samples" in said and "->" not in said.partition("checks")[2] and "25.5" not in said
    page = report_html(random)
    assert "Losses of the check on random samples" in page and 'class="curve"' not in page and "0.5, 3, 25.5" in page
    assert report_json(random)["verify"]["samples"] == "random"
    assert 'class="curve"' in report_html(own) and report_json(own)["verify"]["samples"] == "data"


@pytest.mark.parametrize(
    ("losses", "samples", "text"),
    [
        ((0.5, 3.0, 25.5), 600, "losses before updates, on samples 1 to 3 of 600: 0.5, 3, 25.5"),
        ((2.0,), 600, "loss before an update, on sample 1 of 600: 2"),
        (
            (2.0, 9e26, 0.0, 1.0, 0.25),
            5,
            "losses before updates, on samples 1 to 5 of 5: 2 first, 0.25 last, 9e+26 at most",
        ),
        ((2.0, 1.0, 0.5), 2, "losses before updates, on 2 samples in turn: 2, 1, 0.5"),
    ],
)
def test_losses_name_their_samples(losses: tuple[float, ...], samples: int, text: str) -> None:
    """`loss 2.58 -> 13 in 3 steps` read as a training that diverges: these are losses of other samples each."""
    summary = two_layers_summary(verify=replace(VERIFIED, losses=losses), own_samples=samples)
    assert f" {text} end" in " ".join(" ".join([*success_text(summary), "end"]).split())


def test_the_source_of_the_loss() -> None:
    """Without --loss the report said `from the options`."""
    for options, said in (({"loss": "mse"}, "from the options"), ({}, "the default")):
        summary = two_layers_summary(verify=VERIFIED).with_fact(Record(options, ""))
        assert f"cross-entropy ({said})" in "\n".join(success_text(summary))


def test_time_and_energy_are_shown_as_a_model_whenever_they_are_known() -> None:
    """They were shown for --optimise, --max-step-time and further memories alone."""
    known = two_layers_summary(choice=PlanChoice(StepCost(2_000_000_000, 0, 0, 300_000_000, 0)))
    said = " ".join(" ".join(success_text(known)).split())
    assert "time 2 ms, 0.3 mJ a step by the target's figures, not measured" in said
    assert "2 ms, 0.3 mJ a step, by the target&#39;s figures, not measured" in report_html(known)


def test_what_nobody_measured_is_said_to_be_so() -> None:
    lines = success_text(two_layers_summary())
    assert "stack      not measured" in lines
    assert "flash      not measured" in lines
    assert "checks     not verified" in lines and lines[0].endswith(" NOT CHECKED")
    half = success_text(two_layers_summary(verify=replace(VERIFIED, stack_measured_bytes=None, const_bytes=None)))
    assert "stack      480 B                         worst case; not run on the board" in half
    assert "flash      code 2,048 B, constants not measured" in half


@pytest.mark.parametrize("head", ["fp32", "int8"])
@pytest.mark.parametrize(
    ("model", "text"),
    [
        (nets.cnn, "4 conv, 1 fc"),
        (nets.quantised, "2 conv, 1 fc"),
        (models.mlp, "3 fc"),
        (lambda: models.transformer(tokens=4, width=8, heads=2), "2 norm, 7 fc, 2 matmul"),
    ],
)
def test_int8_layers_are_counted_as_the_models(model: Callable[[], onnx.ModelProto], text: str, head: str) -> None:
    """A dense layer that runs as a convolution is still one, and a pool that does is none."""
    for train in (nets.int8_train(model(), head=head), nets.float_train(model())):
        assert layer_counts(two_layers_summary(train=train)) == text
        assert loss_name(two_layers_summary(train=train)) == "cross-entropy"


def test_without_a_limit() -> None:
    lines = success_text(two_layers_summary(arena_limit_bytes=None))
    assert "RAM        368 B, no limit given" in lines


@pytest.mark.parametrize(
    ("gap", "order", "placement", "text"),
    [
        (0, True, True, "OPTIMAL for these steps"),
        (0, False, True, "placement OPTIMAL, order not proven minimal"),
        (8, True, True, "placement proven minimal for this order, order proven minimal"),
        (8, False, False, "placement not proven, order not proven"),
    ],
)
def test_proof_claims_no_more_than_is_known(gap: int, order: bool, placement: bool, text: str) -> None:
    assert proof(_plan(360, 360 - gap, order, placement)) == text


@pytest.mark.parametrize(
    ("bound", "order", "placement", "text"),
    [
        (310, True, False, "proven, no order and no placement of these steps can fit"),
        (310, False, True, "no placement of this order can fit; a better order is not excluded"),
        (300, True, True, "proven, no placement of this order can fit; a better order is not excluded"),
        (300, True, False, "a placement that fits is not excluded, the search found none"),
    ],
)
def test_verdict_below_the_limit(bound: int, order: bool, placement: bool, text: str) -> None:
    assert fit_verdict(_plan(360, bound, order, placement), 300) == text


def test_does_not_fit_block() -> None:
    ways = (
        Suggestion("--update head", 208, "skips fc1"),
        Suggestion("--optimizer sgd", 320, "still over"),
        Suggestion("--arena 368", 368, "fits as is", sets_arena=True),
    )
    assert does_not_fit_text(two_layers_summary(arena_limit_bytes=300, suggestions=ways)) == [
        "  training needs 368 B, the arena is 300 B: over by 68 B",
        "  lower bound 336 B: proven, no order and no placement of these steps can fit",
        "  peak at step 9 of 11: d_w (GemmGradWeight of fc1)",
        "  live there, largest first:",
        "    128 B  fc1_w          updated weight (permanent)",
        "    128 B  d_w            written here, waits for fc1_w.update",
        "     32 B  x              read here",
        "     16 B  header         handle of the generated API",
        "     16 B  d_h            read here",
        "      8 B  learning_rate  optimizer state (permanent)",
        "      8 B  in 1 smaller buffer",
        "  what would fit:",
        "    --update head    -> 208 B  skips fc1",
        "    --arena 368      -> 368 B  fits as is",
        "  not enough alone:",
        "    --optimizer sgd  -> 320 B  still over",
    ]


def test_options_of_a_way_out_are_never_cut() -> None:
    """They are for copying; above half a line the middle was replaced by dots."""
    update = "--update '" + ",".join(f"block{i}_conv" for i in range(9)) + "'"
    ways = (Suggestion(update, 208, "of 9 layers"), Suggestion("--arena 368", 368, "fits as is", sets_arena=True))
    lines = does_not_fit_text(two_layers_summary(arena_limit_bytes=300, suggestions=ways))
    assert lines[-4:] == [
        "  what would fit:",
        f"    {update}",
        "                 -> 208 B  of 9 layers",
        "    --arena 368  -> 368 B  fits as is",
    ]


def test_the_arena_that_the_plan_needs_is_always_a_way_out() -> None:
    assert does_not_fit_text(two_layers_summary(arena_limit_bytes=300))[-2:] == [
        "  what would fit:",
        "    --arena 368  -> 368 B  fits as it is",
    ]


@pytest.mark.parametrize("width", [40, 60, 80, 100, 160])
def test_the_worst_case_keeps_to_its_width_and_loses_no_row(width: int) -> None:
    """Every word of every note is there, however long the report is; the list of layers says what it leaves out."""
    name = "block/" * 40 + "conv"
    summary = deep_summary(30, name)
    notes = tuple(f"note {i}: " + "a long remark on a decision " * 8 + f"end-{i}" for i in range(9))
    graph = replace(summary.train.graph, notes=notes)
    frozen = LayerUpdate("frozen", False, False, None, None, 0, 7)
    summary = replace(
        summary,
        model=name,
        target_summary=name,
        update_label=name,
        layers=(*summary.layers, frozen),
        train=replace(summary.train, graph=graph),
        verify=VerifyReport("qemu", 3, "fail", "first difference " * 30),
    )
    lines = success_text(summary, width)
    assert all(cell_len(line) <= width for line in [*lines, *does_not_fit_text(summary, width)])
    said = " ".join(" ".join(lines).split())
    assert all(note in said for note in notes) and said.count("first difference") == 30
    assert "and 28 more in report.json" in said or "and 27 more in report.json" in said, said
    keys = [line[:11].strip() for line in lines[lines.index("") :] if line[:11].strip()]
    assert [key for key in keys if key != "note"] == [
        *("RAM", "stack", "flash", "work", "model", "target", "trains", "loss", "checks")
    ]
    assert "FAIL" in lines[: lines.index("")][-1], "the headline has it even if it takes many lines"
    summary = replace(summary, verify=VERIFIED)
    assert sum(line.endswith("PASS") for line in success_text(summary, width)) == 1
    assert sum(line.endswith(" ok") for line in success_text(summary, width)) == 2


def test_no_row_gives_way_in_a_long_report() -> None:
    """Gain, tries, notes, accuracy and where a board's code ran were dropped above 24 lines, without a word."""
    rules = tuple(RuleTried(f"rule {i}", 10, 100, 1.0, 0.5, 0.1, True) for i in range(8))
    update = UpdateChoice("gains", 1.0, 1.0, why=("a larger arena buys nothing",), tried=rules)
    attempts = (Attempt("asked", "as asked", 500), Attempt("recompute", "second runs", 368))
    choice = PlanChoice(StepCost(0, 0, 0, 0, 0), attempts=attempts, update=update)
    notes = tuple(f"note number {i}: {'61 dead channels ' * 6}" for i in range(6))
    board = load_target("nrf52840-dk").board
    assert board is not None
    data = Agreement(100, 600, 0.91, 0.92, 0.99)
    summary = two_layers_summary(
        verify=VERIFIED, choice=choice, notes=notes, facts=(BoardUse(board, "cortex-m4", "cortex-m4"), data)
    )
    for said in (" ".join(" ".join(success_text(summary)).split()), report_html(summary)):
        assert said.count("61 dead channels") == 36
        for text in ("PROVEN BEST", "second runs -&gt; 368 B", "accuracy 91.0 %", "never on the board itself"):
            assert text in said or text.replace("&gt;", ">") in said, text
        assert "rule 7: 10 trained, loss 1.000, 50.0% right" in said
    assert len(success_text(summary)) > 24


def test_sliced_layers_are_named_with_their_part() -> None:
    layers = (
        *LAYERS,
        LayerUpdate("conv1", True, True, 12, "in", 40, 90),
        LayerUpdate("conv2", True, False, None, None, 8, 72),
    )
    lines = success_text(two_layers_summary(layers=layers))
    assert "           fc1, conv1 (bias, 12 in channels), conv2 (bias)" in lines


def test_control_characters_cannot_reach_the_terminal() -> None:
    evil = "a\x1b[31mb\nc\u202ed\x00"
    summary = two_layers_summary(model=evil, update_label=evil, verify=replace(VERIFIED, message=evil))
    for lines in (success_text(summary), does_not_fit_text(summary)):
        assert all(line.isprintable() for line in lines)
    assert success_text(summary)[0].startswith("a\\x1b[31mb\\nc\\u202ed\\x00 for cortex-m7, fp32")


def test_words() -> None:
    assert [macs_text(n) for n in (0, 9999, 23_456, 4_920_000, 1_250_000_000)] == [
        *("0", "9,999", "23.5 k", "4.9 M", "1.2 G")
    ]
    assert shorten("block1_pointwise_conv/Conv", 15) == "block1...v/Conv"
    assert cell_len(shorten("漢字漢字漢字漢字", 9)) <= 9
    assert printable("plain näme") == "plain näme"


def _plan(arena: int, bound: int, order: bool, placement: bool) -> MemoryPlan:
    return MemoryPlan((), (), {}, {}, arena, 0, bound, 0, order, placement)
