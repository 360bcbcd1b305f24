"""The model's layers as the user knows them (ONNX nodes with parameters, in order), and the selection by `--update`."""

from __future__ import annotations

import difflib
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.activations import LowRank
from tinytrain_compile.ir.stages import ChannelSlice, UpdatePlan
from tinytrain_compile.ir.types import FileNames, Graph, Node, Value
from tinytrain_compile.near import nearest
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.conv_form import ConvAttrs, ConvGradInputAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.names import operand, operands
from tinytrain_compile.ops.shape import ReshapeAttrs
from tinytrain_compile.sparse.scheme import SchemeEntry, load_scheme

UpdateMap = dict[str, ChannelSlice | None]
"""Parameter -> the channels that are updated, None for all of it."""


@dataclass(frozen=True)
class Layer:
    """One ONNX node with parameters.

    weights: its parameters that multiply; biases: those that are added; node: the IR node that reads the first of them.
    also: names of further ONNX nodes that belong to it: the Add of a bias after a MatMul. known_as: names of its
    parameters in the file.
    """

    name: str
    node: Node
    weights: tuple[Value, ...]
    biases: tuple[Value, ...]
    also: tuple[str, ...] = ()
    known_as: Mapping[str, FileNames] = field(default_factory=dict[str, FileNames])

    @property
    def names(self) -> tuple[str, ...]:
        """Names by which the user may refer to it."""
        return (self.name, *self.also)

    @property
    def modules(self) -> tuple[str, ...]:
        """Modules of the file that its parameters are in, from the inside out, those of weights first."""
        return tuple(dict.fromkeys(name for value in self.parameters for name in self._file(value).modules))

    def tensors(self, value: Value) -> tuple[str, ...]:
        """Return names in the file of one of its parameters."""
        return self._file(value).tensors

    def _file(self, value: Value) -> FileNames:
        return self.known_as.get(value.name, FileNames())

    @property
    def module(self) -> str:
        """The innermost module, if its node's name does not tell it: exporters number nodes (`node_linear_2`)."""
        inside = next(iter(self.modules), "")
        path = self.name.replace("/", ".")
        return "" if re.search(rf"(?<!\w){re.escape(inside)}(?!\w)", path) else inside

    @property
    def parameters(self) -> tuple[Value, ...]:
        """All parameters of the layer."""
        return (*self.weights, *self.biases)


def layers_of(graph: Graph) -> tuple[Layer, ...]:
    """Return all layers; a parameter that several nodes share belongs to the first of them."""
    parameters = {value.name for value in graph.parameters}
    found: dict[str, tuple[Node, list[Value], list[Value]]] = {}
    also: dict[str, list[str]] = {}
    seen: set[str] = set()
    makers, readers = graph.producers(), graph.consumers()
    for node in graph.nodes:
        for operand_name, value in operands(node).items():
            if value.name not in parameters or value.name in seen:
                continue
            seen.add(value.name)
            name = value.origin or node.origin or node.name
            product = _product_before(node, value, makers, readers)
            if operand_name == "bias":
                product = operands(node)["w"].origin or node.origin
            if product is not None and product != name and product in found:
                also.setdefault(product, []).append(name)
                name = product
            _, weights, biases = found.setdefault(name, (node, [], []))
            (biases if _is_bias(node, operand_name) else weights).append(value)
    return tuple(
        Layer(name, node, tuple(w), tuple(b), tuple(also.get(name, ())), graph.known_as)
        for name, (node, w, b) in found.items()
    )


def _product_before(
    node: Node, bias: Value, makers: Mapping[str, Node], readers: Mapping[str, list[Node]]
) -> str | None:
    """Return the layer whose result only an Add of one number per column reads: a dense layer in two nodes."""
    if not has_trait(node.op, "adds") or bias.shape != node.outputs[0].shape[-1:]:
        return None
    source = next((value for value in node.inputs if value.name != bias.name), None)
    maker = None if source is None else makers.get(source.name)
    while (
        maker is not None and isinstance(maker.attrs, ReshapeAttrs) and len(readers.get(maker.outputs[0].name, [])) == 1
    ):
        source = maker.inputs[0]
        maker = makers.get(source.name)
    alone = source is not None and len(readers.get(source.name, [])) == 1
    if maker is None or not alone or not isinstance(maker.attrs, GemmAttrs) or "bias" in operands(maker):
        return None
    return operands(maker)["w"].origin or maker.origin


