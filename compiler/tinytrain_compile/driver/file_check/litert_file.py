"""A .tflite file as LiteRT runs it, in a process of its own (frontend/evaluator/litert.py)."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError
from tinytrain_compile.frontend.evaluator import litert
from tinytrain_compile.ir.types import Array
from tinytrain_compile.verify.tools import run_program, work_folder

LONGEST_S = 120
"""Seconds after which LiteRT is ended. hey_jarvis takes 1 s for two windows."""
MOST_REASON = 160
"""Characters of a reason that an error quotes."""


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


@dataclass(frozen=True, eq=False)
class Heard:
    """What LiteRT held of a sample: its output, and all tensors by name in each step (if they were asked for)."""

    output: Stored
    steps: Sequence[Mapping[str, Stored]]


def run_litert(path: Path, output: str, samples: Sequence[Mapping[str, Array]], whole: bool = False) -> list[Heard]:
    """Run samples. Raises EvaluatorLacksError without the package, or if LiteRT does not run the file.

    output: the one that counts. samples: real numbers by input, in the file's order and axes. whole: return all
    tensors of eight bits or float32, too.
    """
    if find_spec("ai_edge_litert") is None:
        raise EvaluatorLacksError("", "LiteRT is not installed (pip install ai-edge-litert)")
    given: dict[str, Any] = {
        f"{s}.{i}": array for s, sample in enumerate(samples) for i, array in enumerate(sample.values())
    }
    with work_folder() as folder:
        model = np.frombuffer(path.read_bytes(), np.uint8)
        np.savez(folder / "request.npz", model=model, output=np.asarray(output), whole=np.asarray(whole), **given)
        command = [sys.executable, "-P", str(Path(litert.__file__)), "request.npz", "answer.npz"]
        try:
            done = run_program(command, folder, LONGEST_S, "LiteRT")
        except CompileError as problem:
            raise EvaluatorLacksError("", problem.what) from problem
        if done.exit_code != 0:
            lines = done.output.strip().splitlines()
            ended = f"signal {-done.exit_code}" if done.exit_code < 0 else lines[-1][:MOST_REASON] if lines else ""
            raise EvaluatorLacksError("", f"LiteRT does not run the file ({ended})")
        with np.load(folder / "answer.npz") as found:
            return [_heard(dict(found), sample) for sample in range(len(samples))]


def _heard(found: Mapping[str, Array], sample: int) -> Heard:
    names, scales, zeros = (found[name].tolist() for name in ("names", "scales", "zeros"))
    tensors = {number: found[f"{sample}.{number}"] for number in range(len(names)) if f"{sample}.{number}" in found}
    steps = [
        {names[number]: Stored(array[step], scales[number], zeros[number]) for number, array in tensors.items()}
        for step in range(len(tensors[0]))
    ]
    return Heard(Stored(tensors[0][-1], scales[0], zeros[0]), steps)
