"""Where a model with a written loss ends if the loss reads several tensors of it: other heads, hidden activations.

The loss is the nodes that depend on labels, and the penalties that are added to them. The model is every node with
weights in front of these, and what leads to it. So no weight on a way to the loss is left in the loss as a constant.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from tinytrain_compile.frontend.file.folding import PARTS, VIEWS
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode, reachable
from tinytrain_compile.frontend.loss.own_loss import LAYERS, NO_LABEL, LossSite, find_loss, needs_of
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.weights.parameters import SETTINGS, Trainables, by_rules

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
    """The nodes of a loss, by what they depend on."""

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

    def _of_weights(self, node: OnnxNode) -> bool:
        """Tell whether a node computes with weights alone."""
        return not any(self._needs.get(name) for name in node.inputs) and any(self._roots.get(n) for n in node.inputs)

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
            if self._of_weights(node):
                continue
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
