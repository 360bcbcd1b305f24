"""The int8 graph under construction: nodes, constants, persistent state, and the forms of float values."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array, Attrs, Node, Phase, Value
from tinytrain_compile.ops import fixed_point as fx
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import SumOverflowError, form_name, op_def
from tinytrain_compile.ops.int8.exponents import ExponentAttrs
from tinytrain_compile.ops.int8.pointwise import LIFT, ErrorAttrs, ErrorUnitAttrs, QuantAttrs
from tinytrain_compile.ops.shape import ReshapeAttrs
from tinytrain_compile.quantize.forms import (
    NO_MASK,
    Act,
    Deferred,
    Err,
    Form,
    Mask,
    Role,
    Rule,
    ShiftTables,
    Uses,
    ends_of,
    narrowed,
)


class Rewriter:
    """Emitter of nodes, with the int8 form, float form and error form of every float value."""

    def __init__(self, train: TrainGraph) -> None:
        self.train = train
        graph = train.graph
        names = {v.name for node in graph.nodes for v in (*node.outputs, *node.inputs)}
        self.builder = new_builder(names | {node.name for node in graph.nodes})
        self.forms: dict[str, Form] = {}
        self.gradients: dict[str, Uses] = {}
        """Gradients of integer parameters, kept as operands until their update."""
        self.planned: dict[str, Rule] = {}
        """Rules that earlier nodes have chosen for later ones, by the later node's name."""
        self.readers = graph.consumers()
        self.producers = graph.producers()
        self.constants: dict[str, Array] = dict(graph.constants)
        self.taken: list[Node] = []
        """Float nodes kept unchanged."""
        self.state: list[Value] = []
        self.accumulators: list[Value] = []
        self.updates: list[tuple[Value, Value]] = []
        self._exponents: list[tuple[Value, Value, Value, bool]] = []
        """Exponents of errors, as arguments of `follow`: (exponent, peak, gathered, float_peak)."""
        self._floats: dict[str, Value] = {}
        self._of_reshapes: dict[str, Value] = {}
        self._tables: dict[bytes, Value] = {}

    # ---- emitting -----------------------------------------------------------------------------------------------

    def emit(self, op: str, inputs: Iterable[Value], attrs: Attrs, like: Node, phase: Phase = "step") -> Value:
        """Append a node named after the float node that it replaces, and return its first result."""
        return self.emit_all(op, inputs, attrs, like, phase)[0]

    def emit_all(
        self, op: str, inputs: Iterable[Value], attrs: Attrs, like: Node, phase: Phase = "step"
    ) -> tuple[Value, ...]:
        """Append a node named after the float node and return all its results. E0113 for sums that int32 cannot
        hold."""
        try:
            return self.builder.emit_all(op, inputs, attrs, f"{like.name}.{form_name(op, attrs)}", like.origin, phase)
        except SumOverflowError as problem:
            what = f"{like.origin or like.name} is too large for int8 training ({problem})"
            raise CompileError("E0113", "--quant int8", what, "use a smaller input, or --quant fp32") from problem

    def as_image(self, value: Value, like: Node) -> Value:
        """Return the rows of a matrix as the pixels of an image."""
        rows, columns = value.shape
        return self.emit("Reshape", (value,), ReshapeAttrs((1, rows, 1, columns)), like)

    def table(self, hint: str, data: Array) -> Value:
        """Return a constant; equal tables are stored once."""
        key = data.dtype.str.encode() + repr(data.shape).encode() + data.tobytes()
        if key not in self._tables:
            self._tables[key] = self.builder.constant(hint, data)
        return self._tables[key]

    def factors(
        self, hint: str, values: Any, owner: ShiftTables | None = None, role: Role = "forward"
    ) -> tuple[Value, Value, int]:
        """Return per-channel factors as (multiplier table, shift table, largest shift); an owner gets its own shift
        table."""
        multiplier, shift = fx.split_factors(values)
        largest = int(shift.max()) if shift.size else 0
        table = self.table(f"{hint}.multiplier", multiplier)
        if owner is None:
            return table, self.table(f"{hint}.shift", shift), largest
        own = self.builder.constant(f"{owner.name}.{role}_shift", shift)
        setattr(owner, role, own)
        return table, own, largest

    def fixed_factors(self, hint: str, values: Any) -> tuple[Value, Value, bool]:
        """Return factor tables to whose shifts no exponent is added, and whether all shifts are in -31..-1 and no
        factor is 0.

        Shifts below -31 count as -31 anyway, and with a multiplier of 0 a shift has no effect.
        """
        multiplier, shift = fx.split_factors(values)
        shift = np.where(multiplier == 0, np.int8(-1), np.maximum(shift, np.int8(-31)))
        down = bool(((shift < 0) & (multiplier != 0)).all())
        return self.table(f"{hint}.multiplier", multiplier), self.table(f"{hint}.shift", shift), down

    def take(self, node: Node) -> None:
        """Keep a float node, on the float forms of its inputs: it becomes part of a float region."""
        inputs = tuple(self.as_float(v, node) for v in node.inputs)
        self.builder.nodes.append(replace(node, inputs=inputs))
        self.taken.append(node)
        self.forms.update({v.name: v for v in node.outputs})

    # ---- forms --------------------------------------------------------------------------------------------------

    def only_reader(self, value: Value) -> Node | None:
        """Return the node that alone reads a value, or None."""
        readers = self.readers.get(value.name, [])
        return readers[0] if len(readers) == 1 and value not in self.train.graph.outputs else None

    def int8(self, value: Value) -> Act | None:
        """Return the int8 form of an activation, if it has one."""
        form = self.forms.get(value.name)
        return form if isinstance(form, Act) else None

    def error(self, value: Value) -> Err | None:
        """Return the int8 form of a gradient, if it has one."""
        form = self.forms.get(value.name)
        return form if isinstance(form, Err) else None

    def act(self, value: Value, like: Node) -> Act | None:
        """Return the int8 form of an activation; quantises a float value that has an annotation."""
        form = self.forms.get(value.name, value)
        if isinstance(form, Act):
            return form
        constant = value.name in self.constants
        if value.quant is None or value.dtype != "float32" or constant or not isinstance(form, Value):
            return None
        made_by, q, ends = self.producers.get(value.name), value.quant, None
        if made_by is not None and isinstance(made_by.attrs, ClipAttrs):  # errors do not pass the Clip's ends
            q, ends = narrowed(q, made_by.attrs), ends_of(q, made_by.attrs)
        attrs = QuantAttrs(q.scale[0], q.zero, q.low, q.high)
        if made_by is None or not isinstance(made_by.attrs, ReshapeAttrs) or made_by.inputs[0].quant != q:
            out = self.emit("Quantize", (form,), attrs, like)
        else:
            out = self.emit("Reshape", (self._rounded(made_by, attrs, like),), made_by.attrs, like)
        act = Act(out, q, ends)
        self._floats[value.name], self.forms[value.name] = form, act
        return act

    def _rounded(self, reshape: Node, attrs: QuantAttrs, like: Node) -> Value:
        """Return the operand of a Reshape as int8, rounded once for all readers of such Reshapes."""
        source = self.as_float(reshape.inputs[0], like)
        if source.name not in self._of_reshapes:
            self._of_reshapes[source.name] = self.emit("Quantize", (source,), attrs, like)
        return self._of_reshapes[source.name]

    def as_float(self, value: Value, like: Node) -> Value:
        """Return the float form of a value: itself, or dequantised once."""
        form = self.forms.get(value.name, value)
        if isinstance(form, Value):
            return form
        if value.name not in self._floats:
            self._floats[value.name] = self._dequantised(value, form, like)
        return self._floats[value.name]

    def _dequantised(self, value: Value, form: Form, like: Node) -> Value:
        if isinstance(form, Act):
            attrs = QuantAttrs(form.quant.scale[0], form.quant.zero)
            return self.emit("Dequantize", (form.value,), attrs, like)
        error = self.plain_error(value, like)
        return self.emit("DequantizeError", (error.exponent, error.value), ErrorUnitAttrs(float(error.unit)), like)

    def holders(self) -> dict[str, tuple[str, ...]]:
        """Return the names of the values that hold each float value: an activation's integers, then the float32 numbers
        that were rounded to them."""
        held: dict[str, tuple[str, ...]] = {}
        for name, form in self.forms.items():
            own = form.value if isinstance(form, Act) else form
            float_form = self._floats.get(name)
            rounded = float_form is not None and float_form.name == name  # else it is dequantised
            if isinstance(own, Value):
                held[name] = tuple(dict.fromkeys((own.name, name) if rounded else (own.name,)))
        return held

    # ---- errors -------------------------------------------------------------------------------------------------

    def emit_error(
        self, op: str, exponents: tuple[Value, ...], inputs: Iterable[Value], attrs: Attrs, like: Node, unit: Any
    ) -> Err:
        """Emit an op that makes an error, whose operands begin with peak, p_out and the exponents that it reads."""
        kept = op_def(op).error
        assert kept is not None and len(kept.read) == len(exponents), f"{op} reads {kept}"
        start = np.asarray([fx.EXPONENT_START, fx.UNSETTLED], np.int32)
        exponent = self.builder.constant(f"{like.name}.exponent", start)
        peak = Value(self.builder.unique(f"{like.name}.peak"), (), "int32")
        self.state.append(exponent)
        self.accumulators.append(peak)
        out, gathered = self.emit_all(op, (peak, exponent, *exponents, *inputs), attrs, like)
        self._exponents.append((exponent, peak, gathered, kept.float_peak))
        return Err(out, exponent, unit)

    def plain_error(self, value: Value, like: Node) -> Err:
        """Return a gradient as an int8 error with one unit for all channels."""
        form = self.forms.get(value.name, value)
        if isinstance(form, Deferred):
            raise AssertionError(f"{value.name} is read by {like.op} before it was emitted")
        if isinstance(form, Value):
            error = self.emit_error("QuantizeError", (), (form,), ErrorUnitAttrs(1.0), like, 1.0)
            self._floats[value.name] = form
            self.forms[value.name] = error
            return error
        assert isinstance(form, Err)
        return form if form.plain else self.rescaled(form, 1.0, like)

    def rescaled(
        self, error: Err, unit: Any, like: Node, mask: Mask = NO_MASK, owner: ShiftTables | None = None
    ) -> Err:
        """Return an error in another unit, optionally masked; owner: the layer whose unit that is, which owns its
        shifts."""
        channels = error.value.shape[-1]
        ratio = np.broadcast_to(np.asarray(error.unit, np.float64) / np.asarray(unit, np.float64), (channels,))
        multiplier, shift, largest = self.factors(like.name, ratio, owner, "error")
        attrs = ErrorAttrs(largest - LIFT, mask.attrs)
        inputs = (error.value, multiplier, shift, *mask.operand)
        return self.emit_error("ErrorScale", (error.exponent,), inputs, attrs, like, unit)

    # ---- the end ------------------------------------------------------------------------------------------------

    def finish(self, phase: Phase) -> None:
        """Append the nodes that run once per update: exponents follow their peaks."""
        for exponent, peak, gathered, float_peak in self._exponents:
            self.follow(exponent, peak, gathered, phase, float_peak)

    def follow(self, exponent: Value, peak: Value, gathered: Value, phase: Phase, float_peak: bool = False) -> None:
        """Append the node by which an exponent follows its peak; gathered: the value that holds the peak."""
        name, attrs = f"{exponent.name}.update", ExponentAttrs(float_peak)
        after, cleared = self.builder.emit_all("ExponentUpdate", (exponent, gathered), attrs, name, "", phase)
        self.updates += [(exponent, after), (peak, cleared)]
