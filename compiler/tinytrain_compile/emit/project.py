"""Puts the generated project together."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field, replace
from functools import cache

import jinja2

from tinytrain_compile import __version__
from tinytrain_compile.emit.board import board_files
from tinytrain_compile.emit.c_text import Names, comment_lines, comment_text, fitted, prototype, readable
from tinytrain_compile.emit.checkpoint import checkpoint_bytes, contents, model_hash
from tinytrain_compile.emit.counted import header_data, tables_of_plans
from tinytrain_compile.emit.interface import (
    image_of,
    input_data,
    label_ctype,
    line_stream,
    shape_data,
    slots,
    training_data,
)
from tinytrain_compile.emit.parts.average import average_data
from tinytrain_compile.emit.parts.border import border_of
from tinytrain_compile.emit.parts.delta import delta_data
from tinytrain_compile.emit.parts.features import feature_lines
from tinytrain_compile.emit.parts.inference_only import behind, inference_data
from tinytrain_compile.emit.parts.loop import part_files, runtime_buffers
from tinytrain_compile.emit.plans import Model, numbered, sequence_files, sequence_names, step_parts, with_plans
from tinytrain_compile.emit.runtime_headers import copied, directly_used
from tinytrain_compile.emit.sequence import Part, Sequencer
from tinytrain_compile.emit.stack import unknown_stack
from tinytrain_compile.emit.tables import all_tables, declaration, float_text, state_block, table
from tinytrain_compile.emit.watch import Watch
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.runtime_parts import NO_PARTS, RuntimeParts
from tinytrain_compile.ir.slices import StepPieces
from tinytrain_compile.ir.stages import Interface, MemoryPlan, SourceBundle, StateSlot, TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.ops.input_lines import BYTE_ZERO
from tinytrain_compile.target.model import Target

LICENCE = "LicenseRef-model-owner"
"""What generated files say: we claim no rights in them (docs/licence.md)."""

HEADER_BYTES, POINTER_BYTES = 16, 8
"""Size of the handle `struct <prefix>` at the start of the arena, and of what it holds per further memory."""


@dataclass(frozen=True)
class EmitOptions:
    """prefix: of all external symbols and file names; settings: command-line facts for the header comment.

    debug_header: text of tt_debug.h for a build that watches the plan on a host; "" for firmware.
    small_calls: compile the call sequence for small code (kernels say for themselves whether they are).
    fma: whether the target fuses products that are only added; then every machine does.
    epochs, warm_up: passes over the samples, and updates in which the rate grows first, for the loop of the firmware;
    None: not said.
    board: the target, where it is a board; None for a core.
    """

    prefix: str
    alignment_bytes: int
    settings: tuple[str, ...]
    runtime: Mapping[str, str]
    """Headers that the generated C may include: file name -> text."""
    debug_header: str = ""
    small_calls: bool = False
    fma: bool = False
    external: Mapping[str, str] = field(default_factory=dict[str, str])
    """Files of external kernels that nodes of the plan use: file name -> text."""
    epochs: int | None = None
    warm_up: int | None = None
    features: bool = False
    """Whether the step is cut where training begins, as far as something is frozen."""
    board: Target | None = None
    pieces: tuple[StepPieces, ...] = ()
    """Of a step that can be computed in slices: of every plan, the smallest first; (): only whole."""
    parts: RuntimeParts = NO_PARTS
    """Of the loop around the step."""
    smaller: tuple[tuple[TrainGraph, MemoryPlan], ...] = ()
    """Further plans of the same training, by size."""
    counted: bool = False
    """Whether plans may take different numbers of samples: see Interface."""


@cache
def environment() -> jinja2.Environment:
    """Templates, compiled once: --flash-budget emits several times."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("tinytrain_compile.emit"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.filters["float32"] = float_text
    return made


