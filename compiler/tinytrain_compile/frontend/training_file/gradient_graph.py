"""A training graph: forward pass, loss and gradients as one graph of nodes, with weights as inputs.

ONNX Runtime writes such graphs (training_model.onnx, beside it optimizer_model.onnx and a checkpoint), and tools that
build on it, as Deeploy (network.onnx, beside it optimizer.onnx and an .npz). What leads to the first output, the loss,
is the model; gradients are made anew. dialects.py says what the tools' own operators mean.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx

from tinytrain_compile.frontend.file.model import MICROSOFT
from tinytrain_compile.frontend.file.protobuf import is_accumulator, read_proto
from tinytrain_compile.frontend.training_file.dialects import standard_form
from tinytrain_compile.frontend.training_file.proto import number_of, refused, up_to
from tinytrain_compile.frontend.training_file.weights import find_weights
from tinytrain_compile.ir.imported import FileTraining

OPTIMIZER_MODELS = ("optimizer_model.onnx", "optimizer.onnx")
_BUFFER = "_grad.accumulation.buffer"


def read_gradient_graph(
    proto: onnx.ModelProto, path: Path, weights: Path | None
) -> tuple[onnx.ModelProto, FileTraining]:
    """Return the model up to its loss with its weights, and how it is trained. E0231, E0105."""
    graph = proto.graph
    inputs = [value for value in graph.input if not value.name.endswith(_BUFFER)]
    names = [value.name for value in inputs]
    trained = _trained(graph, names, path.name)
    data = min(names.index(name) for name in trained)
    forward = standard_form(
        up_to(proto, list(graph.node), inputs, graph.initializer, graph.output[:1]), graph, path.name
    )
    found = find_weights(path, weights, names, data)
    missing = [name for name in trained if name not in found.arrays]
    if missing:
        what = f"{found.source} has no weight {missing[0]}"
        raise refused(path.name, what, "give --weights FILE.npz with all weights, or the checkpoint beside the model")
    read = {value.name for value in forward.graph.input}
    tensors = [found.tensor(value) for value in inputs if value.name in found.arrays and value.name in read]
    given = {tensor.name for tensor in tensors}
    left = [value for value in forward.graph.input if value.name not in given]
    if any(names.index(value.name) >= data for value in left):
        listed = ", ".join(value.name for value in left)
        what = f"{found.source} leaves open which of its inputs are weights: {listed}"
        raise refused(path.name, what, "give --weights FILE.npz with all weights, frozen ones too")
    del forward.graph.input[:]
    forward.graph.input.extend(left)
    forward.graph.initializer.extend(tensors)
    return forward, _training(path, trained)


def _trained(graph: onnx.GraphProto, inputs: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the inputs that have an accumulator."""
    buffers = [next(iter(node.input), "") for node in graph.node if is_accumulator(node)]
    trained = tuple(buffer.removesuffix(_BUFFER) for buffer in buffers if buffer.endswith(_BUFFER))
    if len(trained) != len(buffers) or not set(inputs).issuperset(trained) or not graph.output:
        raise refused(name, "its accumulators do not say which weights they are of")
    return trained


# ---- the optimizer --------------------------------------------------------------------------------------------------

_Said = tuple[str, dict[str, Any], float | None]
"""Optimizer, settings, learning rate."""


def _training(path: Path, trained: tuple[str, ...]) -> FileTraining:
    """Return the optimizer: of its own model, if that is beside; else that of the options."""
    place = next((path.parent / name for name in OPTIMIZER_MODELS if (path.parent / name).is_file()), None)
    if place is None:
        note = "training: no optimizer_model.onnx or optimizer.onnx, the options say how"
        return FileTraining(4, trained, "", {}, None, {}, (note,))
    nodes = [node for node in read_proto(place).graph.node if node.domain == MICROSOFT or _rule_of(node)]
    kinds = {node.op_type for node in nodes}
    rule = _rule_of(nodes[0]) if len(kinds) == 1 else None
    if rule is None:
        raise refused(place.name, f"it has {', '.join(sorted(kinds)) or 'no optimizer'}", "use SGD or AdamW")
    optimizer, settings, rate = rule(nodes, place.name, trained)
    return FileTraining(4, trained, optimizer, settings, rate, {}, ())


def _sgd_of_lists(_nodes: Sequence[onnx.NodeProto], _name: str, _trained: tuple[str, ...]) -> _Said:
    return "sgd", {}, None


def _sgd_of_weights(nodes: Sequence[onnx.NodeProto], name: str, trained: tuple[str, ...]) -> _Said:
    """Return the learning rate of a model with one SGD node for each weight."""
    updated = {next(iter(node.input), "") for node in nodes}
    if updated != set(trained):
        other = sorted(updated ^ set(trained))[0]
        raise refused(name, f"weight {other} has an accumulator or an update, and not both", "train what it updates")
    further = {a.name for node in nodes for a in node.attribute if a.name not in ("lr", "description")}
    rates = {number_of(node, "lr", 0.0) for node in nodes}
    if further or len(rates) != 1:
        what = f"SGD has {sorted(further)[0]}" if further else "weights have learning rates of their own"
        raise refused(name, what, "use plain SGD with one learning rate")
    return "sgd", {}, rates.pop()


def _adamw(nodes: Sequence[onnx.NodeProto], name: str, _trained: tuple[str, ...]) -> _Said:
    """Read AdamW: adam_mode 0 is PyTorch's; 1 is that of transformers, with epsilon beside sqrt(v), decay last."""
    if len(nodes) != 1:
        raise refused(name, f"it has {len(nodes)} AdamW nodes", "use one for all weights")
    node = nodes[0]
    if number_of(node, "correct_bias", 1) != 1:
        raise refused(name, "correct_bias is 0", "use the corrected form")
    mode = int(number_of(node, "adam_mode", 0))
    if mode not in (0, 1):
        raise refused(name, f"adam_mode {mode} is unknown", "use 0 or 1")
    settings = {
        "betas": (number_of(node, "alpha", 0.9), number_of(node, "beta", 0.999)),
        "epsilon": number_of(node, "epsilon", 1e-8),
        "weight_decay": number_of(node, "weight_decay", 0.01),
        "raw_epsilon": mode == 1,
        "decay_after": mode == 1,
    }
    return "adamw", settings, None


_Rule = Callable[[Sequence[onnx.NodeProto], str, tuple[str, ...]], _Said]
_RULES: Mapping[tuple[str, str], _Rule] = {
    (MICROSOFT, "SGDOptimizerV2"): _sgd_of_lists,
    (MICROSOFT, "AdamWOptimizer"): _adamw,
    ("", "SGD"): _sgd_of_weights,
}
"""Domain and operator of an optimizer -> what it says."""


def _rule_of(node: onnx.NodeProto) -> _Rule | None:
    return _RULES.get((node.domain, node.op_type))
