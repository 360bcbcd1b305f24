"""Printing of loops over four float32 lanes as straight C on vectors: the helpers named _f32x4 in tt_mve_float.h.

A loop over lanes may end in the middle of a vector (`if (first + lane < extent)`): then its loads and stores access
only the remaining lanes, and its arithmetic has zeros in the others. Neighbours in memory are one load, equal distances
are a gather. A value shared by all lanes stays a scalar until an operation needs a vector.
"""

from __future__ import annotations

from tvm import ir, sym, tirx
from tvm.tirx import Buffer, PrimFunc, Stmt

from tinytrain_compile.lower.intrinsics.lanes import LANES, VECTORISED
from tinytrain_compile.lower.printing.c_text import ATOM, ZERO_LANES, Declaration, Expr, If, Line, Statement, dtype_of
from tinytrain_compile.lower.printing.int_vectors import LANE, IntVectorPrinter
from tinytrain_compile.lower.printing.patterns import tests_of
from tinytrain_compile.lower.tir_walk import has_calls, helper_name, is_call, is_helper, variables

FLOAT_VECTOR = "tt_f32x4"
_OPERATIONS = {tirx.Add: "tt_add", tirx.Sub: "tt_sub", tirx.Mul: "tt_mul"}
_FUNCTIONS = {f"tt_{name}f": f"tt_{name}_f32x4" for name in ("exp", "erf", "sigmoid", "tanh")}
_FUNCTIONS["tt_unsigned_zero"] = "tt_unsigned_zero_f32x4"
_KEPT, _PRODUCT = "tt_kept_f32x4", "tt_rounded_product"