def emit_project(train: TrainGraph, plan: MemoryPlan, kernels: KernelSet, options: EmitOptions) -> SourceBundle:
    """All C files and the build file of the project."""
    templates = environment()
    prefix = options.prefix
    planned = (*options.smaller, (train, plan))
    named = tables_of_plans(planned, prefix)
    own = [(*each, tables) for each, tables in zip(planned, named, strict=True)]
    pieces = options.pieces or (None,) * len(own)
    made = (_planned(*each, kernels, options, cut) for each, cut in zip(own, pieces, strict=True))
    interfaces, models = zip(*made, strict=True)
    interface, model = interfaces[-1], models[-1]
    with_plans(models, interfaces, prefix)
    constants = all_tables(own, kernels)
    kernel_files = _kernel_files(model, kernels, prefix)
    calls = sequence_names(models, prefix)
    small = [*(calls if options.small_calls else ()), *(name for name in kernel_files if name.endswith("_small.c"))]
    external = [name for name in options.external if name.endswith(".c")]
    public = header_data(train, interface, model) if interface.counted else model
    parts = part_files(templates, public, train, options.parts, prefix)
    sources = [*calls, *kernel_files, f"{prefix}_weights.c", *external]
    sources += [name for name in parts if name.endswith(".c")]
    for each in (model, public):
        each.update(sources=sources, small_sources=small)
    model["kernel_declarations"] = [prototype(kernel.declaration) for kernel in kernels.functions]
    model["table_declarations"] = [declaration(name, data) for name, data in constants]

    def rendered(name: str, model: Model) -> str:
        return fitted(templates.get_template(f"{name}.j2").render(model))

    code = {**sequence_files(templates, models, prefix), **kernel_files}
    model["headers"] = used = directly_used(code.values(), options.runtime)
    files = {
        f"{prefix}_train.h": rendered("train.h", public),
        f"{prefix}_internal.h": rendered("internal.h", model),
        **code,
        f"{prefix}_weights.c": _source(
            model, [table(name, data) for name, data in constants], "Constant tables (flash)."
        ),
        **copied(used, options.external.values(), options.runtime),
        **options.external,
        **parts,
        "CMakeLists.txt": templates.get_template("CMakeLists.txt.j2").render(model),
    }
    if options.board is not None:
        buffers = runtime_buffers(train, options.parts, interface.feature_bytes)
        files |= board_files(templates, model, options.board, interface, plan, buffers)
    if options.debug_header:
        files["tt_debug.h"] = options.debug_header
    return SourceBundle(files, interface, tuple(small), tuple(external), numbered(interfaces[:-1]), step_parts(model))


def _planned(
    train: TrainGraph,
    plan: MemoryPlan,
    tables: Names,
    kernels: KernelSet,
    options: EmitOptions,
    pieces: StepPieces | None,
) -> tuple[Interface, dict[str, object]]:
    """Of one plan: what a caller needs to know, and what the templates do."""
    interface = _interface(train, plan, options)
    watches = _watches(plan) if options.debug_header else ()
    sequencer = Sequencer(train, plan, kernels, tables, watches, options.small_calls, pieces)
    model = _template_data(train, plan, options, interface, sequencer, tables)
    model["watched"] = [line for watch in watches for line in watch.tables()]
    model["accumulates"] = interface.accumulates
    return interface, model


def _kernel_files(model: dict[str, object], kernels: KernelSet, prefix: str) -> dict[str, str]:
    """The kernels' C files: those for speed, those for small code, where there are any."""
    fast = [readable(kernel.source) for kernel in kernels.functions if not kernel.small]
    small = [readable(kernel.source) for kernel in kernels.functions if kernel.small]
    files: dict[str, str] = {}
    if fast or not small:
        files[f"{prefix}_kernels.c"] = _source(model, fast, "The kernels, one per distinct operation.")
    if small:
        files[f"{prefix}_kernels_small.c"] = _source(model, small, "Kernels for small code, one per kind of loops.")
    return files


def _source(model: dict[str, object], pieces: list[str], what: str) -> str:
    head = (
        f"/* SPDX-License-Identifier: {LICENCE} */\n"
        f"/* {model['title']}: {what} Generated by tinytrain-compile {__version__}. */\n"
        f'#include "{model["p"]}_internal.h"\n'
    )
    return "\n".join([head, *pieces])


