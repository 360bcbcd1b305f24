"""Sums that need not be computed: over rows of taps in an image's border, and of errors that a clamp stopped."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tvm import ir, s_tir, sym, tirx
from tvm.ir import Var
from tvm.s_tir.schedule import LoopRV
from tvm.tirx import Buffer, Stmt

from tinytrain_compile.lower.tir_walk import Tir, addressed, children, helper_name, is_call, is_helper, variables

INSIDE = ("rows_from", "rows_to", "row_pitch")
"""Annotations of a loop over rows of taps, see skip_border."""
_END, _KEEP, _SUM = "tt_rescaled_error", 1, 2
"""Helper that makes an error from a sum; positions of its operands: whether the error is kept, and the sum."""
_SUMS = ("tt_dot2", "tt_dot4", "tt_dot_2x2", "tt_dot_windows")
"""Helpers that return sums and have no other effect."""
LARGE_TILE, _ROW = "tt_dot_4x4", 3
"""Helper that sums over several rows of taps; position of its operand for the row in which it begins."""
_BYTES = 4
"""Bytes of a word."""


# ---- rows of taps in the border -------------------------------------------------------------------------------------


def skip_border(schedule: s_tir.Schedule, loop: LoopRV, rows: tuple[int, int], pitch: int) -> None:
    """Mark a loop over rows of taps whose first operands are in rows of `pitch` elements.

    rows: the first row that is not 0, and the end of these.
    """
    for name, number in zip(INSIDE, (*rows, pitch), strict=True):
        schedule.annotate(loop, name, number)


def without_border(loop: tirx.For) -> Stmt:
    """Return a loop's body; for a marked loop, under the condition that it adds something."""
    place = _first_operand(loop.body) if INSIDE[0] in loop.annotations else None
    if place is None:
        return loop.body
    low, high, pitch = (int(str(loop.annotations[name])) for name in INSIDE)
    row = _row(place, pitch)
    return loop.body if row is None else tirx.IfThenElse(tirx.And(row >= low, row < high), loop.body, None)


