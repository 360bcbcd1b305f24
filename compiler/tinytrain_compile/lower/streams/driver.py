"""The C function of a stream: it calls the kernels of rows of its inner nodes, one after the other, by a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.types import ELEMENT_BYTES, Node, Value
from tinytrain_compile.lower.kernels import KernelContext
from tinytrain_compile.lower.streams.functions import (
    TABLE,
    CFunction,
    RowKernel,
    SumKernel,
    WholeKernel,
    lower_rows,
    lower_sum,
)
from tinytrain_compile.ops.base import alias_of, op_def, row_form, shown_name
from tinytrain_compile.ops.input_lines import LINES
from tinytrain_compile.ops.names import attrs_of, names_of
from tinytrain_compile.ops.rows import RowForm, row_pitch
from tinytrain_compile.ops.stream import UNTIL, Ring, StreamAttrs, position_bytes

_TYPES = {
    "float32": "float",
    "int8": "int8_t",
    "int16": "int16_t",
    "int32": "int32_t",
    "bits": "uint8_t",
    "uint8": "uint8_t",
}


class RowScratchError(ValueError):
    """Raised if a kernel of rows needs more scratch than its stream planned, or other rows."""


@dataclass(frozen=True)
class _Inner:
    """An inner node and its kernel; index: among the inner nodes; work: offset of the kernel's memory in scratch."""

    index: int
    node: Node
    form: RowForm
    kernel: RowKernel | SumKernel
    work: int

    @property
    def has_scratch(self) -> bool:
        """True if its calls need scratch; a sum is stored there."""
        return isinstance(self.kernel, SumKernel) or bool(self.kernel.scratch_dtype)

    @property
    def functions(self) -> list[Kernel]:
        """The C functions of its kernel."""
        kernel = self.kernel
        if isinstance(kernel, SumKernel):
            return [Kernel(f.name, f.source, f.declaration, f.scratch_dtype) for f in kernel.functions]
        parts = (f for f in (kernel.prepare, kernel.rows) if f is not None)
        return [Kernel(f.name, f.source, f.declaration, kernel.scratch_dtype) for f in parts]


def stream_kernel(node: Node, name: str, context: KernelContext, whole: WholeKernel) -> Kernel:
    """Return the kernel of a stream: functions of inner nodes, calls as a table, and the function that makes them.

    A stream with errors has a second function, for the step that finds exponents: it computes the first `nodes` inner
    nodes, and applies sums only if `nodes` exceeds their number. A stream that may pause gets the range of calls to
    make. It counts from the table the rows done by earlier calls, so that nothing is kept between two pieces.
    """
    attrs = attrs_of(node, StreamAttrs)
    inner = [_inner(attrs, index, name, context, whole) for index in range(len(attrs.nodes))]
    places, errors = _places(node, attrs), any(op_def(n.op).error is not None for n in attrs.nodes)
    # Code for size may need none of the scratch that was planned.
    scratch = bool(attrs.rings) or attrs.position >= 0 or any(one.has_scratch for one in inner)
    signature, own = _signature(node, attrs, places, scratch), f"{name}{UNTIL if errors else ''}"
    head = f"void {name}({', '.join(signature)})"
    first = f"void {own}({', '.join([*signature, *(['int32_t nodes'] if errors else [])])})"
    calls = ", ".join(f"{{{call.node}, {call.rows}}}" for call in attrs.calls)
    parts = tuple(part for one in inner for part in one.functions)
    lines = [f"{first} {{", *_body(attrs, inner, places, name, errors), "}"]
    if errors:
        given = ", ".join([*(item.split()[-1].lstrip("*") for item in signature), str(len(inner) + 1)])
        lines += ["/* All of the stream. */", f"{head} {{", f"    {own}({given});", "}"]
    source = "".join(
        [
            *(part.source for part in parts),
            _comment(attrs),
            f"/* Which node of the stream is next, and how many rows it computes. */\n"
            f"static const uint8_t {name}_calls[{len(attrs.calls)}][2] = {{{calls}}};\n",
            *(f"{line}\n" for line in lines),
        ]
    )
    declaration = f"{first};\n{head};" if errors else f"{head};"
    return Kernel(name, source, declaration, "uint8" if scratch else "", parts=parts)


