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
from tinytrain_compile.ops.update import OptimizerName, defaults_of, optimizers_in_int8, optimizers_with
from tinytrain_compile.options.option import (
    GROUPS,
    SIZE,
    Option,
    at_least_one,
    declared,
    options_in,
    parse_betas,
    parse_epsilon,
    parse_listen,
    parse_memories,
    parse_name,
    parse_norm,
    parse_plans,
    parse_reports,
    parse_runtime,
    parse_shapes,
    parse_share,
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
    the command line sets. golden: the samples of --guard with their limit (ir/golden.py), which the driver reads.
    reserve_bytes: of a board's RAM, for all that is not the model; None: as its file says.
    runtime: parts of the loop around the step, in C.
    quant: "auto" is what driver/checks/model_options.py makes of the model; behind the driver it is one of the others.
    memories: further memories of the target that buffers may lie in, by name, and how many bytes of each.
    micro_batch: samples that a call takes; None is 1, or what a lock has; "auto": as many as --arena holds.
    remat: None leaves it to driver/candidates/ladder.py: a little, if --arena needs it; with `optimise`, to the
    objective. optimise: None is the least extra time that fits. max_step_ps: longest step by the target's model, in
    picoseconds. code: of kernels and calls; None is speed, or what flash_budget_bytes (of code and constants) asks for.
    """

    model: Path
    out: Path = _common(Path("out"), "Folder for the C project and its reports.", "-o", "--out")
    _: KW_ONLY

    # ---- the board, and the form of the project ---------------------------------------------------------------------

    reserve_bytes: int | None = _memory(
        None,
        "RAM of a board that is kept free for statics, heap and RTOS, such as 16KB. [default: from the board's file]",
        "--reserve",
        **SIZE,
    )
    package: Literal["cmake", "platformio", "arduino", "zephyr", "esp-idf", "makefile"] | None = _output(
        None,
        "Write a library for this build system (docs/packages.md). [default: a plain folder with a CMakeLists.txt]",
    )
    name: str = _output(
        "",
        "Prefix of C names and files, and name of the package. [default: name of the model's file]",
        metavar="NAME",
        read=parse_name,
    )

    # ---- the output folder and the terminal -------------------------------------------------------------------------

    runtime: RuntimeParts = _output(
        NO_PARTS,
        "Add C for the training loop, as a list: replay[=N samples], monitor[=flash], schedule, store, delta, "
        "average[=N states], journal (docs/training-loop.md). With monitor=flash the best state takes no RAM.",
        metavar="PARTS",
        read=parse_runtime,
    )
    features: Literal["off", "on"] = _output(
        "off",
        "on: split the step after the frozen part, so that later epochs compute only the trained part "
        "(docs/training-loop.md).",
    )
    slices: Literal["off", "on", "infer"] = _output(
        "off",
        "on: add calls that compute a step in short slices, so that your firmware can run between them. infer: also "
        "m_infer_open, an inference between slices, in RAM of its own (docs/slices.md).",
    )
    listen: int | Literal["off", "on", "only"] = _output(
        "off",
        "on, or the axis of time in the file's input, such as 2: add m_hear, an inference that takes the next rows of "
        "a stream. only: no call takes a whole window, and a head learns from the features of the stream "
        "(docs/listening.md).",
        metavar="off|on|only|AXIS",
        read=parse_listen,
        shown="off",
    )
    plans: tuple[int, ...] = _output(
        (),
        "Put a plan for each of these arena sizes into one project: 64KB,128KB. At run time, init uses the "
        "largest plan that fits.",
        metavar="SIZES",
        read=parse_plans,
    )
    guard: Path | None = _output(
        None,
        "Golden samples x, y for flash: adds m_guard_check, which accepts a trained model, or restores the last "
        "accepted one (docs/training-loop.md).",
        metavar="FILE.npz",
    )
    guard_drop: float = _output(
        0.01,
        "With --guard: share of the golden samples that an accepted model may lose, or by which its error may grow.",
        metavar="SHARE",
        read=parse_share,
        shown="1%",
    )
    inference_only: bool = _output(
        False, "Generate inference without training. It loads checkpoints of a training build with the same --update."
    )
    dry_run: bool = _output(False, "Plan and report, but write nothing.")
    force: bool = _output(False, "Overwrite files of the same names in -o, even if they are yours or edited.")
    report: tuple[str, ...] = _output(
        ("text", "json", "html"),
        "Reports to make: text on the terminal, html as report.html; report.json is always written. [default: "
        "text,json,html]",
        metavar="KINDS",
        read=parse_reports,
    )
    dump_after: Literal["frontend", "training", "plan"] | None = _output(
        None, "Print the result of this stage and exit."
    )

    # ---- how weights follow gradients -------------------------------------------------------------------------------

    gains: Path | None = _training(
        None,
        "Table of the gain of training each layer, for --update auto; `contribution` measures one "
        "(docs/update-schemes.md). [default: short runs on --data, or a prior]",
        metavar="FILE.csv",
    )
    pareto: bool = _training(False, "Also report the choice of --update auto for other arena sizes. Takes minutes.")
    loss: Literal["cross-entropy", "mse", "bce"] | None = _training(
        None,
        "Loss to add to the model: cross-entropy for classes, bce for labels 0 or 1, mse for values. [default: "
        "bce after a Sigmoid, cross-entropy for outputs (batch, classes)]",
    )
    dropout: Literal["off", "on"] = _training(
        "off", "on: apply the model's training-mode Dropout in every step (float32 only)."
    )
    momentum: float = _training(
        0.9,
        f"Momentum factor of --optimizer {optimizers_with('momentum')}. rmsprop uses none unless you give it.",
        check=within(0.0, 1.0),
    )
    nesterov: bool = _training(False, "Use Nesterov's form of momentum.")
    dampening: float = _training(
        0.0, "Share of each gradient that momentum leaves out, from the second update on.", check=within(0.0, 1.0)
    )
    betas: tuple[float, float] | None = _training(
        None,
        f"Decay rates of the moments in {optimizers_with('betas')}. {defaults_of('betas')}",
        metavar="B1,B2",
        read=parse_betas,
    )
    alpha: float = _training(0.99, "Decay rate of the mean of squared gradients in rmsprop.", check=within(0.0, 1.0))
    centered: bool = _training(
        False, "In rmsprop, divide by the standard deviation of gradients instead of their root mean square."
    )
    epsilon: float | None = _training(
        None,
        f"Number added to the denominator in {optimizers_with('epsilon')}. {defaults_of('epsilon')}",
        metavar="E",
        read=parse_epsilon,
    )
    epsilon_place: Literal["corrected", "raw"] = _training(
        "corrected",
        f"In {optimizers_with('epsilon_place')}, add epsilon after the bias correction (corrected, as PyTorch) or "
        "before it (raw, as ONNX Runtime).",
    )
    weight_decay: float = _training(
        0.0,
        "Pull float32 weights towards 0: an L2 penalty, or decoupled decay in adamw and lion.",
        check=within(0.0, 1e6),
    )
    clip_norm: float | None = _training(
        None,
        "Scale down each gradient whose norm exceeds NORM (docs/clipping.md). [default: no clipping]",
        metavar="NORM",
        read=parse_norm,
    )
    clip_per: Literal["model", "layer"] = _training(
        "model", "With --clip-norm: use one norm for the whole model, or one for each layer."
    )
    activations: Literal["exact", "asi", "subspace"] = _training(
        "exact",
        "Keep layer inputs for the gradients: all (exact), or low-rank copies in subspaces that adapt (asi) or "
        "stay fixed (subspace). Copies need --data (docs/activations.md).",
    )
    rank_error: float = _training(
        0.1,
        "With --activations asi or subspace: largest relative error of a layer's gradient, measured on --data.",
        check=within(0.0, 1.0),
    )
    accumulate: Literal["exact", "inplace"] = _training(
        "exact",
        "exact: sum the gradients of --batch N samples, then update. inplace: update after every sample with "
        "lr/N, which needs no RAM for sums.",
    )
    epochs: int | None = _training(
        None,
        "Passes over the samples, as a macro (M_EPOCHS) for the firmware's loop. finetune recommends a number.",
        metavar="N",
        limits=(1, 1000000),
    )
    warm_up: int | None = _training(
        None,
        "Updates in which the learning rate grows at first, as a macro (M_WARM_UP) for the firmware's schedule. "
        "finetune recommends a number.",
        metavar="N",
        limits=(1, 4294967295),
    )

    # ---- main options ----------------------------------------------------------------------------------------------

    target: str = _common(
        "cortex-m7", "Board or core, by name (see --list-targets) or as a TOML file.", metavar="NAME|FILE"
    )
    arena_bytes: int | None = _common(
        None,
        "Hard RAM limit of the arena: 256KB, 256KiB or 262144. [default: the first memory of a board; no limit "
        "for a core]",
        "--arena",
        **SIZE,
    )
    update: str = _common(
        "auto",
        "Parameters to train: auto, all, bias, head, last:N, layer names or GLOB,... or a scheme file "
        "(docs/update-schemes.md). auto picks the largest gain that fits.",
        metavar="WHAT",
    )
    optimizer: OptimizerName = _common(
        "sgd", f"Update rule of the trained weights. int8 weights need {optimizers_in_int8()}."
    )
    learning_rate: float = _common(
        0.01, "Learning rate at the start. The firmware can change it at run time.", "--lr", check=within(0.0, 1e6)
    )
    batch: int = _common(1, "Samples per update.", check=at_least_one)
    quant: Literal["auto", "fp32", "int8"] = _common(
        "auto",
        "Number format; auto: int8 for a quantised model (QDQ or QOperator), fp32 for any other. A float model "
        "needs --calib for int8.",
    )
    calib: Path | None = _common(
        None,
        "Typical inputs x, to measure the int8 ranges of a float model. With labels y, error exponents are "
        "measured too.",
        metavar="FILE.npz",
        int8_only=True,
    )
    data: Path | None = _common(
        None,
        "Samples x, y to verify with, instead of random ones. From 40 samples on, --update auto also trains on "
        "them to choose layers.",
        metavar="FILE.npz",
    )

    # ---- model ------------------------------------------------------------------------------------------------------

    classes: int | None = _model(
        None,
        "Replace the last layer with an untrained one for N classes, if your classes differ from the model's.",
        metavar="N",
        limits=(2, 4096),
    )
    input_shapes: Mapping[str, tuple[int, ...]] = _model(
        dict,
        "Fix the dimensions of a dynamic input, such as x=1,3,32,32. Repeatable.",
        "--input-shape",
        metavar="NAME=D,D,..",
        read=parse_shapes,
        repeated=True,
    )
    input_layout: Literal["hwc", "chw", "lc", "cl"] = _model(
        "hwc",
        "Axis order of inputs in the generated C. Images: hwc or chw; signals: lc (sample by sample, as from a "
        "sensor's FIFO) or cl, their default.",
    )
    batch_norm: Literal["fold", "keep"] = _model(
        "fold",
        "fold: merge BatchNormalization into the layer before it, so that both train as one. keep: train gamma "
        "and beta separately (float32 only).",
    )
    trainable: tuple[str, ...] = _model(
        (),
        "Treat these initializers or modules as parameters, overriding the rules in docs/parameters.md. Repeatable.",
        metavar="GLOB",
        repeated=True,
    )
    frozen: tuple[str, ...] = _model(
        (), "Never train these initializers or modules (docs/parameters.md). Repeatable.", metavar="GLOB", repeated=True
    )
    untie: bool = _model(
        False, "Treat equal tensors that the exporter stored only once as separate parameters (docs/parameters.md)."
    )
    label: str = _model(
        "",
        "Input with the labels, for a model that ends in its own loss. Needed if several inputs could hold them.",
        metavar="NAME",
    )
    model_output: str = _model(
        "", "Output to train, if the model has several. An inner result of a node works too.", metavar="NAME"
    )
    weights: Path | None = _model(
        None,
        "Weights of a training graph, by name or position (arr_N). [default: the checkpoint beside the graph]",
        metavar="FILE.npz",
    )

    max_window: int | None = _model(
        None,
        "Longest window, in frames of the input, to which a file with state may be unrolled (docs/tflite.md). "
        "[default: 512]",
        metavar="FRAMES",
        limits=(1, 1 << 20),
    )

    # ---- memory -----------------------------------------------------------------------------------------------------

    memories: Mapping[str, int] = _memory(
        dict,
        "Further memory of the target for buffers that do not fit into --arena, such as sram2=256KB. Repeatable. "
        "[default: all of a board's, if needed]",
        "--memory",
        metavar="NAME=SIZE",
        read=parse_memories,
        repeated=True,
    )
    remat: Remat | None = _memory(
        None,
        "Compute tensors a second time instead of keeping them: if --arena needs it (auto), or for the smallest "
        "arena (min). [default: auto, with at most 25 % more MACs]",
    )
    stream: Stream = _memory(
        "auto",
        "Compute early layers row by row. auto: if --arena needs it, or without --arena if it saves 5 %; min: for "
        "the smallest arena.",
    )
    input_lines: bool = _memory(
        False,
        "Let the firmware pass the image row by row as it arrives, so that the whole image is never in RAM. "
        "Freezes the first layer (docs/streams.md).",
    )
    input_type: Literal["int8", "uint8"] = _memory(
        "int8", "Element type of the rows given to --input-lines; use uint8 for camera bytes.", int8_only=True
    )
    optimise: Objective | None = _memory(
        None,
        "Choose the plan with the smallest arena, or with the least modelled step time or energy. [default: the "
        "least extra time that fits]",
    )
    max_step_ps: int | None = _memory(
        None,
        "Limit for the modelled time of one step: 500ms, 2s. [default: no limit]",
        "--max-step-time",
        metavar="TIME",
        read=parse_time,
    )
    micro_batch: int | Literal["auto"] | None = _memory(
        None,
        "Samples trained in one call; must divide --batch. auto: as many as --arena, or each of --plans, holds. "
        "[default: 1]",
        metavar="N|auto",
    )
    lock: Path | None = _memory(
        None,
        "Reuse the order and addresses of an earlier plan.json (the file may have another name), after checking "
        "them again.",
        metavar="FILE",
    )

    # ---- int8 -------------------------------------------------------------------------------------------------------

    calib_range: Literal["minmax", "percentile"] = _int8(
        "minmax",
        "Range of each activation, measured with --calib: smallest to largest value (minmax), or the middle 99.99 "
        "% (percentile).",
        int8_only=True,
    )
    head: Literal["fp32", "int8"] = _int8(
        "fp32", "Number format of the last layer and the loss in an int8 model.", int8_only=True, without="fp32"
    )
    weight_store: Literal["sr8", "q8.8", "mixed"] = _int8(
        "mixed",
        "Storage of trained int8 weights. sr8: random rounding; q8.8: 8 more fraction bits; mixed: fractions for "
        "the smallest tensors only (docs/int8.md).",
        int8_only=True,
    )
    rescale: Literal["off", "on"] = _int8(
        "off",
        "on: double the scale of a channel when one of its trained int8 weights reaches +-127, so that it can "
        "grow further.",
        int8_only=True,
        without="off",
    )

    # ---- verification -----------------------------------------------------------------------------------------------

    verify: Literal["qemu", "host", "none"] = _verification(
        "qemu",
        "Run the C code and compare it with numpy: in QEMU and on this machine (qemu), on this machine alone "
        "(host), or not (none).",
    )
    verify_steps: int = _verification(3, "Training steps to compare.", limits=(1, 100000))
    count: bool = _verification(False, "Count the instructions of one step and one inference in QEMU, by kernel.")
    cycles: bool = _verification(
        False, "With --count: also model the cycles of one step. A model, not a measurement (docs/cycles.md)."
    )
    seed: int = _verification(
        0, "Seed of random samples, fresh weights, rounding noise and the planner.", limits=(0, 2**31 - 1)
    )

    # ---- code and speed ---------------------------------------------------------------------------------------------

    code: Literal["speed", "size", "auto"] | None = _code(
        None,
        "speed: one specialised kernel per shape; size: smaller code shared by layers. auto: size, if code is "
        "most of the flash and a third is saved. [default: speed]",
    )
    flash_budget_bytes: int | None = _code(
        None,
        "Limit for code and constants, such as 640KB. Uses small code if needed, and spare flash for prepared "
        "weights (docs/streams.md).",
        "--flash-budget",
        **SIZE,
    )
    kernels: tuple[Path, ...] = _code(
        (),
        "Use C kernels of your own for some layers (docs/external-kernels.md). Repeatable.",
        metavar="FILE.toml",
        repeated=True,
    )

    given: frozenset[str] = frozenset()
    golden: object = None

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
    """Raise E0113 for an option that is for an --update that is named."""
    way = "name it: --update last:N, or the update.toml in the folder of a build"
    raise CompileError("E0113", flag, why, way)
