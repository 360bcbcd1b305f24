"""What the names of PyTorch's TorchScript exporter tell of the initializers in a file.

A tensor that the exporter computed from parameters is called `onnx::Conv_52`: the operator that reads it and a number.
Every operation that it evaluates uses the next number, so gaps tell how many operations are behind a tensor.
"""

from __future__ import annotations

import math
import re

from tinytrain_compile.frontend.exporters.derived_numbers import (
    FEW,
    has_few_numbers,
    is_broadcast,
    is_flat,
    is_grid,
    is_scaled,
    repeats,
)
from tinytrain_compile.frontend.exporters.names import number_of
from tinytrain_compile.frontend.exporters.remarks import Remark
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode
from tinytrain_compile.ir.types import Array

_RESULT = re.compile(r"(mul|add|sub|div|exp|neg|abs|pow|sqrt|sigmoid|softplus|tanh|softmax|clamp)(_\d+)?")
"""Names that the newer exporter gives to results; its record may have been lost on the way of a file."""
_MOVED = 5
"""A chain that is longer may be of shapes, which the exporter evaluates as well; a Slice has four and its own."""
_MATRICES = 6
"""The longest chain before the weight of a MatMul that counts: weight_norm has 4."""


def numbered_remarks(model: OnnxModel, links: Links) -> dict[str, Remark]:
    """Remark on the initializers of PyTorch's TorchScript exporter of whose making their names tell."""
    names = [name for name in model.floats if number_of(name) is not None and links.is_used(name)]
    chains = _chains(model, names)
    found = {name: _remark(name, model.constants[name], chains[name], links) for name in names}
    buffers = {name: Remark("may be a buffer") for name in model.constants if _is_buffer(name, model, links)}
    tables = ((name, array) for name, array in model.floats.items() if array.size > 1 and not is_flat(array))
    results = {name: Remark("made of parameters") for name, _ in tables if _RESULT.fullmatch(name)}
    return buffers | results | {name: remark for name, remark in found.items() if remark is not None}


def _chains(model: OnnxModel, names: list[str]) -> dict[str, int | None]:
    """Return how many operations are behind each tensor; None if the numbers do not tell."""
    graph = model.proto.graph
    outputs, results = (value.name for value in graph.output), (name for node in graph.node for name in node.output)
    last_outputs = [number for name in outputs if (number := number_of(name)) is not None]
    known = {*last_outputs, *(number for name in (*results, *names) if (number := number_of(name)) is not None)}
    chains: dict[str, int | None] = {}
    for name in names:
        own = number_of(name) or 0
        before = max((number for number in known if number < own), default=-1)
        chains[name] = own - before if last_outputs and before >= max(last_outputs) else None
    return chains


def _remark(name: str, array: Array, chain: int | None, links: Links) -> Remark | None:
    readers = links.readers(name)
    if any(node.op in ("LSTM", "GRU", "RNN", "PRelu") for node in readers):
        return None
    if array.size == 1:
        return _single(array, chain)
    if is_flat(array):
        return None
    computed = is_scaled(array) or is_broadcast(array) or repeats(array)
    computed = computed or any(_is_computed(name, array, chain, node) for node in readers)
    return Remark("made of parameters") if computed else None


def _single(array: Array, chain: int | None) -> Remark | None:
    """Remark on a single number: a parameter with further axes, a number of shapes, or one that was computed."""
    number = abs(float(array.reshape(-1)[0]))
    if not math.isfinite(number):  # the open bound of a Clip
        return None
    if chain is not None and 0 < chain <= array.ndim and not _is_root(number):
        return Remark("parameter")
    return None if number.is_integer() or _is_root(number) else Remark("made of parameters")


def _is_root(number: float) -> bool:
    """Tell whether a number is a root of a whole one, or one of that: what attention scales by."""
    return (
        not _is_whole(number)
        and not _is_whole(1 / max(number, 1e-6))
        and any(_is_whole(number**power) for power in (2, -2, 4, -4))
    )


def _is_whole(number: float) -> bool:
    return math.isclose(number, round(number), rel_tol=1e-5)


def _is_computed(name: str, array: Array, chain: int | None, node: OnnxNode) -> bool:
    """Tell whether a node reads a tensor that more than a change of its shape is behind."""
    if node.op in ("Conv", "ConvTranspose"):  # a folded BatchNormalization makes both weight and bias
        return any(number_of(node.input(index)) is None for index in (1, 2))
    if node.op == "Gemm":
        return True
    if chain is None:
        return False
    units = sum(dim == 1 for dim in array.shape)
    if node.op == "MatMul":  # the weight of a dense layer is on the right, transposed
        return chain > units if node.input(0) == name else 2 <= chain <= _MATRICES
    return units < chain < _MOVED


def _is_buffer(name: str, model: OnnxModel, links: Links) -> bool:
    """Tell whether a tensor looks like a buffer: random Fourier features, coordinates, a filter written by hand."""
    array, readers = model.constants[name], links.readers(name)
    own = name.rpartition(".")[2] in ("weight", "bias")  # what PyTorch's layers call their parameters
    if array.dtype.kind != "f" or own or number_of(name) is not None or not readers:
        return False
    if has_few_numbers(array) or (array.ndim > 1 and array.size >= 2 * FEW and is_grid(array)):
        return True
    if array.ndim != 2 or len(readers) != 1 or readers[0].op != "MatMul":
        return False
    other = next((one for one in readers[0].inputs if one != name), "")
    inputs = {value.name for value in model.inputs}  # the product of an input and a table goes to sine and cosine alone
    return _scaled_from(other, inputs, links) and _ends(readers[0].output(0), links) == {"Sin", "Cos"}


def _scaled_from(tensor: str, inputs: set[str], links: Links) -> bool:
    """Tell whether a tensor is an input times constants."""
    while tensor not in inputs:
        node = links.maker(tensor)
        if node is None or node.op not in ("Mul", "Div"):
            return False
        computed = [one for one in node.inputs if not links.is_constant(one)]
        if len(computed) != 1:
            return False
        tensor = computed[0]
    return True


def _ends(tensor: str, links: Links) -> set[str]:
    """Return the operators that read a tensor, behind products with constants."""
    found: set[str] = set()
    for node in links.readers(tensor):
        scaled = node.op in ("Mul", "Div") and any(links.is_constant(one) for one in node.inputs)
        found |= _ends(node.output(0), links) if scaled else {node.op}
    return found
