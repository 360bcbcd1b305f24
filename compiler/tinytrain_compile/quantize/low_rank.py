"""Integer forms of low-rank copies: they read int8 activations, and are int8 again in front of a gradient."""

from __future__ import annotations

from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.conv import CONV_GRAD_WEIGHT
from tinytrain_compile.ops.int8.subspace import QModeAttrs
from tinytrain_compile.ops.linear import GEMM_GRAD_WEIGHT
from tinytrain_compile.ops.names import operand
from tinytrain_compile.ops.subspace import ModeAttrs
from tinytrain_compile.quantize.forms import Act
from tinytrain_compile.quantize.state import Rewriter

_GRADIENTS = (CONV_GRAD_WEIGHT.name, GEMM_GRAD_WEIGHT.name)


class Copies:
    """Rewrites the first and the last nodes of a copy; those between them are float32 in any case.

    Copies count in steps of the activation, subspaces have no unit: so no scale appears, and the format of what comes
    back is the activation's.
    """

    def __init__(self, rewriter: Rewriter) -> None:
        self._r = rewriter
        self._of: dict[str, Act] = {}
        """What a value is made of, by its name: of cores, and of those that are expanded again in part."""

    def rewrite(self, node: Node) -> bool:
        """Emit the integer form of a node that reads an int8 activation, or gives it back."""
        if node.op not in ("SubspacePower", "ModeProduct"):
            return False
        x, attrs = operand(node, "x"), node.attrs
        assert isinstance(attrs, ModeAttrs)
        known = self._of.get(x.name)
        if known is None:
            act = self._r.act(x, node)
            return act is not None and self._into(node, attrs, act)
        self._of[node.outputs[0].name] = known
        reader = self._r.only_reader(node.outputs[0])
        return reader is not None and reader.op in _GRADIENTS and self._back(node, attrs, known)

    def _into(self, node: Node, attrs: ModeAttrs, act: Act) -> bool:
        """A product of an int8 activation; its results are float32."""
        u = self._r.as_float(operand(node, "u"), node)
        inputs, integer = (act.value, u), QModeAttrs(attrs.axis, zero=act.quant.zero)
        (out,) = self._r.emit(f"Q{node.op}", inputs, integer, node)
        self._r.forms[node.outputs[0].name] = out
        if node.op == "ModeProduct":
            self._of[node.outputs[0].name] = act
        return True

    def _back(self, node: Node, attrs: ModeAttrs, act: Act) -> bool:
        """The last product on the way back: rounded to the activation's format."""
        inputs = tuple(self._r.as_float(operand(node, name), node) for name in ("x", "u"))
        (out,) = self._r.emit("QModeExpand", inputs, QModeAttrs(attrs.axis, True, act.quant.zero), node)
        self._r.forms[node.outputs[0].name] = Act(out, act.quant)
        return True