def _is_bias(node: Node, operand_name: str) -> bool:
    return has_trait(node.op, "offset") or operand_name == "bias"


def parameter_of(known: Container[str], name: str) -> str | None:
    """Return the parameter of a tensor of the state, whose name is the parameter's or begins with it and a dot."""
    while name not in known:
        name, dot, _ = name.rpartition(".")
        if not dot:
            return None
    return name


def channel_axes(node: Node, weight: Value) -> dict[str, int]:
    """Return channel counts of a weight by axis name, as a scheme file indexes them ("in" is the input of the
    layer)."""
    if isinstance(node.attrs, GemmAttrs):
        return {"out": weight.shape[0], "in": weight.shape[1]}
    attrs = node.attrs
    if isinstance(attrs, ConvAttrs):
        axes = {"out": weight.shape[0]}
        if attrs.groups == 1:
            axes["in"] = weight.shape[3]
        return axes
    if isinstance(attrs, ConvGradInputAttrs) and attrs.conv.groups == 1:
        return {"out": weight.shape[3], "in": weight.shape[0]}  # a transposed convolution swaps the roles
    return {}


def weight_axis(node: Node, axis: str) -> str:
    """Return the axis name in the weight's own terms (see channel_axes for transposed convolutions)."""
    if isinstance(node.attrs, ConvGradInputAttrs):
        return {"out": "in", "in": "out"}[axis]
    return axis


def resolve_update(graph: Graph, spec: str, files: bool = True) -> UpdatePlan:
    """Return the plan for all | bias | head | last:N | GLOB,... | FILE (every form but `auto`, which the driver
    searches).

    files: whether a scheme may be read; if not, its name is a glob. Raises CompileError E0101, E0301, E0302 or E0303.
    """
    layers = layers_of(graph)
    if not layers:
        if _frozen_layers(graph):
            what, way = "none of its weights is trainable: all are frozen", "leave some out of --frozen"
            raise CompileError("E0303", "model", what, f"{way}, or name some with --trainable")
        raise CompileError(
            "E0303", "model", "it has no parameters", "a trainable model needs Conv, Gemm or MatMul weights"
        )
    chosen = _named_set(layers, spec)
    if chosen is None and files and _is_file(spec):
        entries = _by_layer(graph, layers, load_scheme(Path(spec)))
        plan = UpdatePlan(_from_scheme(layers, entries), Path(spec).name, _activations(layers, entries))
        _check_slices(graph, entries, layers, plan)
        return plan
    if chosen is None:
        chosen = _match_globs(graph, layers, spec)
    return UpdatePlan({value.name: None for value in chosen}, spec)


def _named_set(layers: tuple[Layer, ...], spec: str) -> list[Value] | None:
    if spec == "all":
        return [p for layer in layers for p in layer.parameters]
    if spec == "head":
        return list(_head(layers).parameters)
    if spec == "bias":
        head = _head(layers)
        return [p for layer in layers for p in (layer.parameters if layer is head else layer.biases)]
    if spec.startswith("last:"):
        count = spec.removeprefix("last:")
        if not re.fullmatch("0*[1-9][0-9]{0,8}", count):
            raise CompileError(
                "E0101", "--update", f"{spec!r} is not last:N with N >= 1", "for example --update last:4"
            )
        return [p for layer in layers[-int(count) :] for p in layer.parameters]
    return None


def _is_file(spec: str) -> bool:
    """Tell whether --update names a scheme file; a long list of globs is not a valid path."""
    try:
        return spec.endswith(".toml") or Path(spec).is_file()
    except OSError:
        return False


def _head(layers: tuple[Layer, ...]) -> Layer:
    for layer in reversed(layers):
        if has_trait(layer.node.op, "matrix"):
            return layer
    return layers[-1]