def _inner(attrs: StreamAttrs, index: int, name: str, context: KernelContext, whole: WholeKernel) -> _Inner:
    node, form, own = attrs.nodes[index], row_form(attrs.nodes[index]), f"{name}_{index}"
    if form is not None and form.sum is not None:
        return _Inner(index, node, form, lower_sum(form.sum, own, context, whole), attrs.work[index])
    kernel = lower_rows(node, own, context)
    windows = kernel.spec.windows
    maps = () if node.op == LINES else kernel.spec.maps  # the caller's rows are not a map
    same = form is not None and form.maps == maps and form.windows == (windows is not None)
    if form is None or not same or kernel.scratch_bytes > form.scratch_bytes:
        planned = 0 if form is None else form.scratch_bytes
        raise RowScratchError(f"rows of {node.op} ({node.name}) need {kernel.scratch_bytes} B, planned {planned}")
    rows = form.height(node) // form.unit
    if windows is not None and (windows.reach, windows.step, kernel.spec.rows) != (form.reach, form.step, rows):
        raise RowScratchError(f"rows of {node.op} ({node.name}) read other rows than planned")
    return _Inner(index, node, form, kernel, attrs.work[index])


def _comment(attrs: StreamAttrs) -> str:
    rings = {ring.name: ring.rows for ring in attrs.rings}
    parts = [
        f"{shown_name(node)} {'x'.join(map(str, node.outputs[0].shape[1:]))}"
        + (f" ({rings[node.outputs[0].name]} rows of it)" if node.outputs[0].name in rings else "")
        for node in attrs.nodes
    ]
    return f"/* Stream: {', '.join(parts)}. Each row is computed when the next layer needs it. */\n"


# ---- operands -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Place:
    """A value as C: the name of its first byte. slots: rows of a ring; 0: all rows are in memory."""

    name: str
    slots: int = 0


def _places(node: Node, attrs: StreamAttrs) -> Mapping[str, _Place]:
    """Return every value of the inner graph: operands by their first reader's names, results, rings."""
    found: dict[str, _Place] = {}
    rings: dict[str, Ring] = {ring.name: ring for ring in attrs.rings}
    taken = {
        "y",
        "scratch",
        "call",
        "node",
        "nodes",
        "count",
        "row",
        "done",
        "at",
        "tap",
        "from",
        "begin",
        "end",
        TABLE,
    }
    for index, inner in enumerate(attrs.nodes):
        for word, value in zip(names_of(inner)[0], inner.inputs, strict=True):
            if value.name in attrs.inputs and value.name not in found:
                name = word if word not in taken else f"{word}_{index}"
                taken.add(name)
                found[value.name] = _Place(name)
        overwriting = dict(alias_of(inner))
        for out, value in enumerate(inner.outputs):
            if out in overwriting:
                found[value.name] = found[inner.inputs[overwriting[out]].name]
                continue
            ring = rings.get(value.name)
            only = len(node.outputs) == 1
            name = f"ring_{index}" if ring else "y" if only else f"y{index}"
            found[value.name] = _Place(name, ring.rows if ring else 0)
    return found


def _signature(node: Node, attrs: StreamAttrs, places: Mapping[str, _Place], scratch: bool) -> list[str]:
    overwriting, read = dict(attrs.overwrites), len(attrs.inputs)
    declared = [
        f"{'const ' if i < read and i not in overwriting.values() else ''}{_TYPES[value.dtype]} *{places[name].name}"
        for i, (name, value) in enumerate(
            zip((*attrs.inputs, *attrs.outputs), (*node.inputs, *node.outputs), strict=True)
        )
        if i - read not in overwriting
    ]
    declared += ["uint8_t *scratch"] if scratch else []
    return [*declared, *(("int32_t begin", "int32_t end") if attrs.pauses else ())]


# ---- body -----------------------------------------------------------------------------------------------------------


