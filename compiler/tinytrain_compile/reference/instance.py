"""A twin where there is no C compiler: the calls of the generated C, computed by the numpy reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tinytrain_compile.emit.checkpoint import CRC_BYTES, HEAD_BYTES, checkpoint_of, contents, stored
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.records import is_finite
from tinytrain_compile.ir.stages import Interface, Listening, TrainGraph
from tinytrain_compile.ir.types import Array
from tinytrain_compile.ops.input_lines import BYTE_ZERO
from tinytrain_compile.reference.stream import Stream
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.twin import Instance

SAID = (
    "no C compiler on this machine (install gcc): this twin computes by the numpy reference. int8 networks give the"
    " device's bytes, float32 ones numbers near them; a step takes much longer"
)
"""What a user is told of it."""


class ReferenceInstance(Instance):
    """`Instance` without a library. What only the C has (features, deltas) is E0114."""

    def __init__(self, train: TrainGraph, interface: Interface, listening: Listening | None = None) -> None:
        self.interface, self._train, self._listening = interface, train, listening
        self.reset()

    def reset(self) -> None:
        """Begin anew, with the state of the model file."""
        self._trainer: Trainer | None = Trainer(self._train)
        self._stream = self._empty_stream()
        self._take({name: np.array(array) for name, array in self._trainer.state.items()})

    def set_rate(self, rate: float) -> None:
        """Set the learning rate from the next update on."""
        if not (np.isfinite(np.float32(rate)) and rate >= 0):
            raise CompileError("E0101", "learning rate", "not a finite number of 0 or more", "see docs/twin.md")
        self._open.set_rate(rate)

    def train(self, x: Array, y: Array) -> Array:
        """Make one update on these samples. E0603 for a loss that is none (summed gradients change nothing then)."""
        trainer = self._open
        before, known = dict(trainer.state), trainer.exponents_known
        losses = trainer.step(self._given(x), y)
        if self._stream is not None:
            self._stream.weights_changed()
        if not np.isfinite(losses).all():
            if self.interface.accumulates:
                trainer.state, trainer.exponents_known, trainer.sums = before, known, trainer.zero_sums()
            raise CompileError(
                "E0603", "step", "the loss, or a number of the input, is NaN or infinite", "see docs/twin.md"
            )
        return np.asarray(losses, np.float32)

    def features(self, x: Array) -> Array:
        """Raise E0114: only the C has them."""
        raise _no_compiler("features")

    def infer(self, x: Array) -> Array:
        """Return the output for each sample: (samples, output elements) in float32."""
        if not is_finite(x):
            raise CompileError("E0603", "infer", "a number of the input is NaN or infinite", "see docs/twin.md")
        together, count, given = self._train.micro_batch, self.interface.output_elements, self._given(x)
        slots = (np.repeat(given[at : at + 1], together, axis=0) for at in range(len(given)))
        found = [self._open.infer(slot).ravel()[:count] for slot in slots]
        return np.asarray(found, np.float32).reshape(len(x), count)

    def hear_due(self, rows: Array) -> tuple[Array, Array]:
        """Return the output of each call in float32, and that all are due."""
        calls = self._calls_of(rows)
        if not is_finite(rows):
            raise CompileError("E0603", "hear", "a number of the input is NaN or infinite", "see docs/twin.md")
        assert self._stream is not None
        found = [self._stream.hear(call, self._open.state) for call in calls]
        out = np.asarray(found, np.float32).reshape(len(calls), self.interface.output_elements)
        return out, np.ones(len(calls), bool)

    def rehear(self, rows: Array) -> None:
        """Fill the rings again from these rows."""
        self.hear_due(rows)

    def hear_settling(self) -> int:
        """Return the calls until a stream equals its window."""
        self.call_rows()
        assert self._stream is not None
        return self._stream.unsettled

    def save(self) -> bytes:
        """Return the device's checkpoint. E0603 if a number is not finite."""
        state = self._open.state
        if not all(np.isfinite(array).all() for array in state.values() if array.dtype.kind == "f"):
            raise CompileError("E0603", "save", "a weight is NaN or infinite", "see docs/twin.md")
        return checkpoint_of(self._train, state)

    def load(self, checkpoint: bytes) -> None:
        """Take a checkpoint's state. E0105 where it is another model's, or damaged: then the first state is there."""
        state, at = dict[str, Array](), HEAD_BYTES
        first = self._open.state
        for value in stored(self._train):
            part = checkpoint[at : at + value.size_bytes].ljust(value.size_bytes, b"\0")
            state[value.name] = np.frombuffer(part, first[value.name].dtype).reshape(first[value.name].shape).copy()
            at += value.size_bytes
        if len(checkpoint) < at + CRC_BYTES or checkpoint_of(self._train, state) != checkpoint[: at + CRC_BYTES]:
            self.reset()
            raise CompileError("E0105", "checkpoint", "of another model, or damaged", "see docs/twin.md")
        self._take(state)
        self._stream = self._empty_stream()

    def state(self) -> dict[str, Array]:
        """Return copies of every tensor of the state, flat, by the graph's names."""
        return {slot.name: self.tensor(slot.name).copy() for slot in self.interface.state}

    def tensor(self, name: str) -> Array:
        """Return a tensor of the state, flat: the model reads what is written into it, until the next step."""
        held = self._open.state
        if not (held[name].flags.c_contiguous and held[name].flags.writeable):
            held[name] = np.array(held[name], order="C")
        return held[name].reshape(-1)

    def close(self) -> None:
        """Give the memories back."""
        self._trainer = None

    @property
    def _open(self) -> Trainer:
        if self._trainer is None:
            raise CompileError("E0101", "twin", "it is closed", "make another: compiled.twin()")
        return self._trainer

    def _empty_stream(self) -> Stream | None:
        return None if self._listening is None else Stream(self._listening, self._open.run_nodes)

    def _take(self, state: dict[str, Array]) -> None:
        """Take exponents; those that no step has found yet stay those of the build, or the next one finds them."""
        trainer, unknown = self._open, False
        for name, kind in contents(self._train).items():
            if kind == "EXPONENT" and int(state[name].ravel()[1]) == -1:
                unknown = True
                state[name] = np.array(self._train.graph.constants[name])
        trainer.state, trainer.sums = state, trainer.zero_sums()
        trainer.exponents_known = self._train.exponents_known or not unknown

    def _given(self, x: Array) -> Array:
        """Return samples of the slot as the graph reads them."""
        return (x.astype(np.int16) - BYTE_ZERO).astype(np.int8) if self.interface.input_dtype == "uint8" else x

    def _give(self, x: Array, kind: int) -> None:
        raise _no_compiler("features")

    def function(self, name: str, result: type[Any] = int) -> Callable[..., Any]:
        """Raise E0114: there is no C."""
        raise _no_compiler(name)

    def _delta_call(self, name: str, result: type[Any] = int) -> Callable[..., Any]:
        raise _no_compiler("delta")


def _no_compiler(what: str) -> CompileError:
    return CompileError("E0114", what, "no C compiler on this machine", "install gcc")
