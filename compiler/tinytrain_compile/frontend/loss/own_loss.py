"""Where a model ends in its own loss: the output that is the loss, the input with its labels, what lies in front."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import onnx

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.folding import PARTS, VIEWS
from tinytrain_compile.frontend.file.model import INDICES, LOSS_OPS, Links, OnnxInput, OnnxModel, OnnxNode, reachable
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.weights.parameters import SETTINGS, Trainables, by_rules

NO_LABEL = OnnxInput("", (1,), onnx.TensorProto.FLOAT)
"""In place of the labels, if a loss reads none: a network that repeats its input, or that is to be sure."""

LAYERS = frozenset(["Gemm", "MatMul", "Conv", "ConvTranspose"])
"""Operators with weights: the input that reaches one is no label."""


@dataclass(frozen=True, eq=False)
class LossSite:
    """Where a model with its own loss ends.

    node: the one that makes the loss, for messages (and the loss operator itself, unless `written`).
    scores: the tensor at which the forward model ends, "" if all of a written loss reads no common one.
    label: the input with the labels, or NO_LABEL. output: the model's output.
    written: whether the loss is nodes of the file that are differentiated as they stand.
    beside: whether the scores are an output of the file.
    ends: further tensors of the model that a written loss reads (see `find_site`).
    numbers: initializers that only the loss reads, and that would be parameters elsewhere.
    """

    node: OnnxNode
    scores: str
    label: OnnxInput
    output: str
    written: bool = False
    beside: bool = False
    ends: tuple[str, ...] = ()
    numbers: tuple[str, ...] = ()

    @property
    def read(self) -> tuple[str, ...]:
        """All tensors at which the model ends, the one first that an inference gives."""
        return (self.scores, *self.ends)


def find_loss(model: OnnxModel, links: Links, label: str = "") -> LossSite | None:
    """Return the model's own loss; None for a forward model. label: the input that the user says holds the labels.

    A loss operator whose labels are an input, and which is an output itself, is preferred to any other scalar output;
    but not a term of a loss to the loss.
    """
    needs = needs_of(model.nodes, [value.name for value in model.inputs])
    scalars = [name for name in model.outputs if needs.get(name) and _is_scalar(model, links, name)]
    terms = _terms(model, scalars)
    for output in (name for name in model.outputs if name not in terms):
        site = _operator(model, links, output, needs)
        if site is not None:
            return site
    for output in (name for name in scalars if name not in terms):
        site = _written(model, links, output, needs, label)
        if site is not None:
            return site
    return None


def _terms(model: OnnxModel, scalars: Sequence[str]) -> set[str]:
    """Return those of some outputs that another one follows from."""
    if len(scalars) < 2:
        return set()
    read = {one: {name for node in reachable(model.nodes, (one,)) for name in node.inputs} for one in scalars}
    return {name for name in scalars if any(name in read[other] for other in scalars if other != name)}


def _operator(model: OnnxModel, links: Links, output: str, needs: Mapping[str, frozenset[str]]) -> LossSite | None:
    node = links.maker(through(links, output, ("Identity",)))
    if (
        node is None
        or node.op not in LOSS_OPS
        or node.domain
        or node.output(0) != through(links, output, ("Identity",))
    ):
        return None
    if node.text("reduction", "mean") not in ("mean", "sum"):
        return None
    name = through(links, node.input(1), ("Identity", "Cast"))
    if name in needs.get(node.input(0), ()):
        return None  # a margin at the class: the loss is more than this operator
    label = next((value for value in model.inputs if value.name == name), None)
    return None if label is None else LossSite(node, node.input(0), label, output)


def through(links: Links, tensor: str, ops: Sequence[str]) -> str:
    """Return the tensor that operators of these kinds only pass on."""
    while (maker := links.maker(tensor)) is not None and maker.op in ops and not maker.domain:
        tensor = maker.input(0)
    return tensor


def needs_of(nodes: Sequence[OnnxNode], inputs: Sequence[str]) -> dict[str, frozenset[str]]:
    """Return which of these inputs each tensor depends on (log-probabilities of a loss operator: not its labels)."""
    needs = {name: frozenset((name,)) for name in inputs}
    for node in nodes:
        found = frozenset[str]().union(*(needs.get(name, frozenset()) for name in node.inputs if name))
        needs.update(dict.fromkeys((name for name in node.outputs if name), found))
        if node.op == LOSS_OPS[0] and node.output(1):
            needs[node.output(1)] = needs.get(node.input(0), frozenset())
    return needs


def _is_scalar(model: OnnxModel, links: Links, output: str) -> bool:
    """Tell whether an output may be a loss by what the file declares of it: one number.

    With axes behind a reduction.
    """
    value = next((value for value in model.proto.graph.output if value.name == output), None)
    if value is None or not value.type.tensor_type.HasField("shape"):
        return True
    dims = value.type.tensor_type.shape.dim
    maker = links.maker(through(links, output, ("Identity",)))
    reduced = maker is not None and maker.op.startswith("Reduce")
    return all(d.HasField("dim_value") and d.dim_value == 1 for d in dims) and (len(dims) < 2 or reduced)


def _written(
    model: OnnxModel, links: Links, output: str, needs: Mapping[str, frozenset[str]], asked: str
) -> LossSite | None:
    inputs = {value.name: value for value in model.inputs if value.name in needs[output]}
    label = inputs.get(asked) if asked else _label(model, tuple(inputs.values()), needs)
    if label is None and not asked and _is_over_samples(model, links, output):
        label = _no_label(model, tuple(inputs.values()), needs)
    if label is None or (label is not NO_LABEL and _is_data(model, label.name, needs)):
        return None
    node = links.maker(through(links, output, ("Identity",)))
    if node is None or (label is not NO_LABEL and len(inputs) < 2):
        return None
    read = {name for one in reachable(model.nodes, (output,)) for name in one.inputs}
    of_samples = [name for name in model.outputs if needs.get(name) and label.name not in needs[name]]
    beside = [name for name in of_samples if links.maker(name) is not None]
    if label is NO_LABEL:
        beside = [name for name in beside if not _is_scalar(model, links, name)]
    beside.sort(key=lambda name: name not in read)  # one that the loss follows from, if there is any
    scores = beside[0] if beside else _scores(model, output, needs, label.name)
    return LossSite(node, scores, label, output, True, bool(beside))


def _scores(model: OnnxModel, output: str, needs: Mapping[str, frozenset[str]], label: str) -> str:
    """Return the last tensor that all of the loss reads; "" if there is none.

    label: name of the input with the labels.
    """
    nodes = reachable(model.nodes, (output,))
    data = [value.name for value in model.inputs if value.name != label]
    behind: dict[str, frozenset[str]] = {name: frozenset((name,)) for name in data}
    made: dict[str, int] = {}
    for node in nodes:  # the tensors that every way from the samples to a result leads through
        ways = [behind[name] for name in node.inputs if name in behind]
        if ways:
            for name in node.outputs:
                behind[name] = _common(ways) | {name}
                made[name] = len(made)
    reads = [behind[n] for node in nodes if label in _of_any(needs, node.inputs) for n in node.inputs if n in behind]
    common = [name for name in _common(reads) if label not in needs[name] and name in made] if reads else []
    return max(common, key=lambda name: made[name], default="")


def _common(sets: Sequence[frozenset[str]]) -> frozenset[str]:
    found = sets[0]
    for other in sets[1:]:
        found &= other
    return found


def _of_any(needs: Mapping[str, frozenset[str]], names: Sequence[str]) -> frozenset[str]:
    return frozenset[str]().union(*(needs.get(name, frozenset()) for name in names if name))


def _label(model: OnnxModel, inputs: Sequence[OnnxInput], needs: Mapping[str, frozenset[str]]) -> OnnxInput | None:
    """Return the input with the labels: it reaches no layer, and is the one of integers; None if that does not tell."""
    free = [value for value in inputs if not _is_data(model, value.name, needs)]
    found = [value for value in free if value.elem_type != onnx.TensorProto.FLOAT] or free
    return found[0] if len(found) == 1 and len(inputs) > 1 else None


def _no_label(model: OnnxModel, inputs: Sequence[OnnxInput], needs: Mapping[str, frozenset[str]]) -> OnnxInput | None:
    """Return NO_LABEL if every input is data; E0209 if several could be the labels."""
    free = [value.name for value in inputs if not _is_data(model, value.name, needs)]
    if len(inputs) == 1 or not free:
        return NO_LABEL
    what = f"{', '.join(free)} reach no layer: any may be the labels of the loss"
    raise CompileError("E0209", "inputs", what, "name the labels with --label")


def _is_over_samples(model: OnnxModel, links: Links, output: str) -> bool:
    """Tell whether an output joins the samples of a batch, which no output of a forward model does."""
    tensors, seen = [output], set[str]()
    while tensors:
        node = links.maker(tensors.pop())
        if node is None or node.name in seen or node.domain:
            continue
        seen.add(node.name)
        if node.op.startswith("Reduce") and 0 in _reduced_axes(model, node):
            return True
        if node.op not in LAYERS:
            tensors += node.inputs
    return False


def _reduced_axes(model: OnnxModel, node: OnnxNode) -> tuple[int, ...]:
    """Return axes of a reduction as the file writes them; (0,) for all."""
    axes = node.integers("axes")
    if axes is None and node.input(1):
        data = model.numbers(node.input(1))
        axes = () if data is None else tuple(int(axis) for axis in np.ravel(data))
    whole = not axes and not node.integer("noop_with_empty_axes", 0)
    return (0,) if axes is None or whole else axes


def _is_data(model: OnnxModel, name: str, needs: Mapping[str, frozenset[str]]) -> bool:
    return not is_class_of_loss(model.nodes, name) and _feeds_layer(model.nodes, needs, name)


def _feeds_layer(nodes: Sequence[OnnxNode], needs: Mapping[str, frozenset[str]], name: str) -> bool:
    """Tell whether an input reaches a node with weights, or looks up a table of the file."""
    for node in nodes:
        table = node.op == "Gather" and not needs.get(node.input(0))
        if (node.op in LAYERS or table) and name in _of_any(needs, node.inputs):
            return True
    return False


def is_class_of_loss(nodes: Sequence[OnnxNode], name: str) -> bool:
    """Tell whether a loss operator reads an input as class indices, as it is or in another shape or integer type."""
    shown = {name}
    for node in nodes:
        if node.op in LOSS_OPS and node.input(1) in shown:
            return True
        views = node.op in ("Identity", "Squeeze", "Unsqueeze", "Reshape", "Flatten")
        if node.input(0) in shown and (views or (node.op == "Cast" and node.integer("to", 0) in INDICES)):
            shown.add(node.output(0))
    return False


# ---- a loss that reads several tensors of the model ------------------------------------------------------------------
# Other heads, hidden activations. The loss is the nodes that depend on labels, and the penalties that are added to
# them. The model is every node with weights in front of these, and what leads to it. So no weight on a way to the loss
# is left in the loss as a constant.


_SUMS = frozenset(("Add", "Sub", "Sum", "Mean", "Concat", "ReduceMean", "ReduceSum", "Neg", "Expand", *VIEWS))
"""Operators through which a loss is a sum of what they read."""
_ENDS = frozenset(("Relu", "LeakyRelu", "Clip", "Sigmoid", "Tanh", "Softmax", "LogSoftmax", "Gelu", *VIEWS))
"""Operators behind a layer that belong to the model, if the loss has no labels."""
_TABLES = LAYERS | {
    *("LSTM", "GRU", "RNN", "Gather", "PRelu"),
    *("BatchNormalization", "InstanceNormalization", "GroupNormalization", "LayerNormalization"),
}
"""Operators with weights. Numbers of other ones belong to a penalty: a prior, an identity, a target."""


def find_site(model: OnnxModel, options: FrontendOptions) -> LossSite | None:
    """Return the model's own loss, with every tensor at which the model ends; None for a forward model."""
    site = find_loss(model, Links(model.nodes, model.outputs, model.constants), options.label)
    if site is None or not site.written:
        return site
    outputs = tuple(name for name in (site.scores, site.output) if name)
    links = Links(reachable(model.nodes, outputs), outputs, model.constants)
    found = _Fork(model, site, by_rules(model, links)).site()
    return found if found.scores else None


