"""A device on the desk: the generated C, called with arrays in the model file's layout."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from tinytrain_compile.data.samples import (
    as_array,
    in_input_slot,
    in_label_type,
    in_slots,
    inputs_of,
    is_written,
    labels_of,
    samples_of,
)
from tinytrain_compile.emit.checkpoint import checkpoint_fault
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import read_file
from tinytrain_compile.ir.imported import FileTensor, ImportedModel
from tinytrain_compile.ir.stages import TrainGraph, time_axis
from tinytrain_compile.ir.types import Array
from tinytrain_compile.twin.instance import Instance
from tinytrain_compile.twin.parameters import FileParameters
from tinytrain_compile.twin.scores import scores


class Twin:
    """One instance of a compiled model in this process, to the byte what the device computes. A context manager.

    Arrays have the ONNX file's layout with samples in front: x (N, *one input's shape), y (N, ...) labels.
    Everything raises CompileError with the ids of `tinytrain-compile --explain`. Of a build with `inference_only=True`
    nothing trains or saves (E0113).
    """

    def __init__(self, instance: Instance, model: ImportedModel, train: TrainGraph) -> None:
        self.instance = instance
        self._model, self._train = model, train.training_step  # it also has labels
        self._parameters = FileParameters(model, train)

    @property
    def batch(self) -> int:
        """Samples of an update."""
        return self._train.batch

    def train_step(self, x: Array | Mapping[str, Array], y: Array, *, lr: float | None = None) -> float:
        """Update once on N samples, a batch of the compilation; return its loss before the update.

        lr: the learning rate from now on. Raises E0105 for other shapes or labels, E0603 for a loss that is NaN.
        """
        x, y = self.as_slots(x, y)
        self._check_batch(len(x))
        if lr is not None:
            self.instance.set_rate(_rate(lr))
        return self._of_batch(self.instance.train(x, y), y)

    def _check_batch(self, samples: int) -> None:
        if samples != self.batch:
            what = f"{samples} samples, an update takes {self.batch} (batch=)"
            raise CompileError("E0105", "x", what, f"give {self.batch}, or compile with batch={samples}")

    def _of_batch(self, losses: Array, y: Array) -> float:
        together = self.instance.interface.micro_batch
        calls = [y[first : first + together] for first in range(0, len(y), together)]
        return self._train.terms.of_batch([float(loss) for loss in losses], calls)

    def features(self, x: Array | Mapping[str, Array]) -> Array:
        """Compute what the frozen part makes of N samples: (N, bytes) in uint8, as the device keeps them.

        Raises E0113 of a build without `features="on"`, or whose first layer is trained.
        """
        return self.instance.features(self.as_inputs(x))

    def predict_features(self, features: Array) -> Array:
        """Compute the model's output of N samples by their features: that of `predict`."""
        return self.as_output(self.instance.infer_features(features))

    def train_features(self, features: Array, y: Array, *, lr: float | None = None) -> float:
        """Update once on N samples by their features: the bytes of `train_step`, for the work of the trained part."""
        y = labels_of("y", as_array("y", "y", y), len(features), self._model, self._train)
        y = in_label_type(self.instance.interface, y)
        self._check_batch(len(features))
        if lr is not None:
            self.instance.set_rate(_rate(lr))
        return self._of_batch(self.instance.train_features(features, y), y)

    def predict(self, x: Array | Mapping[str, Array]) -> Array:
        """Compute the model's output of each sample: (N, *one output's shape) in float32."""
        return self.as_output(self.instance.infer(self.as_inputs(x)))

    def hear(self, rows: Array) -> tuple[Array, Array]:
        """Take the next rows of a stream: the output of each call of m_hear, and whether it is due.

        rows: an input without its axis of samples, with rows of one call or several in place of the window's. Returns
        (calls, *one output's shape) in float32, and (calls,) in bool. Raises E0113 of a build without `listen="on"`,
        E0105 for another number of rows.
        """
        out, due = self.instance.hear_due(self._as_rows(rows))
        return self.as_output(out), due

    def rehear(self, rows: Array) -> None:
        """Fill the rings again from rows that were kept, by the present weights (m_rehear). rows, errors: as `hear`."""
        self.instance.rehear(self._as_rows(rows))

    def hear_settling(self) -> int:
        """Return the calls of `hear` until its output equals `predict` of the window; 0: that of the last call does."""
        return self.instance.hear_settling()

    def hear_features(self) -> Array:
        """Copy the features of the window that was heard last: (bytes,) in uint8, as `train_features` takes them.

        Raises E0113 of a build without `features="on"`.
        """
        return self.instance.heard_features()

    def evaluate(self, x: Array | Mapping[str, Array], y: Array) -> dict[str, float]:
        """Compute `loss`, and `accuracy` if labels are classes or yes and no, of N samples."""
        x, y = self.as_slots(x, y)
        if is_written(self._model):  # only the C knows that loss
            return {"loss": float(self.instance.losses(x, y).mean())}
        return scores(self._model, self._train, self.instance.infer(x), y)

    def state_dict(self, *, raw: bool = False) -> dict[str, Array]:
        """Return the weights that training changes, by the names and in the layouts of the file, in float32.

        raw: instead all of the state as it lies in the device's memory, by the names and in the layouts of the training
        graph. Raises E0112 for what the file has no number for.
        """
        if not raw:
            return self._parameters.of_state(self.instance.state())
        shapes = {value.name: value.shape for value in self._train.graph.state}
        return {name: array.reshape(shapes[name]) for name, array in self.instance.state().items()}

    def load_state_dict(self, weights: Mapping[str, Array]) -> None:
        """Take weights as `state_dict` gives them, all of them; optimizer and learning rate stay as they are.

        Raises E0105 for other names or shapes, and for numbers that this build cannot hold: then nothing has changed.
        """
        slots = self.instance.interface.state
        self._parameters.put(weights, {slot.name: self.instance.tensor(slot.name) for slot in slots})
        if self.instance.interface.hear_rows:  # the rings have rows of other weights, as before m_load
            self.instance.load(self.instance.save())

    def save(self, path: Path | str) -> None:
        """Write the device's checkpoint. E0104 if the file cannot be written."""
        try:
            Path(path).write_bytes(self.instance.save())
        except (OSError, ValueError) as problem:
            what = f"cannot be written ({getattr(problem, 'strerror', None) or problem})"
            raise CompileError("E0104", str(path), what, "choose another path") from problem

    def load(self, path: Path | str) -> None:
        """Take a checkpoint of this model, of a device or a twin. E0105 for any other: then all is as in the file.

        If the file cannot be read, that is E0105 too, and the weights stay as they are.
        """
        try:
            checkpoint = read_file(Path(path))
        except OSError as problem:
            what = f"cannot be read ({problem.strerror or problem})"
            raise CompileError("E0105", str(path), what, "give the bytes that m_save wrote") from problem
        try:
            self.instance.load(checkpoint)
        except CompileError as problem:
            if problem.code != "E0105":
                raise
            raise CompileError("E0105", str(path), *checkpoint_fault(checkpoint, self._train)) from problem

    def delta(self) -> bytes:
        """Return what training has changed since the file, as the device's message (docs/fleet.md).

        Raises E0113 of a build without runtime="delta", E0603 where a weight is not finite.
        """
        return self.instance.delta()

    def apply_delta(self, message: bytes) -> None:
        """Set the weights of the file plus a delta; optimizer, learning rate and noise stay.

        Raises E0105 for a delta of another model, or a damaged one: then nothing has changed.
        """
        self.instance.apply_delta(message)

    def seed_device(self, device: int) -> None:
        """Set rounding noise of its own for a device of a fleet, before its first step. Needs runtime="delta"."""
        self.instance.seed_device(device)

    def reset(self) -> None:
        """Begin anew with the weights of the file."""
        self.instance.reset()

    def close(self) -> None:
        """Give its memory back; nothing else may be called after it."""
        self.instance.close()

    def __enter__(self) -> Twin:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ---- arrays of the file, and of the slots -----------------------------------------------------------------------

    def as_inputs(self, x: Array | Mapping[str, Array]) -> Array:
        """Return inputs as the slot holds them."""
        found = inputs_of("x", _arrays("x", x), self._model, self._train)
        return in_input_slot(self.instance.interface, found)

    def _as_rows(self, rows: Array) -> Array:
        """Return rows of a stream as m_hear takes them, (rows, elements): windows of them are inputs."""
        calls, window = self.instance.call_rows(), self._model.input_shape[1:]
        shape = self._train.graph.inputs[0].shape
        axis, length = self._model.input_perm[time_axis(shape)] - 1, shape[time_axis(shape)]
        rows = as_array("rows", "rows", rows)
        if rows.ndim != len(window) or not rows.size or rows.shape[axis] % calls:
            shown = (*window[:axis], calls, *window[axis + 1 :])
            what = f"{rows.shape}, a call takes {shown}"
            raise CompileError("E0105", "rows", what, "give the rows of one call, or of several one after the other")
        count = rows.shape[axis]
        missing = [(0, -count % length if at == axis else 0) for at in range(rows.ndim)]
        whole = np.pad(rows, missing)
        windows = np.stack(np.split(whole, whole.shape[axis] // length, axis=axis))
        found = self.as_inputs(windows)
        return found.reshape(len(windows) * length, -1)[:count]

    def as_slots(self, x: Array | Mapping[str, Array], y: Array) -> tuple[Array, Array]:
        """Return samples as the calls take them."""
        found = samples_of("x, y", _arrays("x, y", x), as_array("x, y", "y", y), self._model, self._train)
        held = in_slots(self.instance.interface, found)
        return held.x, held.y

    def as_output(self, raw: Array) -> Array:
        """Return outputs in the file's layout."""
        value = FileTensor("", self._model.output_shape, self._model.output_perm)
        shape = self._train.of_one(self._train.graph.outputs[0])
        return np.concatenate([value.to_onnx(each.reshape(shape)) for each in raw]) if len(raw) else raw


def _arrays(where: str, x: Array | Mapping[str, Array]) -> Array | dict[str, Array]:
    """Return samples as arrays, those of several inputs by their names; CompileError E0105 if they are not arrays."""
    if isinstance(x, Mapping):
        return {name: as_array(where, name, array) for name, array in x.items()}
    return as_array(where, "x", x)


def _rate(value: Any) -> float:
    """Return a learning rate; E0101 for what is not a finite number of 0 or more."""
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if not (math.isfinite(rate) and rate >= 0):
        what = f"{str(value)[:40]!r} is not a learning rate"
        raise CompileError("E0101", "lr", what, "give a finite number of 0 or more, such as lr=0.01")
    return rate
