"""A .tflite file run by LiteRT itself (PyPI ai-edge-litert), where it is installed: its reference kernels."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain_compile.frontend.evaluator.model import EvaluatorLacksError
from tinytrain_compile.frontend.file.foreign import TFLITE
from tinytrain_compile.ir.types import Array


def is_tflite(path: Path) -> bool:
    """Tell whether a file that can be read is a .tflite file."""
    with path.open("rb") as file:
        return file.read(8)[4:] == TFLITE


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of LiteRT's in the axes of the file: real = (array - zero) scale; scale 0: array is real."""

    array: Array
    scale: float
    zero: int

    @property
    def real(self) -> Array:
        """Its real numbers, float32."""
        if not self.scale:
            return self.array
        return ((self.array.astype(np.float64) - self.zero) * self.scale).astype(np.float32)


class LiteRtFile:
    """Runs the samples of a file. output: the name of the one that counts."""

    def __init__(self, path: Path, output: str) -> None:
        """Raise EvaluatorLacksError without the package, or if LiteRT does not take the file."""
        try:
            from ai_edge_litert import interpreter as litert
        except ImportError as missing:
            raise EvaluatorLacksError("", "LiteRT is not installed (pip install ai-edge-litert)") from missing
        try:
            self._runner: Any = litert.Interpreter(
                model_content=path.read_bytes(),
                experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF,
                experimental_preserve_all_tensors=True,
                num_threads=1,
            )
            self._runner.allocate_tensors()
        except (RuntimeError, ValueError) as problem:
            reason = " ".join(str(problem).split())[:160]
            raise EvaluatorLacksError("", f"LiteRT does not take the file ({reason})") from problem
        self._inputs: list[Any] = self._runner.get_input_details()
        outputs: list[Any] = self._runner.get_output_details()
        self._output = next((one for one in outputs if one["name"] == output), outputs[0])

    def output(self, given: Mapping[str, Array]) -> Array:
        """Return the output of a sample, real numbers. given: real numbers by input, in the file's order and axes.

        A window is heard step by step: its last step gives the output, and nothing before the window counts.
        """
        for _ in self._run(given):
            pass
        return self._tensor(self._output).real

    def tensors(self, given: Mapping[str, Array]) -> list[dict[str, Stored]]:
        """Return all tensors of eight bits or float32 by name, in each step of a sample (`output`)."""
        details = [one for one in self._runner.get_tensor_details() if _is_compared(one)]
        return [{one["name"]: held for one in details if (held := self._held(one))} for _ in self._run(given)]

    def last(self) -> Stored:
        """Return the output of the last step that was run."""
        return self._tensor(self._output)

    def _run(self, given: Mapping[str, Array]) -> Iterator[None]:
        stored = [_stored(array, one) for array, one in zip(given.values(), self._inputs, strict=True)]
        parts = [_steps(array, tuple(one["shape"])) for array, one in zip(stored, self._inputs, strict=True)]
        for step in zip(*parts, strict=True):
            for one, array in zip(self._inputs, step, strict=True):
                self._runner.set_tensor(one["index"], array)
            self._runner.invoke()
            yield

    def _tensor(self, detail: Mapping[str, Any]) -> Stored:
        scale, zero = detail["quantization"]
        return Stored(self._runner.get_tensor(detail["index"]), float(np.float32(scale)), int(zero))

    def _held(self, detail: Mapping[str, Any]) -> Stored | None:
        try:
            return self._tensor(detail)
        except ValueError:  # nothing was allocated for it
            return None


def _is_compared(detail: Mapping[str, Any]) -> bool:
    kind = np.dtype(detail["dtype"]).name
    return kind == "float32" or (kind in ("int8", "uint8") and bool(detail["quantization"][0]))


def _stored(real: Array, detail: Mapping[str, Any]) -> Array:
    """Return real numbers as an input of the file stores them."""
    kind, (scale, zero) = np.dtype(detail["dtype"]), detail["quantization"]
    if not scale:
        return real.astype(kind)
    limits = np.iinfo(kind)
    return np.clip(np.rint(real / np.float32(scale)) + zero, limits.min, limits.max).astype(kind)


def _steps(array: Array, shape: tuple[int, ...]) -> list[Array]:
    """Cut a window into the steps of a stream, the last rows last; a sample of the file's own shape is one step."""
    if array.shape == shape:
        return [array]
    axis = next(k for k, (one, other) in enumerate(zip(array.shape, shape, strict=True)) if one != other)
    before = -array.shape[axis] % shape[axis]
    first = np.repeat(np.take(array, [0], axis), before, axis)
    whole = np.concatenate([first, array], axis)
    return np.split(whole, whole.shape[axis] // shape[axis], axis)