def _interface(train: TrainGraph, plan: MemoryPlan, options: EmitOptions) -> Interface:
    state = tuple(
        StateSlot(value.name, offset, value.size_bytes, value.dtype, memory)
        for value in train.graph.state
        for memory, offset in (plan.place(plan.offsets[value.name]),)
    )
    return Interface(
        prefix=options.prefix,
        input_elements=train.graph.inputs[0].elements,
        output_elements=train.graph.outputs[0].elements // train.micro_batch,
        label_ctype=label_ctype(train),
        label_elements=train.label.elements,
        arena_bytes=plan.arena_bytes,
        persistent_bytes=plan.persistent_bytes,
        alignment_bytes=options.alignment_bytes,
        accumulates=train.batch > 1,
        chooses=train.choice is not None,
        state=state,
        micro_batch=train.micro_batch,
        input_dtype=image_of(train, plan).dtype,
        exact=train.integer,
        further_bytes=tuple(memory.used_bytes for memory in plan.further),
        terms=train.terms,
        transient_offsets=_transient_offsets(plan),
        more_inputs=slots(train),
        input_rows=train.graph.inputs[0].shape[1] if line_stream(plan) else 0,
        feature_bytes=_feature_bytes(train, plan) if options.features else 0,
        trains=train.reads_state_of is None,
        counted=options.counted,
    )


def _feature_bytes(train: TrainGraph, plan: MemoryPlan) -> int:
    border = border_of(train, plan)
    return 0 if border is None else border.size_bytes


def _transient_offsets(plan: MemoryPlan) -> tuple[int, ...]:
    """Where persistent buffers end in every memory: they lie at its bottom."""
    ends = [0] * (1 + len(plan.further))
    for buffer in plan.buffers:
        if buffer.kind in ("header", "state", "accumulator"):
            memory, offset = plan.place(buffer.offset)
            ends[memory] = max(ends[memory], offset + buffer.size_bytes)
    return tuple(ends)


def _watches(plan: MemoryPlan) -> tuple[Watch, ...]:
    """Of the step, and of an inference of one sample, which reads the state that its own plan knows nothing of."""
    if plan.inference is None:
        return (Watch(plan),)
    kept = tuple(enumerate(_transient_offsets(plan)))
    return Watch(plan), Watch(plan.inference.plan, "one", tuple((memory, size) for memory, size in kept if size))


def _template_data(
    train: TrainGraph,
    plan: MemoryPlan,
    options: EmitOptions,
    interface: Interface,
    sequencer: Sequencer,
    tables: Names,
) -> dict[str, object]:
    graph = train.graph
    prefix = options.prefix
    zeroed = sorted(graph.accumulators, key=lambda value: plan.offsets[value.name])  # whoever listed what is trained
    if train.reads_state_of is None:
        parts = {**_parts(train, plan, options, sequencer), **training_data(train, sequencer, prefix, tables)}
    else:
        parts = inference_data(train, plan, sequencer)
    return {
        "p": prefix,
        "P": prefix.upper(),
        "title": comment_text(graph.name),
        "settings": [part for line in options.settings for part in comment_lines(line)],
        "notes": [part for note in graph.notes for part in comment_lines(note)],
        "i": interface,
        **_identity(train, options),
        "header_bytes": HEADER_BYTES + POINTER_BYTES * len(plan.further),
        "paged": plan.paging,
        "further": [(index, comment_text(memory.name)) for index, memory in enumerate(plan.further, 1)],
        "state_block": state_block(train, sequencer, tables),
        "zeroed": [(sequencer.pointer(value.name), value.size_bytes) for value in zeroed],
        **input_data(train, plan, sequencer),
        "first_input": comment_text(graph.inputs[0].origin or graph.inputs[0].name),
        "epochs": options.epochs,
        "warm_up": options.warm_up,
        "exponents_known": train.exponents_known,
        "small_calls": options.small_calls,
        "skipped_behind": behind(train),
        **shape_data(train, interface),
        "input_quant": graph.inputs[0].quant if graph.inputs[0].dtype == "int8" else None,
        "input_zero_more": BYTE_ZERO if interface.input_dtype == "uint8" else 0,
        "input_shape": "x".join(map(str, graph.inputs[0].shape)),
        "output_shape": "x".join(map(str, train.of_one(graph.outputs[0]))),
        **parts,
        "delta": delta_data(train, tables) if "delta" in options.parts.names else None,
        "average": average_data(train, options.parts),
        "offsets": sequencer.offsets(),
    }


