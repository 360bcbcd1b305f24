"""Assembly of the generated project: one plan or several, and the requested parts."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from tinytrain_compile import __version__
from tinytrain_compile.emit.board import board_files
from tinytrain_compile.emit.c_text import Names, comment_lines, comment_text, prototype, readable
from tinytrain_compile.emit.checkpoint import behind, checkpoint_bytes, contents, model_hash
from tinytrain_compile.emit.example import example_files
from tinytrain_compile.emit.interface import input_data, interface_of, shape_data, training_data, transient_offsets
from tinytrain_compile.emit.kernel_comments import with_layers
from tinytrain_compile.emit.part import Part, PlanCode
from tinytrain_compile.emit.render import LICENCE, environment, render, words
from tinytrain_compile.emit.sequence import Section, Sequencer, in_halves
from tinytrain_compile.emit.tables import all_tables, declaration, state_block, table
from tinytrain_compile.emit.watch import Watch
from tinytrain_compile.ir.kernels import Kernel, KernelSet
from tinytrain_compile.ir.stages import MemoryPlan, SourceBundle, StepPieces, TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.target.model import Target

_DEFINED = re.compile(
    r"^(?:static inline|TT_SHARED) .*?(tt_\w+)\(|^#\s*define (TT_\w+)"
    r"|^typedef .*?(tt_\w+)(?: __attribute__.*)?;|^} (tt_\w+);",
    re.MULTILINE,
)
_INCLUDED = re.compile(r'^#\s*include "(tt_\w+\.h)"', re.MULTILINE)
FIRST = "tt_runtime.h"
"""Header that every file includes before all others."""
_COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
_NAME = re.compile(r"\b(?:tt|TT)_\w+\b(?!\.h)")

HEADER_BYTES, POINTER_BYTES = 16, 8
"""Bytes of the handle `struct <prefix>` at the start of the arena, and of its pointer per further memory."""


@dataclass(frozen=True)
class EmitOptions:
    """prefix: of all external symbols and file names; settings: command-line facts for the header comment.

    debug_header: text of tt_debug.h for a build that watches the plan on a host; "" for firmware.
    small_calls: compile the call sequence for small code (kernels have their own flag).
    fma: whether the target fuses products that are only added; then every machine does. epochs, warm_up: passes over
    the samples, and first updates in which the rate grows, for the loop of the firmware; None: not given.
    board: the target, if it is a board; None for a core.
    parts: of the project besides the step. pieces: of a step that can be computed in slices, for every plan, the
    smallest first; (): only whole. smaller: further plans of the same training, by size.
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
    board: Target | None = None
    parts: tuple[Part, ...] = ()
    pieces: tuple[StepPieces, ...] = ()
    smaller: tuple[tuple[TrainGraph, MemoryPlan], ...] = ()


