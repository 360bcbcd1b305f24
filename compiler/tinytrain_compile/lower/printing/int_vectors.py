"""Printing of loops over four lanes (TIR's vectorised loops) as straight C on vectors: the helpers named _x4 in
tt_mve.h.

Within such a loop an expression is either the same for all lanes, and printed as usual, or a vector of four int32;
loads widen bytes. An internal buffer that only lane loops fill is a vector variable; one that others fill (sums of
products) is scalars, which are assembled into vectors.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TypeGuard

from tvm import ir, sym, tirx
from tvm.tirx import Buffer, PrimFunc, Stmt

from tinytrain_compile.lower.intrinsics.lanes import LANES, LARGEST_PITCH, OPERANDS, VECTORISED
from tinytrain_compile.lower.names import LoopNames
from tinytrain_compile.lower.printing.c_text import ATOM, ZERO_LANES, Declaration, Expr, If, Line, Statement, dtype_of
from tinytrain_compile.lower.printing.patterns import tests_of
from tinytrain_compile.lower.printing.printer import Parameter, Printer
from tinytrain_compile.lower.tir_walk import Tir, addressed, children, helper_name, is_call, is_helper

VECTOR = "tt_i32x4"
LANE, WHICH = "lane", "which lane"
"""Marks among an expression's variables: it differs from lane to lane; it contains the number of the lane."""
_LOADS = {"int8": "tt_load8_x4", "int16": "tt_load16_x4", "int32": "tt_load32_x4"}
_STORES = {("int8", 1): "tt_store8_x4", ("int32", 1): "tt_store32_x4"}


