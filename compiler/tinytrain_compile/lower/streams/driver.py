"""The C function of a stream: it calls the kernels of rows of its inner nodes, one after the other, by a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.types import ELEMENT_BYTES, Node, Value
from tinytrain_compile.lower.kernels import KernelContext
from tinytrain_compile.lower.streams.functions import TABLE, CFunction, RowKernel, lower_rows
from tinytrain_compile.ops.base import row_form
from tinytrain_compile.ops.input_lines import LINES
from tinytrain_compile.ops.names import names_of
from tinytrain_compile.ops.row_form import RowForm, row_pitch
from tinytrain_compile.ops.stream import Ring, StreamAttrs, position_bytes

_TYPES = {
    "float32": "float",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "bits": "uint8_t",
    "uint8": "uint8_t",
}


class RowScratchError(ValueError):
    """A kernel of rows needs more scratch than its stream has for it, or other rows."""


@dataclass(frozen=True)
class _Inner:
    """An inner node, its kernel, and where that works; index: among the inner nodes."""

    index: int
    node: Node
    form: RowForm
    kernel: RowKernel
    work: int


def stream_kernel(node: Node, name: str, context: KernelContext, fused: bool) -> Kernel:
    """The kernel of a stream: functions of its inner nodes, its calls as a table, and the function that makes these."""
    attrs = node.attrs
    assert isinstance(attrs, StreamAttrs)
    inner = [_inner(attrs, index, name, context, fused) for index in range(len(attrs.nodes))]
    places = _places(node, attrs)
    head = f"void {name}({', '.join(_signature(node, attrs, places))})"
    calls = ", ".join(f"{{{call.node}, {call.rows}}}" for call in attrs.calls)
    functions = [(one, f) for one in inner for f in (one.kernel.prepare, one.kernel.rows) if f is not None]
    parts = tuple(Kernel(f.name, f.source, f.declaration, one.kernel.scratch_dtype) for one, f in functions)
    source = "".join(
        [
            *(part.source for part in parts),
            _comment(attrs),
            f"/* Which node of the stream is next, and how many rows it computes. */\n"
            f"static const uint8_t {name}_calls[{len(attrs.calls)}][2] = {{{calls}}};\n",
            *(f"{line}\n" for line in (f"{head} {{", *_body(attrs, inner, places, name), "}")),
        ]
    )
    return Kernel(name, source, f"{head};", "uint8" if attrs.scratch_bytes else "", parts=parts)


def _inner(attrs: StreamAttrs, index: int, name: str, context: KernelContext, fused: bool) -> _Inner:
    node, form = attrs.nodes[index], row_form(attrs.nodes[index])
    kernel = lower_rows(node, f"{name}_{index}", context, fused)
    windows = kernel.spec.windows
    maps = () if node.op == LINES else kernel.spec.maps  # the caller's rows are no map
    same = form is not None and form.maps == maps and form.windows == (windows is not None)
    if form is None or not same or kernel.scratch_bytes > form.scratch_bytes:
        planned = 0 if form is None else form.scratch_bytes
        raise RowScratchError(f"rows of {node.op} ({node.name}) need {kernel.scratch_bytes} B, planned {planned}")
    if windows is not None and (windows.reach, windows.step) != (form.reach, form.step):
        raise RowScratchError(f"rows of {node.op} ({node.name}) read other rows than planned")
    return _Inner(index, node, form, kernel, attrs.work[index])


def _comment(attrs: StreamAttrs) -> str:
    rings = {ring.name: ring.rows for ring in attrs.rings}
    parts = [
        f"{node.op} {'x'.join(map(str, node.outputs[0].shape[1:]))}"
        + (f" ({rings[node.outputs[0].name]} rows of it)" if node.outputs[0].name in rings else "")
        for node in attrs.nodes
    ]
    return f"/* Stream: {', '.join(parts)}. Each row is computed when the next layer needs it. */\n"


# ---- operands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A value as C: the name of its first byte. slots: rows of a ring; 0: all rows lie there."""

    name: str
    slots: int = 0


def _places(node: Node, attrs: StreamAttrs) -> Mapping[str, _Place]:
    """Every value of the inner graph: operands by what their first reader calls them, results, rings."""
    found: dict[str, _Place] = {}
    rings: dict[str, Ring] = {ring.name: ring for ring in attrs.rings}
    taken = {"y", "scratch", "call", "node", "count", "row", "done", "at", TABLE}
    for index, inner in enumerate(attrs.nodes):
        for word, value in zip(names_of(inner)[0], inner.inputs, strict=True):
            if value.name in attrs.inputs and value.name not in found:
                name = word if word not in taken else f"{word}_{index}"
                taken.add(name)
                found[value.name] = _Place(name)
        for value in inner.outputs:
            ring = rings.get(value.name)
            only = len(node.outputs) == 1
            name = f"ring_{index}" if ring else "y" if only else f"y{index}"
            found[value.name] = _Place(name, ring.rows if ring else 0)
    return found


def _signature(node: Node, attrs: StreamAttrs, places: Mapping[str, _Place]) -> list[str]:
    pairs = zip((*attrs.inputs, *attrs.outputs), (*node.inputs, *node.outputs), strict=True)
    read = len(attrs.inputs)
    declared = [
        f"{'const ' if i < read else ''}{_TYPES[value.dtype]} *{places[name].name}"
        for i, (name, value) in enumerate(pairs)
    ]
    return [*declared, *(["uint8_t *scratch"] if attrs.scratch_bytes else [])]


