"""An input of integers that the model computes with: pixels of uint8 that a Cast makes floating-point numbers of.

The graph takes the same numbers as float32. That is exact where nothing computes with them as integers before the Cast.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import Links, OnnxInput, OnnxModel, OnnxNode, rewritten
from tinytrain_compile.ir.imported import WholeNumbers

_T = onnx.TensorProto
INDICES = frozenset((_T.INT32, _T.INT64))
"""Types of an input that tables are looked up by."""
_WHOLE = frozenset((_T.UINT8, _T.INT8, _T.UINT16, _T.INT16, _T.UINT32, _T.INT32, _T.INT64))
_EXACT = 1 << 24
"""float32 holds every integer up to here."""
_MOVED = "DepthToSpace Expand Flatten Identity Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze"
_MOVES = frozenset(_MOVED.split())


def in_real_numbers(
    model: OnnxModel, links: Links, source: OnnxInput
) -> tuple[OnnxModel, OnnxInput, WholeNumbers | None]:
    """The model with a data input of real numbers in place of one of integers that become such, which, and its numbers.

    As it is where the input is real numbers already, or indices of tables. E0221 where integers are computed with.
    """
    if source.elem_type == _T.FLOAT:
        return model, source, None
    if source.elem_type in INDICES and _looked_up(links, source.name):
        return model, source, None
    if source.elem_type not in _WHOLE:
        raise _refused(source, "")
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(source.elem_type))
    casts = _casts(links, source, kind)
    nodes = tuple(rewritten(n, n.inputs, "Identity") if n.name in casts else n for n in model.nodes)
    real = replace(source, elem_type=_T.FLOAT)
    inputs = tuple(real if value is source else value for value in model.inputs)
    info = np.iinfo(kind)
    low, high = max(info.min, -_EXACT), min(info.max, _EXACT)
    note = f"input {source.name} is {kind.name} in the file: m_infer and training take the same numbers as float32"
    changed = replace(model, nodes=nodes, inputs=inputs, notes=(*model.notes, note))
    return changed, real, WholeNumbers(kind.name, int(low), int(high))


def _looked_up(links: Links, name: str) -> bool:
    """Whether a Gather reads a tensor, or what is only moved of it, as indices."""
    pending, seen = [name], {name}
    while pending:
        tensor = pending.pop()
        for node in links.readers(tensor):
            if node.op.startswith("Gather") and node.input(1) == tensor:
                return True
            if node.op in _MOVES or node.op == "Cast":
                new = [output for output in node.outputs if output not in seen]
                seen.update(new)
                pending += new
    return False


def _casts(links: Links, source: OnnxInput, kind: np.dtype[Any]) -> frozenset[str]:
    """Names of the Casts on the ways from the input to floating-point numbers, from wider integers' too."""
    found: set[str] = set()
    pending, seen = [source.name], {source.name}
    while pending:
        tensor = pending.pop()
        if links.is_output(tensor):
            raise _refused(source, "it is an output of the model as it is")
        for node in links.readers(tensor):
            if node.op == "Shape":
                continue
            if node.op == "Cast" and not node.domain:
                found.add(node.name)
                if _becomes_real(source, kind, node):
                    continue
            elif node.op not in _MOVES or node.domain:
                raise _refused(source, f"node {node.name} ({node.op}) computes with its integers")
            new = [output for output in node.outputs if output and output not in seen]
            seen.update(new)
            pending += new
    return frozenset(found)


def _becomes_real(source: OnnxInput, kind: np.dtype[Any], node: OnnxNode) -> bool:
    """Whether a Cast makes floating-point numbers; False for integers that hold the same. E0221 for others."""
    to = node.integer("to", 0)
    if to == _T.FLOAT or to == _T.DOUBLE:
        return True
    if to in _WHOLE and np.can_cast(kind, helper.tensor_dtype_to_np_dtype(to)):
        return False
    name = {number: name.lower() for name, number in _T.DataType.items()}.get(to, str(to))
    raise _refused(source, f"node {node.name} (Cast) makes {name} of its numbers")


def _refused(source: OnnxInput, what: str) -> CompileError:
    names = {number: name.lower() for name, number in _T.DataType.items()}
    kind = names.get(source.elem_type, f"unknown ({source.elem_type})")
    try_ = "use a float32 input, integers that a Cast to float32 reads first, or such that Gather looks up"
    return CompileError("E0221", f"input {source.name}", f"its type is {kind}{what and f', and {what}'}", try_)
