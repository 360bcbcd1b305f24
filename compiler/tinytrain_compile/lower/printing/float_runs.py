"""A loop that moves neighbouring weights by their gradients is one call of a helper, which loads eight at a time.

The helpers (tt_sgd and its kind in tt_float_pairs.h) do to every element what the loop does to it, in the same order.
"""

from __future__ import annotations

from collections.abc import Callable

from tvm import ir, sym, tirx
from tvm.tirx import Buffer

from tinytrain_compile.lower.printing.c_expr import Expr
from tinytrain_compile.lower.tir_walk import variables

LEAST = 16
"""Elements of a loop below which a call does not pay."""
Element = Callable[[Buffer, ir.Expr], str]
"""(buffer, index) -> C of the element"""


def moved_run(loop: tirx.For, element: Element, expr: Callable[[ir.Expr], Expr]) -> str | None:
    """The call that does what a loop does; None if the loop is another one."""
    store = loop.body
    if not isinstance(store, tirx.BufferStore) or str(store.buffer.dtype) != "float32":
        return None
    if isinstance(loop.extent, tirx.IntImm) and int(loop.extent) < LEAST:
        return None
    weight = element(store.buffer, store.indices[0])
    found = _moved(store.value, weight, element)
    if found is None:
        return None
    name, gradient, numbers = found
    places = [
        _begin(store.buffer, store.indices[0], loop, element),
        _begin(gradient.source, gradient.indices[0], loop, element),
    ]
    fixed = [number for number in numbers if loop.loop_var not in variables(number)]
    if None in places or len(fixed) < len(numbers):
        return None
    return (
        f"{name}({', '.join([*map(str, places), *(expr(number).text for number in fixed), expr(loop.extent).text])});"
    )


def _moved(value: ir.Expr, weight: str, element: Element) -> tuple[str, ir.TensorLoad, list[ir.Expr]] | None:
    """(helper, the gradient's element, numbers that are the same for all) of what a weight becomes."""
    if not isinstance(value, tirx.Add | tirx.Sub) or not _is(value.a, weight, element):
        return None
    if isinstance(value, tirx.Add):
        return ("tt_accumulate", value.b, []) if isinstance(value.b, ir.TensorLoad) else None
    if not isinstance(value.b, tirx.Mul):
        return None
    rate, step = value.b.a, value.b.b
    name, scale, decay = "tt_sgd", list[ir.Expr](), list[ir.Expr]()
    if isinstance(step, tirx.Add) and isinstance(step.b, tirx.Mul) and _is(step.b.b, weight, element):
        decay, step = [step.b.a], step.a
    if isinstance(step, tirx.Mul) and isinstance(step.a, ir.TensorLoad):
        scale, step = [step.b], step.a
    if not isinstance(step, ir.TensorLoad):
        return None
    name += ("_scaled" if scale else "") + ("_decayed" if decay else "")
    return name, step, [rate, *scale, *decay]


def _is(value: ir.Expr, text: str, element: Element) -> bool:
    return isinstance(value, ir.TensorLoad) and element(value.source, value.indices[0]) == text


def _begin(buffer: Buffer, index: ir.Expr, loop: tirx.For, element: Element) -> str | None:
    """Where the first element lies, if they are neighbours."""
    parts = sym.detect_linear_equation(index, [loop.loop_var])
    if len(parts) == 0 or not isinstance(parts[0], tirx.IntImm) or int(parts[0]) != 1:
        return None
    return f"&{element(buffer, sym.Analyzer().simplify(parts[1] + loop.min))}"
