"""Quantised models: takes QuantizeLinear and DequantizeLinear out of a model.

What is left computes real numbers and imports like any float model; what the removed nodes said about ranges is kept
beside it. Tensors and initializers keep their names: an int8 initializer becomes the float32 one of the same name."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np

from tinytrain_compile.frontend.file.folding import MOVES, VIEWS, fold_all
from tinytrain_compile.frontend.file.model import (
    QUANTISED_OPS,
    Links,
    OnnxModel,
    OnnxNode,
    Quantisation,
    QuantisedConstant,
    Refused,
    reachable,
    rewritten,
    unused,
)
from tinytrain_compile.frontend.file.protobuf import check_finite
from tinytrain_compile.frontend.quantised.qoperators import in_qdq_form
from tinytrain_compile.frontend.quantised.scales import Scales, as_int8, read_scales
from tinytrain_compile.ir.imported import StoredTensor
from tinytrain_compile.ir.types import Quant

_MOVED = "Concat Expand Flatten Gather Identity MaxPool Pad Reshape Slice Split Squeeze Transpose Unsqueeze"
_MOVED_OPS = frozenset(_MOVED.split())
"""Operators that mean the same on stored integers as on real numbers."""
_SAME_NUMBERS = VIEWS | {"Dropout"}
"""Operators whose result may become the very value that they read."""
_SHAPE_READERS = ("Shape", "Size")
_WEIGHT_READERS = frozenset(("Conv", "ConvTranspose", "Gemm", "MatMul"))


def unquantised(model: OnnxModel) -> OnnxModel:
    """Return the model without quantisation nodes, `quantisation` filled in; the model itself if it has none."""
    model = dequantised_first(in_qdq_form(model))
    if not any(node.op in QUANTISED_OPS and not node.domain for node in model.nodes):
        return model
    return _Remover(model).run()


class _Remover:
    """Walks the nodes once. A "stored" tensor is one that holds integers in the model as it was."""

    def __init__(self, model: OnnxModel) -> None:
        self._model = model
        self._links = Links(model.nodes, model.outputs, model.constants)
        self._known, self._sources = fold_all(model.nodes, model.constants, model.opset)
        self._constants = dict(model.constants)
        self._stored: dict[str, tuple[Quant, str]] = {}
        self._alias: dict[str, str] = {}
        self._tensors: dict[str, Quant] = {}
        self._specs: dict[str, QuantisedConstant] = {}
        self._owners: dict[str, tuple[str, bytes]] = {}
        self._refused: dict[str, Refused] = dict(model.quantisation.refused)
        self._notes: list[str] = []
        self._nodes: list[OnnxNode] = []

    def run(self) -> OnnxModel:
        for node in self._model.nodes:
            try:
                self._convert(node)
            except Refused as reason:
                self._refused[node.name] = reason
                self._keep(node)
        notes = tuple(self._notes)
        found = Quantisation(
            True, self._tensors, self._specs, self._refused, notes, self._alias, self._model.quantisation.places
        )
        return replace(self._model, nodes=tuple(self._nodes), constants=self._constants, quantisation=found)

    def _convert(self, node: OnnxNode) -> None:
        if node.domain or node.name in self._refused:
            self._keep(node)
        elif node.op == "QuantizeLinear":
            self._quantize(node)
        elif node.op == "DequantizeLinear":
            self._dequantize(node)
        else:
            self._other(node)

    # ---- nodes --------------------------------------------------------------------------------------------------

    def _quantize(self, node: OnnxNode) -> None:
        source, output = node.input(0), node.output(0)
        scales = self._scales(node, "uint8")
        if source in self._known:  # a weight that is only ever used rounded
            self._known[output] = scales.quantise(self._known[source], node)
            if self._is_read_as_integers(output):
                self._constants[output] = self._known[output]
            if source in self._sources:
                self._sources[output] = self._sources[source]
            return
        quant = scales.per_tensor()
        tensor = self._resolve(source)
        if not self._is_all(source, quant):  # others read it too, or it is stored in another way already
            tensor = self._clamp(node, tensor, quant)
        else:
            self._tensors.setdefault(tensor, quant)
            if self._links.is_output(output):
                self._pass_on(node, tensor)
        self._stored[output] = quant, scales.kind
        if tensor != output:
            self._alias[output] = tensor
        if self._links.is_output(output):
            self._notes.append(f"output {output}: integers in the model, real numbers here")

    def _dequantize(self, node: OnnxNode) -> None:
        source, output = node.input(0), node.output(0)
        if source in self._known:
            scales = self._scales(node, str(self._known[source].dtype))
            self._alias[output] = self._constant(node, output, source, scales, node.integer("axis", 1))
            return
        self._check_stored(node, source)
        tensor = self._resolve(source)
        if self._links.is_output(output):
            self._pass_on(node, tensor)
        else:
            self._alias[output] = tensor

    def _other(self, node: OnnxNode) -> None:
        stored = [name for name in node.inputs if name in self._stored]
        if stored:
            data = node.inputs if node.op == "Concat" else node.inputs[:1]
            formats = {self._stored[name] for name in data if name in self._stored}
            if node.op not in _MOVED_OPS or len(formats) != 1 or any(name not in stored for name in data):
                reason = "it computes with stored integers"
                raise Refused("", reason, "QuantFormat.QDQ: DequantizeLinear in front of it, QuantizeLinear behind it")
            quant, kind = formats.pop()
            for output in filter(None, node.outputs):
                self._stored[output] = quant, kind
                self._tensors[output] = quant
            if node.op == "Pad" and node.text("mode", "constant") == "constant":
                node = self._padded(node, quant, kind)
        self._keep(node)

    def _padded(self, node: OnnxNode, quant: Quant, kind: str) -> OnnxNode:
        """Return a Pad of stored integers with the real number of the integer that it pads with."""
        given, name = node.input(2), f"{node.name}.value"
        if given and given not in self._known:
            raise Refused("constant_value", "it is computed at run time", "a constant")
        stored = int(self._known[given].reshape(-1)[0]) if given and self._known[given].size else 0
        real = (stored - (128 if kind == "uint8" else 0) - quant.zero) * quant.scale[0]
        self._constants[name] = np.asarray(real, np.float32)
        return rewritten(node, (*node.inputs[:1], node.input(1), name, *node.inputs[3:]))

    def _keep(self, node: OnnxNode) -> None:
        self._nodes.append(rewritten(node, [self._resolve(name) for name in node.inputs]))

    def _pass_on(self, node: OnnxNode, tensor: str) -> None:
        """Give a model output its name."""
        self._nodes.append(_plain_node(node, "Identity", (tensor,)))

    def _clamp(self, node: OnnxNode, tensor: str, quant: Quant) -> str:
        output = node.output(0)
        bounds = [(q - quant.zero) * quant.scale[0] for q in (quant.low, quant.high)]
        names = (f"{output}.low", f"{output}.high")
        with np.errstate(over="ignore"):  # an infinite bound is an open one
            self._constants.update(zip(names, (np.asarray(b, np.float32) for b in bounds), strict=True))
        self._nodes.append(_plain_node(node, "Clip", (tensor, *names)))
        self._tensors[output] = quant
        return output

    def _is_all(self, tensor: str, quant: Quant) -> bool:
        """Tell whether a tensor counts in this format only: then it has it itself, and its readers need no clamp.

        What it may be another name of is looked at too: that must not be stored or read in another way.
        """
        if tensor not in self._alias:
            readers = [node for node in self._links.readers(tensor) if node.op not in _SHAPE_READERS]
            if self._links.is_output(tensor) or not all(self._stores(reader, quant) for reader in readers):
                return False
        while (known := self._tensors.get(self._resolve(tensor))) is None:
            maker = self._links.maker(tensor)
            if maker is None or maker.domain or maker.op not in _SAME_NUMBERS:
                return True
            tensor = maker.input(0)
            if self._links.sole_reader(tensor) is None and tensor not in self._alias:
                return False
        return known == quant

    def _is_read_as_integers(self, tensor: str) -> bool:
        """Tell whether anything but a DequantizeLinear reads a stored constant, which then has to be there."""
        readers = self._links.readers(tensor)
        return self._links.is_output(tensor) or any(node.op != "DequantizeLinear" or node.domain for node in readers)

    def _stores(self, node: OnnxNode, quant: Quant) -> bool:
        """Tell whether a reader quantises what it reads to this format."""
        try:
            return node.op == "QuantizeLinear" and self._scales(node, "uint8").per_tensor() == quant
        except Refused:  # it has its own turn
            return False

    # ---- operands -----------------------------------------------------------------------------------------------

    def _resolve(self, tensor: str) -> str:
        return self._alias.get(tensor, tensor)

    def _scales(self, node: OnnxNode, kind: str) -> Scales:
        return read_scales(node, self._known, node.input(1), node.input(2), kind)

    def _check_stored(self, node: OnnxNode, tensor: str) -> None:
        """Check that integers are read with the scale that they were made with."""
        if tensor not in self._stored:
            maker = self._links.maker(tensor)
            if maker is not None:
                raise Refused("x", f"its integers come from {maker.op} {maker.name}", "what that node needs")
            raise Refused("x", "its integers come from no QuantizeLinear", "a float32 input and QuantizeLinear")
        quant, kind = self._stored[tensor]
        if self._scales(node, kind).per_tensor() != quant:
            raise Refused("x_scale", "scale or zero point are not those of the QuantizeLinear before it", "equal ones")

    def _constant(self, node: OnnxNode, fallback: str, tensor: str, scales: Scales, axis: int) -> str:
        """Return name of the float32 constant that holds the real numbers of stored ones."""
        stored = self._known[tensor]
        if stored.dtype.name != scales.kind or scales.kind not in ("int8", "uint8", "int32"):
            raise Refused("x", f"{stored.dtype} constants with a zero point of {scales.kind}", "int8, uint8 or int32")
        along = scales.along(stored.shape, axis, node)
        integers, zero = as_int8(stored, scales, scales.zeros_along(along), self._is_weight(node), tensor)
        name = self._own_name(fallback, tensor, scales, axis)
        with np.errstate(over="ignore"):
            real = ((integers.astype(np.float64) - zero) * along).astype(np.float32)
        check_finite(real, f"weight {tensor}")
        self._constants[name] = real
        held = StoredTensor(tensor, scales.kind, along, scales.zeros_along(along))
        root = self._sources.get(tensor, tensor)
        is_bias = scales.kind == "int32"
        leaves = not is_bias and not -128 <= integers.min(initial=0) <= integers.max(initial=0) <= 127
        self._specs[name] = QuantisedConstant(scales.scale, zero, is_bias, held, root, leaves)
        return name

    def _is_weight(self, node: OnnxNode) -> bool:
        found = self._links.followed(node.output(0), lambda reader: reader.op in VIEWS)
        return any(reader.op in _WEIGHT_READERS and name in reader.inputs[1:2] for name, reader in found)

    def _own_name(self, fallback: str, tensor: str, scales: Scales, axis: int) -> str:
        """Return the initializer's own name, unless something else reads it as integers or with other scales."""
        root = self._sources.get(tensor, tensor)
        maker, lies = self._links.maker(tensor), axis if scales.scale.size > 1 else 0
        whole = maker is not None and maker.op == "QuantizeLinear" and maker.input(0) == root
        key = (f"{root if whole else tensor} {lies} {scales.kind}", scales.scale.tobytes() + scales.zero.tobytes())
        readers = self._links.readers(root)
        direct = all(reader.op in QUANTISED_OPS for reader in readers) and not self._links.is_output(root)
        if (direct or len(readers) == 1) and self._owners.setdefault(root, key) == key:
            return root
        return fallback