def _body(
    attrs: StreamAttrs, inner: Sequence[_Inner], places: Mapping[str, _Place], name: str, errors: bool
) -> list[str]:
    values = {value.name: value for node in attrs.nodes for value in node.outputs}
    rings = [
        f"{_TYPES[values[ring.name].dtype]} *const {places[ring.name].name} = "
        f"{_at(_TYPES[values[ring.name].dtype], ring.offset)};"
        for ring in attrs.rings
    ]
    reach = max((one.form.reach for one in inner if one.form.windows and one.form.sum is None), default=0)
    begin, call = _begin(attrs, [line for one in inner for line in _before(one, places)])
    lines = [
        *rings,
        *([f"int32_t {TABLE}[{_most_rows(attrs, inner, reach)}];"] if reach else []),
        *begin,
        f"for (; {call} < {'end' if attrs.pauses else len(attrs.calls)}; ++{call}) {{",
        f"    const int32_t node = {name}_calls[{call}][0];",
        f"    const int32_t count = {name}_calls[{call}][1];",
        "    const int32_t row = done[node];",
        *(["    if (node >= nodes) {", "        continue;", "    }"] if errors else []),
        *([] if attrs.position < 0 else _waits(inner[0], places)),
        "    done[node] = row + count;",
        *(["    if (call < begin) {", "        continue; /* an earlier piece */", "    }"] if attrs.pauses else []),
        "    switch (node) {",
        *(f"    {line}" for one in inner for line in _case(one, places, one.index == len(inner) - 1)),
        "    }",
        "}",
    ]
    return [f"    {line}" for line in (*lines, *_behind(attrs, inner, places, errors))]


def _behind(attrs: StreamAttrs, inner: Sequence[_Inner], places: Mapping[str, _Place], errors: bool) -> list[str]:
    """Return the statements after the last row, which apply sums."""
    after = [f"{_sum_call(one, one.kernel.apply, places)};" for one in inner if isinstance(one.kernel, SumKernel)]
    conditions = [f"nodes > {len(inner)}"] if errors else []
    conditions += [f"end == {len(attrs.calls)}"] if attrs.pauses else []
    if not after or not conditions:
        return after
    return [f"if ({' && '.join(conditions)}) {{", *(f"    {call}" for call in after), "}"]


def _begin(attrs: StreamAttrs, prepare: Sequence[str]) -> tuple[list[str], str]:
    """Return (first statements of a stream, the C expression of the number of its next call)."""
    if attrs.position < 0:
        once = ["if (begin == 0) {", *(f"    {line}" for line in prepare), "}"] if attrs.pauses and prepare else prepare
        return [f"int32_t call = 0, done[{len(attrs.nodes)}] = {{0}};", *once], "call"
    return [
        f"int32_t *const at = {_at('int32_t', attrs.position)}; /* the next call, then rows done of each node */",
        "int32_t *const done = at + 1;",
        "if (x == NULL) {",
        f"    memset(at, 0, {position_bytes(len(attrs.nodes))}u);",
        *(f"    {line}" for line in prepare),
        "}",
    ], "at[0]"


def _waits(first: _Inner, places: Mapping[str, _Place]) -> list[str]:
    """Return the statements that stop a stream which needs a row of the image that its caller does not have yet."""
    value, kernel = first.node.outputs[0], first.kernel
    assert isinstance(kernel, RowKernel)
    take = f"{_call(first, kernel, kernel.rows, places)};"
    if first.node.inputs[0].dtype == value.dtype:  # else it is converted, also in place
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


def _before(one: _Inner, places: Mapping[str, _Place]) -> list[str]:
    """Return the statements before the first row, which prepare weights and set sums to 0."""
    if isinstance(one.kernel, SumKernel):
        assert one.form.sum is not None
        return [f"memset({_at('uint8_t', one.work)}, 0, {one.form.sum.total.size_bytes}u);"]
    return [] if one.kernel.prepare is None else [f"{_call(one, one.kernel, one.kernel.prepare, places)};"]


