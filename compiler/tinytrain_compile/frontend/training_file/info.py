"""Training information of a model (TrainingInfoProto): its loss, what its Gradient is of, the rule of the update."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

from tinytrain_compile.frontend.file.protobuf import tensor_array
from tinytrain_compile.frontend.training_file.proto import (
    makers_of,
    number_of,
    refused,
    text_of,
    through_identity,
    up_to,
)
from tinytrain_compile.ir.imported import FileTraining
from tinytrain_compile.ir.types import Array

PREVIEW = "ai.onnx.preview.training"
_STATES = {"Momentum": ("velocity",), "Adam": ("moment1", "moment2"), "Adagrad": ("squares",)}
"""What each optimizer keeps of a weight, in the order of its inputs."""


@dataclass(frozen=True, eq=False)
class _Rule:
    """The update of one weight. settings: fields of TrainingOptions; states: kind -> (initializer, its new value)."""

    optimizer: str
    rate: str
    step: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    states: Mapping[str, tuple[str, str]] = field(default_factory=dict[str, tuple[str, str]])


def read_training_info(proto: onnx.ModelProto, folder: Path) -> tuple[onnx.ModelProto, FileTraining]:
    """Return the model up to its loss, and how it is trained; E0231 for what is no such training."""
    if len(proto.training_info) != 1:
        raise refused("training_info", f"there are {len(proto.training_info)} of them", "keep one")
    return _Info(proto, folder).read()


class _Info:
    def __init__(self, proto: onnx.ModelProto, folder: Path) -> None:
        self._proto, self._info, self._folder = proto, proto.training_info[0], folder
        algorithm = self._info.algorithm
        self._nodes = [*proto.graph.node, *algorithm.node]
        self._makers = makers_of(self._nodes)
        self._bound = {entry.key: entry.value for entry in self._info.update_binding}
        self._tensors = {t.name: t for t in (*proto.graph.initializer, *algorithm.initializer)}
        self._start()

    def _start(self) -> None:
        """Compute initial values by the initialization graph."""
        graph = self._info.initialization
        if not self._info.initialization_binding:
            return
        made = onnx.ModelProto()
        made.CopyFrom(self._proto)
        del made.training_info[:]
        made.graph.CopyFrom(graph)
        try:
            evaluator: Any = ReferenceEvaluator(made)
            found: list[Any] = evaluator.run(None, {})
        except Exception as problem:  # the evaluator raises whatever numpy raises
            raise refused(
                "initialization", f"it cannot be computed ({' '.join(str(problem).split())[:120]})"
            ) from problem
        results = dict(zip((value.name for value in graph.output), found, strict=True))
        for entry in self._info.initialization_binding:
            old = self._tensors.get(entry.key)
            if old is None or entry.value not in results:
                raise refused("initialization_binding", f"{entry.key} or {entry.value} does not exist")
            array = np.asarray(results[entry.value])
            if list(array.shape) != list(old.dims):
                raise refused("initialization_binding", f"{entry.key} would change its shape")
            self._tensors[entry.key] = numpy_helper.from_array(array, entry.key)

    def read(self) -> tuple[onnx.ModelProto, FileTraining]:
        """Return the model and its training."""
        gradients = [n for n in self._nodes if n.op_type == "Gradient" and n.domain == PREVIEW]
        if len(gradients) != 1:
            raise refused("training_info", f"there are {len(gradients)} Gradient nodes", "use one, of the loss")
        gradient = gradients[0]
        xs = (text for attribute in gradient.attribute if attribute.name == "xs" for text in attribute.strings)
        of = dict(zip(gradient.output, (x.decode("utf-8", "replace") for x in xs), strict=False))
        loss = text_of(gradient, "y", "")
        rules = {name: self._rule(name, of) for name in self._bound if name in of.values() and name in self._tensors}
        if not rules:
            raise refused("update_binding", "it binds no weight that Gradient is of")
        first = next(iter(rules.values()))
        kinds = {(rule.optimizer, rule.rate, rule.step, repr(sorted(rule.settings.items()))) for rule in rules.values()}
        if len(kinds) > 1:
            raise refused("update_binding", "weights follow different rules", "train all by one rule")
        return self._model(loss), self._training(rules, first)

    def _model(self, loss: str) -> onnx.ModelProto:
        graph, algorithm = self._proto.graph, self._info.algorithm
        declared = {value.name: value for value in (*algorithm.output, *graph.output)}
        if loss not in self._makers:
            raise refused("Gradient", f"its loss {loss} is made by no node")
        end = declared.get(loss, onnx.helper.make_tensor_value_info(loss, onnx.TensorProto.FLOAT, []))
        outputs = [end, *(value for value in graph.output if value.name != loss)]
        inputs = [*graph.input, *(v for v in algorithm.input if v.name not in {x.name for x in graph.input})]
        return up_to(self._proto, self._nodes, inputs, self._tensors.values(), outputs)

    # ---- rules of updates -------------------------------------------------------------------------------------------

    def _rule(self, weight: str, of: Mapping[str, str]) -> _Rule:
        value = through_identity(self._makers, self._bound[weight])
        node = self._makers.get(value)
        if node is not None and node.domain == PREVIEW and node.op_type in _STATES:
            return self._optimizer(node, weight, value, of)
        if node is not None and node.op_type == "Sub" and list(node.input[:1]) == [weight] and len(node.input) == 2:
            product = self._makers.get(through_identity(self._makers, node.input[1]))
            if product is not None and product.op_type == "Mul" and len(product.input) == 2:
                for rate, gradient in (product.input, product.input[::-1]):
                    if of.get(through_identity(self._makers, gradient)) == weight:
                        return _Rule("sgd", rate)
        raise refused(f"weight {weight}", "its update is no SGD (w - rate * gradient), Momentum, Adam or Adagrad")

    def _optimizer(self, node: onnx.NodeProto, weight: str, value: str, of: Mapping[str, str]) -> _Rule:
        states = _STATES[node.op_type]
        count = len(node.output) // (1 + len(states))
        place = list(node.output).index(value)
        if len(node.input) != 2 + count * (2 + len(states)) or place >= count:
            raise refused(f"node {node.name or node.op_type}", "its inputs and outputs do not belong together")
        groups = [list(node.input[2 + i * count : 2 + (i + 1) * count]) for i in range(2 + len(states))]
        if groups[0][place] != weight or of.get(through_identity(self._makers, groups[1][place])) != weight:
            raise refused(f"weight {weight}", f"{node.op_type} updates it by another gradient than its own")
        kept = {kind: (groups[2 + i][place], node.output[(1 + i) * count + place]) for i, kind in enumerate(states)}
        name, settings = self._settings(node, node.input[1])
        return _Rule(name, node.input[0], node.input[1], settings, kept)

    def _settings(self, node: onnx.NodeProto, step: str) -> tuple[str, dict[str, Any]]:
        decay = number_of(node, "norm_coefficient", 0.0)
        before = self._steps(step)
        if node.op_type == "Momentum":
            beta = number_of(node, "beta", 1.0)
            nesterov = text_of(node, "mode", "standard") == "nesterov"
            settings = {"momentum": number_of(node, "alpha", 0.0), "dampening": 1.0 - beta, "nesterov": nesterov}
            return "momentum", {**settings, "weight_decay": decay, "steps_before": before}
        never = "norm_coefficient_post" if node.op_type == "Adam" else "decay_factor"
        if number_of(node, never, 0.0):
            raise refused(f"node {node.name or node.op_type}", f"{never} is not 0", "leave it out")
        epsilon = number_of(node, "epsilon", 1e-6)
        if node.op_type == "Adagrad":
            return "adagrad", {"epsilon": epsilon, "weight_decay": decay}
        betas = (number_of(node, "alpha", 0.9), number_of(node, "beta", 0.999))
        late = {"late": before == 0, "steps_before": max(before - 1, 0)}  # the operator counts the steps behind it
        return "adam", {"betas": betas, "epsilon": epsilon, "raw_epsilon": True, "weight_decay": decay, **late}

    def _steps(self, name: str) -> int:
        """Return the steps before the first one; E0231 unless a step adds one."""
        start = self._array(name)
        if start is None or start.size != 1 or start.dtype.kind not in "iu":
            raise refused(f"step count {name}", "it is no integer of the file")
        bound = self._bound.get(name)
        node = None if bound is None else self._makers.get(through_identity(self._makers, bound))
        others = [] if node is None else [n for n in node.input if n != name]
        ones = [self._array(n) for n in others]
        counts = node is not None and node.op_type == "Add" and len(ones) == 1 and ones[0] is not None
        if not counts or ones[0] is None or ones[0].size != 1 or int(ones[0].reshape(-1)[0]) != 1:
            raise refused(f"step count {name}", "no update adds 1 to it", "bind it to itself plus 1")
        return int(start.reshape(-1)[0])

    def _array(self, name: str) -> Array | None:
        tensor = self._tensors.get(name)
        node = self._makers.get(name)
        if tensor is None and node is not None and node.op_type == "Constant":
            tensor = next((a.t for a in node.attribute if a.name == "value"), None)
        return None if tensor is None else tensor_array(tensor, f"weight {name}", self._folder)

    # ---- together ---------------------------------------------------------------------------------------------------

    def _training(self, rules: Mapping[str, _Rule], first: _Rule) -> FileTraining:
        rate = self._array(first.rate)
        initial: dict[tuple[str, str], Array] = {}
        loose: list[str] = []
        for weight, rule in rules.items():
            for kind, (name, new) in rule.states.items():
                array = self._array(name)
                if array is None or list(array.shape) != list(self._tensors[weight].dims):
                    what = f"the first value of its state {name} is not in the file, or of another shape"
                    raise refused(f"weight {weight}", what)
                initial[weight, kind] = array.astype(np.float32)
                if through_identity(self._makers, self._bound.get(name, "")) != new:
                    loose.append(name)
        notes: list[str] = []
        if loose:
            notes.append(
                f"training: update_binding leaves out the optimizer's state ({loose[0]} and so on): it is kept from "
                "step to step all the same, which is what the operator means"
            )
        learning_rate = None if rate is None or rate.size != 1 else float(rate.reshape(-1)[0])
        return FileTraining(3, tuple(rules), first.optimizer, first.settings, learning_rate, initial, tuple(notes))