def _plain_node(node: OnnxNode, op: str, inputs: tuple[str, ...]) -> OnnxNode:
    """Return a node without attributes in the place of another."""
    made = rewritten(node, inputs, op, node.outputs[:1])
    del made.proto.attribute[:]
    return replace(made, attrs={})


# ---- weights that are moved before they are dequantised --------------------------------------------------------------
# Stored weights that nodes move as integers for one of their readers: moved as real numbers instead. A decoder reads
# the encoder's weight transposed. Where each of them dequantises it for itself, the two are one weight only if the
# integers that both are made of are dequantised in the same place.


def dequantised_first(model: OnnxModel) -> OnnxModel:
    """Put DequantizeLinear in front of what moves a weight, if others dequantise the same integers.

    Of one scale for all: what a scale per channel means depends on the axis.
    """
    links = Links(model.nodes, model.outputs, model.constants)
    found = {
        node.name: _moved(node, model, links)
        for node in model.nodes
        if node.op == "DequantizeLinear" and not node.domain
    }
    times = Counter(root for root, _ in found.values())
    moved = {name: chain for name, (root, chain) in found.items() if chain and times[root] > 1}
    if not moved:
        return model
    nodes = list[OnnxNode]()
    for node in model.nodes:
        nodes += _turned(node, moved[node.name], model, links) if node.name in moved else [node]
    return replace(model, nodes=reachable(nodes, model.outputs))


def _moved(node: OnnxNode, model: OnnxModel, links: Links) -> tuple[str, list[OnnxNode]]:
    """Return the weight that a node dequantises, and what moves it before.

    No moves where there is a scale per channel.
    """
    name, chain, scale = node.input(0), list[OnnxNode](), model.constants.get(node.input(1))
    while (maker := links.maker(name)) is not None and maker.op in MOVES and not maker.domain:
        name, chain = maker.input(0), [maker, *chain]
    whole = name in model.constants and scale is not None and scale.size == 1
    return name, chain if whole else []


def _turned(node: OnnxNode, chain: list[OnnxNode], model: OnnxModel, links: Links) -> list[OnnxNode]:
    """Return the weight dequantised, then moved."""
    between = (f"{node.output(0)}.moved{index}" for index in range(len(chain)))
    outputs = [*(unused(name, model.constants, links) for name in between), node.output(0)]
    made = [rewritten(node, (chain[0].input(0), *node.inputs[1:]), outputs=outputs[:1])]
    for move, before, after in zip(chain, outputs[:-1], outputs[1:], strict=True):
        again = rewritten(move, (before, *move.inputs[1:]), outputs=(after,))
        made.append(replace(again, name=f"{move.name} of {node.name}"))
    return made
