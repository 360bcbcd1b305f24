"""Results of a compilation for the report: frozen data of verification and of choices, and a summary of all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, Protocol, TypeVar

from tinytrain_compile.ir.cost import PlanChoice
from tinytrain_compile.ir.kernels import CodeChoice
from tinytrain_compile.ir.stages import MemoryPlan, StepPart, TrainGraph
from tinytrain_compile.target.model import Board

# ---- verify -> report -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Saturations:
    """Trained int8 weights at +-127, before and after a verification run; weights: all that are trained.

    rescaled: channels whose scale doubled in that run, at least once; None if scales are fixed.
    """

    weights: int
    before: int
    after: int
    rescaled: int | None = None


@dataclass(frozen=True)
class CycleModel:
    """Modelled, not measured, cycles of a step and an inference from counted blocks; None with a reason."""

    name: str
    step: int | None
    infer: int | None
    why_not: str = ""


@dataclass(frozen=True)
class InstructionCounts:
    """Instructions executed under QEMU in one call each, by function; scalar helpers count for their callers.

    step_index: of the counted step. step: of one micro-batch; apply: of the update after several, or None. features,
    train_features: of a sample by its features; None if there are none, or no step was made on them. hear: of the
    new rows of a stream; None without m_hear. code_bytes: size of every function of the model.
    """

    step_index: int
    step: Mapping[str, int]
    infer: Mapping[str, int]
    apply: Mapping[str, int] | None
    code_bytes: Mapping[str, int]
    cycles: CycleModel | None = None
    features: Mapping[str, int] | None = None
    train_features: Mapping[str, int] | None = None
    hear: Mapping[str, int] | None = None


@dataclass(frozen=True)
class FileAgreement:
    """Agreement of the model file, run by onnx.reference, with the numpy reference of the imported graph.

    samples: number run; tensors: number of the file's tensors compared, with its outputs if `whole`. max_error: largest
    |a - b| of float32 tensors; None if there was none to compare. steps, equal_bytes: for a quantised model, the
    largest distance in steps of its tensors' formats, and the share of equal integers; None for others. skipped:
    operators that the evaluator lacks, each with its reason. seconds: CPU time used.
    """

    samples: int
    tensors: int
    max_error: float | None
    steps: float | None
    equal_bytes: float | None
    whole: bool
    skipped: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class LiteRtAgreement:
    """Agreement of LiteRT, which runs a .tflite file, with the numpy reference, rounded plainly.

    samples: number run; tensors: number compared. steps, equal_bytes: largest distance of stored tensors in steps of
    their formats, and the share of equal integers; None for a float32 file. output: largest distance between LiteRT's
    output and that of the device before training, in real numbers; step: of the output's format. skipped: why nothing
    was compared.
    """

    samples: int = 0
    tensors: int = 0
    steps: float | None = None
    equal_bytes: float | None = None
    output: float = 0.0
    step: float | None = None
    skipped: str = ""


@dataclass(frozen=True)
class DerivativeAgreement:
    """Agreement of one training step of the numpy reference with central differences of the model file's loss.

    tensors: trained tensors that were compared, all of which agree; unjudged: those not compared. worst: largest error
    of a slope, in tolerances; None if nothing was compared. closeness: the tolerance, for people. evaluations: of the
    file on one sample; a part of its nodes counts by its share of the multiply-accumulates. skipped: cases not covered,
    each with its reason. seconds: CPU time used.
    """

    tensors: int
    unjudged: int
    worst: float | None
    closeness: str
    evaluations: float
    skipped: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True)
class Comparison:
    """Two ways to compute the same thing that agree, and how closely: `max error 1.9e-06`, `identical bytes`."""

    what: str
    with_what: str
    closeness: str


NOT_ON_CORE = "not verified on this core"
"""Every report says this of a build whose code did not run on its core."""


@dataclass(frozen=True)
class Unverified:
    """Why a check did not run on the core that the code is for, and what ran the same C instead."""

    why: str
    instead: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the sentence that all reports show."""
        return f"{NOT_ON_CORE}: {self.why}; verified instead: the same C {' and '.join(self.instead)}"


@dataclass(frozen=True)
class VerifyReport:
    """Checks made and their results.

    mode: "qemu", "host" or "none"; result: "pass", "fail" or "skipped".
    message: one line for the user (PASS line, first difference, or why it was skipped).
    comparisons: each that passed, from the model file to the board; left_out: omitted comparisons, and why.
    unverified: None if a machine of the target's own core ran the code, if nothing did, or if --verify host was given
    for a core that QEMU has.
    """

    mode: str
    steps: int
    result: str
    message: str
    losses: tuple[float, ...] = ()
    stack_bytes: int | None = None
    stack_measured_bytes: int | None = None
    code_bytes: int | None = None
    const_bytes: int | None = None
    max_error: float | None = None
    saturations: Saturations | None = None
    counts: InstructionCounts | None = None
    arena_measured_bytes: int | None = None
    file: FileAgreement | None = None
    derivative: DerivativeAgreement | None = None
    function_bytes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Code bytes of every external function of the board's build."""
    comparisons: tuple[Comparison, ...] = ()
    left_out: tuple[str, ...] = ()
    unverified: Unverified | None = None


