"""What an operator does to the operands that it overwrites: every such operator declares it, and other stages ask."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

Kind = Literal["PARAMETER", "SUM", "ANY", "FINITE", "NOT_NEGATIVE", "POWERS", "SYMMETRIC", "EXPONENT", "SHIFTS"]
"""What an operand holds. PARAMETER: a weight or bias; SUM: a running sum, which no checkpoint has. All others are state
that stays within a range, which m_load checks (emit/checkpoint.py)."""

Int8 = Literal["sgd", "sum", "refused", "integer", "float"]
"""What becomes of an operator in an int8 network.

sgd: int8 parameters take its step as that of SGD, with the momentum of its SgdAttrs (quantize/update.py).
sum: it sums gradients, or their squares, and has an integer form there.
refused: integers have no form of it, and training an int8 network with it is an error (E0101).
integer: it is an integer form already. float: it has nothing to do with parameters, and stays.
"""


@dataclass(frozen=True, eq=False)
class Owned:
    """holds: what each overwritten operand holds, by its name; int8: see Int8."""

    holds: Mapping[str, Kind]
    int8: Int8

    @property
    def has_parameter(self) -> bool:
        """Whether it steps a parameter."""
        return "PARAMETER" in self.holds.values()

    @property
    def is_float_step(self) -> bool:
        """Whether it steps a parameter that is not an integer."""
        return self.has_parameter and self.int8 != "integer"

    def with_sums(self, names: Iterable[str]) -> Owned:
        """Declare the same of an operator that overwrites running sums of these names as well."""
        sums: dict[str, Kind] = dict.fromkeys(names, "SUM")
        return Owned({**self.holds, **sums}, self.int8)


@dataclass(frozen=True)
class ErrorState:
    """What is kept of an int8 error beside its numbers (docs/int8.md): names of operands of the op that makes it.

    peak: gathers the error's largest magnitude, which the op overwrites. exponent: what the error is stored with.
    read: exponents of the errors that the op reads. float_peak: the peak is the bits of a float32 magnitude, not a
    count of units of 2**exponent.
    """

    read: tuple[str, ...] = ()
    float_peak: bool = False
    peak: str = "peak"
    exponent: str = "p_out"


def check_owned(op: str, overwritten: Iterable[str], error: ErrorState | None, owned: Owned | None) -> None:
    """Raise ValueError unless an operator declares all that it overwrites, and an int8 form if it steps a parameter."""
    expected, declared = set(overwritten), set(() if owned is None else owned.holds)
    if error is not None:
        expected.discard(error.peak)
    if expected != declared:
        raise ValueError(
            f"op {op} overwrites {sorted(expected)}, but says of {sorted(declared)} what they hold (OpDef.owned)"
        )
    if owned is not None and owned.has_parameter and owned.int8 not in ("sgd", "refused", "integer"):
        raise ValueError(f"op {op} steps a parameter: declare its int8 form, or that there is none (Owned.int8)")