def emit_project(train: TrainGraph, plan: MemoryPlan, kernels: KernelSet, options: EmitOptions) -> SourceBundle:
    """Write all C files and the build file of the project."""
    prefix, parts = options.prefix, options.parts

    def rendered(template: str, model: Mapping[str, object]) -> str:
        return render(template, model, parts)

    codes = _codes((*options.smaller, (train, plan)), kernels, options)
    code = codes[-1]
    model, interface = code.model, code.interface
    # The header may describe one sample of a plan whose calls take several (--plans with --micro-batch auto).
    public = {**model, **{key: value for part in parts for key, value in part.public(code).items()}}
    constants = all_tables([(each.train, each.plan, each.tables) for each in codes], kernels)
    functions = with_layers(kernels, [(each.train, each.plan) for each in codes])
    kernel_files = _kernel_files(model, functions, prefix)
    apart = next((files for part in parts if (files := part.sequences(codes, rendered)) is not None), None)
    calls = {f"{prefix}_train.c": rendered("train.c.j2", model)} if apart is None else apart
    of_parts = {f"{prefix}_{name}": rendered(f"{part.name}/{name}.j2", public) for part in parts for name in part.files}
    small = [
        *(name for name in calls if options.small_calls and name.endswith(".c")),
        *(name for name in kernel_files if name.endswith("_small.c")),
    ]
    external = [name for name in options.external if name.endswith(".c")]
    sources = [*calls, *kernel_files, f"{prefix}_weights.c", *external, *of_parts]
    code_files = {**calls, **kernel_files}
    used = directly_used(code_files.values(), options.runtime)
    model |= {
        "sources": [name for name in sources if name.endswith(".c")],
        "small_sources": small,
        "headers": used,
        "kernel_declarations": [prototype(kernel.declaration) for kernel in kernels.functions],
        "table_declarations": [declaration(name, data) for name, data in constants],
    }
    tables = [table(name, data) for name, data in constants]
    files = {
        f"{prefix}_train.h": rendered("train.h.j2", public),
        f"{prefix}_internal.h": rendered("internal.h.j2", model),
        **code_files,
        f"{prefix}_weights.c": _source(model, tables, "Constant tables (flash)."),
        **copied(used, options.external.values(), options.runtime),
        **options.external,
        **of_parts,
        "CMakeLists.txt": environment().get_template("CMakeLists.txt.j2").render(model),
    }
    if options.board is not None:
        found = (part.buffer(train, interface.feature_bytes) for part in parts)
        buffers = [buffer for buffer in found if buffer is not None]
        files |= board_files(environment(), model, options.board, interface, plan, buffers)
    if options.debug_header:
        files["tt_debug.h"] = options.debug_header
    smaller = tuple(each.interface for each in codes[:-1])
    example = partial(example_files, code=code, model=public, render=rendered)
    return SourceBundle(files, interface, tuple(small), tuple(external), smaller, tuple(code.slices), example)


def _codes(
    planned: Sequence[tuple[TrainGraph, MemoryPlan]], kernels: KernelSet, options: EmitOptions
) -> list[PlanCode]:
    """Assemble every plan's call sequence, and then add the values that depend on the others."""
    named = (part.tables(planned, options.prefix) for part in options.parts)
    tables = next((names for names in named if names is not None), [Names(f"{options.prefix}_w_")])
    pieces = options.pieces or (None,) * len(planned)
    codes = [
        _code(*each, names, kernels, options, cut) for each, names, cut in zip(planned, tables, pieces, strict=True)
    ]
    for part in options.parts:
        part.together(codes)
    return codes


def _code(
    train: TrainGraph,
    plan: MemoryPlan,
    tables: Names,
    kernels: KernelSet,
    options: EmitOptions,
    pieces: StepPieces | None,
) -> PlanCode:
    """Write the call sequence of one plan, and gather the templates' values for it."""
    watches = _watches(plan) if options.debug_header else ()
    sequencer = Sequencer(train, plan, kernels, tables, watches, options.small_calls, pieces)
    interface = interface_of(train, plan, options.prefix, options.alignment_bytes)
    code = PlanCode(train, plan, tables, sequencer, interface)
    for part in options.parts:  # before any call is written: parts decide where functions begin and what runs when
        part.prepare(code)
    code.model |= _sections(code, options)
    if code.interface.trains:
        code.model |= training_data(train, sequencer, options.prefix)
    code.model |= {**_identity(code, options), **_memory(code), **input_data(train, plan, sequencer)}
    code.model |= {"i": code.interface, "train": train, "plan": plan, "options": options}
    code.model |= {**shape_data(train, code.interface), **words(code.model)}
    for part in options.parts:  # after the core's values, which parts may override
        code.model |= part.values(code)
    code.model["watched"] = [line for watch in watches for line in watch.tables()]
    code.model["offsets"] = sequencer.offsets()  # last: it has the names used by the calls and the fragments
    code.model |= {"accesses": sequencer.accesses(), "further_accesses": sequencer.accesses(further=True)}
    return code