class IntVectorPrinter(Printer):
    """A printer that also prints loops over lanes."""

    def __init__(
        self,
        function: PrimFunc,
        parameters: Sequence[Parameter],
        same: dict[int, int],
        unroll_moves: bool = True,
        loops: LoopNames | None = None,
    ) -> None:
        self._turn = 0  # which lane an index is printed for
        self._lane: ir.Var | None = None  # the variable of the current loop over lanes
        self._laned: dict[Buffer, set[int]] = {}  # internal buffer -> first elements of vectors read from it
        self._single: set[Buffer] = set()  # buffers that other loops fill too
        super().__init__(function, parameters, same, unroll_moves, loops)

    # ---- finding out what is a vector ---------------------------------------------------------------------------

    @contextmanager
    def _lanes(self, loop: tirx.For) -> Generator[None]:
        if int(loop.extent) != LANES:
            raise ValueError(f"a loop over lanes has {loop.extent} turns")
        self._lane = loop.loop_var
        yield
        self._lane = None

    def _survey(self, node: Tir) -> None:
        if _is_lanes(node):
            with self._lanes(node):
                self._survey(node.body)
        elif isinstance(node, tirx.BufferStore | ir.TensorLoad):
            buffer = self._root(node.buffer if isinstance(node, tirx.BufferStore) else node.source)
            if self._lane is None or not self._is_tile(buffer, node.indices[0]):
                if isinstance(node, tirx.BufferStore) or not isinstance(
                    node.indices[0], tirx.IntImm
                ):  # a lane of a vector can be read
                    self._single.add(buffer)
                super()._survey(node)
                return
            self._laned.setdefault(buffer, set()).add(self._first_element(node.indices[0]))
            self._used_buffers.add(buffer)
            if isinstance(node, tirx.BufferStore):
                self._survey(node.value)
        else:
            super()._survey(node)

    def _survey_helper(self, node: ir.Call) -> None:
        for argument in node.args[1:]:
            if is_call(argument, "address_of"):
                self._single.add(self._root(addressed(argument).source))
        super()._survey_helper(node)

    def _is_tile(self, buffer: Buffer, index: ir.Expr) -> bool:
        """Tell whether this index of an internal buffer in registers differs from lane to lane."""
        return buffer in self._allocated and buffer.scope() == "local" and self._along(index)[0] != 0

    def _is_vector(self, buffer: Buffer) -> bool:
        return buffer in self._laned and buffer not in self._single

    def _along(self, index: ir.Expr) -> tuple[int, ir.Expr]:
        """Return (distance from lane to lane, index of the first)."""
        assert self._lane is not None
        parts = sym.detect_linear_equation(index, [self._lane])
        if len(parts) != 2 or not isinstance(parts[0], tirx.IntImm):
            raise ValueError(f"lanes do not lie in a row: {index}")
        return int(parts[0]), parts[1]

    def _first_element(self, index: ir.Expr) -> int:
        step, first = self._along(index)
        if step != 1:
            raise ValueError(f"lanes of a register tile are not neighbours: {index}")
        return int(first)

    def _vector_name(self, buffer: Buffer, first: int) -> str:
        return f"{self._name(buffer)}_x4" + (f"_{first // LANES}" if first else "")

    # ---- statements ---------------------------------------------------------------------------------------------

    def _body(self, node: Stmt) -> list[Statement]:
        if not _is_lanes(node):
            moved = self._moved(node) if isinstance(node, tirx.For) and self._moves(node.body) else None
            return super()._body(node) if moved is None else [moved]
        with self._lanes(node):
            return self._body(node.body)

    def _moved(self, loop: tirx.For) -> Statement | None:
        """Return a loop that fills scratch with bytes of a row or a column as one call; None for other loops."""
        store = loop.body
        if not (isinstance(store, tirx.BufferStore) and isinstance(loop.extent, tirx.IntImm)) or str(loop.min) != "0":
            return None
        value, filling = store.value, 0
        condition: ir.Expr | None = None
        if is_call(value, "if_then_else"):
            condition, value, other = value.args
            if loop.loop_var.name in str(condition) or not isinstance(other, tirx.IntImm):
                return None
            filling = int(other)
        offset, wide = 0, str(store.buffer.dtype) == "int16"
        if wide and isinstance(value, tirx.Sub | tirx.Add) and isinstance(value.b, tirx.IntImm):
            offset = int(value.b) * (1 if isinstance(value, tirx.Add) else -1)
            value = value.a
        if wide:
            if not isinstance(value, tirx.Cast) or filling != 0:
                return None
            value = value.value
        if not isinstance(value, ir.TensorLoad) or str(value.source.dtype) != "int8":
            return None
        to = sym.detect_linear_equation(store.indices[0], [loop.loop_var])
        source = sym.detect_linear_equation(value.indices[0], [loop.loop_var])
        if len(to) != 2 or len(source) != 2 or not isinstance(source[0], tirx.IntImm):
            return None
        pitch, count = int(source[0]), int(loop.extent)
        if str(to[0]) != "1" or not 0 <= pitch < LARGEST_PITCH:
            return None
        operands = ((store.buffer, to[1]), (value.source, source[1]))
        places = [f"&{self._name(self._root(buffer))}[{self._expr(first).text}]" for buffer, first in operands]
        numbers = f"{pitch}, {count}, {offset}" if wide else f"{count}" if pitch == 1 else f"{pitch}, {count}"
        call = Line(
            f"{'tt_widen8' if wide else 'tt_copy8' if pitch == 1 else 'tt_gather8'}({', '.join(places)}, {numbers});"
        )
        if condition is None:
            return call
        fill = Line(f"memset({places[0]}, {filling}, {count * (2 if wide else 1)});")
        return If(tests_of(condition, self._expr), [call], [fill])

    def _allocate(self, buffer: Buffer) -> list[Statement]:
        if not self._is_vector(buffer):
            return super()._allocate(buffer)
        names = [self._vector_name(buffer, first) for first in sorted(self._laned[buffer])]
        return [Declaration(VECTOR, names, ZERO_LANES)]

    def _constant_indices(self, buffer: Buffer) -> set[int]:
        lanes = {first + lane for first in self._laned.get(buffer, ()) for lane in range(LANES)}
        return lanes | super()._constant_indices(buffer)

    def _inside(self, node: Tir) -> list[Tir]:
        """Return the children of a statement; none of a loop over lanes, which _survey has visited."""
        return [] if _is_lanes(node) else children(node)

    def _store(self, node: tirx.BufferStore) -> Statement:
        if self._lane is None:
            return super()._store(node)
        buffer, value = self._root(node.buffer), node.value
        if isinstance(value, tirx.Add) and is_call(value.b, "if_then_else"):
            target = self._vector_name(buffer, self._first_element(node.indices[0]))  # acc = acc + (test ? term : 0)
            condition, term, _zero = value.b.args
            return If(
                tests_of(condition, self._expr), [Line(f"{target} = {self._sum(value.a, term, value).text};")], []
            )
        text = self._vector(value)
        if self._is_vector(buffer):
            return Line(f"{self._vector_name(buffer, self._first_element(node.indices[0]))} = {text};")
        step, place = self._place(node.buffer, node.indices[0])
        if step != 1 and str(node.buffer.dtype) == "int8":
            return Line(f"tt_scatter8_x4({place}, {step}, {text});")
        return Line(f"{_STORES[(str(node.buffer.dtype), step)]}({place}, {text});")

    # ---- expressions --------------------------------------------------------------------------------------------

    def _element(self, buffer: Buffer, index: ir.Expr) -> str:
        """Return one lane of a vector, or the usual text."""
        root = self._root(buffer)
        if self._lane is not None or not self._is_vector(root):
            return super()._element(buffer, index)
        first = max(first for first in self._laned[root] if first <= int(index))
        return f"{self._vector_name(root, first)}[{int(index) - first}]"

    def _place(self, buffer: Buffer, index: ir.Expr) -> tuple[int, str]:
        """Return (distance from lane to lane, address of the first)."""
        step, first = self._along(index)
        return step, f"&{self._name(self._root(buffer))}[{self._expr(first).text}]"

    def _vector(self, node: ir.Expr) -> str:
        """Return an operand as a vector; true is all bits."""
        if isinstance(node, tirx.IntImm) and dtype_of(node) == "bool":
            return f"tt_all({-int(node)})"
        expr = self._expr(node)
        return expr.text if LANE in expr.variables else f"tt_all({expr.text})"

    def _expr(self, node: ir.Expr) -> Expr:
        if self._lane is None:
            return super()._expr(node)
        if isinstance(node, ir.Var) and node.same_as(self._lane):
            return Expr(str(self._turn), ATOM, frozenset([LANE, WHICH]))
        if isinstance(node, ir.TensorLoad):
            return self._load(node)
        if isinstance(node, tirx.Cast) and dtype_of(node.value) in _LOADS and dtype_of(node) in _LOADS:
            inner = self._expr(node.value)
            return inner if LANE in inner.variables else super()._expr(node)
        if is_helper(node) and helper_name(node) in OPERANDS:
            return self._helper(node)
        return super()._expr(node)

    def _operands(self, symbol: str, left: ir.Expr, right: ir.Expr) -> tuple[Expr, Expr]:
        """Return both operands; a number beside a vector becomes one by tt_all, which hides it from GCC 12 (see
        TT_UNSEEN)."""
        pair = super()._operands(symbol, left, right)
        varying = pair[0].variables | pair[1].variables
        if self._lane is None or symbol not in ("+", "-", "*") or LANE not in varying or WHICH in varying:
            return pair
        a, b = (
            Expr(self._vector(node)) if isinstance(node, tirx.IntImm) and not _shifts(symbol, node) else expr
            for node, expr in zip((left, right), pair, strict=True)
        )
        return a, b

    def _load(self, node: ir.TensorLoad) -> Expr:
        buffer, index = self._root(node.source), node.indices[0]
        dtype, lane = str(node.source.dtype), frozenset([LANE])
        if buffer in self._laned and self._is_tile(buffer, index):
            first = self._first_element(index)
            if self._is_vector(buffer):
                return Expr(self._vector_name(buffer, first), ATOM, lane)
            lanes = ", ".join(f"{self._name(buffer)}_{first + i}" for i in range(LANES))
            return Expr(f"tt_lanes({lanes})", ATOM, lane)
        if LANE not in self._expr(index).variables or dtype not in _LOADS:
            return super()._expr(node)
        step, place = self._place(node.source, index)
        if step != 1 and dtype == "int16":
            return Expr(f"tt_gather16_x4({place}, {step})", ATOM, lane, True)
        if step != 1:
            raise ValueError(f"lanes are not neighbours in memory: {index}")
        return Expr(f"{_LOADS[dtype]}({place})", ATOM, lane, True)

    def _fused(self, node: ir.Expr) -> Expr | None:
        if self._lane is None or not isinstance(node, tirx.Add) or dtype_of(node) != "int32":
            return super()._fused(node)
        for addend, term in ((node.a, node.b), (node.b, node.a)):
            if isinstance(term, tirx.Mul):
                return self._sum(addend, term, node)
        return None

    def _sum(self, addend: ir.Expr, term: ir.Expr, whole: ir.Expr, sign: str = "") -> Expr:
        """Return a sum; one instruction adds a product with a value shared by all lanes."""
        if self._lane is not None and isinstance(term, tirx.Mul) and dtype_of(whole) == "int32":
            a, b = self._expr(term.a), self._expr(term.b)
            if LANE in b.variables:
                a, b = b, a
            if LANE in a.variables and LANE not in b.variables:
                text = f"tt_mla_x4({self._vector(addend)}, {a.text}, {b.text})"
                return Expr(text, ATOM, frozenset([LANE]), True)
        return super()._sum(addend, term, whole, sign)

    def _each(self, node: ir.Expr) -> str:
        """Return the operand of each lane separately."""
        texts: list[str] = []
        for self._turn in range(LANES):
            texts.append(self._scalar(node).text)
        self._turn = 0
        return ", ".join(texts)

    def _scalar(self, node: ir.Expr) -> Expr:
        lane, self._lane = self._lane, None
        assert lane is not None
        self._names[lane] = str(self._turn)
        expr = self._expr(node)
        self._lane = lane
        return expr

    def _helper(self, node: ir.Call) -> Expr:
        name = helper_name(node)
        kinds = OPERANDS[name]
        if kinds == "e":
            return Expr(f"{name}({self._each(node.args[1])})", ATOM, frozenset([LANE]), True)
        texts: list[str] = []
        for operand, argument in zip(kinds, node.args[1:], strict=True):
            text = self._vector(argument) if operand == "v" else self._expr(argument).text
            if operand == "s" and LANE in self._expr(argument).variables:
                raise ValueError(f"{name}: lanes do not share {argument}")
            texts.append(text)
        return Expr(f"{name}({', '.join(texts)})", ATOM, frozenset([LANE]), True)


def _shifts(symbol: str, number: tirx.IntImm) -> bool:
    """Tell whether multiplying by this number is a shift of a vector, which can use the plain number."""
    value = int(number)
    return symbol == "*" and value > 0 and value & (value - 1) == 0


def _is_lanes(node: Tir) -> TypeGuard[tirx.For]:
    return isinstance(node, tirx.For) and int(node.kind) == VECTORISED