def _row(place: ir.Expr, pitch: int) -> ir.Expr | None:
    """Return the row of an element in rows of `pitch` elements; None if its place is no linear expression."""
    own = sorted(variables(place), key=str)
    found = sym.detect_linear_equation(place, own)
    numbers = [int(factor) for factor in found if isinstance(factor, tirx.IntImm)]
    if not numbers or len(numbers) < len(found):
        return None
    row: ir.Expr = tirx.const(numbers[-1] // pitch, "int32")  # the rest is a place within a row
    for factor, var in zip(numbers[:-1], own, strict=True):
        row = row + var * (factor // pitch) if factor % pitch == 0 else row
    return row


def told_row(call: ir.Call) -> list[ir.Expr]:
    """Return the operands of a helper; tt_dot_4x4 is told the row in which it begins, if some rows are 0."""
    operands = list(call.args[1:])
    if helper_name(call) != LARGE_TILE:
        return operands
    low, high, rows, _, _, pitch = (int(number) for number in operands[_ROW + 1 : _ROW + 7])
    image = operands[1]
    row = _row(addressed(image).indices[0], pitch) if isinstance(image, ir.Call) and (low, high) != (0, rows) else None
    return operands if row is None else [*operands[:_ROW], row, *operands[_ROW + 1 :]]


def _first_operand(node: Tir) -> ir.Expr | None:
    if is_helper(node):
        pointers = [argument for argument in node.args if is_call(argument, "address_of")]
        return addressed(pointers[0]).indices[0] if pointers else None
    return next((found for child in children(node) if (found := _first_operand(child)) is not None), None)


# ---- errors that are not kept ---------------------------------------------------------------------------------------


def kept_sums(parts: Sequence[Stmt]) -> list[Stmt]:
    """Return statements in which sums of errors are under the condition that one of the errors is kept.

    The mask's bits are read once. Without such errors or a mask of bits, the statements stay unchanged.
    """
    ends = {place: call for place, part in enumerate(parts) if (call := _end(part)) is not None}
    bits = [bit for call in ends.values() if (bit := _bit(call.args[_KEEP])) is not None]
    sums = {value.source for call in ends.values() if isinstance(value := call.args[_SUM], ir.TensorLoad)}
    first = last = min(ends, default=0)
    while first > 0 and _only_sums(parts[first - 1], sums):
        first -= 1
    places = None if not bits or len(bits) < len(ends) else _places(bits)
    if len(sums) != 1 or places is None or first == last:
        return list(parts)
    kept = Var("kept", "uint32")
    body = tirx.SeqStmt(list(parts[first:last])) if last - first > 1 else parts[first]
    guarded = tirx.IfThenElse(_set(kept, sum(1 << place for place in places.numbers)), body, None)
    rest = list(parts[last:])
    for (place, call), number in zip(ends.items(), places.numbers, strict=True):
        rest[place - last] = _with_test(parts[place], call, _set(kept, 1 << number))
    return [*parts[:first], tirx.Bind(kept, places.word), guarded, *rest]


@dataclass(frozen=True)
class _Places:
    """Bits of a mask. word: neighbouring bytes, shifted to the first bit that is read; numbers: of bits in it, in
    order."""

    word: ir.Expr
    numbers: list[int]


def _places(bits: Sequence[tuple[ir.Expr, ir.Expr]]) -> _Places | None:
    """Return one word with all bits; None if they are in more than four bytes, or not neighbours."""
    own = list({str(byte): byte for byte, _ in bits}.values())
    numbers = list({str(number): number for _, number in bits}.values())
    follow = sym.Analyzer().simplify(numbers[0] + (len(numbers) - 1) - numbers[-1])
    if len(own) > _BYTES or len(numbers) > 2 or not isinstance(follow, tirx.IntImm) or int(follow):
        return None
    apart = 8 * _BYTES // 2 if len(own) <= 2 else 8
    lifted = [tirx.LShift(_bare(byte), _word(apart * i)) if i else _bare(byte) for i, byte in enumerate(own)]
    word = tirx.RShift(functools.reduce(tirx.BitwiseOr, lifted), numbers[0].astype("uint32"))
    names, order = [str(byte) for byte in own], [str(number) for number in numbers]
    return _Places(word, [apart * names.index(str(byte)) + order.index(str(number)) for byte, number in bits])


def _bare(byte: ir.Expr) -> ir.Expr:
    """Return a byte as a part of a word."""
    return (byte.value if isinstance(byte, tirx.Cast) else byte).astype("uint32")


def _set(word: Var, bits: int) -> ir.Expr:
    return tirx.NE(tirx.BitwiseAnd(word, _word(bits)), _word(0))


def _word(value: int) -> ir.Expr:
    return tirx.const(value, "uint32")


def _with_test(end: Stmt, call: ir.Call, test: ir.Expr) -> Stmt:
    """Return an end of a sum that is kept if the test holds."""
    assert isinstance(end, tirx.BufferStore)
    operands = [test if place == _KEEP else operand for place, operand in enumerate(call.args)][1:]
    return tirx.BufferStore(end.buffer, tirx.call_extern("int8", _END, *operands), list(end.indices))


def _end(part: Stmt) -> ir.Call | None:
    """Return the call that makes an error from a sum, if a statement stores its result."""
    value = part.value if isinstance(part, tirx.BufferStore) else None
    return value if value is not None and is_helper(value) and helper_name(value) == _END else None


def _bit(keep: ir.Expr) -> tuple[ir.Expr, ir.Expr] | None:
    """Return (byte, number of its bit) of `0 < (byte >> number & 1)`."""
    if not isinstance(keep, tirx.LT) or not isinstance(keep.b, tirx.BitwiseAnd):
        return None
    shifted, one = keep.b.a, keep.b.b
    if not isinstance(shifted, tirx.RShift) or not isinstance(one, tirx.IntImm) or int(one) != 1:
        return None
    return shifted.a, shifted.b


def _only_sums(part: Stmt, sums: set[Buffer]) -> bool:
    """Tell whether a statement only adds to these sums."""
    nodes = list(_all(part))
    stores = [node.buffer for node in nodes if isinstance(node, tirx.BufferStore)]
    calls = [node for node in nodes if is_helper(node)]
    given = {addressed(operand).source for call in calls for operand in call.args if is_call(operand, "address_of")}
    adds = bool(stores) or bool(given & sums)
    return adds and bool(calls) and all(helper_name(call) in _SUMS for call in calls) and set(stores) <= sums


def _all(node: Tir) -> Iterator[Tir]:
    yield node
    for child in children(node):
        yield from _all(child)
