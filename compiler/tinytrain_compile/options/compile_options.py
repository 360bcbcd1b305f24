"""Everything that a user may ask of one compilation: every option, once.

A field's name and type are those of the option. Beside it stand its group, default and help, and flags if the name
does not say them (`options/option.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import Objective, Remat, Stream
from tinytrain_compile.ir.runtime_parts import NO_PARTS, RuntimeParts
from tinytrain_compile.ops.update import OptimizerName, defaults_of, optimizers_with
from tinytrain_compile.options.option import (
    GROUPS,
    SIZE,
    Option,
    at_least_one,
    declared,
    options_in,
    parse_betas,
    parse_epsilon,
    parse_memories,
    parse_name,
    parse_norm,
    parse_plans,
    parse_reports,
    parse_runtime,
    parse_shapes,
    parse_time,
    within,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

StageOptions = TypeVar("StageOptions", bound="DataclassInstance")
"""Dataclass of a stage whose fields have the names of options."""

_common, _model, _memory, _training, _int8, _verification, _code, _output = (
    partial(declared, group) for group in GROUPS
)


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
    out: Path = _common(Path("out"), "Output folder.", "-o", "--out")
    _: KW_ONLY

    # ---- the board, and the form of the project ---------------------------------------------------------------------

    reserve_bytes: int | None = _memory(
        None, "RAM of a board for statics, heap and RTOS. Default: as its file says.", "--reserve", **SIZE
    )
    package: Literal["cmake", "platformio", "arduino", "zephyr", "esp-idf", "makefile"] | None = _output(
        None, "Write the project as a library of this build system (docs/packages.md)."
    )
    name: str = _output(
        "",
        "Prefix of C names and files, and of a package. Default: the name of the model's file.",
        metavar="NAME",
        read=parse_name,
    )

    # ---- the output folder and the terminal -------------------------------------------------------------------------

    runtime: RuntimeParts = _output(
        NO_PARTS,
        "C around the step: replay (replay=N: RAM for N samples), monitor (=flash: its best state takes no RAM), "
        "schedule, store, delta, average (=N).",
        metavar="PARTS",
        read=parse_runtime,
    )
    features: Literal["off", "on"] = _output(
        "off", "Cut the step where training begins, so that later epochs cost the trained part alone."
    )
    slices: Literal["off", "on"] = _output(
        "off", "on: a step can be computed in slices of time, between which the firmware has the processor."
    )
    plans: tuple[int, ...] = _output(
        (),
        "Several plans in one project, for arenas of these sizes; init takes the largest that fits: 64KB,128KB.",
        metavar="SIZES",
        read=parse_plans,
    )
    inference_only: bool = _output(
        False, "No training: an image that infers, and loads checkpoints of a training build with the same --update."
    )
    dry_run: bool = _output(False, "Plan and report; write nothing.")
    force: bool = _output(False, "Overwrite files in -o of the same names that tinytrain-compile did not write there.")
    report: tuple[str, ...] = _output(
        ("text", "json", "html"),
        "text on the terminal, html beside report.json [default: text,json,html].",
        metavar="KINDS",
        read=parse_reports,
    )
    dump_after: Literal["frontend", "training", "plan"] | None = _output(None, "Print a stage's result and stop.")

    # ---- how weights follow gradients -------------------------------------------------------------------------------

    gains: Path | None = _training(
        None,
        "What training each layer is worth, for --update auto (docs/update-schemes.md). Default: a prior.",
        metavar="FILE.csv",
    )
    pareto: bool = _training(
        False, "What --update auto would train in some other arenas, beside this one (takes minutes)."
    )
    loss: Literal["cross-entropy", "mse", "bce"] | None = _training(
        None, "Default: bce behind a Sigmoid, else cross-entropy for (batch, classes)."
    )
    dropout: Literal["off", "on"] = _training("off", "Dropout that the file has in training mode (float32).")
    momentum: float = _training(
        0.9, f"Of {optimizers_with('momentum')}. Not given: rmsprop has none.", check=within(0.0, 1.0)
    )
    nesterov: bool = _training(False, "Nesterov's momentum.")
    dampening: float = _training(0.0, "Of momentum, from the second update on.", check=within(0.0, 1.0))
    betas: tuple[float, float] | None = _training(
        None, f"Decay rates of {optimizers_with('betas')}. {defaults_of('betas')}", metavar="B1,B2", read=parse_betas
    )
    alpha: float = _training(0.99, "Decay rate of rmsprop's squares.", check=within(0.0, 1.0))
    centered: bool = _training(False, "rmsprop by the spread of gradients.")
    epsilon: float | None = _training(None, defaults_of("epsilon"), metavar="E", read=parse_epsilon)
    epsilon_place: Literal["corrected", "raw"] = _training(
        "corrected", "Of adam: beside the corrected root, or sqrt(v) itself (ORT)."
    )
    weight_decay: float = _training(0.0, "Pulls float32 weights towards 0.", check=within(0.0, 1e6))
    clip_norm: float | None = _training(
        None,
        "Largest norm of a gradient; a longer one is scaled down (docs/clipping.md).",
        metavar="NORM",
        read=parse_norm,
    )
    clip_per: Literal["model", "layer"] = _training(
        "model", "Whose norm: of all that is trained, or of each layer alone."
    )
    activations: Literal["exact", "asi", "subspace"] = _training(
        "exact",
        "What layers keep of their inputs for gradients: all, or a low-rank copy in subspaces that follow (asi) or"
        " are fixed (subspace) (docs/activations.md; needs --data).",
    )
    rank_error: float = _training(
        0.1, "Of --activations: largest relative error of a layer's gradient on --data.", check=within(0.0, 1.0)
    )
    accumulate: Literal["exact", "inplace"] = _training(
        "exact", "Over --batch N samples: sum gradients, or update with each at once, at a learning rate of 1/N."
    )
    epochs: int | None = _training(
        None,
        "Passes over the samples that the firmware is to make: a macro for its loop (finetune recommends them).",
        metavar="N",
        limits=(1, 1000000),
    )
    warm_up: int | None = _training(
        None,
        "Updates in which the firmware's rate is to grow first: a macro for its schedule (finetune recommends it).",
        metavar="N",
        limits=(1, 4294967295),
    )

    # ---- what everyone needs ----------------------------------------------------------------------------------------

    target: str = _common("cortex-m7", "Board or core (--list-targets) or TOML.", metavar="NAME|FILE")
    arena_bytes: int | None = _common(
        None, "RAM for everything that changes: 256KB, 256KiB or 262144.", "--arena", **SIZE
    )
    update: str = _common(
        "auto",
        "What is trained: auto (what gains most and fits), all, bias, head, last:N, GLOB,... or a scheme file.",
        metavar="WHAT",
    )
    optimizer: OptimizerName = _common("sgd", "How weights follow gradients.")
    learning_rate: float = _common(0.01, "Learning rate; also settable at run time.", "--lr", check=within(0.0, 1e6))
    batch: int = _common(1, "Samples per update.", check=at_least_one)
    quant: Literal["auto", "fp32", "int8"] = _common(
        "auto", "Number format. auto: int8 for a model that is quantised (QDQ), fp32 for any other."
    )
    calib: Path | None = _common(
        None,
        "Typical inputs x: int8 ranges of a float model. With labels y: exponents of errors too.",
        metavar="FILE.npz",
        int8_only=True,
    )
    data: Path | None = _common(
        None, "Samples x, y: to verify with, and to choose by (--update auto).", metavar="FILE.npz"
    )

    # ---- model ------------------------------------------------------------------------------------------------------

    classes: int | None = _model(
        None, "Replace the last layer by a fresh one for N classes.", metavar="N", limits=(2, 4096)
    )
    input_shapes: Mapping[str, tuple[int, ...]] = _model(
        dict,
        "Fixes the dimensions of a dynamic input.",
        "--input-shape",
        metavar="NAME=D,D,..",
        read=parse_shapes,
        repeated=True,
    )
    input_layout: Literal["hwc", "chw", "lc", "cl"] = _model(
        "hwc",
        "Of images (height, width, channels); of signals lc (length, channels: a sensor's FIFO) or cl, as without.",
    )
    batch_norm: Literal["fold", "keep"] = _model("fold", "Into weights, or gamma and beta trained apart (float32).")
    trainable: tuple[str, ...] = _model(
        (),
        "Initializers or modules that are parameters, whatever the rules say (docs/parameters.md).",
        metavar="GLOB",
        repeated=True,
    )
    frozen: tuple[str, ...] = _model(
        (), "Initializers or modules that are no parameters.", metavar="GLOB", repeated=True
    )
    untie: bool = _model(False, "Train apart what an exporter has written once because the values are equal.")
    label: str = _model("", "Input that holds the labels, for a model that ends in its loss.", metavar="NAME")
    model_output: str = _model("", "Which output is trained, of several, or which result of a node.", metavar="NAME")
    weights: Path | None = _model(
        None, "Weights of a graph with gradient nodes, by name or position (arr_N).", metavar="FILE.npz"
    )

    # ---- memory -----------------------------------------------------------------------------------------------------

    memories: Mapping[str, int] = _memory(
        dict,
        "A further memory of the target, for what does not fit into --arena.",
        "--memory",
        metavar="NAME=SIZE",
        read=parse_memories,
        repeated=True,
    )
    remat: Remat | None = _memory(
        None, "Compute tensors twice: auto, as --arena needs; min, smallest arena. Default: auto up to 25 % more MACs."
    )
    stream: Stream = _memory(
        "auto",
        "Compute early layers row by row: auto, as --arena needs (without: if 5 % is saved); min, smallest arena.",
    )
    input_lines: bool = _memory(
        False, "The firmware hands over rows of the image as they come, so that it is never in RAM."
    )
    input_type: Literal["int8", "uint8"] = _memory(
        "int8", "Of rows that --input-lines takes; uint8: bytes of a camera.", int8_only=True
    )
    optimise: Objective | None = _memory(
        None,
        "Smallest arena, least step time or energy by the target's model. Default: the least extra time that fits.",
    )
    max_step_ps: int | None = _memory(
        None,
        "Longest step by the target's model, with paging and second runs: 500ms, 2s.",
        "--max-step-time",
        metavar="TIME",
        read=parse_time,
    )
    micro_batch: int | Literal["auto"] | None = _memory(
        None,
        "Samples that one call trains on, of --batch [default: 1]; auto: what --arena, or each of --plans, holds.",
        metavar="N|auto",
    )
    lock: Path | None = _memory(
        None, "Use order and addresses of an earlier plan.json (any name), checked again.", metavar="FILE"
    )

    # ---- int8 -------------------------------------------------------------------------------------------------------

    calib_range: Literal["minmax", "percentile"] = _int8(
        "minmax", "Range of an int8 activation: all of what --calib shows, or its middle 99.99 %.", int8_only=True
    )
    head: Literal["fp32", "int8"] = _int8("fp32", "Last layer, int8 models.", int8_only=True, without="fp32")
    weight_store: Literal["sr8", "q8.8", "mixed"] = _int8(
        "mixed",
        "Trained int8 weights: rounded with noise, with 8 fraction bits more, or these in small weights only.",
        int8_only=True,
    )
    rescale: Literal["off", "on"] = _int8(
        "off",
        "on: a channel whose trained int8 weights reach +-127 gets twice the scale.",
        int8_only=True,
        without="off",
    )

    # ---- verification -----------------------------------------------------------------------------------------------

    verify: Literal["qemu", "host", "none"] = _verification(
        "qemu", "Where the C is run and compared with numpy: on the board in QEMU, on this machine, or nowhere."
    )
    verify_steps: int = _verification(3, "Training steps compared.", limits=(1, 100000))
    count: bool = _verification(False, "Count instructions of a step and an inference in QEMU, by kernel.")
    cycles: bool = _verification(False, "With --count: model the cycles of a step (a model, never a measurement).")
    seed: int = _verification(0, "For random samples and the planner.", limits=(0, 2**31 - 1))

    # ---- code and speed ---------------------------------------------------------------------------------------------

    code: Literal["speed", "size", "auto"] | None = _code(
        None,
        "Kernels of their own for every shape, or small code that layers share; auto: small if code is most of the "
        "flash and a third is saved. Default: speed.",
    )
    flash_budget_bytes: int | None = _code(
        None,
        "Most that code and constants take: small code where needed; frozen weights are prepared in the rest.",
        "--flash-budget",
        **SIZE,
    )
    kernels: tuple[Path, ...] = _code(
        (), "C kernels of your own for some layers (docs/external-kernels.md).", metavar="FILE.toml", repeated=True
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


OPTIONS: Mapping[str, Option] = options_in(CompileOptions)
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