# ---- body -----------------------------------------------------------------------------------------------------------


def _body(attrs: StreamAttrs, inner: Sequence[_Inner], places: Mapping[str, _Place], name: str) -> list[str]:
    values = {value.name: value for node in attrs.nodes for value in node.outputs}
    rings = [
        f"{_TYPES[values[ring.name].dtype]} *const {places[ring.name].name} = "
        f"{_at(_TYPES[values[ring.name].dtype], ring.offset)};"
        for ring in attrs.rings
    ]
    reach = max((one.form.reach for one in inner if one.form.windows), default=0)
    prepare = [f"{_call(one, one.kernel.prepare, places)};" for one in inner if one.kernel.prepare is not None]
    begin, call = _begin(attrs, prepare)
    lines = [
        *rings,
        *([f"int32_t {TABLE}[{_most_rows(attrs, inner, reach)}];"] if reach else []),
        *begin,
        f"for (; {call} < {len(attrs.calls)}; ++{call}) {{",
        f"    const int32_t node = {name}_calls[{call}][0];",
        f"    const int32_t count = {name}_calls[{call}][1];",
        "    const int32_t row = done[node];",
        *([] if attrs.position < 0 else _waits(inner[0], places)),
        "    done[node] = row + count;",
        "    switch (node) {",
        *(f"    {line}" for one in inner for line in _case(one, places, one.index == len(inner) - 1)),
        "    }",
        "}",
    ]
    return [f"    {line}" for line in lines]


def _begin(attrs: StreamAttrs, prepare: Sequence[str]) -> tuple[list[str], str]:
    """(how a stream begins, the C expression of the number of its next call)."""
    if attrs.position < 0:
        return [f"int32_t call = 0, done[{len(attrs.nodes)}] = {{0}};", *prepare], "call"
    return [
        f"int32_t *const at = {_at('int32_t', attrs.position)}; /* the next call, then rows done of each node */",
        "int32_t *const done = at + 1;",
        "if (x == NULL) {",
        f"    memset(at, 0, {position_bytes(len(attrs.nodes))}u);",
        *(f"    {line}" for line in prepare),
        "}",
    ], "at[0]"


def _waits(first: _Inner, places: Mapping[str, _Place]) -> list[str]:
    """A stream that takes rows of the image from its caller stops where it needs one that is not there."""
    value, take = first.node.outputs[0], f"{_call(first, first.kernel.rows, places)};"
    if first.node.inputs[0].dtype == value.dtype:  # else it has to be converted, where it lies too
        take = f"if (x != {_row(value, places[value.name], True)}) {{ {take} }}"
    return [
        "    if (node == 0) {",
        "        if (x == NULL) {",
        "            return; /* until the caller has the next row */",
        "        }",
        f"        {take}",
        "        x = NULL;",
        "    }",
    ]


def _most_rows(attrs: StreamAttrs, inner: Sequence[_Inner], reach: int) -> int:
    windows = [
        (call.rows - 1) * inner[call.node].form.step + inner[call.node].form.reach
        for call in attrs.calls
        if inner[call.node].form.windows
    ]
    return max(windows, default=reach)


def _case(one: _Inner, places: Mapping[str, _Place], last: bool) -> list[str]:
    form, node = one.form, one.node
    lines = ["default:" if last else f"case {one.index}:"]
    if node.op == LINES:
        return [*lines, "    break;"]
    if form.windows:
        source = node.inputs[form.maps[0]]
        slots = places[source.name].slots or source.shape[1]
        rows = f"count * {form.step} + {form.reach - form.step}" if form.reach != form.step else f"count * {form.step}"
        first = f"row * {form.step} - {form.pad}"
        arguments = f"{TABLE}, {rows}, {first}, {source.shape[1]}, {slots}, {_row_elements(source)}"
        lines.append(f"    tt_find_rows({arguments});")
    lines += [f"    {_call(one, one.kernel.rows, places)};", "    break;"]
    return lines


def _call(one: _Inner, function: CFunction, places: Mapping[str, _Place]) -> str:
    kernel, form = one.kernel, one.form
    values = dict(zip(kernel.names, (*one.node.inputs, *one.node.outputs), strict=True))
    maps = {kernel.names[index] for index in (*form.maps, len(one.node.inputs))}
    whole = {kernel.names[form.maps[0]]} if form.windows else set[str]()
    arguments = [
        TABLE if name == TABLE else _row(values[name], places[values[name].name], name in maps - whole)
        for name in function.parameters
    ]
    if function == kernel.rows:
        arguments.append("count")
    if kernel.scratch_dtype:
        arguments.append(_at(_TYPES[kernel.scratch_dtype], one.work))
    return f"{function.name}({', '.join(arguments)})"


def _row(value: Value, place: _Place, is_map: bool) -> str:
    """Where an operand begins: a map with the row of the call."""
    if not is_map or place.slots == 1:
        return place.name
    row = f"row % {place.slots}" if place.slots else "row"
    return f"{place.name} + {row} * {_row_elements(value)}"


def _row_elements(value: Value) -> int:
    """Elements (of bits: bytes) from one row of a map to the next."""
    return row_pitch(value) // ELEMENT_BYTES.get(value.dtype, 1)


def _at(ctype: str, offset: int) -> str:
    """A place in scratch as a pointer to a type."""
    place = f"(scratch + {offset})" if offset else "scratch"
    return place if ctype == "uint8_t" else f"({ctype} *){place}"