class FloatVectorPrinter(IntVectorPrinter):
    """A printer that also prints loops over lanes of float32."""

    _live: int = LANES  # existing lanes of the loop being printed

    # ---- register tiles -----------------------------------------------------------------------------------------

    def _first_element(self, index: ir.Expr) -> int:
        return int(self._along(index)[1])

    def _vector_name(self, buffer: Buffer, first: int) -> str:
        place = sorted(self._laned[buffer]).index(first)
        return f"{self._name(buffer)}_x4" + (f"_{place}" if place else "")

    def _allocate(self, buffer: Buffer) -> list[Statement]:
        if not (self._is_vector(buffer) and str(buffer.dtype) == "float32"):
            return super()._allocate(buffer)
        names = [self._vector_name(buffer, first) for first in sorted(self._laned[buffer])]
        return [Declaration(FLOAT_VECTOR, names, ZERO_LANES)]

    # ---- statements ---------------------------------------------------------------------------------------------

    def _body(self, node: Stmt) -> list[Statement]:
        if self._lane is None or not isinstance(node, tirx.IfThenElse):
            return super()._body(node)
        before = self._live
        self._live = min(before, self._bound(node.condition))
        body = self._body(node.then_case) if self._live > 0 else []
        self._live = before
        return body

    def _bound(self, condition: ir.Expr) -> int:
        """Return the number of lanes below the end of their axis."""
        if is_call(condition, "likely"):
            condition = condition.args[0]
        if not isinstance(condition, tirx.LT) or not isinstance(condition.b, tirx.IntImm):
            raise ValueError(f"lanes under a condition: {condition}")
        step, first = self._along(condition.a)
        if step != 1 or not isinstance(first, tirx.IntImm):
            raise ValueError(f"lanes do not end at a constant: {condition}")
        return int(condition.b) - int(first)

    def _store(self, node: tirx.BufferStore) -> Statement:
        if self._lane is None or str(node.buffer.dtype) != "float32":
            return super()._store(node)
        buffer = self._root(node.buffer)
        if self._is_vector(buffer):
            target = self._vector_name(buffer, self._first_element(node.indices[0]))
            return self._guarded_sum(node, target) or Line(f"{target} = {self._vector(node.value)};")
        if is_call(node.value, "if_then_else"):
            test, *sides = node.value.args
            return If(tests_of(test, self._expr), *([self._to_memory(node, side)] for side in sides))
        return self._to_memory(node, node.value)

    def _to_memory(self, node: tirx.BufferStore, result: ir.Expr) -> Statement:
        step, place = self._place(node.buffer, node.indices[0])
        value = self._vector(result)
        if self._live < LANES:
            return Line(f"tt_store_some_f32x4({place}, {step}, {self._live}, {value});")
        return Line(
            f"tt_scatter_f32x4({place}, {step}, {value});" if step != 1 else f"tt_store_f32x4({place}, {value});"
        )

    def _moves(self, body: Stmt) -> bool:
        light = isinstance(body, tirx.For) and int(body.kind) == VECTORISED and not has_calls(body)
        return super()._moves(body) or (self._unroll_moves and light)

    # ---- expressions --------------------------------------------------------------------------------------------

    def _vector(self, node: ir.Expr) -> str:
        if dtype_of(node) != "float32":
            return super()._vector(node)
        return _four(self._expr(node))

    def _load(self, node: ir.TensorLoad) -> Expr:
        index = node.indices[0]
        if str(node.source.dtype) != "float32" or LANE not in self._expr(index).variables:
            return super()._load(node)
        buffer = self._root(node.source)
        if self._is_vector(buffer):
            return _lanes(self._vector_name(buffer, self._first_element(index)))
        step, place = self._place(node.source, index)
        if self._live < LANES:
            return _lanes(f"tt_load_some_f32x4({place}, {step}, {self._live})")
        return _lanes(f"tt_gather_f32x4({place}, {step})" if step != 1 else f"tt_load_f32x4({place})")

    def _compound(self, node: ir.Expr) -> Expr:
        other = isinstance(node, ir.Call) and not is_helper(node)  # an address has no element type
        if self._lane is None or other or dtype_of(node) != "float32":
            return super()._compound(node)
        if isinstance(node, tirx.Select):
            return self._chosen(node)
        if isinstance(node, tirx.Max):
            return self._largest(node.a, node.b)
        if isinstance(node, tirx.Div):
            return _lanes(f"tt_div_f32x4({self._vector(node.a)}, {self._vector(node.b)})")
        if is_helper(node):
            return self._called(node)
        fused = self._fused(node)
        if fused is not None or not isinstance(node, tirx.Add | tirx.Sub | tirx.Mul):
            return fused or super()._compound(node)
        a, b = self._expr(node.a), self._expr(node.b)
        if LANE not in a.variables | b.variables:
            return super()._compound(node)
        if not isinstance(node, tirx.Sub) and LANE not in a.variables:
            a, b = b, a
        if LANE not in b.variables:
            return _lanes(f"{_OPERATIONS[type(node)]}_all_f32x4({a.text}, {b.text})")
        return _lanes(f"{_OPERATIONS[type(node)]}_f32x4({_four(a)}, {b.text})")

    def _called(self, node: ir.Call) -> Expr:
        name, operands = helper_name(node), [self._expr(argument) for argument in node.args[1:]]
        if name == _KEPT:
            return _lanes(f"{_KEPT}({operands[0].text}, {_four(operands[1])})")
        if not any(LANE in operand.variables for operand in operands):
            return super()._compound(node)
        if name == _PRODUCT:
            return self._expr(tirx.Mul(*node.args[1:]))
        if name not in _FUNCTIONS:
            raise ValueError(f"{name} is not for lanes")
        return _lanes(f"{_FUNCTIONS[name]}({operands[0].text})")

    def _sum(self, addend: ir.Expr, term: ir.Expr, whole: ir.Expr, sign: str = "") -> Expr:
        if self._lane is None or dtype_of(whole) != "float32":
            return super()._sum(addend, term, whole, sign)
        c = self._expr(addend)
        if not isinstance(term, tirx.Mul):
            return _lanes(f"tt_add_f32x4({_four(c)}, {_four(self._expr(term))})")
        a, b = self._expr(term.a), self._expr(term.b)
        if LANE not in a.variables:
            a, b = b, a
        if LANE in b.variables and LANE not in c.variables and not sign:
            return _lanes(f"tt_fma_to_all_f32x4({a.text}, {b.text}, {c.text})")
        if LANE in b.variables:
            return _lanes(f"tt_fm{'s' if sign else 'a'}_f32x4({_four(c)}, {a.text}, {b.text})")
        if LANE in a.variables | c.variables:
            factor = f"-{b.at(ATOM)}" if sign else b.text
            return _lanes(f"tt_fma_all_f32x4({_four(c)}, {_four(a)}, {factor})")
        return super()._sum(addend, term, whole, sign)

    def _largest(self, left: ir.Expr, right: ir.Expr, sign: str = ">") -> Expr:
        if self._lane is None or dtype_of(left) != "float32":
            return super()._largest(left, right, sign)
        a, b = self._vector(left), self._vector(right)
        return _lanes(f"tt_pick_f32x4({b}, {a}, {b}, {a})")

    def _chosen(self, node: tirx.Select) -> Expr:
        yes, no = _four(self._expr(node.true_value)), _four(self._expr(node.false_value))
        return _lanes(self._picked(node.condition, yes, no))

    def _picked(self, test: ir.Expr, yes: str, no: str) -> str:
        if isinstance(test, tirx.And):
            return self._picked(test.a, self._picked(test.b, yes, no), no)
        if isinstance(test, tirx.Or):
            return self._picked(test.a, yes, self._picked(test.b, yes, no))
        if not isinstance(test, tirx.GT | tirx.LT | tirx.GE | tirx.LE | tirx.EQ | tirx.NE):
            raise ValueError(f"no comparison of lanes: {test}")
        a, b = (_four(self._expr(side)) for side in (test.a, test.b))
        if isinstance(test, tirx.LT | tirx.GE):
            a, b = b, a
        if isinstance(test, tirx.GE | tirx.LE | tirx.EQ):
            yes, no = no, yes
        if isinstance(test, tirx.EQ | tirx.NE):  # neither is larger
            no = f"tt_pick_f32x4({b}, {a}, {yes}, {no})"
        return f"tt_pick_f32x4({a}, {b}, {yes}, {no})"