def _match_globs(graph: Graph, layers: tuple[Layer, ...], spec: str) -> list[Value]:
    """Return the parameters of layers, or only those that are named themselves (`c.weight`)."""
    patterns = [part.strip() for part in spec.split(",") if part.strip()]
    if not patterns:
        raise CompileError("E0101", "--update", "is empty", "use auto, all, bias, head, last:N, a glob list or a file")
    found = [_match(layers, pattern) or _no_match(graph, layers, pattern) for pattern in patterns]
    matched = {value.name for one in found for _, values in one for value in values}
    return [value for layer in layers for value in layer.parameters if value.name in matched]


def _match(layers: tuple[Layer, ...], pattern: str) -> list[tuple[Layer, tuple[Value, ...]]]:
    """Return the layers that a pattern names, with the named parameters of each; node names precede names of the
    file."""

    def named(names: Iterable[str]) -> bool:
        return any(name == pattern or fnmatchcase(name, pattern) for name in names)

    found = [(layer, layer.parameters) for layer in layers if named(layer.names)]
    if not found:
        parts = [
            (layer, tuple(value for value in layer.parameters if named(layer.modules) or named(layer.tensors(value))))
            for layer in layers
        ]
        found = [(layer, values) for layer, values in parts if values]
    return found


def _frozen_layers(graph: Graph) -> tuple[Layer, ...]:
    """Return the layers whose weights are constants of the graph because of --frozen."""
    trained = {value.name for value in graph.parameters}
    fixed = {
        value.name: value
        for node in graph.nodes
        if has_trait(node.op, "matrix")
        for value in node.inputs
        if value.name in graph.constants and value.name not in trained
    }
    names = {name: FileNames((name,), (name.rpartition(".")[0],)) for name in fixed}
    return layers_of(replace(graph, parameters=tuple(fixed.values()), known_as=names))


def _no_match(graph: Graph, layers: tuple[Layer, ...], pattern: str, entry: str = "") -> NoReturn:
    """Raise E0301 for a pattern that names no layer with parameters. entry: of the scheme file that has it."""
    where, what = (entry, f"layer {pattern!r} ") if entry else (f"--update {pattern}", "")
    frozen = [layer.name for layer, _ in _match(_frozen_layers(graph), pattern)]
    if frozen:
        way = "leave it out of --frozen; if it is not there, name its weight with --trainable"
        raise CompileError("E0301", where, f"{what}matches only frozen layers: {', '.join(frozen[:3])}", way)
    raise CompileError("E0301", where, f"{what}matches no layer with parameters", _meant(layers, pattern, not entry))


def _meant(layers: tuple[Layer, ...], pattern: str, words: bool) -> str:
    """Return a suggestion for a pattern that names no layer. words: whether it may be a word such as `all`."""
    last = re.fullmatch(r"last[^0-9]?([1-9][0-9]{0,3})", pattern)
    names = [name for layer in layers for name in (layer.name, layer.module) if name]
    near = difflib.get_close_matches(pattern.strip("*"), names, 3, 0.3)
    known = f"nearest names: {', '.join(near or names[-3:])}"
    if not words:
        return known
    word = f"last:{last[1]}" if last else "" if near else nearest(pattern, ("auto", "all", "bias", "head"))
    return f"did you mean --update {word}?" if word else f"{known}; or use all, bias, head, last:N"


def _by_layer(graph: Graph, layers: tuple[Layer, ...], entries: tuple[SchemeEntry, ...]) -> dict[str, SchemeEntry]:
    final: dict[str, SchemeEntry] = {}
    for entry in entries:
        for layer, _ in _match(layers, entry.layer) or _no_match(graph, layers, entry.layer, entry.source):
            final[layer.name] = entry
    return final


def _from_scheme(layers: tuple[Layer, ...], final: dict[str, SchemeEntry]) -> UpdateMap:
    updates: UpdateMap = {}
    for layer in layers:
        if layer.name in final:
            updates.update(entry_updates(layer, final[layer.name]))
    if not updates:
        raise CompileError("E0303", "--update", "the scheme updates nothing", "set bias = true or weight in an entry")
    return updates


