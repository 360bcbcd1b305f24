"""Options of what a compilation puts out: a part of CompileOptions (`options/compile_options.py`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from tinytrain_compile.ir.runtime_parts import NO_PARTS, RuntimeParts
from tinytrain_compile.options.option import option
from tinytrain_compile.options.values import parse_plans, parse_reports, parse_runtime


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """What is in the output folder and on the terminal. runtime: parts of the loop around the step, in C."""

    runtime: RuntimeParts = field(
        default=NO_PARTS,
        metadata=option(
            "output",
            "C around the step: replay (replay=N: RAM for N samples), monitor (=flash: its best state takes no RAM), "
            "schedule, store, delta, average (=N).",
            "--runtime",
            metavar="PARTS",
            read=parse_runtime,
        ),
    )
    features: Literal["off", "on"] = field(
        default="off",
        metadata=option(
            "output",
            "Cut the step where training begins, so that later epochs cost the trained part alone.",
            "--features",
        ),
    )
    slices: Literal["off", "on"] = field(
        default="off",
        metadata=option(
            "output",
            "on: a step can be computed in slices of time, between which the firmware has the processor.",
            "--slices",
        ),
    )
    plans: tuple[int, ...] = field(
        default=(),
        metadata=option(
            "output",
            "Several plans in one project, for arenas of these sizes; init takes the largest that fits: 64KB,128KB.",
            "--plans",
            metavar="SIZES",
            read=parse_plans,
        ),
    )
    inference_only: bool = field(
        default=False,
        metadata=option(
            "output",
            "No training: an image that infers, and loads checkpoints of a training build with the same --update.",
            "--inference-only",
        ),
    )
    dry_run: bool = field(default=False, metadata=option("output", "Plan and report; write nothing.", "--dry-run"))
    force: bool = field(
        default=False,
        metadata=option(
            "output", "Overwrite files in -o of the same names that tinytrain-compile did not write there.", "--force"
        ),
    )
    report: tuple[str, ...] = field(
        default=("text", "json", "html"),
        metadata=option(
            "output",
            "text on the terminal, html beside report.json [default: text,json,html].",
            "--report",
            metavar="KINDS",
            read=parse_reports,
        ),
    )
    dump_after: Literal["frontend", "training", "plan"] | None = field(
        default=None, metadata=option("output", "Print a stage's result and stop.", "--dump-after")
    )
