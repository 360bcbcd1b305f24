"""Streams of random errors: data gradients of 1x1 and depthwise layers, sums, masks, biases updated by rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from testing.ops.case import Bits, Case, Rng
from testing.ops.case_qpointwise import error_add, error_scale
from testing.ops.case_quantised import Geometry, mask, qconv_grad_input, qconv_update, qconv_update_fine
from testing.ops.case_qupdate import bias_update
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.ops.base import alias_of, input_names, row_form
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.plan.streams.build import build_stream

Operand = np.ndarray | Bits


def error_stream(rng: Rng) -> Case:
    """Three to eight nodes on a random error."""
    chain = _Chain(rng)
    wanted = int(rng.integers(3, 9))
    while len(chain.nodes) < wanted:
        chain.grow()
    return chain.case()


class _Chain:
    """Grows node by node towards the input; errors: those that a later node may read."""

    def __init__(self, rng: Rng) -> None:
        self._rng = rng
        shape = (1, *(int(n) for n in rng.integers(2, 7, 2)), int(rng.integers(1, 9)))
        self._arrays: dict[Value, Operand] = {}
        self.nodes: list[Node] = []
        self._errors = [self._operand(self._bytes(shape))]

    def _bytes(self, shape: tuple[int, ...]) -> np.ndarray:
        return self._rng.integers(-127, 128, shape).astype(np.int8)

    def _operand(self, data: Operand) -> Value:
        kind = "bits" if isinstance(data, Bits) else str(data.dtype)
        layout = "NHWC" if len(data.shape) == 4 else ""
        value = Value(f"in{len(self._arrays)}", data.shape, kind, layout)  # type: ignore[arg-type]
        self._arrays[value] = data
        return value

    def grow(self) -> None:
        """One node more, if it has a form by rows."""
        rng, g = self._rng, self._errors[-1]
        clamp = mask(rng, str(rng.choice(["", "value", "bits"])))
        turn = rng.random()
        if turn < 0.2:
            read = self._errors[int(rng.integers(len(self._errors)))]
            rule = qconv_update if rng.random() < 0.5 else qconv_update_fine
            self._add(rule(rng, self._geometry(read.shape, dense=True), 0), {"g": read})
        elif turn < 0.35:
            read = self._errors[int(rng.integers(len(self._errors)))]
            self._add(bias_update(rng, read.shape, 0), {"g": read})
        elif turn < 0.45:
            self._add(error_scale(rng, g.shape, 0, clamp), {"e": g})
        elif turn < 0.6:
            again = [value for value in self._errors[:-1] if value.shape == g.shape]
            other = again[int(rng.integers(len(again)))] if again else self._operand(self._bytes(g.shape))
            self._add(error_add(rng, g.shape, 0, clamp), {"a": g, "b": other})
        else:
            shape, out, conv = self._geometry(g.shape, dense=True)
            self._add(qconv_grad_input(rng, (shape, out, conv), 0, clamp), {"g": g})

    def _geometry(self, shape: tuple[int, ...], dense: bool = False) -> Geometry:
        """A layer whose output has this shape: 1x1, depthwise, or dense k x k."""
        rng, (_, height, width, channels) = self._rng, shape
        dense = dense and rng.random() < 0.3
        if not dense and (channels == 1 or rng.random() < 0.5):
            return (1, height, width, int(rng.integers(1, 10))), channels, ConvAttrs((1, 1))
        while True:
            kernel, strides = ((int(a), int(b)) for a, b in (rng.integers(1, 8, 2), rng.integers(1, 4, 2)))
            pads = tuple(int(rng.integers(0, kernel[axis % 2])) for axis in range(4))
            conv = ConvAttrs(kernel, strides, pads, groups=1 if dense else channels)  # type: ignore[arg-type]
            image = [
                (extent - 1) * strides[axis] + kernel[axis] - pads[axis] - pads[axis + 2]
                for axis, extent in enumerate((height, width))
            ]
            if min(image) > 0 and (dense or kernel != (1, 1)):
                return (1, *image, int(rng.integers(1, 5)) if dense else channels), channels, conv

    def _add(self, case: Case, known: dict[str, Value]) -> None:
        """The node of a case on these errors."""
        names = input_names(case.op, case.attrs, len(case.inputs))
        own = list[Value]()
        for name, value, array in zip(names, case.inputs, case.arrays, strict=True):
            given = Bits(value.shape, array) if value.dtype == "bits" else array
            own.append(known[name] if name in known else self._operand(given))
        made = replace(case, inputs=tuple(own)).node()
        number = len(self.nodes)
        outputs = tuple(replace(value, name=f"made{number}_{i}") for i, value in enumerate(made.outputs))
        node = replace(made, name=f"node{number}", outputs=outputs)
        form = row_form(node)
        if form is None:
            return
        self.nodes.append(node)
        if form.sum is None:
            self._errors.append(node.outputs[0])

    def case(self) -> Case:
        """All of it as a stream; some inner errors are results too."""
        made = [value for value in self._errors if value not in self._arrays]
        kept = {value.name for value in made[:-1] if self._rng.random() < 0.2}
        summed = any(row_form(node).sum is not None for node in self.nodes)  # type: ignore[union-attr]
        if made and (not summed or self._rng.random() < 0.7):
            kept.add(made[-1].name)
        kept |= {node.outputs[out].name for node in self.nodes for out, _ in alias_of(node)}
        outputs = [value for node in self.nodes for value in node.outputs if value.name in kept]
        read = tuple(dict.fromkeys(v for node in self.nodes for v in node.inputs if v in self._arrays))
        attrs = build_stream(self.nodes, read, outputs)
        assert isinstance(attrs, StreamAttrs)
        arrays = (self._arrays[value] for value in read)
        return Case("Stream", attrs, read, tuple(a.data if isinstance(a, Bits) else a for a in arrays), ())
