"""Golden samples of a guard, and the limit that a trained model must keep on them."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.ir.stages import Samples


@dataclass(frozen=True, eq=False)
class Golden:
    """Samples, what the model of the file makes of them, and the limit.

    samples: in the types of the C calls, samples first. right, least: classes that the file's model has right, and
    those that a trained model must have right; None if labels are values. error, most: sums of squared errors of all
    outputs, of the file's model and the largest allowed; None if labels are classes.
    """

    samples: Samples
    right: int | None = None
    least: int | None = None
    error: float | None = None
    most: float | None = None
