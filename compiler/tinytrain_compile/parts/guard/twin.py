"""Decide on the desk as m_guard.c does, on any instance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from tinytrain_compile.ir.golden import Golden
from tinytrain_compile.ir.types import Array


class Guarded(Protocol):
    """What a guard asks of a model: `Instance` of tinytrain_compile.twin."""

    def infer(self, x: Array) -> Array:
        """Compute outputs."""
        ...

    def save(self) -> bytes:
        """Return a checkpoint."""
        ...

    def load(self, checkpoint: bytes) -> None:
        """Restore a checkpoint."""
        ...


@dataclass
class Guard:
    """`m_guard_check`: accepts a model, or restores the last accepted state.

    golden: of the build (`CompileOptions.golden`). kept: the checkpoint that was accepted last; None before the first.
    """

    golden: Golden
    kept: bytes | None = None

    def keeps_limit(self, outputs: Array) -> bool:
        """Judge outputs for the golden samples, (samples, output elements) in float32, as the C does."""
        found = self._found(outputs)
        if self.golden.least is not None:
            return bool(found >= self.golden.least)
        assert self.golden.most is not None
        return bool(found <= np.float32(self.golden.most))

    def lost(self, outputs: Array) -> float:
        """Return the share of the golden samples that are right no more, or by which the error has grown.

        It is what --guard-drop limits; negative for a model better than the file's, NaN for an error that is.
        """
        found = float(self._found(outputs))
        if self.golden.right is not None:
            return (self.golden.right - found) / len(outputs)
        assert self.golden.error is not None
        return found / self.golden.error - 1 if self.golden.error else (0.0 if found == 0 else float("inf"))

    def _found(self, outputs: Array) -> int | np.float32:
        """Count right classes, or sum squared errors."""
        y = self.golden.samples.y.reshape(len(outputs), -1)
        if self.golden.least is not None:
            own = np.take_along_axis(outputs, y[:, :1].astype(int), axis=1)[:, 0]
            right = np.isfinite(own) & (outputs.argmax(axis=1) == y[:, 0]) & ~np.isnan(outputs).any(axis=1)
            return int(right.sum())
        total = np.float32(0)
        with np.errstate(over="ignore", invalid="ignore"):
            for sample in outputs - y:
                error = np.float32(0)
                for off in sample:
                    error = error + off * off
                total = total + error
        return total

    def check(self, instance: Guarded) -> bool:
        """Return whether the model was accepted; the instance then holds it, or the last accepted state."""
        accepted = self.keeps_limit(instance.infer(self.golden.samples.x))
        if accepted:
            self.kept = instance.save()
        elif self.kept is not None:
            instance.load(self.kept)
        return accepted
