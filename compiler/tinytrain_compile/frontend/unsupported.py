"""Collects everything in a model that has no IR form, so that the user sees the whole list at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping

import onnx
from onnx import defs, helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.forms import inferred_types
from tinytrain_compile.frontend.file.model import LEARNED, MICROSOFT, OnnxModel, OnnxNode, Refused
from tinytrain_compile.frontend.graph.context import Handler, ImportContext
from tinytrain_compile.frontend.graph.entries import KINDS

_QDQ = "the float32 model, or quantize_static with quant_format=QuantFormat.QDQ"
_UNROLLED = "steps written out (a recurrent layer of Keras: unroll=True), or LSTM, GRU, RNN"
_SPECTRUM = "the network behind it, with x of spectra that the firmware computes"
NEAREST: Mapping[str, str] = {
    "Attention": "MatMul, Softmax and MatMul",
    "ConvInteger": _QDQ,
    "DFT": _SPECTRUM,
    "DynamicQuantizeLinear": _QDQ,
    "If": "the branch that is taken, exported by itself, or --model-output with a result in front of it",
    "Loop": _UNROLLED,
    "MatMulInteger": _QDQ,
    "MelWeightMatrix": _SPECTRUM,
    "RMSNormalization": "LayerNormalization",
    "STFT": _SPECTRUM,
    "Scan": _UNROLLED,
    "Upsample": "Resize",
}
"""ONNX operators that are not imported -> what comes nearest."""
_DYNAMIC = ("Dynamic", "MatMulIntegerToFloat")
"""Prefixes of the operators of dynamic quantisation, in both domains."""
_OPTIMISERS = (MICROSOFT, "com.ms.")
"""Prefixes of the domains of graph optimisers' operators (com.microsoft.nchwc, com.ms.internal.nhwc)."""

_T = onnx.TensorProto
_NUMBERS = frozenset((_T.FLOAT, _T.DOUBLE, _T.FLOAT16, _T.BOOL, _T.INT8, _T.UINT8, _T.INT16, _T.INT32, _T.INT64))
"""Element types that the graph has, or has a stand-in for."""


class Complaints:
    """The unsupported nodes of one model."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model
        self._lines: list[str] = []
        self._operators: dict[str, None] = {}
        self._foreign = False
        self._types: Mapping[str, tuple[tuple[int, ...], int]] | None = None

    def add(self, ctx: ImportContext, node: OnnxNode, reason: Refused) -> None:
        """Note a node, and give its outputs stand-ins of their type so that the nodes behind it are checked too."""
        self._note(node, reason)
        if self._types is None:
            self._types = inferred_types(self._model)
        for name in node.outputs:
            shape, kind = self._types.get(name, ((), 0))
            if kind in _NUMBERS and not ctx.has(name):
                ctx.stand_in(name, shape, KINDS[helper.tensor_dtype_to_np_dtype(kind).kind])

    def unreached(self, node: OnnxNode, handlers: Mapping[str, Handler]) -> None:
        """Check at least the operator of a node whose inputs are unknown because of an unsupported one."""
        if node.domain or (node.op not in handlers and node.op not in ("Shape", "Size")):
            self._note(node, unknown_operator(node, handlers))

    def _note(self, node: OnnxNode, reason: Refused) -> None:
        operator = f"{node.domain}::{node.op}" if node.domain else node.op
        what = f"{operator}, {reason.attribute}" if reason.attribute else operator
        line = f"{node.name}: {what}: {reason.reason}; nearest supported: {reason.nearest}{self._before(node)}"
        line = "".join(c if c.isprintable() else "?" for c in line)
        self._lines.append(line if len(line) <= 300 else line[:297] + "...")
        self._operators.setdefault(what)
        self._foreign = self._foreign or bool(node.domain)

    def _before(self, node: OnnxNode) -> str:
        """Say which results could be trained in place of an unsupported operator that only ends the model."""
        if node.domain or node.op in NEAREST or not set(node.outputs) & set(self._model.outputs):
            return ""
        made = {name for each in self._model.nodes for name in each.outputs}
        before = [name for name in node.inputs if name in made]
        return f"; or train what it is made of: --model-output {' or '.join(before)}" if before else ""

    def raise_if_any(self) -> None:
        """Raise CompileError with one line per node, if there are any: E0503 for foreign domains, else E0501."""
        if not self._lines:
            return
        count, total = len(self._lines), len(self._model.nodes)
        what = f"{count} of {total} nodes cannot be imported: {'; '.join(self._operators)}"
        code = "E0503" if self._foreign else "E0501"
        raise CompileError(
            code, self._model.name, what, "replace these nodes in the model as listed below", tuple(self._lines)
        )


def unknown_operator(node: OnnxNode, handlers: Mapping[str, Handler]) -> Refused:
    """Return the complaint about an operator that has no handler."""
    if node.op.startswith(_DYNAMIC):
        return Refused("", "its scales are computed at run time, from each sample", _QDQ)
    foreign = node.domain == MICROSOFT and node.op.startswith("Q") and node.op != "QuickGelu"
    if foreign or node.op in ("ConvInteger", "MatMulInteger"):
        return Refused("", "it computes with stored integers", _QDQ)
    if node.domain == LEARNED:
        what = "an operator of classical machine learning, which gradients do not train"
        return Refused("", what, "a network that was trained in its place (of this domain, Scaler is read)")
    if node.domain.startswith(_OPTIMISERS):
        return Refused("", "its domain is not the standard one", "the model before graph optimisers changed it")
    if node.domain:
        return Refused("", "its domain is not the standard one", "the same computation in standard operators of ONNX")
    nearest = NEAREST.get(node.op)
    if nearest is None and not defs.has(node.op):  # a name that resembles one: a slip
        nearest = " or ".join(difflib.get_close_matches(node.op, handlers, n=2, cutoff=0.75))
    return Refused(
        "",
        "there is no such operator in the compiler",
        nearest or "none, see --list-ops; leave it out or write it with these",
    )
