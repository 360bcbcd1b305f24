"""What a compilation has found out, for the report: frozen data of verification, of choices, and all of it in one."""

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

    rescaled: channels whose scale has doubled in that run, once or more often; None if scales are fixed.
    """

    weights: int
    before: int
    after: int
    rescaled: int | None = None


@dataclass(frozen=True)
class CycleModel:
    """What a model, no measurement, makes of counted blocks: cycles of a step and an inference; None with a reason."""

    name: str
    step: int | None
    infer: int | None
    why_not: str = ""


@dataclass(frozen=True)
class InstructionCounts:
    """Instructions executed under QEMU in one call each, by function; scalar helpers count for their callers.

    step_index: which step was counted. step: of one micro-batch; apply: of the update after several, or None.
    features, train_features: of a sample by its features; None where there are none, or no step was made on them.
    code_bytes: size of every function of the model.
    """

    step_index: int
    step: Mapping[str, int]
    infer: Mapping[str, int]
    apply: Mapping[str, int] | None
    code_bytes: Mapping[str, int]
    cycles: CycleModel | None = None
    features: Mapping[str, int] | None = None
    train_features: Mapping[str, int] | None = None


@dataclass(frozen=True)
class FileAgreement:
    """The model file, run by onnx.reference, against the numpy reference of the imported graph: no difference.

    samples: that were run; tensors: of the file that were compared, with its outputs if `whole`.
    max_error: largest |a - b| of float32 tensors; None where there was none to compare.
    steps, equal_bytes: of a quantised model: largest distance in steps of its tensors' formats, and the share of equal
    integers; None for others.
    skipped: what the evaluator lacks, each with its reason. seconds: of CPU time, what it cost.
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
class DerivativeAgreement:
    """One training step of the numpy reference against central differences of the loss of the model file.

    tensors: trained tensors that were judged, all alike; unjudged: that were not. worst: largest error of a slope, in
    tolerances; None if nothing was judged. closeness: the tolerance, for people. evaluations: of the file on one
    sample; a part of its nodes counts by its share of the multiply-accumulates. skipped: what is not covered, each
    with its reason. seconds: of CPU time.
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


@dataclass(frozen=True)
class VerifyReport:
    """What was checked and what came out.

    mode: "qemu", "host" or "none"; result: "pass", "fail" or "skipped".
    message: one line for the user (PASS line, first difference, or why it was skipped).
    comparisons: each that passed, from the model file to the board; left_out: what was not compared, and why.
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
    """Of every external function of the board's build."""
    comparisons: tuple[Comparison, ...] = ()
    left_out: tuple[str, ...] = ()


# ---- driver -> report -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerUpdate:
    """How one layer of the model is trained.

    name: ONNX node; bias / weight: whether they are updated; channels: number of updated channels on `axis`
    ("in" or "out"), or None where the whole weight is; elements: updated parameters; total_elements: all of the layer.
    module: of the file, that holds its parameters, if the node's name does not tell it.
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
    """What becomes of one floating-point initializer of the file that can change the loss.

    kind: "trained" (at least in part: `updated` of its elements); "absorbed" into the numbers of `into`, which is
    trained; "update": --update leaves it as it is; "other": not trained, because of `why`.
    """

    name: str
    kind: Literal["trained", "absorbed", "update", "other"]
    why: str
    elements: int
    updated: int = 0
    into: str = ""


@dataclass(frozen=True)
class Agreement:
    """The untrained model on the user's data; shares are 0 to 1, None where labels or a float model are missing.

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
    """One way to make training fit (or to use less), priced by planning it: options to add, and the arena they need.

    meets: whether that keeps to all limits. sets_arena: whether one of the options is another --arena.
    """

    options: str
    arena_bytes: int
    note: str = ""
    meets: bool = True
    sets_arena: bool = False


class ReportedPart(Protocol):
    """A part of the project (parts/), as the report asks it. row: that it has a share in, "" for none.

    uncounted: RAM of it that only the caller can place.
    """

    name: ClassVar[str]
    row: ClassVar[str]
    uncounted: str

    def pieces(self, summary: Summary) -> list[str]:
        """Return its figures in its row."""
        ...

    def json(self, summary: Summary) -> dict[str, Any] | list[Any] | None:
        """Return its data for report.json."""
        ...


@dataclass(frozen=True)
class Record:
    """With the model, all that a checkpoint of this build needs to be understood.

    options: those that say what a step computes, by name, as they were given; scheme: what is trained, as a file of
    --update says it.
    """

    options: Mapping[str, Any]
    scheme: str


@dataclass(frozen=True)
class BoardUse:
    """The board that the project is for. core: the target that QEMU checks, which is the board's core."""

    board: Board
    core: str


@dataclass(frozen=True)
class OfferedKernels:
    """All functions that --kernels offers, whether or not a node takes one."""

    functions: tuple[str, ...]


@dataclass(frozen=True)
class SlicedStep:
    """The parts of a step in slices, in order."""

    parts: tuple[StepPart, ...]


FactKind = TypeVar("FactKind")


@dataclass(frozen=True, eq=False)
class Summary:
    """Everything that the report shows about one compilation. `arena_limit_bytes` is None without --arena.

    notes: remarks on what the user gave (those on the graph are the graph's own).
    fates: what becomes of every initializer of the file.
    parts: what the project has besides the step, such as those of --runtime. facts: what one row of the report needs,
    each of a class of its own (`fact`): a Summary has fields for what everybody needs.
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
    calls: Mapping[str, str] = field(default_factory=dict[str, str])  # node -> kernel; empty before there are any
    code: CodeChoice = field(default_factory=CodeChoice)
    notes: tuple[str, ...] = ()
    fates: tuple[Fate, ...] = ()
    energy_source: str = ""  # of the energy of a cycle
    parts: tuple[ReportedPart, ...] = ()
    feature_bytes: int = 0  # of a sample, if the step is cut where training begins
    own_samples: int = 0  # of --data, on the first of which the check runs; 0: random samples
    least_const_bytes: int = 0  # of flash, known from the plan alone
    facts: tuple[object, ...] = ()

    def fact(self, kind: type[FactKind]) -> FactKind | None:
        """Return what one row of the report needs, by its class; None if this build does not have it."""
        return next((fact for fact in self.facts if isinstance(fact, kind)), None)

    def with_fact(self, fact: object) -> Summary:
        """Add a fact, in place of an earlier one of its class."""
        others = (known for known in self.facts if type(known) is not type(fact))
        return replace(self, facts=(*others, fact))

    @property
    def all_notes(self) -> tuple[str, ...]:
        """Remarks for the user, the most urgent ones first."""
        return (*self.notes, *self.train.graph.notes)