# ---- driver -> report -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerUpdate:
    """Training of one layer of the model.

    name: ONNX node; bias / weight: whether they are updated; channels: number of updated channels on `axis`
    ("in" or "out"), or None if the whole weight is; elements: updated parameters; total_elements: all of the layer.
    module: of the file with its parameters, if the node's name does not tell it.
    """

    name: str
    bias: bool
    weight: bool
    channels: int | None
    axis: str | None
    elements: int
    total_elements: int
    module: str = ""

    @property
    def shown(self) -> str:
        """The node, with its module if there is something to add."""
        return f"{self.name} [{self.module}]" if self.module else self.name


@dataclass(frozen=True)
class Fate:
    """Result for one floating-point initializer of the file that can change the loss.

    kind: "trained" (at least in part: `updated` of its elements); "absorbed" into the numbers of `into`, which is
    trained; "update": --update does not select it; "other": not trained, because of `why`.
    """

    name: str
    kind: Literal["trained", "absorbed", "update", "other"]
    why: str
    elements: int
    updated: int = 0
    into: str = ""


@dataclass(frozen=True)
class Agreement:
    """The untrained model on the user's data; shares are 0 to 1, None if labels or a float model are missing.

    samples: compared, the first of `of` in the file.
    accuracy: of the model as compiled, top 1; float_accuracy: of the float model; top1_agreement: same top class.
    output_rmse: root mean square of the difference of outputs; output_rms: of the float model's outputs.
    """

    samples: int
    of: int
    accuracy: float | None = None
    float_accuracy: float | None = None
    top1_agreement: float | None = None
    output_rmse: float | None = None
    output_rms: float | None = None


@dataclass(frozen=True)
class Suggestion:
    """One way to make training fit (or to use less), with the size of its plan: options to add, and the arena they
    need.

    meets: whether it keeps to all limits. sets_arena: whether one of the options is another --arena.
    """

    options: str
    arena_bytes: int
    note: str = ""
    meets: bool = True
    sets_arena: bool = False


class ReportedPart(Protocol):
    """A part of the project (parts/), as seen by the report. row: the row to which it contributes, "" for none.

    uncounted: its RAM that only the caller can place.
    """

    name: ClassVar[str]
    row: ClassVar[str]
    uncounted: str

    def pieces(self, summary: Summary) -> list[str]:
        """Return its figures for its row."""
        ...

    def json(self, summary: Summary) -> dict[str, Any] | list[Any] | None:
        """Return its data for report.json."""
        ...


@dataclass(frozen=True)
class Record:
    """Data that, with the model, suffice to interpret a checkpoint of this build.

    options: those that affect the results of a step, by name, as given; scheme: selection of trained parameters, as a
    file of --update.
    """

    options: Mapping[str, Any]
    scheme: str


@dataclass(frozen=True)
class BoardUse:
    """The board of the project. core: name of its core's target; machine: core of the QEMU machine that checks it."""

    board: Board
    core: str
    machine: str


@dataclass(frozen=True)
class OfferedKernels:
    """All functions that --kernels offers, whether or not a node uses one."""

    functions: tuple[str, ...]


@dataclass(frozen=True)
class SlicedStep:
    """The parts of a step in slices, in order."""

    parts: tuple[StepPart, ...]


FactKind = TypeVar("FactKind")


@dataclass(frozen=True, eq=False)
class Summary:
    """Everything that the report shows about one compilation. `arena_limit_bytes` is None without --arena.

    notes: remarks on the user's input (those on the graph are the graph's own). fates: results for every initializer of
    the file. parts: of the project besides the step, such as those of --runtime. facts: data for one row of the report,
    each of its own class (`fact`): a Summary has fields only for data that several rows need.
    """

    model: str
    target: str
    target_summary: str
    quant: str
    contract: int
    optimizer: str
    learning_rate: float
    arena_limit_bytes: int | None
    update_label: str
    layers: tuple[LayerUpdate, ...]
    train: TrainGraph
    plan: MemoryPlan
    verify: VerifyReport
    code_bytes: int | None
    const_bytes: int | None
    suggestions: tuple[Suggestion, ...] = ()
    choice: PlanChoice | None = None
    calls: Mapping[str, str] = field(default_factory=dict[str, str])  # node -> kernel; empty before lowering
    code: CodeChoice = field(default_factory=CodeChoice)
    notes: tuple[str, ...] = ()
    fates: tuple[Fate, ...] = ()
    energy_source: str = ""  # of the energy of a cycle
    parts: tuple[ReportedPart, ...] = ()
    feature_bytes: int = 0  # of a sample, if the step is cut where training begins
    own_samples: int = 0  # number in --data; the check runs on the first ones; 0: random samples
    least_const_bytes: int = 0  # of flash, known from the plan alone
    facts: tuple[object, ...] = ()

    def fact(self, kind: type[FactKind]) -> FactKind | None:
        """Return the data for one row of the report, by its class; None if this build does not have it."""
        return next((fact for fact in self.facts if isinstance(fact, kind)), None)

    def with_fact(self, fact: object) -> Summary:
        """Add a fact; it replaces an earlier one of its class."""
        others = (known for known in self.facts if type(known) is not type(fact))
        return replace(self, facts=(*others, fact))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Remarks for the user, the most urgent ones first."""
        return (*self.notes, *self.train.graph.notes)
