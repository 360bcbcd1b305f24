"""Declarations of operators about the operands that they overwrite, which other stages read."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tinytrain_compile.ir.stages import Velocity
from tinytrain_compile.ir.types import Attrs

Kind = Literal["PARAMETER", "SUM", "ANY", "FINITE", "NOT_NEGATIVE", "POWERS", "SYMMETRIC", "EXPONENT", "SHIFTS"]
"""Kinds of contents of an operand. PARAMETER: a weight or bias; SUM: a running sum, never in a checkpoint. All others
are state that stays within a range, which m_load checks (emit/checkpoint.py)."""


@dataclass(frozen=True, eq=False)
class IntegerStep:
    """Integer form of the step of an operator (quantize/update.py).

    attrs: the attributes that the operator must have. velocity: attributes -> how a velocity enters; None: there is
    none. state: the operand that the velocity replaces. refused: attributes -> (option, alternative in int8), for each
    setting that has no integer form.
    """

    attrs: type[Attrs]
    velocity: Callable[[Any], Velocity | None]
    state: str = ""
    refused: Callable[[Any], Iterable[tuple[str, str]]] = lambda _attrs: ()


Int8 = Literal["sum", "refused", "integer", "float", "parts"] | IntegerStep
"""Treatment of an operator in an int8 network.

IntegerStep: int8 parameters take its step, in integers.
sum: it sums gradients, or their squares, and has an integer form there.
refused: it has no integer form, and training an int8 network with it is an error (E0113).
integer: it already is an integer form. float: it is unrelated to parameters, and stays.
parts: it is made, after quantisation, of other operators, which declare what they overwrite (OF_PARTS).
"""


@dataclass(frozen=True, eq=False)
class Owned:
    """holds: kind of each overwritten operand, by its name; int8: see Int8."""

    holds: Mapping[str, Kind]
    int8: Int8

    @property
    def has_parameter(self) -> bool:
        """True if the operator steps a parameter."""
        return "PARAMETER" in self.holds.values()

    @property
    def is_float_step(self) -> bool:
        """True if the operator steps a parameter that is not an integer."""
        return self.has_parameter and self.int8 != "integer"


OF_PARTS = Owned({}, "parts")
"""Mark of an operator made of others: take its nodes apart to see what they overwrite (ops/fused_update.py)."""


@dataclass(frozen=True)
class ErrorState:
    """State of an int8 error besides its numbers (docs/int8.md): names of operands of the op that makes it.

    peak: gathers the error's largest magnitude, which the op overwrites. exponent: that the error is stored with.
    read: exponents of the errors that the op reads. float_peak: the peak is the bits of a float32 magnitude, not a
    count of units of 2**exponent.
    """

    read: tuple[str, ...] = ()
    float_peak: bool = False
    peak: str = "peak"
    exponent: str = "p_out"


def check_owned(
    op: str, attrs: type[Attrs], overwritten: Iterable[str], error: ErrorState | None, owned: Owned | None
) -> None:
    """Raise ValueError unless an operator declares all that it overwrites, and an int8 form if it steps a parameter."""
    if owned is OF_PARTS:
        return
    expected, declared = set(overwritten), set(() if owned is None else owned.holds)
    if error is not None:
        expected.discard(error.peak)
    if expected != declared:
        raise ValueError(
            f"op {op} overwrites {sorted(expected)}, but says of {sorted(declared)} what they hold (OpDef.owned)"
        )
    if owned is None:
        return
    step = owned.int8
    if not isinstance(step, IntegerStep):
        if owned.has_parameter and step not in ("refused", "integer"):
            raise ValueError(f"op {op} steps a parameter: declare its int8 form, or that there is none (Owned.int8)")
        return
    state = {name for name, kind in owned.holds.items() if kind != "PARAMETER"}
    if step.attrs is not attrs or state != {step.state} - {""}:
        made_of = f"of {attrs.__name__} and {sorted(state)}"
        raise ValueError(
            f"op {op} is {made_of}, but declares the int8 form of {step.attrs.__name__} and {step.state!r}"
        )