def _watches(plan: MemoryPlan) -> tuple[Watch, ...]:
    """Watch the step, and an inference of one sample, which reads state that is not in its own plan."""
    if plan.inference is None:
        return (Watch(plan),)
    kept = tuple(enumerate(transient_offsets(plan)))
    return Watch(plan), Watch(plan.inference.plan, "one", tuple((memory, size) for memory, size in kept if size))


def _sections(code: PlanCode, options: EmitOptions) -> dict[str, object]:
    """Write the functions of the call sequence: of an inference, of a step up to its loss and after it, of an
    update."""
    train, plan, sequencer = code.train, code.plan, code.sequencer
    graph = replace(train.graph, nodes=plan.order)  # with its streams
    step = [node for node in plan.order if node.phase == "step"]
    called = {node.name for node in step[code.first :]}
    needed_infer = graph.ancestors(graph.outputs)
    if not code.interface.trains:
        infer = sequencer.sections("infer", step[code.first :])
        return {**_inference(code, infer), "sections": infer}
    needed_train = graph.ancestors((train.loss, *(new for _, new in graph.updates)))
    training = [node for node in step if node.name in needed_train]
    judged = 1 + next(i for i, node in enumerate(training) if train.loss in node.outputs)
    after_loss = next(node.name for node in training[judged:] if not op_def(node.op).view)
    starts = code.starts | (_common_runs(step, needed_infer, needed_train) if options.small_calls else set[str]())
    infer = sequencer.sections(
        "infer" if plan.inference is None else "infer_batch",
        (node for node in step if node.name in needed_infer & called),
        starts=starts,
    )
    trained = (node for node in training if node.name in called)
    code.step = sequencer.sections("step", trained, infer, {*starts, after_loss})
    code.cut = next(i for i, section in enumerate(code.step) if section.first == after_loss)
    code.step = in_halves(code.step, code.cut, infer)
    code.slices = sequencer.step_parts(code.step)
    inference = _inference(code, infer)
    own = [section for section in code.step if section not in infer]
    apply = sequencer.sections("apply", (node for node in plan.order if node.phase == "apply"))
    return {
        **inference,
        "sections": [*inference["infer_parts"], *inference["batch_parts"], *own, *apply],
        "loss_parts": code.step[: code.cut],
        "gradient_parts": code.step[code.cut :],
        "loss_waits": sequencer.pending(training[:judged]),
        "apply_parts": apply,
    }


def _inference(code: PlanCode, sections: list[Section]) -> dict[str, Any]:
    """Return the functions and addresses of m_infer and, if a step takes several samples, of m_infer_batch."""
    train, plan, sequencer = code.train, code.plan, code.sequencer
    output = sequencer.pointer(train.graph.outputs[0].name)
    if plan.inference is None:
        assert train.micro_batch == 1, "m_infer takes one sample: the plan of a larger step has a pass for it"
        return {"infer_parts": sections, "batch_parts": [], "output": output}
    graph = plan.inference.graph
    return {
        "infer_parts": sequencer.sections("infer", plan.inference.plan.order),
        "batch_parts": sections,
        "batch_output": output,
        "output": sequencer.pointer(graph.outputs[0].name),
        "one_input": sequencer.pointer(graph.inputs[0].name),
        "one_input_bytes": graph.inputs[0].size_bytes,
    }


def _common_runs(step: list[Node], infer: Container[str], train: Container[str]) -> set[str]:
    """Find where functions must begin so that the runs of calls in both inference and training are shared."""
    calls = [node.name for node in step if not op_def(node.op).view]
    kinds = [(name in infer, name in train) for name in calls]
    return {name for name, before, kind in zip(calls[1:], kinds, kinds[1:], strict=False) if before != kind}