def _parts(train: TrainGraph, plan: MemoryPlan, options: EmitOptions, sequencer: Sequencer) -> dict[str, object]:
    """The functions of the call sequence: of an inference, of a step up to its loss and behind it, of an update."""
    graph = replace(train.graph, nodes=plan.order)  # with its streams
    needed_infer = graph.ancestors(graph.outputs)
    needed_train = graph.ancestors((train.loss, *(new for _, new in graph.updates)))
    step = [node for node in plan.order if node.phase == "step"]
    training = [node for node in step if node.name in needed_train]
    judged = 1 + next(i for i, node in enumerate(training) if train.loss in node.outputs)
    after_loss = next(node.name for node in training[judged:] if not op_def(node.op).view)
    starts = _common_runs(step, needed_infer, needed_train) if options.small_calls else set[str]()
    border = border_of(train, plan) if options.features else None
    starts |= set[str]() if border is None else border.starts
    stream = line_stream(plan)
    until = 0 if stream is None else 1 + step.index(stream)
    behind = {node.name for node in step[until:]}
    infer = sequencer.parts(
        "infer" if plan.inference is None else "infer_batch",
        (n for n in step if n.name in needed_infer & behind),
        starts=starts,
    )
    train_parts = sequencer.parts("step", (n for n in training if n.name in behind), infer, {*starts, after_loss})
    cut = next(i for i, part in enumerate(train_parts) if part.first == after_loss)
    features: dict[str, object] = {"feature_bytes": 0}
    if border is not None:
        features = feature_lines(border, train_parts, cut, sequencer)
    return {
        **features,
        "features_asked": options.features,
        "slices": sequencer.step_parts(train_parts),
        **_inference(train, plan, sequencer, infer),
        "begin_parts": sequencer.parts("begin", step[: max(until - 1, 0)]),
        "row_parts": sequencer.parts("take_row", step[max(until - 1, 0) : until]),
        "loss_parts": train_parts[:cut],
        "gradient_parts": train_parts[cut:],
        "loss_waits": sequencer.pending(training[:judged]),
        "own_step_parts": [part for part in train_parts if part not in infer],
        "apply_parts": sequencer.parts("apply", (n for n in plan.order if n.phase == "apply")),
    }


def _inference(train: TrainGraph, plan: MemoryPlan, sequencer: Sequencer, parts: list[Part]) -> dict[str, object]:
    """The functions and addresses of m_infer and, where a step takes several samples, of m_infer_batch."""
    output = sequencer.pointer(train.graph.outputs[0].name)
    if plan.inference is None:
        assert train.micro_batch == 1, "m_infer takes one sample: the plan of a larger step has a pass for it"
        return {"infer_parts": parts, "batch_parts": [], "output": output}
    graph = plan.inference.graph
    return {
        "infer_parts": sequencer.parts("infer", plan.inference.plan.order),
        "batch_parts": parts,
        "batch_output": output,
        "output": sequencer.pointer(graph.outputs[0].name),
        "one_input": sequencer.pointer(graph.inputs[0].name),
        "one_input_bytes": graph.inputs[0].size_bytes,
    }


def _common_runs(step: list[Node], infer: Container[str], train: Container[str]) -> set[str]:
    """Where functions must begin for the runs of calls that inference and training have in common to be shared."""
    calls = [node.name for node in step if not op_def(node.op).view]
    kinds = [(name in infer, name in train) for name in calls]
    return {name for name, before, kind in zip(calls[1:], kinds, kinds[1:], strict=False) if before != kind}


def _identity(train: TrainGraph, options: EmitOptions) -> dict[str, object]:
    """What this build is, whatever its plan: how it rounds, and whose state it reads."""
    kinds = contents(train.training_step)
    return {
        "fma": options.fma,
        "version": __version__,
        "licence": LICENCE,
        "unknown_stack": unknown_stack(options.prefix),
        "hash": model_hash(train.training_step),
        "checkpoint_bytes": checkpoint_bytes(train.training_step),
        "kinds": sorted({kinds[value.name] for value in train.graph.state} - {"ANY"}),
    }
