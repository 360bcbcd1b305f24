"""Operators that exporters write as several nodes: gates x * sigmoid(x) and GELU by erf."""

from __future__ import annotations

import math

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.operands import scalar
from tinytrain_compile.ops.activation import GeluAttrs


def fuse_gate(ctx: ImportContext, node: OnnxNode, op: str) -> bool:
    """Turn x * gate(x), of which `node` is the gate, into one node; False if that is not what the model does."""
    product = ctx.links.sole_reader(node.output(0))
    if product is None or product.op != "Mul" or other_input(product, node.output(0)) != node.input(0):
        return False
    ctx.done.add(product.name)
    ctx.define(product.output(0), ctx.mapped(node, ctx.entry(node.input(0)), op))
    return True


def fuse_mish(ctx: ImportContext, node: OnnxNode) -> bool:
    """Turn x * tanh(softplus(x)), of which `node` is the Softplus, into one Mish; False if it is not that."""
    tanh = ctx.links.sole_reader(node.output(0))
    product = None if tanh is None or tanh.op != "Tanh" else ctx.links.sole_reader(tanh.output(0))
    if tanh is None or product is None or product.op != "Mul":
        return False
    if other_input(product, tanh.output(0)) != node.input(0):
        return False
    ctx.done.update((tanh.name, product.name))
    ctx.define(product.output(0), ctx.mapped(node, ctx.entry(node.input(0)), "Mish"))
    return True


def fuse_gelu(ctx: ImportContext, node: OnnxNode) -> bool:
    """Turn 0.5 * x * (1 + erf(x / sqrt(2))), of which `node` scales x, into one Gelu; False if it is not that."""
    tensor = _scaled_input(ctx, node, math.sqrt(2.0) if node.op == "Div" else math.sqrt(0.5))
    inner = _erf_plus_one(ctx, node)
    last = _half_product(ctx, inner, tensor) if tensor and inner else None
    if last is None:
        return False
    ctx.define(last.output(0), ctx.mapped(node, ctx.entry(tensor), "Gelu", attrs=GeluAttrs(False)))
    return True


def _erf_plus_one(ctx: ImportContext, scaled: OnnxNode) -> OnnxNode | None:
    """Return the node that adds 1 to erf of `scaled`, where nothing else reads what lies between."""
    erf = ctx.links.sole_reader(scaled.output(0))
    if erf is None or erf.op != "Erf":
        return None
    plus = ctx.links.sole_reader(erf.output(0))
    if plus is None or plus.op != "Add" or _number(ctx, other_input(plus, erf.output(0))) != 1.0:
        return None
    return plus


def _half_product(ctx: ImportContext, plus: OnnxNode, x: str) -> OnnxNode | None:
    """Return the last node of 0.5 * x * plus, in any grouping of the three factors.

    Marks all nodes on the way as done.
    """
    first = ctx.links.sole_reader(plus.output(0))
    if first is None or first.op != "Mul":
        return None
    erf = ctx.links.maker(next(name for name in plus.inputs if not ctx.links.is_constant(name)))
    assert erf is not None
    inner = [erf.name, plus.name, first.name]
    factor = other_input(first, plus.output(0))
    half = ctx.links.maker(factor)
    if half is not None and half.op == "Mul" and _scaled_input(ctx, half, 0.5) == x:
        ctx.done.update(inner)
        return first
    last = ctx.links.sole_reader(first.output(0))
    if last is None or last.op != "Mul":
        return None
    rest = other_input(last, first.output(0))
    if (factor == x and _number(ctx, rest) == 0.5) or (rest == x and _number(ctx, factor) == 0.5):
        ctx.done.update((*inner, last.name))
        return last
    return None


def _scaled_input(ctx: ImportContext, node: OnnxNode, factor: float) -> str:
    """Return the tensor that a Mul or Div scales by this constant; "" if it does not."""
    constants = [name for name in node.inputs if ctx.links.is_constant(name)]
    if len(constants) != 1 or (node.op == "Div" and constants[0] != node.inputs[1]):
        return ""
    found = _number(ctx, constants[0])
    return other_input(node, constants[0]) if found is not None and math.isclose(found, factor, rel_tol=1e-4) else ""


def _number(ctx: ImportContext, tensor: str) -> float | None:
    """Return the single number that a constant holds."""
    if not ctx.has(tensor) or ctx.entry(tensor).elements != 1:
        return None
    return scalar(ctx.entry(tensor))


def other_input(node: OnnxNode, tensor: str) -> str:
    """Return the operand of a two-operand node beside `tensor` (`tensor` itself if it is both)."""
    return node.inputs[1] if node.inputs[0] == tensor else node.inputs[0]
