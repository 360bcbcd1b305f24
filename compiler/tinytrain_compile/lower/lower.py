"""One C kernel per distinct node: build, schedule, lower, print, share."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from tvm.ir import Var
from tvm.tirx import PrimFunc

from tinytrain_compile.ir.kernels import Kernel, KernelCache, KernelSet
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.external import external_kernel, external_names
from tinytrain_compile.lower.function import lower_spec, printer_of
from tinytrain_compile.lower.kernels import (
    KERNELS,
    VECTOR_KERNELS,
    KernelContext,
    OperandLayout,
    kernel_spec,
)
from tinytrain_compile.lower.names import name_kernels
from tinytrain_compile.lower.numbers import Numbered, Tables, numbered, with_attributes
from tinytrain_compile.lower.printing.printer import Parameter, Printer
from tinytrain_compile.lower.streams.driver import stream_kernel
from tinytrain_compile.lower.turns import cut_open
from tinytrain_compile.ops import op_def
from tinytrain_compile.ops.base import alias_of, shown_name
from tinytrain_compile.ops.describe import comment as comment_of
from tinytrain_compile.ops.describe import parameter_names


@dataclass(frozen=True)
class LowerOptions:
    """prefix: of all external symbols; context: of all kernels.

    transposed: nodes whose weight is stored once more, see OperandLayout.
    in_turns: nodes that several calls compute, if their kernel has a loop for it.
    """

    prefix: str
    context: KernelContext = field(default_factory=KernelContext)
    transposed: frozenset[str] = frozenset()
    in_turns: frozenset[str] = frozenset()


def _no_progress(_done: int, _all: int) -> None:
    return None


def lower_nodes(
    nodes: Iterable[Node],
    options: LowerOptions,
    progress: Callable[[int, int], None] = _no_progress,
    cache: KernelCache | None = None,
) -> KernelSet:
    """Lower all nodes; those with the same op, types and attributes share a kernel (of some numbers see `numbered`).

    Views and page moves need none.

    cache: kernels of earlier calls, for a caller that lowers some nodes again; None: every kernel is made in this call.
    """
    cache = KernelCache() if cache is None else cache
    todo = [node for node in nodes if not (op_def(node.op).view or op_def(node.op).page)]
    names: dict[object, tuple[str, int]] = {}  # kernel and number of its turns, by node key
    kernels: dict[str, Kernel] = {}  # by C text without the name: different shapes may have the same loops
    calls, turns, tables = dict[str, str](), dict[str, int](), Tables(options.prefix)
    first: dict[str, Node] = {}  # by kernel that it calls
    taken: set[str] = set()
    in_turns = {_key(node) for node in todo if node.name in options.in_turns}  # also nodes with the same kernel

    def context_of(node: Node) -> KernelContext:
        return replace(options.context, layout=OperandLayout(node.name in options.transposed))

    def key_of(node: Node) -> object:
        return _key(node), context_of(node)

    for index, (node, form) in enumerate(zip(todo, numbered(todo, context_of, key_of), strict=True)):
        progress(index, len(todo))
        context = context_of(node)
        key = (key_of(form.node), form.names)
        how = _How(context, _key(node) in in_turns)
        if key not in names:
            ending = "_transposed" if context.layout.transposed else ""
            ending += "" if node.external is None else "_external"
            ending += "_small" if context.style.small else ""
            name = _kernel_name(node, options.prefix, taken, ending)
            kernel = _lowered_once(form, name, how, cache)
            names[key] = kernels.setdefault(kernel.body, kernel).name, kernel.turns
        calls[node.name], count = names[key]
        turns |= {node.name: count} if count else {}
        tables.add(node, form.values)
        first.setdefault(calls[node.name], form.told_by)
    progress(len(todo), len(todo))
    found = KernelSet(tuple(kernels.values()), calls, tables.names, tables.rows, options.transposed, turns)
    return name_kernels(found, first)


@dataclass(frozen=True)
class _How:
    """Options of lowering one node, see LowerOptions."""

    context: KernelContext
    in_turns: bool


def _lowered_once(form: Numbered, name: str, how: _How, cache: KernelCache) -> Kernel:
    """Return the kernel of `lower_node`, or the one made for such a node before, under this name."""
    node = form.node
    rules = op_def(node.op), KERNELS.get(node.op), VECTOR_KERNELS.get(node.op)  # tests replace them
    key = (repr(_key(node)), form.names, how, *rules)  # repr: 0.0 == -0.0, and 1 == 1.0
    return cache.get(key, lambda: lower_node(form.own, name, how.context, how.in_turns, form.names)).named(name)


def _key(node: Node) -> object:
    operands = tuple((v.shape, v.dtype) for v in (*node.inputs, *node.outputs))
    return (node.op, operands, node.attrs, same_operands(node), node.external)


def same_operands(node: Node) -> tuple[int, ...]:
    """Return, for every input, the index of the first one with the same value (x * x reads one pointer twice)."""
    return tuple(node.inputs.index(value) for value in node.inputs)


def _kernel_name(node: Node, prefix: str, taken: set[str], ending: str) -> str:
    words = re.sub(r"(?<!^)(?=[A-Z][a-z])", "_", shown_name(node)).lower()
    dims = "x".join(str(d) for d in node.outputs[0].shape if d > 1) or "1"
    name, count = f"{prefix}_{words}_{dims}{ending}", 1
    while name in taken:
        count += 1
        name = f"{prefix}_{words}_{dims}_v{count}{ending}"
    taken.add(name)
    return name


def lower_node(
    node: Node, name: str, context: KernelContext, in_turns: bool = False, numbers: tuple[str, ...] = ()
) -> Kernel:
    """Return the kernel of one node: parameters are its inputs, its outputs that alias no input, and scratch if any.

    in_turns: a call may compute some turns of its longest loop, if it has one. numbers: attributes that come
    from a table, its last parameter.
    """
    if node.external is not None:
        return external_kernel(node, name, comment_of(node, external_names(node)))
    if node.op == "Stream":
        return stream_kernel(node, name, context, lower_node)
    definition, variables = op_def(node.op), [Var(name, "int32") for name in numbers]
    opened = with_attributes(node, dict(zip(numbers, variables, strict=True)))
    spec = kernel_spec(opened, context)
    lowered, computed, loops = lower_spec(spec, context, variables)
    count, shared = len(node.inputs), _shared(node)
    labels = parameter_names(node)
    indices = [*range(count), *(count + out for out in computed)]  # among all inputs and outputs of the node
    buffers, variables = lowered.params[: len(indices)], lowered.params[len(indices) :]
    parameters = [Parameter(labels[i], p, i in shared) for i, p in zip(indices, buffers, strict=True)]
    same = {indices.index(count + out): i for out, i in alias_of(node) if out in computed}

    def printed(function: PrimFunc) -> Printer:
        return printer_of(context)(function, parameters, same, context.style.unroll_moves, loops)

    printer, turns = printed(lowered), 0
    cut = cut_open(lowered.body, printer.scratch.names) if in_turns else None
    counts, comment = (), comment_of(opened)
    if numbers:
        comment = comment.replace(" */", f" From `numbers`: {', '.join(numbers)}. */")
    if cut is not None:
        printer, turns, counts = printed(lowered.with_body(cut.body)), cut.count, (cut.begin, cut.end)
        comment = comment.replace(" */", " A call computes iterations [begin, end) of the longest loop. */")
    _check_side_effects(node, len(spec.outputs), computed, printer)
    source, declaration = printer.print(name, counts=counts, numbers=variables)
    if printer.scratch.size_bytes > definition.scratch(node):
        raise ValueError(
            f"kernel of {node.op} ({node.name}) needs {printer.scratch.size_bytes} B of scratch, "
            f"its definition says {definition.scratch(node)}"
        )
    scratch = printer.scratch.dtype
    return Kernel(name, comment + source, declaration, scratch, context.style.small, turns=turns, numbers=numbers)


def _shared(node: Node) -> set[int]:
    """Return operands and results whose bytes may be those of another one: numbers among all inputs and outputs."""
    count, definition = len(node.inputs), op_def(node.op)
    sizes = [value.size_bytes for value in (*node.inputs, *node.outputs)]
    pairs = [(i, count + out) for out, i in definition.inplace if i < count and sizes[i] == sizes[count + out]]
    pairs += [(item.source, count + item.output) for item in definition.overlaps(node)]
    repeated = {i for i, first in enumerate(same_operands(node)) if first != i}
    return {index for pair in pairs for index in pair} | repeated | {same_operands(node)[i] for i in repeated}


def _check_side_effects(node: Node, outputs: int, computed: list[int], printer: Printer) -> None:
    """Check that outputs which the kernel does not compute overwrite inputs that it passes to helpers."""
    overwritten = {out: i for out, i in alias_of(node) if i in printer.addressed}
    missing = set(range(len(node.outputs))) - set(computed)
    if outputs != len(node.outputs) or not missing <= set(overwritten):
        raise ValueError(f"kernel of {node.op} ({node.name}) does not compute every output")
