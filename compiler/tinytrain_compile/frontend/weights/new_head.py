"""--classes N: a fresh last layer."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import fold_all
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode, rewritten
from tinytrain_compile.ir.types import Array

_HEADS = ("Gemm", "MatMul", "Conv")


def with_fresh_head(model: OnnxModel, classes: int, seed: int) -> OnnxModel:
    """Return the model whose last layer has so many outputs: uniform weights from the seed, bias 0, names kept.

    Ranges of what lies behind the layer are forgotten. E0113 if the model does not end in such a layer.
    """
    if classes < 1:
        raise CompileError("E0101", f"--classes {classes}", "there is no such number of classes", "1 or more")
    return _Head(model, classes, seed).run()


class _Head:
    def __init__(self, model: OnnxModel, classes: int, seed: int) -> None:
        self._model = model
        self._classes = classes
        self._random = np.random.default_rng(seed)
        self._links = Links(model.nodes, model.outputs, model.constants)
        nodes = [node for node in model.nodes if node.name not in model.quantisation.refused]
        self._known, self._sources = fold_all(nodes, model.constants, model.opset)
        self._constants = dict(model.constants)
        self._changed: dict[str, OnnxNode] = {}
        self._replaced: set[str] = set()

    def run(self) -> OnnxModel:
        head, behind = self._find()
        old = self._fresh_weights(head)
        has_bias = head.op != "MatMul" and bool(head.input(2))
        for node in behind:
            if node.op == "Reshape":
                shape = self._known.get(node.input(1))
                if shape is not None and old in shape.tolist():
                    self._replace(node, 1, np.where(shape == old, self._classes, shape).astype(np.int64))
            elif node.op == "Add" and not has_bias:
                has_bias = self._fresh_addend(node, old)
        return self._assembled(head)

    def _find(self) -> tuple[OnnxNode, list[OnnxNode]]:
        """Return the last layer, and the nodes that lead from it to the output."""
        behind: list[OnnxNode] = []
        node = self._links.maker(self._model.outputs[0])
        while node is not None:
            computed = [name for name in node.inputs if name and not self._links.is_constant(name)]
            if node.op in _HEADS and computed == [node.input(0)] and node.input(1) in self._known:
                return node, behind[::-1]
            if len(set(computed)) != 1:
                break
            behind.append(node)
            node = self._links.maker(computed[0])
        what = "the output does not come from one last Gemm, MatMul or Conv with constant weights"
        raise CompileError("E0113", f"--classes {self._classes}", what, "leave --classes out, or end the model in one")

    def _fresh_weights(self, head: OnnxNode) -> int:
        """Replace weight and bias; returns how many outputs there were."""
        shape = self._known[head.input(1)].shape
        if len(shape) < 2 or (head.op == "Conv" and head.integer("group", 1) != 1):
            raise CompileError("E0113", f"--classes {self._classes}", f"{head.name} is no dense layer", "use one")
        rows_first = head.op == "Conv" or (head.op == "Gemm" and bool(head.integer("transB", 0)))
        old, inner = (shape[0], shape[1:]) if rows_first else (shape[-1], shape[:-1])
        fan_in = int(np.prod(inner if rows_first else shape[-2:-1]))
        bound = 1.0 / np.sqrt(fan_in)
        fresh = self._random.uniform(-bound, bound, (self._classes, *inner)).astype(np.float32)
        self._replace(head, 1, fresh if rows_first else np.moveaxis(fresh, 0, -1))
        if head.op != "MatMul" and head.input(2):
            self._replace(head, 2, np.zeros(self._classes, np.float32))
        return old

    def _fresh_addend(self, node: OnnxNode, old: int) -> bool:
        """Return the bias behind a MatMul, which is an Add."""
        for index, name in enumerate(node.inputs):
            shape = self._known[name].shape if name in self._known else ()
            if shape and shape[-1] == old and np.prod(shape) == old:
                self._replace(node, index, np.zeros((*shape[:-1], self._classes), np.float32))
                return True
        return False

    def _replace(self, node: OnnxNode, index: int, data: Array) -> None:
        """Give a node another constant, under the name of its initializer unless others read that too."""
        node = self._changed.get(node.name, node)
        tensor = node.input(index)
        name = self._sources.get(tensor, tensor)
        while tensor != name and len(self._links.readers(tensor)) == 1:
            maker = self._links.maker(tensor)
            tensor = name if maker is None else maker.input(0)
        if len(self._links.readers(tensor)) > 1 or tensor not in self._model.constants:
            name = f"{node.name}.{index}"
        self._constants[name] = np.ascontiguousarray(data)
        self._replaced.add(name)
        inputs = [name if i == index else other for i, other in enumerate(node.inputs)]
        self._changed[node.name] = rewritten(node, inputs)

    def _assembled(self, head: OnnxNode) -> OnnxModel:
        behind = self._behind(head)
        quantisation = self._model.quantisation
        tensors = {name: quant for name, quant in quantisation.tensors.items() if name not in behind}
        constants = {name: spec for name, spec in quantisation.constants.items() if name not in self._replaced}
        names = {name for name, real in quantisation.aliases.items() if real in behind}
        return replace(
            self._model,
            nodes=tuple(self._changed.get(node.name, node) for node in self._model.nodes),
            constants=self._constants,
            quantisation=replace(quantisation, tensors=tensors, constants=constants),
            replaced=frozenset(behind | names),
            fresh=frozenset(self._replaced),
        )

    def _behind(self, head: OnnxNode) -> set[str]:
        """Return the tensors that depend on the layer."""
        found = set(head.outputs)
        for node in self._model.nodes:
            if found.intersection(node.inputs):
                found.update(node.outputs)
        return found
