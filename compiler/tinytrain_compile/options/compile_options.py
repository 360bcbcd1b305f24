"""Everything that a user may ask of one compilation: every option, once.

A field's name, type and default are those of the option; the rest stands beside it (`options/option.py`). --help shows
them by group, in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Literal

from tinytrain_compile.ir.cost import Objective
from tinytrain_compile.ops.update import OptimizerName
from tinytrain_compile.options.option import Option, at_least_one, option, option_of, within
from tinytrain_compile.options.output import OutputOptions
from tinytrain_compile.options.package import PackageOptions
from tinytrain_compile.options.training import UpdateOptions
from tinytrain_compile.options.values import (
    parse_memories,
    parse_shapes,
    parse_size,
    parse_time,
)


def _no_shapes() -> Mapping[str, tuple[int, ...]]:
    return {}


def _no_memories() -> Mapping[str, int]:
    return {}


@dataclass(frozen=True)
class CompileOptions(UpdateOptions, OutputOptions, PackageOptions):
    """One compilation. Sizes in bytes; `out` is the output folder; `data` an .npz for verification.

    given: names of the options that the command line sets.
    quant: "auto" is what driver/checks/number_format.py makes of the model; behind the driver it is one of the others.
    memories: further memories of the target that buffers may lie in, by name, and how many bytes of each.
    micro_batch: samples that a call takes; None is 1, or what a lock has; "auto": as many as --arena holds.
    remat: None leaves it to driver/candidates/fallbacks.py: a little, if --arena needs it; with `optimise`, to the
    objective. optimise: None is the least extra time that fits. max_step_ps: longest step by the target's model, in
    picoseconds. code: of kernels and calls; None is speed, or what flash_budget_bytes (of code and constants) asks for.
    """

    model: Path

    # ---- what everyone needs ----------------------------------------------------------------------------------------

    out: Path = field(default=Path("out"), metadata=option("common", "Output folder.", "-o", "--out"))
    target: str = field(
        default="cortex-m7",
        metadata=option("common", "Board or core (--list-targets) or TOML.", "--target", metavar="NAME|FILE"),
    )
    arena_bytes: int | None = field(
        default=None,
        metadata=option(
            "common",
            "RAM for everything that changes: 256KB, 256KiB or 262144.",
            "--arena",
            metavar="SIZE",
            read=parse_size,
        ),
    )
    update: str = field(
        default="auto",
        metadata=option(
            "common",
            "What is trained: auto (what gains most and fits), all, bias, head, last:N, GLOB,... or a scheme file.",
            "--update",
            metavar="WHAT",
        ),
    )
    optimizer: OptimizerName = field(
        default="sgd", metadata=option("common", "How weights follow gradients.", "--optimizer")
    )
    learning_rate: float = field(
        default=0.01,
        metadata=option("common", "Learning rate; also settable at run time.", "--lr", check=within(0.0, 1e6)),
    )
    batch: int = field(default=1, metadata=option("common", "Samples per update.", "--batch", check=at_least_one))
    quant: Literal["auto", "fp32", "int8"] = field(
        default="auto",
        metadata=option(
            "common", "Number format. auto: int8 for a model that is quantised (QDQ), fp32 for any other.", "--quant"
        ),
    )
    calib: Path | None = field(
        default=None,
        metadata=option(
            "common",
            "Typical inputs x: int8 ranges of a float model. With labels y: exponents of errors too.",
            "--calib",
            metavar="FILE.npz",
            int8_only=True,
        ),
    )
    data: Path | None = field(
        default=None,
        metadata=option(
            "common", "Samples x, y: to verify with, and to choose by (--update auto).", "--data", metavar="FILE.npz"
        ),
    )

    # ---- model ------------------------------------------------------------------------------------------------------

    classes: int | None = field(
        default=None,
        metadata=option(
            "model", "Replace the last layer by a fresh one for N classes.", "--classes", metavar="N", limits=(2, 4096)
        ),
    )
    input_shapes: Mapping[str, tuple[int, ...]] = field(
        default_factory=_no_shapes,
        metadata=option(
            "model",
            "Fixes the dimensions of a dynamic input.",
            "--input-shape",
            metavar="NAME=D,D,..",
            read=parse_shapes,
            repeated=True,
        ),
    )
    input_layout: Literal["hwc", "chw", "lc", "cl"] = field(
        default="hwc",
        metadata=option(
            "model",
            "Of images (height, width, channels); of signals lc (length, channels: a sensor's FIFO) or cl, as without.",
            "--input-layout",
        ),
    )
    batch_norm: Literal["fold", "keep"] = field(
        default="fold",
        metadata=option("model", "Into weights, or gamma and beta trained apart (float32).", "--batch-norm"),
    )
    trainable: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "model",
            "Initializers or modules that are parameters, whatever the rules say (docs/parameters.md).",
            "--trainable",
            metavar="GLOB",
            repeated=True,
        ),
    )
    frozen: tuple[str, ...] = field(
        default=(),
        metadata=option(
            "model", "Initializers or modules that are no parameters.", "--frozen", metavar="GLOB", repeated=True
        ),
    )
    untie: bool = field(
        default=False,
        metadata=option(
            "model", "Train apart what an exporter has written once because the values are equal.", "--untie"
        ),
    )
    label: str = field(
        default="",
        metadata=option(
            "model", "Input that holds the labels, for a model that ends in its loss.", "--label", metavar="NAME"
        ),
    )
    model_output: str = field(
        default="",
        metadata=option(
            "model", "Which output is trained, of several, or which result of a node.", "--model-output", metavar="NAME"
        ),
    )
    weights: Path | None = field(
        default=None,
        metadata=option(
            "model",
            "Weights of a graph with gradient nodes, by name or position (arr_N).",
            "--weights",
            metavar="FILE.npz",
        ),
    )

    # ---- memory -----------------------------------------------------------------------------------------------------

    memories: Mapping[str, int] = field(
        default_factory=_no_memories,
        metadata=option(
            "memory",
            "A further memory of the target, for what does not fit into --arena.",
            "--memory",
            metavar="NAME=SIZE",
            read=parse_memories,
            repeated=True,
        ),
    )
    remat: Literal["off", "auto", "min"] | None = field(
        default=None,
        metadata=option(
            "memory",
            "Compute tensors twice: auto, as --arena needs; min, smallest arena. Default: auto up to 25 % more MACs.",
            "--remat",
        ),
    )
    stream: Literal["off", "auto", "min"] = field(
        default="auto",
        metadata=option(
            "memory",
            "Compute early layers row by row: auto, as --arena needs (without: if 5 % is saved); min, smallest arena.",
            "--stream",
        ),
    )
    input_lines: bool = field(
        default=False,
        metadata=option(
            "memory",
            "The firmware hands over rows of the image as they come, so that it is never in RAM.",
            "--input-lines",
        ),
    )
    input_type: Literal["int8", "uint8"] = field(
        default="int8",
        metadata=option(
            "memory", "Of rows that --input-lines takes; uint8: bytes of a camera.", "--input-type", int8_only=True
        ),
    )
    optimise: Objective | None = field(
        default=None,
        metadata=option(
            "memory",
            "Smallest arena, least step time or energy by the target's model. Default: the least extra time that fits.",
            "--optimise",
        ),
    )
    max_step_ps: int | None = field(
        default=None,
        metadata=option(
            "memory",
            "Longest step by the target's model, with paging and second runs: 500ms, 2s.",
            "--max-step-time",
            metavar="TIME",
            read=parse_time,
        ),
    )
    micro_batch: int | Literal["auto"] | None = field(
        default=None,
        metadata=option(
            "memory",
            "Samples that one call trains on, of --batch [default: 1]; auto: what --arena, or each of --plans, holds.",
            "--micro-batch",
            metavar="N|auto",
        ),
    )
    lock: Path | None = field(
        default=None,
        metadata=option(
            "memory",
            "Use order and addresses of an earlier plan.json (any name), checked again.",
            "--lock",
            metavar="FILE",
        ),
    )

    # ---- int8 -------------------------------------------------------------------------------------------------------

    calib_range: Literal["minmax", "percentile"] = field(
        default="minmax",
        metadata=option(
            "int8",
            "Range of an int8 activation: all of what --calib shows, or its middle 99.99 %.",
            "--calib-range",
            int8_only=True,
        ),
    )
    head: Literal["fp32", "int8"] = field(
        default="fp32", metadata=option("int8", "Last layer, int8 models.", "--head", int8_only=True, without="fp32")
    )
    weight_store: Literal["sr8", "q8.8", "mixed"] = field(
        default="mixed",
        metadata=option(
            "int8",
            "Trained int8 weights: rounded with noise, with 8 fraction bits more, or these in small weights only.",
            "--weight-store",
            int8_only=True,
        ),
    )
    rescale: Literal["off", "on"] = field(
        default="off",
        metadata=option(
            "int8",
            "on: a channel whose trained int8 weights reach +-127 gets twice the scale.",
            "--rescale",
            int8_only=True,
            without="off",
        ),
    )

    # ---- verification -----------------------------------------------------------------------------------------------

    verify: Literal["qemu", "host", "none"] = field(
        default="qemu",
        metadata=option(
            "verification",
            "Where the C is run and compared with numpy: on the board in QEMU, on this machine, or nowhere.",
            "--verify",
        ),
    )
    verify_steps: int = field(
        default=3, metadata=option("verification", "Training steps compared.", "--verify-steps", limits=(1, 100000))
    )
    count: bool = field(
        default=False,
        metadata=option("verification", "Count instructions of a step and an inference in QEMU, by kernel.", "--count"),
    )
    cycles: bool = field(
        default=False,
        metadata=option(
            "verification",
            "With --count: model the cycles of a step (a model, never a measurement).",
            "--cycles",
        ),
    )
    seed: int = field(
        default=0,
        metadata=option("verification", "For random samples and the planner.", "--seed", limits=(0, 2**31 - 1)),
    )

    # ---- code and speed ---------------------------------------------------------------------------------------------

    code: Literal["speed", "size", "auto"] | None = field(
        default=None,
        metadata=option(
            "code",
            "Kernels of their own for every shape, or small code that layers share; auto: small if code is most of the "
            "flash and a third is saved. Default: speed.",
            "--code",
        ),
    )
    flash_budget_bytes: int | None = field(
        default=None,
        metadata=option(
            "code",
            "Most that code and constants take: small code where needed; frozen weights are prepared in the rest.",
            "--flash-budget",
            metavar="SIZE",
            read=parse_size,
        ),
    )
    kernels: tuple[Path, ...] = field(
        default=(),
        metadata=option(
            "code",
            "C kernels of your own for some layers (docs/external-kernels.md).",
            "--kernels",
            metavar="FILE.toml",
            repeated=True,
        ),
    )

    given: frozenset[str] = frozenset()

    @property
    def int8_flags(self) -> tuple[str, ...]:
        """Flags given that only int8 has a meaning for, but for those that ask for what float32 does anyway."""
        return tuple(
            known.flag
            for name, known in OPTIONS.items()
            if known.int8_only and name in self.given and getattr(self, name) != known.without
        )

    @property
    def files(self) -> tuple[Path, ...]:
        """List the model, and all files that options name but those of --kernels, which name others."""
        values = (getattr(self, item.name) for item in fields(self) if item.name != "out")
        return tuple(value for value in values if isinstance(value, Path))


OPTIONS: Mapping[str, Option] = {
    item.name: known for item in fields(CompileOptions) if (known := option_of(item.metadata)) is not None
}
"""By the names of their fields, in that order."""

OF_THE_MODEL = frozenset(
    name
    for name, known in OPTIONS.items()
    if known.group in ("model", "training", "int8") or name in ("optimizer", "learning_rate", "batch", "quant", "calib")
) - {"gains", "pareto", "epochs", "warm_up"} | {"data", "seed", "target"}
"""Those that say what a step computes; all others are about the firmware that does."""