def _most_rows(attrs: StreamAttrs, inner: Sequence[_Inner], reach: int) -> int:
    windows = [
        (call.rows // inner[call.node].form.unit - 1) * inner[call.node].form.step + inner[call.node].form.reach
        for call in attrs.calls
        if inner[call.node].form.windows and inner[call.node].form.sum is None
    ]
    return max(windows, default=reach)


def _case(one: _Inner, places: Mapping[str, _Place], last: bool) -> list[str]:
    form, node, kernel = one.form, one.node, one.kernel
    lines = ["default:" if last else f"case {one.index}:"]
    if node.op == LINES:
        return [*lines, "    break;"]
    if isinstance(kernel, SumKernel):
        return [*lines, *_add_row(one, kernel.add, places), "    break;"]
    if form.windows:
        source = node.inputs[form.maps[0]]
        slots = places[source.name].slots or source.shape[1]
        count, row = (_units(name, form.unit) for name in ("count", "row"))
        rows = (
            f"{count} * {form.step} + {form.reach - form.step}" if form.reach != form.step else f"{count} * {form.step}"
        )
        first = f"{row} * {form.step} - {form.pad}" if form.pad >= 0 else f"{row} * {form.step} + {-form.pad}"
        arguments = f"{TABLE}, {rows}, {first}, {source.shape[1]}, {slots}, {_row_elements(source)}"
        find = f"tt_find_rows({arguments})" if form.apart == 1 else f"tt_find_rows_apart({arguments}, {form.apart})"
        lines.append(f"    {find};")
    lines += [f"    {_call(one, kernel, kernel.rows, places)};", "    break;"]
    return lines


def _add_row(one: _Inner, add: CFunction, places: Mapping[str, _Place]) -> list[str]:
    """Add a row to a sum; with windows, one row of taps after the other, if there is a row under it."""
    form = one.form
    if not form.windows:
        return [f"    {_sum_call(one, add, places)};"]
    source = one.node.inputs[form.maps[0]]
    return [
        f"    for (int32_t tap = 0; tap < {form.reach}; ++tap) {{",
        f"        const int32_t from = row * {form.step} + tap - {form.pad};",
        f"        if (from >= 0 && from < {source.shape[1]}) {{",
        f"            {_sum_call(one, add, places, True)};",
        "        }",
        "    }",
    ]


def _units(rows: str, unit: int) -> str:
    """Return a number of rows as a number of units."""
    return rows if unit == 1 else f"{rows} / {unit}"


def _call(one: _Inner, kernel: RowKernel, function: CFunction, places: Mapping[str, _Place]) -> str:
    form = one.form
    values = dict(zip(kernel.names, (*one.node.inputs, *one.node.outputs), strict=True))
    maps = {kernel.names[index] for index in (*form.maps, len(one.node.inputs))}
    whole = {kernel.names[form.maps[0]]} if form.windows else set[str]()
    arguments = [
        TABLE if name == TABLE else _row(values[name], places[values[name].name], name in maps - whole)
        for name in function.parameters
    ]
    if function == kernel.rows:
        arguments.append(_units("count", form.unit))
    if kernel.scratch_dtype:
        arguments.append(_at(_TYPES[kernel.scratch_dtype], one.work))
    return f"{function.name}({', '.join(arguments)})"


def _sum_call(one: _Inner, function: CFunction, places: Mapping[str, _Place], taps: bool = False) -> str:
    """Return a call that adds a row to a sum, or applies it. taps: pass a row of taps, and the row `from` under it."""
    form, values = one.form, {value.name: value for value in one.node.inputs}
    assert form.sum is not None
    maps = [one.node.inputs[index].name for index in form.maps]
    total = _at(_TYPES["int32"], one.work)
    if taps:
        total = f"{total} + tap * {form.sum.total.elements // form.reach}"
    arguments = [
        total
        if name == form.sum.total.name
        else _row(values[name], places[name], name in maps, "from" if taps and name == maps[0] else "row")
        for name in function.parameters
    ]
    if function.scratch_dtype:
        arguments.append(_at(_TYPES[function.scratch_dtype], one.work + form.kept_bytes))
    return f"{function.name}({', '.join(arguments)})"


def _row(value: Value, place: _Place, is_map: bool, number: str = "row") -> str:
    """Return the address of an operand: for a map, of the row of the call, or of another number."""
    if not is_map or place.slots == 1:
        return place.name
    row = f"{number} % {place.slots}" if place.slots else number
    return f"{place.name} + {row} * {_row_elements(value)}"


def _row_elements(value: Value) -> int:
    """Return the elements (for bits: bytes) from one row of a map to the next."""
    return row_pitch(value) // ELEMENT_BYTES.get(value.dtype, 1)


def _at(ctype: str, offset: int) -> str:
    """Return a place in scratch as a pointer to a type."""
    place = f"(scratch + {offset})" if offset else "scratch"
    return place if ctype == "uint8_t" else f"({ctype} *){place}"
