"""Everything that a user may ask of one compilation: every option, once.

A field's name and type are those of the option; default, group, help and flags stand beside it (`options/option.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import Objective, Remat, Stream
from tinytrain_compile.ir.runtime_parts import NO_PARTS, RuntimeParts
from tinytrain_compile.ops.update import OptimizerName, defaults_of, optimizers_with
from tinytrain_compile.options.option import (
    Option,
    at_least_one,
    declared,
    option_of,
    parse_betas,
    parse_epsilon,
    parse_memories,
    parse_name,
    parse_norm,
    parse_plans,
    parse_reports,
    parse_runtime,
    parse_shapes,
    parse_size,
    parse_time,
    within,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

StageOptions = TypeVar("StageOptions", bound="DataclassInstance")
"""Dataclass of a stage whose fields have the names of options."""


@dataclass(frozen=True)
class CompileOptions:
    """One compilation. Sizes in bytes; `out` is the output folder; `data` an .npz for verification.

    The order of sections is that of `options` in report.json; --help sorts by group. given: names of the options that
    the command line sets. reserve_bytes: of a board's RAM, for all that is not the model; None: as its file says.
    runtime: parts of the loop around the step, in C.
    quant: "auto" is what driver/checks/model_options.py makes of the model; behind the driver it is one of the others.
    memories: further memories of the target that buffers may lie in, by name, and how many bytes of each.
    micro_batch: samples that a call takes; None is 1, or what a lock has; "auto": as many as --arena holds.
    remat: None leaves it to driver/candidates/ladder.py: a little, if --arena needs it; with `optimise`, to the
    objective. optimise: None is the least extra time that fits. max_step_ps: longest step by the target's model, in
    picoseconds. code: of kernels and calls; None is speed, or what flash_budget_bytes (of code and constants) asks for.
    """

    model: Path
    out: Path = declared(Path("out"), "common", "Output folder.", "-o", "--out")
    _: KW_ONLY

    # ---- the board, and the form of the project ---------------------------------------------------------------------

    reserve_bytes: int | None = declared(
        None,
        "memory",
        "RAM of a board for statics, heap and RTOS. Default: as its file says.",
        "--reserve",
        metavar="SIZE",
        read=parse_size,
    )
    package: Literal["cmake", "platformio", "arduino", "zephyr", "esp-idf", "makefile"] | None = declared(
        None, "output", "Write the project as a library of this build system (docs/packages.md).", "--package"
    )
    name: str = declared(
        "",
        "output",
        "Prefix of C names and files, and of a package. Default: the name of the model's file.",
        "--name",
        metavar="NAME",
        read=parse_name,
    )

    # ---- the output folder and the terminal -------------------------------------------------------------------------

    runtime: RuntimeParts = declared(
        NO_PARTS,
        "output",
        "C around the step: replay (replay=N: RAM for N samples), monitor (=flash: its best state takes no RAM), "
        "schedule, store, delta, average (=N).",
        "--runtime",
        metavar="PARTS",
        read=parse_runtime,
    )
    features: Literal["off", "on"] = declared(
        "off",
        "output",
        "Cut the step where training begins, so that later epochs cost the trained part alone.",
        "--features",
    )
    slices: Literal["off", "on"] = declared(
        "off",
        "output",
        "on: a step can be computed in slices of time, between which the firmware has the processor.",
        "--slices",
    )
    plans: tuple[int, ...] = declared(
        (),
        "output",
        "Several plans in one project, for arenas of these sizes; init takes the largest that fits: 64KB,128KB.",
        "--plans",
        metavar="SIZES",
        read=parse_plans,
    )
    inference_only: bool = declared(
        False,
        "output",
        "No training: an image that infers, and loads checkpoints of a training build with the same --update.",
        "--inference-only",
    )
    dry_run: bool = declared(False, "output", "Plan and report; write nothing.", "--dry-run")
    force: bool = declared(
        False,
        "output",
        "Overwrite files in -o of the same names that tinytrain-compile did not write there.",
        "--force",
    )
    report: tuple[str, ...] = declared(
        ("text", "json", "html"),
        "output",
        "text on the terminal, html beside report.json [default: text,json,html].",
        "--report",
        metavar="KINDS",
        read=parse_reports,
    )
    dump_after: Literal["frontend", "training", "plan"] | None = declared(
        None, "output", "Print a stage's result and stop.", "--dump-after"
    )

    # ---- how weights follow gradients -------------------------------------------------------------------------------

    gains: Path | None = declared(
        None,
        "training",
        "What training each layer is worth, for --update auto (docs/update-schemes.md). Default: a prior.",
        "--gains",
        metavar="FILE.csv",
    )
    pareto: bool = declared(
        False,
        "training",
        "What --update auto would train in some other arenas, beside this one (takes minutes).",
        "--pareto",
    )
    loss: Literal["cross-entropy", "mse", "bce"] | None = declared(
        None, "training", "Default: bce behind a Sigmoid, else cross-entropy for (batch, classes).", "--loss"
    )
    dropout: Literal["off", "on"] = declared(
        "off", "training", "Dropout that the file has in training mode (float32).", "--dropout"
    )
    momentum: float = declared(
        0.9,
        "training",
        f"Of {optimizers_with('momentum')}. Not given: rmsprop has none.",
        "--momentum",
        check=within(0.0, 1.0),
    )
    nesterov: bool = declared(False, "training", "Nesterov's momentum.", "--nesterov")
    dampening: float = declared(
        0.0, "training", "Of momentum, from the second update on.", "--dampening", check=within(0.0, 1.0)
    )
    betas: tuple[float, float] | None = declared(
        None,
        "training",
        f"Decay rates of {optimizers_with('betas')}. {defaults_of('betas')}",
        "--betas",
        metavar="B1,B2",
        read=parse_betas,
    )
    alpha: float = declared(0.99, "training", "Decay rate of rmsprop's squares.", "--alpha", check=within(0.0, 1.0))
    centered: bool = declared(False, "training", "rmsprop by the spread of gradients.", "--centered")
    epsilon: float | None = declared(
        None, "training", defaults_of("epsilon"), "--epsilon", metavar="E", read=parse_epsilon
    )
    epsilon_place: Literal["corrected", "raw"] = declared(
        "corrected", "training", "Of adam: beside the corrected root, or sqrt(v) itself (ORT).", "--epsilon-place"
    )
    weight_decay: float = declared(
        0.0, "training", "Pulls float32 weights towards 0.", "--weight-decay", check=within(0.0, 1e6)
    )
    clip_norm: float | None = declared(
        None,
        "training",
        "Largest norm of a gradient; a longer one is scaled down (docs/clipping.md).",
        "--clip-norm",
        metavar="NORM",
        read=parse_norm,
    )
    clip_per: Literal["model", "layer"] = declared(
        "model", "training", "Whose norm: of all that is trained, or of each layer alone.", "--clip-per"
    )
    activations: Literal["exact", "asi", "subspace"] = declared(
        "exact",
        "training",
        "What layers keep of their inputs for gradients: all, or a low-rank copy in subspaces that follow (asi) or"
        " are fixed (subspace) (docs/activations.md; needs --data).",
        "--activations",
    )
    rank_error: float = declared(
        0.1,
        "training",
        "Of --activations: largest relative error of a layer's gradient on --data.",
        "--rank-error",
        check=within(0.0, 1.0),
    )
    accumulate: Literal["exact", "inplace"] = declared(
        "exact",
        "training",
        "Over --batch N samples: sum gradients, or update with each at once, at a learning rate of 1/N.",
        "--accumulate",
    )
    epochs: int | None = declared(
        None,
        "training",
        "Passes over the samples that the firmware is to make: a macro for its loop (finetune recommends them).",
        "--epochs",
        metavar="N",
        limits=(1, 1000000),
    )
    warm_up: int | None = declared(
        None,
        "training",
        "Updates in which the firmware's rate is to grow first: a macro for its schedule (finetune recommends it).",
        "--warm-up",
        metavar="N",
        limits=(1, 4294967295),
    )

    # ---- what everyone needs ----------------------------------------------------------------------------------------

    target: str = declared(
        "cortex-m7", "common", "Board or core (--list-targets) or TOML.", "--target", metavar="NAME|FILE"
    )
    arena_bytes: int | None = declared(
        None,
        "common",
        "RAM for everything that changes: 256KB, 256KiB or 262144.",
        "--arena",
        metavar="SIZE",
        read=parse_size,
    )
    update: str = declared(
        "auto",
        "common",
        "What is trained: auto (what gains most and fits), all, bias, head, last:N, GLOB,... or a scheme file.",
        "--update",
        metavar="WHAT",
    )
    optimizer: OptimizerName = declared("sgd", "common", "How weights follow gradients.", "--optimizer")
    learning_rate: float = declared(
        0.01, "common", "Learning rate; also settable at run time.", "--lr", check=within(0.0, 1e6)
    )
    batch: int = declared(1, "common", "Samples per update.", "--batch", check=at_least_one)
    quant: Literal["auto", "fp32", "int8"] = declared(
        "auto",
        "common",
        "Number format. auto: int8 for a model that is quantised (QDQ), fp32 for any other.",
        "--quant",
    )
    calib: Path | None = declared(
        None,
        "common",
        "Typical inputs x: int8 ranges of a float model. With labels y: exponents of errors too.",
        "--calib",
        metavar="FILE.npz",
        int8_only=True,
    )
    data: Path | None = declared(
        None, "common", "Samples x, y: to verify with, and to choose by (--update auto).", "--data", metavar="FILE.npz"
    )

    # ---- model ------------------------------------------------------------------------------------------------------

    classes: int | None = declared(
        None,
        "model",
        "Replace the last layer by a fresh one for N classes.",
        "--classes",
        metavar="N",
        limits=(2, 4096),
    )
    input_shapes: Mapping[str, tuple[int, ...]] = declared(
        dict,
        "model",
        "Fixes the dimensions of a dynamic input.",
        "--input-shape",
        metavar="NAME=D,D,..",
        read=parse_shapes,
        repeated=True,
    )
    input_layout: Literal["hwc", "chw", "lc", "cl"] = declared(
        "hwc",
        "model",
        "Of images (height, width, channels); of signals lc (length, channels: a sensor's FIFO) or cl, as without.",
        "--input-layout",
    )
    batch_norm: Literal["fold", "keep"] = declared(
        "fold", "model", "Into weights, or gamma and beta trained apart (float32).", "--batch-norm"
    )
    trainable: tuple[str, ...] = declared(
        (),
        "model",
        "Initializers or modules that are parameters, whatever the rules say (docs/parameters.md).",
        "--trainable",
        metavar="GLOB",
        repeated=True,
    )
    frozen: tuple[str, ...] = declared(
        (), "model", "Initializers or modules that are no parameters.", "--frozen", metavar="GLOB", repeated=True
    )
    untie: bool = declared(
        False, "model", "Train apart what an exporter has written once because the values are equal.", "--untie"
    )
    label: str = declared(
        "", "model", "Input that holds the labels, for a model that ends in its loss.", "--label", metavar="NAME"
    )
    model_output: str = declared(
        "", "model", "Which output is trained, of several, or which result of a node.", "--model-output", metavar="NAME"
    )
    weights: Path | None = declared(
        None,
        "model",
        "Weights of a graph with gradient nodes, by name or position (arr_N).",
        "--weights",
        metavar="FILE.npz",
    )

    # ---- memory -----------------------------------------------------------------------------------------------------

    memories: Mapping[str, int] = declared(
        dict,
        "memory",
        "A further memory of the target, for what does not fit into --arena.",
        "--memory",
        metavar="NAME=SIZE",
        read=parse_memories,
        repeated=True,
    )
    remat: Remat | None = declared(
        None,
        "memory",
        "Compute tensors twice: auto, as --arena needs; min, smallest arena. Default: auto up to 25 % more MACs.",
        "--remat",
    )
    stream: Stream = declared(
        "auto",
        "memory",
        "Compute early layers row by row: auto, as --arena needs (without: if 5 % is saved); min, smallest arena.",
        "--stream",
    )
    input_lines: bool = declared(
        False,
        "memory",
        "The firmware hands over rows of the image as they come, so that it is never in RAM.",
        "--input-lines",
    )
    input_type: Literal["int8", "uint8"] = declared(
        "int8", "memory", "Of rows that --input-lines takes; uint8: bytes of a camera.", "--input-type", int8_only=True
    )
    optimise: Objective | None = declared(
        None,
        "memory",
        "Smallest arena, least step time or energy by the target's model. Default: the least extra time that fits.",
        "--optimise",
    )
    max_step_ps: int | None = declared(
        None,
        "memory",
        "Longest step by the target's model, with paging and second runs: 500ms, 2s.",
        "--max-step-time",
        metavar="TIME",
        read=parse_time,
    )
    micro_batch: int | Literal["auto"] | None = declared(
        None,
        "memory",
        "Samples that one call trains on, of --batch [default: 1]; auto: what --arena, or each of --plans, holds.",
        "--micro-batch",
        metavar="N|auto",
    )
    lock: Path | None = declared(
        None,
        "memory",
        "Use order and addresses of an earlier plan.json (any name), checked again.",
        "--lock",
        metavar="FILE",
    )

    # ---- int8 -------------------------------------------------------------------------------------------------------

    calib_range: Literal["minmax", "percentile"] = declared(
        "minmax",
        "int8",
        "Range of an int8 activation: all of what --calib shows, or its middle 99.99 %.",
        "--calib-range",
        int8_only=True,
    )
    head: Literal["fp32", "int8"] = declared(
        "fp32", "int8", "Last layer, int8 models.", "--head", int8_only=True, without="fp32"
    )
    weight_store: Literal["sr8", "q8.8", "mixed"] = declared(
        "mixed",
        "int8",
        "Trained int8 weights: rounded with noise, with 8 fraction bits more, or these in small weights only.",
        "--weight-store",
        int8_only=True,
    )
    rescale: Literal["off", "on"] = declared(
        "off",
        "int8",
        "on: a channel whose trained int8 weights reach +-127 gets twice the scale.",
        "--rescale",
        int8_only=True,
        without="off",
    )

    # ---- verification -----------------------------------------------------------------------------------------------

    verify: Literal["qemu", "host", "none"] = declared(
        "qemu",
        "verification",
        "Where the C is run and compared with numpy: on the board in QEMU, on this machine, or nowhere.",
        "--verify",
    )
    verify_steps: int = declared(3, "verification", "Training steps compared.", "--verify-steps", limits=(1, 100000))
    count: bool = declared(
        False, "verification", "Count instructions of a step and an inference in QEMU, by kernel.", "--count"
    )
    cycles: bool = declared(
        False, "verification", "With --count: model the cycles of a step (a model, never a measurement).", "--cycles"
    )
    seed: int = declared(0, "verification", "For random samples and the planner.", "--seed", limits=(0, 2**31 - 1))

    # ---- code and speed ---------------------------------------------------------------------------------------------

    code: Literal["speed", "size", "auto"] | None = declared(
        None,
        "code",
        "Kernels of their own for every shape, or small code that layers share; auto: small if code is most of the "
        "flash and a third is saved. Default: speed.",
        "--code",
    )
    flash_budget_bytes: int | None = declared(
        None,
        "code",
        "Most that code and constants take: small code where needed; frozen weights are prepared in the rest.",
        "--flash-budget",
        metavar="SIZE",
        read=parse_size,
    )
    kernels: tuple[Path, ...] = declared(
        (),
        "code",
        "C kernels of your own for some layers (docs/external-kernels.md).",
        "--kernels",
        metavar="FILE.toml",
        repeated=True,
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


def taken(kind: type[StageOptions], options: CompileOptions, **own: Any) -> StageOptions:
    """Return the options of a stage: each field is the option of its name, unless `own` gives its value."""
    names = {item.name for item in fields(kind)} & OPTIONS.keys() - own.keys()
    return kind(**{name: getattr(options, name) for name in names}, **own)


_WITHOUT_TILES = (
    "was removed in 0.2.0, since it saved 0.09 % of the instructions in float32 and 0 % in int8; leave it out"
)
REMOVED = {"--tune": _WITHOUT_TILES, "--tiles": _WITHOUT_TILES}
"""Options of earlier versions: a command line, a file of --config or a call from Python may still name them."""

OF_THE_MODEL = frozenset(
    name
    for name, known in OPTIONS.items()
    if known.group in ("model", "training", "int8") or name in ("optimizer", "learning_rate", "batch", "quant", "calib")
) - {"gains", "pareto", "epochs", "warm_up"} | {"data", "seed", "target"}
"""Those that say what a step computes; all others are about the firmware that does."""


_DEFAULTS: Mapping[str, object] = {
    item.name: {} if item.name == "memories" else item.default for item in fields(CompileOptions)
}


def is_asked_for(options: CompileOptions, option: str) -> bool:
    """Tell whether an option has another value than by default, or the one that is named behind "="."""
    name, _, value = option.partition("=")
    found = options.runtime.names if name == "runtime" else getattr(options, name)
    if value:
        return value in found if name == "runtime" else found == value
    return found not in ((), None, 1) if name in ("runtime", "micro_batch") else found != _DEFAULTS[name]


def as_typed(option: str) -> str:
    """Return an option as it is typed: `--stream off` of "stream=off"."""
    name, _, value = option.partition("=")
    return f"{OPTIONS[name].flag} {value}".rstrip()


def refuse_auto(flag: str, why: str) -> None:
    """Raise E0101 for an option that is for an --update that is named."""
    way = "name it: --update last:N, or the update.toml in the folder of a build"
    raise CompileError("E0101", flag, why, way)