def _identity(code: PlanCode, options: EmitOptions) -> dict[str, object]:
    """Tell the templates facts that do not depend on the plan: names, rounding, and whose state the build reads."""
    train, prefix = code.train, options.prefix
    kinds = contents(train.training_step)
    return {
        "p": prefix,
        "P": prefix.upper(),
        "title": comment_text(train.graph.name),
        "settings": [part for line in options.settings for part in comment_lines(line)],
        "notes": [part for note in train.graph.notes for part in comment_lines(note)],
        "unknown_stack": _unknown_stack(prefix),
        "hash": model_hash(train.training_step),
        "checkpoint_bytes": checkpoint_bytes(train.training_step),
        "kinds": sorted({kinds[value.name] for value in train.graph.state} - {"ANY"}),
    }


def _memory(code: PlanCode) -> dict[str, object]:
    """Tell the templates about the memories, and the places in them of data that outlive a call."""
    train, plan, sequencer = code.train, code.plan, code.sequencer
    block = state_block(train, sequencer, code.tables)
    zeroed = sorted(train.graph.accumulators, key=lambda v: plan.offsets[v.name])  # in a fixed order
    return {
        "header_bytes": HEADER_BYTES + POINTER_BYTES * len(plan.further),
        "further": [(index, comment_text(memory.name)) for index, memory in enumerate(plan.further, 1)],
        "state_block": block,
        "zeroed": [(sequencer.pointer(value.name), value.size_bytes) for value in zeroed],
        "skipped_behind": behind(train),
    }


def _kernel_files(model: dict[str, object], functions: Sequence[Kernel], prefix: str) -> dict[str, str]:
    """Write the kernels' C files: those for speed, and those for small code, if there are any."""
    fast = [readable(kernel.source) for kernel in functions if not kernel.small]
    small = [readable(kernel.source) for kernel in functions if kernel.small]
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


def directly_used(texts: Iterable[str], headers: Mapping[str, str]) -> tuple[str, ...]:
    """Find the headers that define a function, type or macro that these C texts name, in the order of `headers`.

    FIRST and its includes are left out.
    """
    used = {name for text in texts for name in _NAME.findall(_COMMENT.sub("", text))}
    first = with_included([FIRST], headers)
    found = (header for header, text in headers.items() if not used.isdisjoint(_defined(text)))
    return tuple(header for header in found if header not in first)


def copied(used: Iterable[str], external: Iterable[str], headers: Mapping[str, str]) -> dict[str, str]:
    """Return file name -> text of the headers of a project; used: by our C; external: texts of the user's files."""
    included = (name for text in external for name in includes(text))
    return {name: headers[name] for name in with_included([FIRST, *used, *included], headers)}


def includes(text: str) -> list[str]:
    """Find the headers of the runtime that a C text includes."""
    return _INCLUDED.findall(text)


def with_included(names: Iterable[str], headers: Mapping[str, str]) -> tuple[str, ...]:
    """Return these headers and all that they include, in the order of `headers`."""
    needed: set[str] = set()
    todo = list(names)
    while todo:
        name = todo.pop()
        if name in headers and name not in needed:
            needed.add(name)
            todo += includes(headers[name])
    return tuple(header for header in headers if header in needed)


def _defined(header: str) -> set[str]:
    return {name for names in _DEFINED.findall(header) for name in names if name}


def _unknown_stack(prefix: str) -> str:
    """Return the line of the header for an unknown bound."""
    return f"/* {prefix.upper()}_STACK_BYTES is not known without --verify qemu. */"


def with_stack(bundle: SourceBundle, stack_bytes: int | None) -> SourceBundle:
    """Define M_STACK_BYTES in the header, which is known only after compiling; None: leave it. No C file reads it."""
    prefix = bundle.interface.prefix
    name, line = f"{prefix}_train.h", _unknown_stack(prefix)
    assert line in bundle.files[name]
    if stack_bytes is None:
        return bundle
    what = "/** Bytes of stack that a call takes at most, with the flags of verify/Makefile and without callbacks. */"
    known = f"{what}\n#define {prefix.upper()}_STACK_BYTES {stack_bytes}u"
    return replace(bundle, files={**bundle.files, name: bundle.files[name].replace(line, known)})