def _activations(layers: tuple[Layer, ...], final: dict[str, SchemeEntry]) -> dict[str, LowRank | None]:
    """Return how layers keep their inputs, if entries say so. E0302 for a layer that has no such form."""
    found: dict[str, LowRank | None] = {}
    for layer in layers:
        entry = final.get(layer.name)
        if entry is None or not entry.activation or not layer.weights:
            continue
        if entry.activation == "exact":
            found[layer.weights[0].name] = None
            continue
        if not has_trait(layer.node.op, "layer") or _cuts_groups(layer, entry):
            what = f"has no low-rank form of its input (activation = {entry.activation!r})"
            raise _bad(layer, entry, what, "leave activation out, or train all of its weight")
        found[layer.weights[0].name] = LowRank(entry.ranks, "asi" if entry.activation == "asi" else "subspace")
    return found


def _cuts_groups(layer: Layer, entry: SchemeEntry) -> bool:
    """Tell whether the trained channels read separate input channels."""
    return entry.weight != "all" and isinstance(layer.node.attrs, ConvAttrs) and layer.node.attrs.groups > 1


def entry_updates(layer: Layer, entry: SchemeEntry) -> UpdateMap:
    """Return the updates of one layer by an entry of a scheme; CompileError E0302 for channels that it does not
    have."""
    updates: UpdateMap = {}
    if entry.bias:
        updates.update({value.name: None for value in layer.biases})
    if entry.weight == "all":
        updates.update({value.name: None for value in layer.weights})
    elif entry.weight != 0:
        updates.update({value.name: _slice(layer, value, entry) for value in layer.weights[:1]})
    return updates


def whole_only(graph: Graph) -> frozenset[str]:
    """Return parameters that are also used in a way without channels: they are trained as a whole or not at all."""
    return frozenset(_other_uses(graph))


def _other_uses(graph: Graph) -> dict[str, Node]:
    """Map parameters to the first node that uses it in another way than as the weight of a matrix product."""
    parameters, found = {value.name for value in graph.parameters}, dict[str, Node]()
    for node in graph.nodes:
        as_weight = (operand(node, "w"),) if has_trait(node.op, "matrix") else ()
        for value in node.inputs:
            if value.name in parameters and (value not in as_weight or node.inputs.count(value) > 1):
                found.setdefault(value.name, node)
    return found


def _check_slices(graph: Graph, entries: dict[str, SchemeEntry], layers: tuple[Layer, ...], plan: UpdatePlan) -> None:
    """Raise E0302 for channels of a weight that is also used in a way without such channels."""
    for name, node in _other_uses(graph).items():
        if plan.updates.get(name) is not None:
            owner = next(layer for layer in layers for value in layer.parameters if value.name == name)
            what = f"its weight {name} is also used by {node.origin or node.name}, in another arrangement"
            raise _bad(owner, entries[owner.name], what, 'use weight = "all"')


def _slice(layer: Layer, weight: Value, entry: SchemeEntry) -> ChannelSlice | None:
    axes = channel_axes(layer.node, weight)
    if entry.axis not in axes:
        raise _bad(layer, entry, f"has no {entry.axis!r} channel axis", 'use axis = "out", or weight = "all"')
    total = axes[entry.axis]
    asked = range(entry.weight) if isinstance(entry.weight, int) else [int(c) for c in entry.weight]
    if asked[-1] >= total:
        if isinstance(entry.weight, int):
            what, way = f"weight = {entry.weight} asks for more than", f"write {total} at most"
        else:
            what, way = f"weight names channel {asked[-1]} of", f"the last one is {total - 1}"
        raise _bad(layer, entry, f'{what} its {total} channels (axis = "{entry.axis}")', way)
    channels = tuple(asked)
    if len(channels) == total:
        return None
    return ChannelSlice(weight_axis(layer.node, entry.axis), channels)


def _bad(layer: Layer, entry: SchemeEntry, what: str, way: str) -> CompileError:
    """Return E0302 for an entry that a layer cannot follow."""
    return CompileError("E0302", f"{entry.source}: {layer.name}" if entry.source else layer.name, what, way)
