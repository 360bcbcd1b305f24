"""The rewrite of an annotated float training graph to an int8 one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tinytrain_compile.ir.graph import check_graph
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Graph, Node, Quant, Value
from tinytrain_compile.ops.base import Trait, has_trait, infer, op_def, steps_floats
from tinytrain_compile.ops.linear import WEIGHT
from tinytrain_compile.ops.names import error_exponents, operands
from tinytrain_compile.quantize.backward import Backward
from tinytrain_compile.quantize.forms import Act, Rule
from tinytrain_compile.quantize.forward import Forward
from tinytrain_compile.quantize.loss import SoftmaxLoss, TargetLoss
from tinytrain_compile.quantize.low_rank import Copies, kept_in_integers
from tinytrain_compile.quantize.rescale import Rescaling
from tinytrain_compile.quantize.state import Rewriter
from tinytrain_compile.quantize.update import QuantOptions, Updates


def _parameters(node: Node) -> tuple[Value, ...]:
    return operands(node).several(*WEIGHT, "bias?")


def _reads_weights(node: Node) -> bool:
    """Tell whether a node is a layer, or the data gradient of one."""
    return has_trait(node.op, "layer") or has_trait(node.op, "data_gradient")


def _used_otherwise(graph: Graph) -> frozenset[str]:
    """Return names of layers' parameters that nodes without an integer form, such as a Transpose, read too."""
    weights = {value.name for node in graph.nodes if has_trait(node.op, "layer") for value in _parameters(node)}
    own = (steps_floats(node.op) or _reads_weights(node) for node in graph.nodes)
    others = {value.name for node, known in zip(graph.nodes, own, strict=True) if not known for value in node.inputs}
    return frozenset(weights & others & graph.constants.keys())


def quantise(train: TrainGraph, options: QuantOptions) -> TrainGraph:
    """Rewrite every node that has an integer form; the rest stays float between Dequantize and Quantize."""
    floats: frozenset[str] = frozenset()
    while True:
        attempt = _Rewrite(train, options, floats)
        attempt.rewrite()
        mixed = attempt.mixed()
        if not mixed:
            return attempt.result()
        floats |= mixed


