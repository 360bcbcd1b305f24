"""An input of integers or truth values that the model computes with: pixels of uint8, ages, flags.

The graph takes the same numbers as float32. That is exact if nothing computes with them as integers before a Cast makes
floating-point numbers of them. Otherwise a Cast of ours makes integers of them first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import INDICES, Links, OnnxInput, OnnxModel, OnnxNode, rewritten, unused
from tinytrain_compile.frontend.file.protobuf import type_name
from tinytrain_compile.ir.imported import WholeNumbers

_T = onnx.TensorProto
_NARROW = frozenset((_T.UINT8, _T.INT8, _T.UINT16, _T.INT16, _T.UINT32, _T.UINT64))
_WHOLE = _NARROW | INDICES | {_T.BOOL}
_EXACT = 1 << 24
"""float32 holds every integer up to here."""
_MOVED = "DepthToSpace Expand Flatten Identity Reshape Slice SpaceToDepth Split Squeeze Tile Transpose Unsqueeze"
_MOVES = frozenset(_MOVED.split())
_COMPARED_OPS = "Clip Concat Equal Gather Greater GreaterOrEqual Less LessOrEqual Max Min OneHot Pad Where"
_COMPARED = frozenset(_COMPARED_OPS.split())
"""Operators that give the same for integers of any width."""
_LAYERS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))
_COUNTED_OPS = "Abs Add Cast Clip Concat CumSum Max Min Mul Neg Pad ReduceSum Sub Sum Trilu Where"
_COUNTED = frozenset(_COUNTED_OPS.split())
"""Operators whose result is integers if their operands are."""


def in_real_numbers(
    model: OnnxModel, links: Links, source: OnnxInput
) -> tuple[OnnxModel, OnnxInput, WholeNumbers | None]:
    """Return the model with an input of real numbers in place of one of integers, that input, and its numbers.

    As it is where the input is real numbers already, or indices of tables. E0221 where integers are computed with that
    would wrap around elsewhere.
    """
    if source.elem_type in INDICES and _looked_up(links, source.name):
        return model, source, None
    if source.elem_type not in _WHOLE:
        raise _refused(source, "")
    kind = np.dtype(helper.tensor_dtype_to_np_dtype(source.elem_type))
    casts = _casts(links, source, kind)
    if casts is None:
        nodes = _as_integers(model, links, source)
    else:
        nodes = tuple(rewritten(n, n.inputs, "Identity") if n.name in casts else n for n in model.nodes)
    real = replace(source, elem_type=_T.FLOAT)
    inputs = tuple(real if value is source else value for value in model.inputs)
    low, high = (0, 1) if kind == np.bool_ else (np.iinfo(kind).min, np.iinfo(kind).max)
    note = f"input {source.name} is {kind.name} in the file: m_infer and training take the same numbers as float32"
    changed = replace(model, nodes=nodes, inputs=inputs, notes=(*model.notes, note))
    return changed, real, WholeNumbers(kind.name, max(int(low), -_EXACT), min(int(high), _EXACT))


def _looked_up(links: Links, name: str) -> bool:
    """Tell whether a Gather reads a tensor, or integers that follow from it, as indices."""
    found = links.followed(name, lambda node: node.op in _MOVES | _COUNTED)
    return any(node.op.startswith("Gather") and node.input(1) == tensor for tensor, node in found)


def _as_integers(model: OnnxModel, links: Links, source: OnnxInput) -> tuple[OnnxNode, ...]:
    """Put a node in front that makes integers, or truth values, of the input's numbers."""
    name = unused(f"{source.name}_in_its_type", model.constants, links)
    to = _T.BOOL if source.elem_type == _T.BOOL else _T.INT64
    proto = helper.make_node("Cast", [source.name], [name], name=name, to=to)
    cast = OnnxNode(name, "Cast", "", (source.name,), (name,), {"to": to}, proto)
    renamed = (rewritten(n, [name if i == source.name else i for i in n.inputs]) for n in model.nodes)
    return (cast, *renamed)


def _casts(links: Links, source: OnnxInput, kind: np.dtype[Any]) -> frozenset[str] | None:
    """Return names of the Casts on the ways from the input to floating-point numbers, from wider integers' too.

    None if anything else computes with its integers. E0221 for narrow ones that would wrap around.
    """
    found: set[str] = set()
    counted = links.is_output(source.name)
    pending, seen = [source.name], {source.name}
    while pending:
        tensor = pending.pop()
        counted = counted or links.is_output(tensor)
        for node in links.readers(tensor):
            if node.op == "Shape":
                continue
            if node.op == "Cast" and not node.domain:
                found.add(node.name)
                to = node.integer("to", 0)
                if to in (_T.FLOAT, _T.DOUBLE):
                    continue
                counted = counted or not _holds(to, kind)
                if to == _T.BOOL:
                    continue
            elif node.op not in _MOVES or node.domain:
                counted = True
                # A layer, and an operator whose result depends on the width of narrow integers, would wrap around.
                narrow = source.elem_type in _NARROW and (node.op not in _COMPARED or node.domain)
                if node.op in _LAYERS or narrow:
                    raise _refused(source, f"node {node.name} ({node.op}) computes with its integers")
                continue
            new = [output for output in node.outputs if output and output not in seen]
            seen.update(new)
            pending += new
    return None if counted else frozenset(found)


def _holds(to: int, kind: np.dtype[Any]) -> bool:
    """Tell whether a type holds all integers of another one."""
    return to in _WHOLE and to != _T.BOOL and np.can_cast(kind, helper.tensor_dtype_to_np_dtype(to))


def _refused(source: OnnxInput, what: str) -> CompileError:
    kind = type_name(source.elem_type)
    try_ = "use a float32 input, integers that a Cast to float32 reads first, or such that Gather looks up"
    return CompileError("E0221", f"input {source.name}", f"its type is {kind}{what and f', and {what}'}", try_)