def _lanes(text: str) -> Expr:
    return Expr(text, ATOM, frozenset([LANE]), True)


def _four(expr: Expr) -> str:
    """Return an operand as a vector."""
    return expr.text if LANE in expr.variables else f"tt_all_f32x4({expr.text})"


# ---- sums on lanes ---------------------------------------------------------------------------------------------------
# Loops that add neighbours to one number have four sums, a lane each, which are added to the number at the end.


def sums_on_lanes(function: PrimFunc) -> PrimFunc:
    """Return a lowered function with its long sums of neighbours on lanes."""
    return function.with_body(_rewritten(function.body))


def _rewritten(node: Stmt) -> Stmt:
    if isinstance(node, tirx.SeqStmt):
        return tirx.SeqStmt([_rewritten(part) for part in node.seq])
    if not isinstance(node, tirx.For) or int(node.kind) != tirx.ForKind.SERIAL:
        return node
    return _on_lanes(node) or tirx.For(node.loop_var, node.min, node.extent, node.kind, _rewritten(node.body))


def _on_lanes(node: tirx.For) -> Stmt | None:
    """Return the loops of a sum with four sums instead; None for other loops."""
    loops, inner = [node], node.body
    while isinstance(inner, tirx.For):
        loops.append(inner)
        inner = inner.body
    *outer, loop = loops
    if any(int(each.kind) != tirx.ForKind.SERIAL for each in loops) or not isinstance(inner, tirx.BufferStore):
        return None
    k, count, term = loop.loop_var, loop.extent, _added(inner)
    if term is None or str(loop.min) != "0" or not isinstance(count, tirx.IntImm) or int(count) < 2 * LANES:
        return None
    if k not in variables(term) or not _has_neighbours(term, k):
        return None
    whole, rest = divmod(int(count), LANES)
    sums = tirx.decl_buffer((LANES,), "float32", f"{inner.buffer.name}_lanes", scope="local")
    lane, turn = ir.Var(f"{k.name}_lane", "int32"), ir.Var(k.name, "int32")

    def on_lanes(value: ir.Expr) -> Stmt:
        return tirx.For(lane, 0, LANES, tirx.ForKind.VECTORIZED, tirx.BufferStore(sums, value, [lane]))

    more = tirx.Add(sums[(lane,)], _at(term, k, turn * LANES + lane))
    nest: Stmt = tirx.For(turn, 0, whole, tirx.ForKind.SERIAL, on_lanes(more))
    if rest:
        nest = tirx.SeqStmt([nest, tirx.For(k, whole * LANES, rest, tirx.ForKind.SERIAL, inner)])
    for each in reversed(outer):
        nest = tirx.For(each.loop_var, each.min, each.extent, tirx.ForKind.SERIAL, nest)
    total = sums[(0,)] + sums[(1,)] + sums[(2,)] + sums[(3,)]
    end = tirx.BufferStore(inner.buffer, inner.buffer[tuple(inner.indices)] + total, inner.indices)
    return tirx.SeqStmt([tirx.AllocBuffer(sums), on_lanes(tirx.const(0, "float32")), nest, end])


def _added(store: tirx.BufferStore) -> ir.Expr | None:
    """Return what a statement adds to one number in a register; None for other statements."""
    value, place = store.value, store.indices[0]
    if str(store.buffer.dtype) != "float32" or store.buffer.scope() != "local" or not isinstance(value, tirx.Add):
        return None
    sums = value.a
    same = isinstance(sums, ir.TensorLoad) and sums.source.same_as(store.buffer) and str(sums.indices[0]) == str(place)
    return value.b if same and isinstance(place, tirx.IntImm) else None


def _has_neighbours(term: ir.Expr, k: ir.Var) -> bool:
    """Tell whether a term can be computed for four values of k at once."""
    if k not in variables(term):
        return dtype_of(term) == "float32"
    if isinstance(term, ir.TensorLoad):
        parts = sym.detect_linear_equation(term.indices[0], [k])
        return str(term.source.dtype) == "float32" and len(parts) == 2 and str(parts[0]) == "1"
    if is_helper(term):
        return helper_name(term) in _FUNCTIONS and _has_neighbours(term.args[1], k)
    parts = (term.a, term.b) if isinstance(term, tirx.Add | tirx.Sub | tirx.Mul) else ()
    return len(parts) > 0 and all(_has_neighbours(part, k) for part in parts)


def _at(term: ir.Expr, k: ir.Var, index: ir.Expr) -> ir.Expr:
    """Return such a term for another value of k."""
    if k not in variables(term):
        return term
    if isinstance(term, ir.TensorLoad):
        first = sym.detect_linear_equation(term.indices[0], [k])[1]
        return term.source[(first + index,)]
    if is_helper(term):
        return tirx.call_pure_extern("float32", helper_name(term), _at(term.args[1], k, index))
    assert isinstance(term, tirx.Add | tirx.Sub | tirx.Mul)
    return type(term)(_at(term.a, k, index), _at(term.b, k, index))
