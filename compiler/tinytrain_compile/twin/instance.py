"""One instance of the generated C in this process: its memories, and its calls on arrays in the slots' form."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.records import parts
from tinytrain_compile.ir.stages import Interface, time_axis
from tinytrain_compile.ir.types import Array

OK, ERR_NAN = 0, 5
"""Values of m_status (train.h.j2)."""
_INFER, _TRAIN = 1, 2
"""Arguments of m_begin in a build that takes its input by rows (input_lines.j2)."""
_STATUS = {
    1: "a label or a number of rows that the model does not know, or a rate that is not a finite number of 0 or more",
    4: "nothing was accumulated",
    5: "the loss, or a number of the input, is NaN or infinite; the step changed nothing",
    6: "the checkpoint ends too early",
    7: "of another model, or damaged",
}
_Callback = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)


class Instance:
    """The calls of a library from `build_library`. Instances are independent of each other.

    Arrays have the form of `verification_input`: the graph's own layout, the slot's type, samples first.
    """

    def __init__(self, library: Path, interface: Interface) -> None:
        self.interface = interface
        self._library = ctypes.CDLL(str(library))
        self._slots = {slot.name: slot for slot in interface.state}
        sizes = (interface.arena_bytes, *interface.further_bytes)
        self._memories = [_Memory(size, interface.alignment_bytes) for size in sizes]
        self.handle = ctypes.c_void_p()
        self.reset()

    def reset(self) -> None:
        """Reset to the state of the model file."""
        count, sizes = len(self._memories), [memory.size for memory in self._memories]
        places = (ctypes.c_void_p * count)(*(memory.address for memory in self._memories))
        self._check("init", self.function("init_memories")(ctypes.byref(self.handle), places, _sizes(sizes)))

    def set_rate(self, rate: float) -> None:
        """Set the learning rate from the next update on."""
        self._needs_training("learning rate")
        self._check("learning rate", self.function("set_lr")(self.handle, ctypes.c_float(rate)), "E0101")

    def train(self, x: Array, y: Array) -> Array:
        """Update once on these samples: the loss of each call. As many as a batch has, or fewer if it accumulates.

        Raises CompileError E0603 if a loss is NaN or infinite: the batch has changed nothing. (With --accumulate
        inplace, though, each sample is a separate update, and those before it stay.)
        """
        self._needs_training("step")
        face, together = self.interface, self.interface.micro_batch
        step = "accumulate" if face.accumulates else "train" if face.input_rows else "train_step"
        step += "_end" if face.input_rows else ""
        starts = range(0, len(x), together)
        return self._updated(self._trained(step, x[at : at + together], y[at : at + together]) for at in starts)

    def features(self, x: Array) -> Array:
        """Compute the frozen part's features of each sample: (samples, bytes). E0113 for a build without features."""
        found = np.empty((len(x), self._feature_bytes()), np.uint8)
        if self.interface.window is not None:
            for sample, result in zip(x, found, strict=True):
                result[:] = self._window(sample, self._heard_of)
            return found
        for sample, result in zip(np.ascontiguousarray(x), found, strict=True):
            self._give(sample, _TRAIN)
            self._check("features", self.function("features")(self.handle, ctypes.c_void_p(result.ctypes.data)))
        return found

    def infer_features(self, features: Array) -> Array:
        """Compute the output of samples by their features: that of `infer`. Not on features of a stream's window."""
        self._feature_bytes()
        features = np.ascontiguousarray(features)
        out = np.empty((len(features), self.interface.output_elements), np.float32)
        for given, result in zip(features, out, strict=True):
            pointers = ctypes.c_void_p(given.ctypes.data), ctypes.c_void_p(result.ctypes.data)
            self._check("infer", self.function("infer_features")(self.handle, *pointers))
        return out

    def train_features(self, features: Array, y: Array) -> Array:
        """Train on samples by their features, with the same resulting bytes as `train`."""
        self._feature_bytes()
        step = "accumulate_features" if self.interface.accumulates else "train_features"
        return self._updated(self._trained_behind(step, *pair) for pair in zip(features, y, strict=True))

    def _heard_of(self, rows: Array) -> Array:
        self.rehear(rows)
        return self.heard_features()

    def _updated(self, calls: Iterator[float]) -> Array:
        """Make the calls of an update; return the loss of each."""
        face, losses = self.interface, list[float]()
        try:
            losses.extend(calls)
        except CompileError:
            if face.accumulates:
                self.load(self.save())  # this clears the sums: nothing of the batch stays
            raise
        if face.accumulates:
            self.apply()
        return np.asarray(losses, np.float32)

    def apply(self) -> None:
        """Update by what was accumulated (m_apply)."""
        self._check("update", self.function("apply")(self.handle))

    def begin_step(self, x: Array) -> None:
        """Begin a step in slices on the samples of a call (m_step_begin). Only for a build with `slices`."""
        self._give(np.ascontiguousarray(x), _TRAIN)
        self._check("step", self.function("step_begin")(self.handle))

    def step_slice(self, y: Array, budget: int) -> bool:
        """Compute parts of the open step for these cycles, at least one; return whether it has ended (m_step_slice)."""
        y, loss, done = np.ascontiguousarray(y), ctypes.c_float(), ctypes.c_int()
        given = (ctypes.c_void_p(y.ctypes.data), ctypes.c_uint32(budget), ctypes.byref(loss), ctypes.byref(done))
        self._check("step", self.function("step_slice")(self.handle, *given))
        return bool(done.value)

    def losses(self, x: Array, y: Array) -> Array:
        """Compute the loss of each call on these samples, by steps at rate 0, then restore the state."""
        state, together = self.save(), self.interface.micro_batch
        self.set_rate(0.0)
        try:
            whole = len(x) // together * together
            return np.concatenate(
                [self.train(x[i : i + together], y[i : i + together]) for i in range(0, whole, together)]
            )
        finally:
            self.load(state)

    def infer(self, x: Array) -> Array:
        """Compute the output of each sample: (samples, output elements) in float32."""
        face = self.interface
        if face.window is not None:
            return np.stack([self._window(sample, lambda last: self.hear(last)[0]) for sample in x])
        out = np.empty((len(x), face.output_elements), np.float32)
        call = "infer_end" if face.input_rows else "infer"
        for index, result in enumerate(out):
            self._give(np.ascontiguousarray(x[index : index + 1]), _INFER)
            self._check("infer", self.function(call)(self.handle, ctypes.c_void_p(result.ctypes.data)))
        return out

    def hear(self, rows: Array) -> Array:
        """Take rows of a stream: the output of each call, in float32 (m_hear). Fewer than a call takes are left out."""
        return self.hear_due(rows)[0]

    def hear_due(self, rows: Array) -> tuple[Array, Array]:
        """Return what `hear` does, and whether each output is due."""
        count, calls = self.call_rows(), self._calls_of(rows)
        out, due = np.zeros((len(calls), self.interface.output_elements), np.float32), np.zeros(len(calls), bool)
        for number, frames in enumerate(calls):
            is_due = ctypes.c_int()
            pointers = (ctypes.c_void_p(frames.ctypes.data), ctypes.c_size_t(count))
            found = (ctypes.c_void_p(out[number].ctypes.data), ctypes.byref(is_due))
            self._check("hear", self.function("hear")(self.handle, *pointers, *found))
            due[number] = is_due.value
        return out, due

    def _calls_of(self, rows: Array) -> Array:
        """Return rows of a stream as (calls, elements)."""
        count = self.call_rows()
        return np.ascontiguousarray(rows[: len(rows) // count * count]).reshape(len(rows) // count, -1)

    def rehear(self, rows: Array) -> None:
        """Fill the rings again from these rows (m_rehear)."""
        self.call_rows()
        rows = np.ascontiguousarray(rows)
        given = ctypes.c_void_p(rows.ctypes.data), ctypes.c_size_t(len(rows))
        self._check("hear", self.function("rehear")(self.handle, *given))

    def hear_settling(self) -> int:
        """Return the calls until a stream equals its window (m_hear_settling)."""
        self.call_rows()
        return int(self.function("hear_settling", ctypes.c_uint32)(self.handle))

    def call_rows(self) -> int:
        """Return the rows that m_hear takes; E0113 for a build without it."""
        if not self.interface.hear_rows:
            raise CompileError("E0113", "hear", "this build has none", "compile with listen='on'")
        return self.interface.hear_rows

    def _window(self, x: Array, take: Callable[[Array], Array]) -> Array:
        """Return what `take` makes of the last rows of a window, before which the others are heard.

        The stream goes on afterwards as if nothing had happened.
        """
        kept = [memory.bytes.copy() for memory in self._memories]
        rows = x.reshape(x.shape[time_axis(x.shape)], -1)
        rows = np.concatenate([np.zeros_like(rows[: -len(rows) % self.interface.hear_rows]), rows])
        if len(rows) > self.interface.hear_rows:
            self.rehear(rows[: -self.interface.hear_rows])
        found = take(rows[-self.interface.hear_rows :])
        for memory, content in zip(self._memories, kept, strict=True):
            memory.bytes[:] = content
        return found

    def heard_features(self) -> Array:
        """Copy the features of the window that was heard last, in bytes (m_hear_features)."""
        found = np.empty(self._feature_bytes(), np.uint8)
        self._check("features", self.function("hear_features")(self.handle, ctypes.c_void_p(found.ctypes.data)))
        return found

    def save(self) -> bytes:
        """Save the device's checkpoint."""
        self._needs_training("save")
        kept = bytearray()

        def write(_ctx: int | None, data: int, size: int) -> int:
            kept.extend(ctypes.string_at(data, size))
            return 0

        self._check("save", self.function("save")(self.handle, _Callback(write), None))
        return bytes(kept)

    def load(self, checkpoint: bytes) -> None:
        """Take a checkpoint's state. E0105 if it is another model's, or damaged: then the first state is set."""
        taken = 0

        def read(_ctx: int | None, data: int, size: int) -> int:
            nonlocal taken
            part = checkpoint[taken : taken + size]
            ctypes.memmove(data, part, len(part))
            taken += len(part)
            return int(len(part) < size)

        self._check("checkpoint", self.function("load")(self.handle, _Callback(read), None))

    def state(self) -> dict[str, Array]:
        """Copy every tensor of the state, flat, by the graph's names."""
        return {slot.name: self.tensor(slot.name).copy() for slot in self.interface.state}

    def tensor(self, name: str) -> Array:
        """Return a tensor of the state as a flat view of memory: the model reads what is written to it."""
        slot = self._slots[name]
        held = self._memories[slot.memory].bytes[slot.offset : slot.offset + slot.size_bytes]
        return held.view(np.dtype(slot.dtype))

    def delta(self) -> bytes:
        """Return the changes by training, as the device's message. E0113 for a build without `--runtime delta`."""
        size = self._delta_call("size", ctypes.c_size_t)(self.handle)
        message = ctypes.create_string_buffer(size)
        self._check("delta", self._delta_call("get")(self.handle, message))
        return message.raw

    def apply_delta(self, message: bytes) -> None:
        """Set the values in flash plus a delta. E0105 if it is another model's, or damaged: nothing changes then."""
        size = self._delta_call("size", ctypes.c_size_t)(self.handle)
        if len(message) != size:
            what = f"{len(message)} bytes, and a delta of this model has {size}"
            raise CompileError("E0105", "delta", what, "give one of a build of the same model")
        self._check("delta", self._delta_call("apply")(self.handle, ctypes.c_char_p(message), ctypes.c_size_t(size)))

    def seed_device(self, device: int) -> None:
        """Set the device's own rounding noise."""
        self._check("device", self._delta_call("seed")(self.handle, ctypes.c_uint32(device)))

    def close(self) -> None:
        """Free the memories."""
        self._memories.clear()
        self.handle = ctypes.c_void_p()

    # ---- calls ------------------------------------------------------------------------------------------------------

    def _trained(self, call: str, x: Array, y: Array) -> float:
        y, loss = np.ascontiguousarray(y), ctypes.c_float()
        self._give(np.ascontiguousarray(x), _TRAIN)
        count = (ctypes.c_uint32(len(x)),) if self.interface.counted else ()
        given = (self.handle, ctypes.c_void_p(y.ctypes.data), *count, ctypes.byref(loss))
        self._check("step", self.function(call)(*given))
        return loss.value

    def _trained_behind(self, call: str, features: Array, y: Array) -> float:
        features, y, loss = np.ascontiguousarray(features), np.ascontiguousarray(y), ctypes.c_float()
        if self.interface.window is not None:
            self._fill("input", features)
            step = self.function("accumulate" if self.interface.accumulates else "train_step")
            self._check("step", step(self.handle, ctypes.c_void_p(y.ctypes.data), ctypes.byref(loss)))
            return loss.value
        pointers = (ctypes.c_void_p(features.ctypes.data), ctypes.c_void_p(y.ctypes.data), ctypes.byref(loss))
        self._check("step", self.function(call)(self.handle, *pointers))
        return loss.value

    def _feature_bytes(self) -> int:
        face = self.interface
        if face.window is not None and face.trains:
            return face.input_elements * np.dtype(face.input_dtype).itemsize
        if not face.feature_bytes:
            what = "this build has none"
            raise CompileError("E0113", "features", what, "compile with features='on', and freeze the first layer")
        return face.feature_bytes

    def _needs_training(self, what: str) -> None:
        if not self.interface.trains:
            raise CompileError("E0113", what, "this build does not train", "compile without inference_only")

    def _give(self, x: Array, kind: int) -> None:
        """Write the inputs of a call to their places."""
        if not self._memories:
            raise CompileError("E0101", "twin", "it is closed", "make another: compiled.twin()")
        rows = self.interface.input_rows
        if rows:
            self._check("begin", self.function("begin")(self.handle, kind))
            status = self.function("push_rows")(self.handle, ctypes.c_void_p(x.ctypes.data), ctypes.c_size_t(rows))
            self._check("rows", status)
            return
        if self.interface.window is not None:
            x = self.features(x)
        calls = ("input", *(f"input_{slot.number}" for slot in self.interface.more_inputs))
        for call, part in zip(calls, parts(x), strict=True):
            self._fill(call, np.ascontiguousarray(part))

    def _fill(self, call: str, data: Array) -> None:
        ctypes.memmove(self.function(call, ctypes.c_void_p)(self.handle), data.ctypes.data, data.nbytes)

    def _delta_call(self, name: str, result: type[Any] = ctypes.c_int) -> Callable[..., Any]:
        if not hasattr(self._library, f"{self.interface.prefix}_delta_{name}"):
            raise CompileError("E0113", "delta", "this build has none", "compile with runtime='delta'")
        return self.function(f"delta_{name}", result)

    def function(self, name: str, result: type[Any] = ctypes.c_int) -> Callable[..., Any]:
        """Return a function of the project by its name without the prefix; most take `handle` first."""
        function = getattr(self._library, f"{self.interface.prefix}_{name}")
        function.restype = result
        return function

    def _check(self, what: str, status: int, code: str = "E0105") -> None:
        if status == OK:
            return
        code = "E0603" if status == ERR_NAN else code
        raise CompileError(code, what, _STATUS.get(status, f"status {status}"), "see docs/twin.md")


class _Memory:
    """Memory of `size` bytes at an aligned address."""

    def __init__(self, size: int, alignment: int) -> None:
        self.size = size
        raw = np.zeros(size + alignment, np.uint8)
        skipped = -raw.ctypes.data % alignment
        self.bytes = raw[skipped : skipped + size]
        self.address: int = self.bytes.ctypes.data


def _sizes(sizes: list[int]) -> ctypes.Array[ctypes.c_size_t]:
    return (ctypes.c_size_t * len(sizes))(*sizes)