class _Rewrite:
    """One rewrite. floats: names of parameters that stay float32, with the layers that read them."""

    def __init__(self, train: TrainGraph, options: QuantOptions, floats: frozenset[str]) -> None:
        self._train = train
        self._floats = floats
        self._r = Rewriter(train)
        self._rescaling = Rescaling(self._r, options.rescale)
        self._forward = Forward(self._r, self._rescaling, floats | _used_otherwise(train.graph))
        self._updates = Updates(train, options, self._r, self._forward)
        self._rules = self._table()

    def _table(self) -> Sequence[tuple[Trait, Rule]]:
        """Return the rules for operators of a trait, in the order in which they are tried."""
        forward, updates = self._forward, self._updates
        backward, copies = Backward(self._r, forward), Copies(self._r)
        return (
            ("distribution", SoftmaxLoss(self._r).rewrite),
            ("target_loss", TargetLoss(self._r).rewrite),
            ("weight_gradient", copies.gradient),
            ("subspace", copies.product),
            ("requantised", forward.wait),
            ("clamps", forward.clip),
            ("marks", forward.mark),
            ("repeats", forward.repeat),
            ("moves_data", forward.move),
            ("through_clamp", backward.through_clamp),
            ("weight_gradient", backward.weight),
            ("data_gradient", backward.data),
            ("pool_gradient", backward.pool),
            ("reduces", backward.bias),
            ("adds", backward.add),
            ("repeats", backward.expand),
            ("moves_data", backward.move),
            ("accumulates", updates.accumulate),
            ("clears", updates.clear),
            ("squares", updates.row_squares),
            ("totals", updates.clipping.total),
        )

    def rewrite(self) -> None:
        """Rewrite the graph in one pass."""
        graph = self._train.graph
        for source in self._train.data:
            if source.quant is not None:
                self._r.forms[source.name] = Act(replace(source, dtype="int8"), source.quant)
        for node in graph.nodes:
            self._node(node)
        self._updates.finish()

    def mixed(self) -> frozenset[str]:
        """Return parameters that became integers although a float node reads them: a float head, or its gradient."""
        read = {value.name for node in self._r.taken for value in node.inputs}
        return frozenset(read & self._forward.integer_parameters.keys())

    def _node(self, node: Node) -> None:
        """Emit the integer form from the first rule that has one; otherwise keep the node float."""
        planned, name = self._r.planned.get(node.name), node.outputs[0].name
        rules = [rule for trait, rule in self._rules if has_trait(node.op, trait)]
        owned = op_def(node.op).owned
        assert owned is None or owned.int8 != "sum" or rules, f"{node.op} declares an int8 form that is not here"
        for rule in (planned,) if planned is not None else (*rules, self._updates.rewrite):
            found = rule(node)
            if not found:
                continue
            if isinstance(found, tuple):
                self._r.gradients[name] = found
            elif not isinstance(found, bool):
                self._r.forms[name] = found
            return
        self._r.take(node)

    # ---- the result ---------------------------------------------------------------------------------------------

    def result(self) -> TrainGraph:
        """Return the integer graph."""
        train, r = self._train, self._r
        last = train.graph.nodes[-1]
        outputs, loss = tuple(r.as_float(v, last) for v in train.graph.outputs), r.as_float(train.loss, last)
        graph = self._graph(outputs, loss)
        check_graph(graph, infer)
        live = {value.name for node in graph.nodes for value in node.inputs}
        rate = self._updates.rate if self._updates.rate.name in live else None
        inverse = train.inverse_count
        return replace(
            train,
            graph=graph,
            loss=loss,
            logits=r.as_float(train.logits, last),
            inverse_count=inverse if inverse is not None and inverse.name in live else None,
            integer=True,
            rate=rate,
            velocity=self._updates.velocity if rate is not None else None,
            exponents_known=not error_exponents(graph.nodes),
            formats=self._formats(graph.nodes),
            clip={},
            identity=self._updates.identity(),
            forms=r.holders(),
            trained=self._updates.trained(),
            low_rank=kept_in_integers(train.low_rank, r.taken),
        )

    def _graph(self, outputs: tuple[Value, ...], loss: Value) -> Graph:
        """Return the graph of those emitted nodes that outputs, loss and updates need."""
        old, r, train = self._train.graph, self._r, self._train
        integer = set(self._forward.integer_parameters) | self._updates.replaced
        state = [v for v in old.state if v.name not in integer] + r.state
        known = {v.name for v in r.accumulators}
        accumulators = [v for v in old.accumulators if v.name not in known] + r.accumulators
        updates, inputs = self._all_updates(integer), tuple(map(self._stored_input, old.inputs))
        nodes = [n for n in r.builder.nodes if n.phase == "step"] + [n for n in r.builder.nodes if n.phase == "apply"]
        whole = Graph(old.name, tuple(nodes), inputs, outputs, {}, (), (), (), updates)
        needed = whole.ancestors((*outputs, loss, *(new for _, new in updates)))
        kept = tuple(n for n in nodes if n.name in needed)
        live = {v.name for n in kept for v in n.inputs}
        used = live | {v.name for v in state}
        return Graph(
            old.name,
            kept,
            inputs,
            outputs,
            {name: data for name, data in {**r.constants, **r.builder.constants}.items() if name in used},
            tuple(v for v in old.parameters if v.name in used and v.name not in integer),
            tuple(v for v in state if v.name in live or v == train.learning_rate),
            tuple(v for v in accumulators if v.name in live or v == train.weight_sum),
            updates,
            (*old.notes, *self._rescaling.notes(), *self._updates.notes(), *self._notes()),
            loss.name,
            old.label,
        )

    def _all_updates(self, integer: set[str]) -> tuple[tuple[Value, Value], ...]:
        """Return the unchanged updates of float parameters, and those of integer parameters, each of which must have
        one."""
        old, new = self._train.graph.updates, self._r.updates
        updated = {pair[0].name for pair in new}
        lost = [pair[0].name for pair in old if pair[0].name in integer - updated]
        assert not lost, f"no integer update was found for {lost}"
        kept = [pair for pair in old if pair[0].name not in integer | updated]
        return tuple((value, self._r.as_float(after, self._train.graph.nodes[-1])) for value, after in kept) + tuple(
            new
        )

    def _notes(self) -> tuple[str, ...]:
        names = sorted(self._floats | _used_otherwise(self._train.graph))
        if not names:
            return ()
        several = "stay float32, and so do the layers that read them"
        return (f"{', '.join(names)}: shared with float32 nodes, or used in two arrangements, they {several}",)

    def _formats(self, nodes: tuple[Node, ...]) -> dict[str, Quant]:
        """Return formats of activations, including those of views."""
        formats = {form.value.name: form.quant for form in self._r.forms.values() if isinstance(form, Act)}
        for node in reversed(nodes):
            if op_def(node.op).view and node.outputs[0].name in formats:
                formats.setdefault(node.inputs[0].name, formats[node.outputs[0].name])
        return formats

    def _stored_input(self, value: Value) -> Value:
        form = self._r.forms.get(value.name)
        return form.value if isinstance(form, Act) and value.name != self._train.label.name else value
