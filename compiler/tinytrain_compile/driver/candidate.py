"""One way to train, as the stages of the driver hand it on, and the prices of the core that it is planned for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tinytrain_compile.ir.cost import PlanChoice
from tinytrain_compile.ir.stages import PlannedStep, TrainGraph
from tinytrain_compile.plan.options import CoreModel
from tinytrain_compile.target.model import Target

if TYPE_CHECKING:
    from tinytrain_compile.driver.candidates.external_kernels import Externals

AUTO = "auto: "
"""In front of an update that --update auto has chosen, in reports and locks."""


@dataclass(frozen=True, eq=False)
class Candidate(PlannedStep):
    """One way to train: what is updated, its training graph and its memory plan, and how that was chosen.

    automatic: whether --update auto chose what is updated. one: the training graph of a step of one sample, where train
    takes several.
    """

    choice: PlanChoice
    automatic: bool = False
    one: TrainGraph | None = None
    externals: Externals | None = None

    @property
    def label(self) -> str:
        """The name of the update in reports."""
        return f"{AUTO}{self.update.label}" if self.automatic else self.update.label

    @property
    def of_one(self) -> TrainGraph:
        """The training graph of a step of one sample."""
        return self.one or self.train


def core_model(target: Target) -> CoreModel:
    """Return the core's prices as the planner takes them."""
    core = target.core
    return CoreModel(
        clock_mhz=core.clock_mhz,
        int8_mac=core.int8_mac_millicycles,
        float_mac=core.float_mac_millicycles,
        element=core.element_millicycles,
        pj_per_cycle=core.pj_per_cycle,
    )