class _Fork:
    """The nodes of a loss, grouped by their operands: labels, scores, or trained weights."""

    def __init__(self, model: OnnxModel, site: LossSite, trained: Trainables) -> None:
        self._site, self._choices = site, trained.choices
        self._nodes = reachable(model.nodes, tuple(name for name in (site.scores, site.output) if name))
        self._links = Links(self._nodes, (site.output,), model.constants)
        valued = [node for node in self._nodes if node.op not in ("Shape", "Size")]  # shapes are known
        self._needs = needs_of(valued, [value.name for value in model.inputs])
        self._roots = self._weights(trained)
        self._sums = self._summing()
        self._judged = {node.name for node in self._before(self._read_beside_labels())}
        if site.label is NO_LABEL:
            self._judged |= self._close_to_layers()

    def site(self) -> LossSite:
        """Leave a site alone whose scores all weights lead to; the weights of the loss itself are ends of their own."""
        site, carriers = self._site, [node for node in self._nodes if self._carries(node)]
        forward = {node.name for node in self._before((site.scores,))}
        if not site.scores or not all(node.name in forward for node in carriers):
            found = self._before((site.scores, *(name for node in carriers for name in node.outputs)))
            found = self._before((site.scores if site.beside else "", *map(self._followed, self._ends(found))))
            forward = {node.name for node in found}
            ends = self._ends(found)
            scores = site.scores if site.beside else self._main(ends, carriers)
            site = replace(site, scores=scores, ends=tuple(name for name in ends if name != scores))
        if not site.scores:
            return site
        ends = (*site.ends, *self._weights_of_the_loss(self._roots_of(forward)))
        known = self._roots_of({node.name for node in self._before((site.scores, *ends))})
        rest = self._roots_of({node.name for node in self._nodes}) - known
        numbers = (name for name in rest if not self._is_factor(name) and not self._is_chosen(name))
        return replace(site, ends=ends, numbers=tuple(sorted(numbers)))

    # ---- what a tensor depends on -------------------------------------------------------------------------------

    def _of_samples(self, name: str) -> bool:
        needs = self._needs.get(name)
        return bool(needs) and self._site.label.name not in needs

    def _of_labels(self, node: OnnxNode) -> bool:
        return any(self._site.label.name in self._needs.get(name, ()) for name in node.inputs)

    def _before(self, names: Iterable[str]) -> tuple[OnnxNode, ...]:
        return reachable(self._nodes, tuple(name for name in names if name))

    def _weights(self, trained: Trainables) -> Mapping[str, frozenset[str]]:
        """Return the trained initializers that each tensor follows from which depends on no input."""
        roots = {name: frozenset((name,)) for name in trained.choices if trained.trained(name)}
        for node in self._nodes:
            if not any(self._needs.get(name) for name in node.inputs):
                found = frozenset[str]().union(*(roots.get(name, frozenset()) for name in node.inputs))
                for name in node.outputs if found else ():
                    roots.setdefault(name, found)
        return roots

    def _roots_of(self, nodes: Collection[str]) -> frozenset[str]:
        """Return the weights that these nodes compute with."""
        read = (name for node in self._nodes if node.name in nodes for name in node.inputs)
        return frozenset[str]().union(*(self._roots.get(name, frozenset()) for name in read))

    # ---- the parts of the loss ----------------------------------------------------------------------------------

    def _summing(self) -> frozenset[str]:
        """Return names of the nodes through which the loss is a sum of terms, each by a factor."""
        found, tensors = set[str](), [self._site.output]
        while tensors:
            node = self._links.maker(tensors.pop())
            if node is None or node.name in found or node.domain:
                continue
            made = [name for name in node.inputs if self._links.maker(name) is not None or self._needs.get(name)]
            computed = [name for name in made if self._needs.get(name)] or made
            scales = node.op == "Mul" or (node.op == "Div" and computed == [node.input(0)])
            if node.op in _SUMS or (scales and len(computed) == 1):
                found.add(node.name)
                tensors += made if node.op in _SUMS else computed
        return frozenset(found)

    def _is_factor(self, name: str) -> bool:
        """Tell whether a number is only a factor of a term, or a term: its gradient would let it grow for ever."""
        readers = self._links.readers(name)
        return bool(readers) and all(
            node.name in self._sums and all(out == self._site.output or self._is_factor(out) for out in node.outputs)
            for node in readers
        )

    def _read_beside_labels(self) -> list[str]:
        """Return tensors of the model that a term of the loss compares with labels."""
        terms = [node for node in self._nodes if self._of_labels(node) and node.name not in self._sums]
        return [name for node in terms for name in node.inputs if self._of_samples(name)]

    def _close_to_layers(self) -> frozenset[str]:
        """Return the model's nodes if there are no labels: on the only way behind a layer, each of one tensor."""
        found = set[str]()
        for node in self._nodes:
            end = node.output(0) if node.op in _TABLES and self._of_samples(node.output(0)) else ""
            while end and (reader := self._links.sole_reader(end)) is not None and reader.name not in self._sums:
                others = [name for name in reader.inputs if name != end and self._of_samples(name)]
                weighted = any(self._roots.get(name) for name in reader.inputs)
                if others or not (weighted or reader.op in _ENDS):
                    break
                found.add(reader.name)
                end = reader.output(0)
        return frozenset(found)

    def _carries(self, node: OnnxNode) -> bool:
        """Tell whether a node of the model computes with a weight."""
        if not any(self._of_samples(name) for name in node.inputs) or self._of_labels(node):
            return False
        weights = frozenset[str]().union(*(self._roots.get(name, frozenset()) for name in node.inputs))
        tables = any(self._choices[name].elements > 1 for name in weights)  # one number may be the loss's own
        return tables and (node.name in self._judged or node.op in _TABLES)

    # ---- where the model ends -----------------------------------------------------------------------------------

    def _ends(self, forward: tuple[OnnxNode, ...]) -> list[str]:
        """Return tensors of the model that nodes of the loss read, in order."""
        inside = {node.name for node in forward}
        read = {name for node in self._nodes if node.name not in inside for name in node.inputs}
        made = [name for node in forward for name in node.outputs if self._of_samples(name)]
        return [name for name in made if name in read or name == self._site.output]

    def _followed(self, end: str) -> str:
        """Return the last tensor on the only way from an end to the labels: behind a softmax, or in another size."""
        while True:
            reader = self._links.sole_reader(end)
            if reader is None or reader.name not in self._judged or self._of_labels(reader):
                return end
            end = reader.output(0)

    def _main(self, ends: list[str], carriers: list[OnnxNode]) -> str:
        """Return the end that is judged by labels and that most layers lead to, or else most nodes; "" without any."""
        weighty = {node.name for node in carriers}

        def depth(name: str) -> tuple[int, int]:
            nodes = [node for node in self._before((name,)) if node.inputs and node.op not in VIEWS]
            return sum(node.name in weighty for node in nodes), len(nodes)

        judged = [name for name in ends if (maker := self._links.maker(name)) and maker.name in self._judged]
        return max(judged or ends, key=depth, default="")

    def _weights_of_the_loss(self, known: frozenset[str]) -> list[str]:
        """Return what follows from weights that only the loss reads and computes with: exp(-s) of a learned noise.

        A number that it reads as it is may be a buffer as well, like the weights of classes: these stay what they are.
        """
        found = dict[str, None]()
        for node in self._nodes:
            if not any(self._needs.get(name) for name in node.inputs) and any(map(self._roots.get, node.inputs)):
                continue  # it computes with weights alone
            for index, name in enumerate(node.inputs):
                own = [root for root in self._roots.get(name, frozenset()) - known if not self._is_factor(root)]
                if own and self._is_computed(name) and not self._is_setting(node, index):
                    found[name] = None
        return list(found)

    def _is_computed(self, name: str) -> bool:
        node = self._links.maker(name)
        while node is not None and node.op in (*VIEWS, *PARTS):
            node = self._links.maker(node.input(0))
        return node is not None and node.op != "Constant"

    def _is_chosen(self, name: str) -> bool:
        """Tell whether labels choose the elements of a table: weights of classes."""
        readers = self._links.readers(name)
        return bool(readers) and all(self._is_setting(node, list(node.inputs).index(name)) for node in readers)

    def _is_setting(self, node: OnnxNode, index: int) -> bool:
        """Tell whether no gradient reaches an operand, or labels choose its elements, as they do weights of classes."""
        picks = node.op.startswith("Gather") and index == 0 and self._of_labels(node)
        return picks or index in SETTINGS.get(node.op, ())
