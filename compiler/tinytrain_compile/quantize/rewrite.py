"""From a float training graph with annotations to an int8 one."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.check import check_graph
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import NO_ATTRS, Graph, Node, Phase, Quant, Value
from tinytrain_compile.ops.base import infer, op_def
from tinytrain_compile.ops.qconv import QConvUpdateAttrs
from tinytrain_compile.ops.qupdate import QWeightApplyAttrs
from tinytrain_compile.ops.update import SgdAttrs
from tinytrain_compile.quantize.backward import Backward, BiasGradient, WeightGradient
from tinytrain_compile.quantize.forms import Act
from tinytrain_compile.quantize.forward import Forward
from tinytrain_compile.quantize.loss import IntegerLoss
from tinytrain_compile.quantize.state import Rewriter

UPDATES = ("SgdUpdate", "MomentumUpdate", "AdamUpdate")


@dataclass(frozen=True)
class QuantOptions:
    """seed: of the rounding noise."""

    seed: int = 0


def quantise(train: TrainGraph, options: QuantOptions) -> TrainGraph:
    """Rewrite every node that has an integer form; the rest stays float between Dequantize and Quantize."""
    return _Rewrite(train, options).run()


class _Rewrite:
    def __init__(self, train: TrainGraph, options: QuantOptions) -> None:
        self._train = train
        self._r = Rewriter(train)
        self._forward = Forward(self._r)
        self._backward = Backward(self._r, self._forward)
        self._loss = IntegerLoss(self._r)
        self._phase: Phase = "apply" if train.batch > 1 else "step"
        self._noise = self._r.builder.constant("noise", np.asarray(options.seed * 2 + 12345, np.uint32).view(np.int32))
        self._rate = Value(self._r.builder.unique("rate"), (2,), "int32")
        self._r.accumulators.append(self._rate)
        self._salt = 0
        self._sums: dict[str, WeightGradient | BiasGradient] = {}
        self._sum_values: dict[str, Value] = {}

    def run(self) -> TrainGraph:
        graph = self._train.graph
        source = graph.inputs[0]
        if source.quant is not None:
            stored = replace(source, dtype="int8")
            self._r.forms[source.name] = Act(stored, source.quant)
        for node in graph.nodes:
            self._node(node)
        self._r.finish(self._phase)
        if self._salt:
            after = self._r.builder.emit("NoiseTick", (self._noise,), NO_ATTRS, "noise.tick", "", self._phase)
            self._r.updates.append((self._noise, after))
        return self._result()

    def _node(self, node: Node) -> None:
        stages = (self._loss.rewrite, self._forward.rewrite, self._backward.rewrite, self._update)
        if not any(stage(node) for stage in stages):
            self._r.take(node)

    # ---- updates ------------------------------------------------------------------------------------------------

    def _update(self, node: Node) -> bool:
        if node.op == "Accumulate":
            return self._accumulate(node)
        if node.op == "Clear":
            return self._clear(node)
        if node.op not in UPDATES:
            return False
        position = 1 if node.op == "SgdUpdate" else len(node.outputs)
        gradient = self._backward.gradients.get(node.inputs[position].name)
        summed = self._sums.get(node.inputs[position].name)
        if gradient is None and summed is None:
            return False
        if node.op != "SgdUpdate":
            raise CompileError(
                "E0101", "--optimizer", "int8 training uses SGD", "leave --optimizer out, or use --quant fp32"
            )
        if isinstance(node.attrs, SgdAttrs) and node.attrs.weight_decay:
            raise CompileError(
                "E0101", "--weight-decay", "int8 weights take no decay", "leave --weight-decay out, or use --quant fp32"
            )
        parameter = self._forward.integer_parameters[node.inputs[0].name]
        if summed is not None:
            self._apply(node, parameter, summed, self._sum_values[node.inputs[position].name])
        else:
            assert gradient is not None
            self._fused(node, parameter, gradient)
        return True

    def _constants(self, node: Node, gradient: WeightGradient | BiasGradient) -> tuple[Value, Value]:
        """Step size per channel: SGD on the real parameter, in its integer unit (notes/int8-training.md, 1.1)."""
        layer = gradient.layer
        unit = layer.scale if isinstance(gradient, WeightGradient) else layer.accumulator_scale
        split = layer.conv.split
        if isinstance(gradient, WeightGradient) and split is not None and split.axis == "out":
            unit = unit[list(split.channels)]
        multiplier, shift, _ = self._r.factors(node.name, 1.0 / unit**2)
        return multiplier, shift

    def _fused(self, node: Node, parameter: Value, gradient: WeightGradient | BiasGradient) -> None:
        multiplier, shift = self._constants(node, gradient)
        scale = (multiplier, shift, self._rate, gradient.error.exponent)
        if isinstance(gradient, BiasGradient):
            (after,) = self._r.emit(
                "QBiasUpdate", (parameter, gradient.error.value, *scale), NO_ATTRS, node, self._phase
            )
        else:
            attrs = QConvUpdateAttrs(gradient.conv, gradient.x.quant.zero)
            inputs = (
                parameter,
                gradient.x.value,
                gradient.error.value,
                *scale,
                self._noise,
                self._next_salt(parameter),
            )
            (after,) = self._r.emit("QConvUpdate", inputs, attrs, node, self._phase)
        self._own(parameter, after)

    def _next_salt(self, parameter: Value) -> Value:
        """Where in the noise sequence this weight starts."""
        salt = self._r.table("salt", np.asarray(self._salt, np.int32))
        self._salt += parameter.elements
        return salt

    def _accumulate(self, node: Node) -> bool:
        gradient = self._backward.gradients.get(node.inputs[1].name)
        if gradient is None:
            return False
        total = replace(node.inputs[0], dtype="int32")
        if isinstance(gradient, WeightGradient) and len(total.shape) == 2:
            total = replace(total, shape=(total.shape[0], 1, 1, total.shape[1]))
        self._r.accumulators.append(total)
        if isinstance(gradient, BiasGradient):
            (summed,) = self._r.emit("QBiasSum", (total, gradient.error.value), NO_ATTRS, node)
        else:
            attrs = QConvUpdateAttrs(gradient.conv, gradient.x.quant.zero)
            (summed,) = self._r.emit("QConvSum", (total, gradient.x.value, gradient.error.value), attrs, node)
        name = node.outputs[0].name
        self._sums[name], self._sum_values[name] = gradient, summed
        self._r.forms[total.name] = total
        return True

    def _apply(self, node: Node, parameter: Value, gradient: WeightGradient | BiasGradient, summed: Value) -> None:
        multiplier, shift = self._constants(node, gradient)
        scale = (multiplier, shift, self._rate, gradient.error.exponent)
        if isinstance(gradient, BiasGradient):
            (after,) = self._r.emit("QBiasApply", (parameter, summed, *scale), NO_ATTRS, node, self._phase)
        else:
            inputs = (parameter, summed, *scale, self._noise, self._next_salt(parameter))
            (after,) = self._r.emit("QWeightApply", inputs, QWeightApplyAttrs(), node, self._phase)
        self._own(parameter, after)

    def _clear(self, node: Node) -> bool:
        summed = self._sum_values.get(node.inputs[0].name)
        if summed is None:
            return False
        (after,) = self._r.emit("Clear", (summed,), NO_ATTRS, node, self._phase)
        total = next(v for v in self._r.accumulators if v.name == self._total_of(node))
        self._r.updates.append((total, after))
        return True

    def _total_of(self, node: Node) -> str:
        return self._r.producers[node.inputs[0].name].inputs[0].name

    def _own(self, parameter: Value, after: Value) -> None:
        self._r.state.append(parameter)
        self._r.updates.append((parameter, after))

    # ---- the result ---------------------------------------------------------------------------------------------

    def _result(self) -> TrainGraph:
        old, r = self._train.graph, self._r
        integer = set(self._forward.integer_parameters)
        state = [v for v in old.state if v.name not in integer]
        state += list(r.state) + ([self._noise] if self._salt else [])
        known = {v.name for v in r.accumulators}
        accumulators = [v for v in old.accumulators if v.name not in known] + r.accumulators
        updated = {pair[0].name for pair in r.updates}
        lost = [p[0].name for p in old.updates if p[0].name in integer - updated]
        assert not lost, f"no integer update was found for {lost}"
        updates = [p for p in old.updates if p[0].name not in integer and p[0].name not in updated] + r.updates
        inputs = (self._stored_input(old), *old.inputs[1:])
        outputs = tuple(r.as_float(v, old.nodes[-1]) for v in old.outputs)
        nodes = [n for n in r.builder.nodes if n.phase == "step"] + [n for n in r.builder.nodes if n.phase == "apply"]
        whole = Graph(old.name, tuple(nodes), inputs, outputs, {}, (), (), (), tuple(updates))
        loss = r.as_float(self._train.loss, old.nodes[-1])
        needed = whole.ancestors((*outputs, loss, *(new for _, new in updates)))
        kept = tuple(n for n in nodes if n.name in needed)
        used = {v.name for n in kept for v in n.inputs} | {v.name for v in state}
        constants = {name: data for name, data in {**r.constants, **r.builder.constants}.items() if name in used}
        live = {v.name for n in kept for v in n.inputs}
        graph = Graph(
            old.name,
            kept,
            inputs,
            outputs,
            constants,
            tuple(v for v in old.parameters if v.name in used and v.name not in integer),
            tuple(v for v in state if v.name in live or v.name == self._train.learning_rate.name),
            tuple(v for v in accumulators if v.name in live),
            tuple(updates),
            old.notes,
        )
        check_graph(graph, infer)
        rate = self._rate if self._rate.name in live else None
        logits = r.as_float(self._train.logits, old.nodes[-1])
        settled = not any(n.op == "ExponentUpdate" for n in kept)
        inverse = self._train.inverse_count
        inverse = inverse if inverse is not None and inverse.name in live else None
        return replace(
            self._train,
            graph=graph,
            loss=loss,
            logits=logits,
            inverse_count=inverse,
            integer=True,
            rate=rate,
            settled=settled,
            formats=self._formats(kept),
        )

    def _formats(self, nodes: tuple[Node, ...]) -> dict[str, Quant]:
        """Formats of activations, also of what a view shows."""
        formats = {form.value.name: form.quant for form in self._r.forms.values() if isinstance(form, Act)}
        for node in reversed(nodes):
            if op_def(node.op).view and node.outputs[0].name in formats:
                formats.setdefault(node.inputs[0].name, formats[node.outputs[0].name])
        return formats

    def _stored_input(self, graph: Graph) -> Value:
        form = self._r.forms.get(graph.inputs[0].name)
        return form.value if isinstance(form, Act) else graph.inputs[0]
