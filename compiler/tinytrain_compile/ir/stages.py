"""Data between stages (besides Graph), frozen, so that no stage imports another."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.ir.activations import KeptActivation, LowRank
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.loss_terms import MEAN_OF_SAMPLES, LossTerms
from tinytrain_compile.ir.types import Array, FileFormat, Graph, Node, Quant, Value
from tinytrain_compile.target.model import BoardNames

# ---- sparse -> training ---------------------------------------------------------------------------------------------


def channel_axis(axis: str, rank: int) -> int:
    """Return the index of a weight's "out" or "in" axis: outputs are first in every layer's weight, inputs last."""
    return 0 if axis == "out" else rank - 1


@dataclass(frozen=True)
class ChannelSlice:
    """The updated channels of a weight, on its "out" or "in" axis (increasing indices)."""

    axis: str
    channels: tuple[int, ...]


@dataclass(frozen=True)
class UpdatePlan:
    """Updated parameters: parameter name -> None (the whole tensor) or a channel slice. All others are frozen.

    activations: weight -> form in which its layer keeps its input for the gradient (None: exactly), if given.
    """

    updates: Mapping[str, ChannelSlice | None]
    label: str = ""
    """Value of --update that selects it again: `last:6`, `all`, a file name ..."""
    activations: Mapping[str, LowRank | None] = field(default_factory=dict[str, LowRank | None])


# ---- training -> plan, lower, emit ----------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class IntegerUnit:
    """Unit of a parameter's integers: real = (integers + fraction / 256) * scale.

    scale: for each element of the first axis. fraction: state with the 8
    bits after an int8 weight ("": none). shift: state whose change since the first step is the power of two by which
    the scale grew (--rescale; "": none), at these channels.
    """

    scale: NDArray[np.float64]
    fraction: str = ""
    shift: str = ""
    channels: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False)
class TrainedPart:
    """A tensor of the state that is a parameter of the imported graph, or some of its channels (unit: None if real)."""

    parameter: str
    piece: ChannelSlice | None = None
    unit: IntegerUnit | None = None


@dataclass(frozen=True)
class Velocity:
    """Use of a velocity by integer updates, in units of gradients of one sample. It enters a gradient sum times `kept`;
    that sum, times `stored`, is the next velocity.

    The step uses the sum, or the sign of another sum, into which the velocity enters times `ahead`.
    """

    kept: float
    stored: float = 1.0
    ahead: float | None = None

    @property
    def signed(self) -> bool:
        """True if a step follows the sign of a gradient. Then the rate is not divided by the samples of a sum."""
        return self.ahead is not None

    @property
    def rate_numbers(self) -> int:
        """Number of integers in the rate of an update: multiplier and shift of each factor, those of the learning rate
        first."""
        return 6 if self.ahead is None else 8


@dataclass(frozen=True, eq=False)
class TrainGraph:
    """One training step as a graph: forward, loss, backward, updates.

    loss: the scalar that training minimises (value after the forward pass).
    label: the graph input that holds the labels (never in the arena).
    logits: the value that the loss reads (verification compares it, besides loss and parameters).
    learning_rate: the state scalar that m_set_lr writes.
    inverse_count: accumulator scalar that m_apply sets to 1/divisor before "apply" nodes; None if nothing is divided.
    terms: composition of a batch's loss. weight_sum: accumulator scalar, the sum of label weights since the last
    update. batch: requested number of samples per update (1: the update runs inside the step).
    micro_batch: samples that one step takes, a divisor of batch: they follow one another in every tensor. in_place:
    whether each of these samples is a separate update, at learning rate / batch: nothing is accumulated. integer:
    whether this is an int8 graph: references run byte-exact, multiplies and adds are never fused.
    rate: int8 only: the learning rate (over the samples of an update) as (multiplier, shift), an accumulator value.
    velocity: int8 only: use of one by updates, if any; then rate also holds its factors, multiplied or divided by the
    samples. exponents_known: whether the exponents of errors are known; if not, the first step after m_init finds them.
    formats: int8 only: scale and zero point of every stored activation, by name.
    forms: int8 only: value of the float graph -> the values of this one that hold it: as integers (see formats), as
    float32, or both, in this order.
    before_remat: the graph without second runs and page moves, if there are any.
    dropout: accumulator scalar that the generated code sets: 1 in a step, 0 in an inference; None without dropout.
    clip: factor of a parameter's gradient that limits its norm, by the parameter's name; any other divisor of gradients
    is not included.
    identity: a digest of all that gives a saved state its meaning; with the state's layout it is the model hash.
    trained: parameters among the state, by name. low_rank: copies of activations that are not kept whole.
    reads_state_of: for an inference without training (whose output then replaces `loss`): the training step whose
    checkpoints it reads. None: this is a training step.
    windows: for `--listen only`, whose input is what m_hear holds of a window: the same step on the window. None: it
    takes the model's own inputs.
    stored_output: integers that the file has in place of the output's real numbers; None: it ends in real numbers.
    """

    graph: Graph
    loss: Value
    label: Value
    logits: Value
    learning_rate: Value
    inverse_count: Value | None = None
    batch: int = 1
    micro_batch: int = 1
    in_place: bool = False
    integer: bool = False
    rate: Value | None = None
    velocity: Velocity | None = None
    exponents_known: bool = True
    formats: Mapping[str, Quant] = field(default_factory=dict[str, Quant])
    forms: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    before_remat: Graph | None = None
    terms: LossTerms = MEAN_OF_SAMPLES
    weight_sum: Value | None = None
    dropout: Value | None = None
    clip: Mapping[str, Value] = field(default_factory=dict[str, Value])
    identity: str = ""
    trained: Mapping[str, TrainedPart] = field(default_factory=dict[str, TrainedPart])
    low_rank: tuple[KeptActivation, ...] = ()
    reads_state_of: TrainGraph | None = None
    windows: TrainGraph | None = None
    stored_output: FileFormat | None = None

    @property
    def data(self) -> tuple[Value, ...]:
        """The inputs for samples: all except the label."""
        return self.graph.data

    @property
    def training_step(self) -> TrainGraph:
        """The step on the model's inputs that makes the checkpoints: this one, or the one that this is a part of."""
        return self.reads_state_of or self.on_windows

    @property
    def on_windows(self) -> TrainGraph:
        """The step that takes the model's inputs."""
        return self.windows or self

    def of_one(self, value: Value) -> tuple[int, ...]:
        """Return the shape of one sample's part of an input, a label or an output."""
        return (value.shape[0] // self.micro_batch, *value.shape[1:]) if self.micro_batch > 1 else value.shape


# ---- plan -> lower, emit, report ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SecondRun:
    """A node that runs again so that its output need not be kept: `name` is the added node, `of` the one it repeats."""

    name: str
    of: str
    origin: str
    size_bytes: int
    macs: int


@dataclass(frozen=True)
class Rematerialisation:
    """Second runs of a plan. arena_without_bytes: the arena of the same graph without them.

    cheapest: whether fewer multiply-accumulates are proven impossible below `budget_bytes` of load, for this order.
    nodes: names of all nodes in the order of the graph with second runs (for locks).
    """

    runs: tuple[SecondRun, ...]
    arena_without_bytes: int
    budget_bytes: int
    cheapest: bool
    nodes: tuple[str, ...] = ()

    @property
    def extra_macs(self) -> int:
        """Multiply-accumulates of all second runs."""
        return sum(run.macs for run in self.runs)


@dataclass(frozen=True)
class Streaming:
    """Layers that a plan computes row by row: nodes `Stream` of its order.

    arena_without_bytes, arena_with_bytes: of plans in one memory without and with them, without second runs.
    load_without: each step of the plan without them: name of the node, live bytes.
    """

    arena_without_bytes: int
    arena_with_bytes: int
    load_without: tuple[tuple[str, int], ...] = ()

    @property
    def saved_bytes(self) -> int:
        """Bytes of arena that streams save."""
        return self.arena_without_bytes - self.arena_with_bytes


@dataclass(frozen=True)
class FurtherMemory:
    """A memory besides the arena that a plan uses. Offsets in a plan count through all memories: this one begins at
    `base`.

    accessed_bytes: by kernels in one step; extra_ps, extra_pj: modelled extra cost compared with the arena. cheapest:
    whether less extra time is proven impossible for this order, assuming placement without gaps.
    """

    name: str
    base: int
    used_bytes: int
    capacity_bytes: int
    accessed_bytes: int
    extra_ps: int
    extra_pj: int
    cheapest: bool


@dataclass(frozen=True)
class PageMove:
    """A copy of `value` by node `name` (PageOut, PageIn). ps, pj: its picoseconds and picojoules, a model."""

    name: str
    value: str
    op: str
    memory: str
    size_bytes: int
    ps: int
    pj: int


@dataclass(frozen=True, eq=False)
class MemoryPlan:
    """Order of execution and place of every buffer. Offsets count through the arena, then each further memory.

    lower_bound_bytes: max over steps of live bytes for this order (header, state and alignment padding included).
    order_proven / placement_proven: whether a smaller peak / arena is proven impossible (for this order).
    remat: second runs; None if there are none. streams: layers computed row by row, likewise. inference: of one sample,
    if a step takes several. listening: inference on a stream (`--listen`). open: inference while a step is open
    (`--slices infer`).
    """

    order: tuple[Node, ...]
    buffers: tuple[Buffer, ...]
    offsets: Mapping[str, int]
    scratch_offsets: Mapping[str, int]
    arena_bytes: int
    persistent_bytes: int
    lower_bound_bytes: int
    peak_step: int
    order_proven: bool
    placement_proven: bool
    remat: Rematerialisation | None = None
    further: tuple[FurtherMemory, ...] = ()
    paging: tuple[PageMove, ...] = ()
    inference: Inference | None = None
    streams: Streaming | None = None
    listening: Listening | None = None
    open: Inference | None = None

    @property
    def all_nodes(self) -> tuple[Node, ...]:
        """Return the nodes of the step, then those of the passes beside it."""
        return (*self.order, *(node for each in self.beside for node in each.plan.order))

    @property
    def beside(self) -> tuple[Inference, ...]:
        """Return the forward passes beside the step: of one sample, of a stream, and while a step is open."""
        return tuple(each for each in (self.inference, self.listening, self.open) if each is not None)

    @property
    def extra_ps(self) -> int:
        """Cost of further memories per step, accesses and page moves, in picoseconds by the target's figures."""
        return sum(memory.extra_ps for memory in self.further) + sum(move.ps for move in self.paging)

    @property
    def extra_pj(self) -> int:
        """Energy of further memories per step, in picojoules."""
        return sum(cost.pj for cost in self.paging) + sum(memory.extra_pj for memory in self.further)

    @property
    def total_bytes(self) -> int:
        """Bytes of the arena and used bytes of further memories."""
        return self.arena_bytes + sum(memory.used_bytes for memory in self.further)

    @property
    def gap_bytes(self) -> int:
        """Bytes by which all memory used exceeds the lower bound."""
        return self.total_bytes - self.lower_bound_bytes

    def place(self, offset: int) -> tuple[int, int]:
        """Return (memory, offset inside it) of an offset: memory 0 is the arena."""
        inside = [index for index, memory in enumerate(self.further, 1) if offset >= memory.base]
        return (inside[-1], offset - self.further[inside[-1] - 1].base) if inside else (0, offset)


@dataclass(frozen=True, eq=False)
class Inference:
    """A forward pass beside a training step, in the same arena: its graph, with separate names, and its plan.

    State and other data that outlive a call are the step's: in this plan all of them are one header.
    """

    graph: Graph
    plan: MemoryPlan


@dataclass(frozen=True, eq=False)
class Listening(Inference):
    """A forward pass of new rows of a stream, with rings of older ones: state of its graph, and in no checkpoint.

    frames: new rows in a call. window: rows that an inference reads. settle: calls after an update until all rings
    hold rows of the new weights alone. whole: value of the window -> value of this pass that holds all of it.
    """

    frames: int
    window: int
    settle: int
    whole: Mapping[str, str]

    @property
    def calls(self) -> int:
        """Calls that a whole window takes."""
        return -(-self.window // self.frames)


COUNTER_BYTES = 4
"""Bytes of the handle for the calls until a stream equals its window, in a project that listens."""


def time_axis(shape: tuple[int, ...]) -> int:
    """Return the axis of time of an input of a stream: the first with more than one row."""
    return next((axis for axis, size in enumerate(shape) if size > 1), 0)


def flash_constants(train: TrainGraph, plan: MemoryPlan) -> dict[str, Array]:
    """Return the constants that code reads from flash, and initial values of the state that are not all zero."""
    state = {value.name for value in train.graph.state}
    rings = {value.name for each in plan.beside for value in each.graph.state}
    found = {name: data for each in plan.beside for name, data in each.graph.constants.items() if name not in rings}
    found |= train.graph.constants
    return {name: data for name, data in found.items() if name not in state or bool(np.any(data))}


# ---- plan -> emit -> report: the parts of a step between which it may pause (docs/adr/0037-slices.md) ---------------


@dataclass(frozen=True, eq=False)
class PlannedStep:
    """A training step with its memory plan and its update."""

    update: UpdatePlan
    train: TrainGraph
    plan: MemoryPlan


@dataclass(frozen=True)
class StepPieces:
    """cycles: node -> cycles of its pieces by the target's figures, in order, each at least 1.

    turns: for a node whose kernel computes some turns of its loop at a time: the start of each piece, and the end of
    the last.
    """

    cycles: Mapping[str, tuple[int, ...]]
    turns: Mapping[str, tuple[int, ...]] = field(default_factory=dict[str, tuple[int, ...]])


@dataclass(frozen=True)
class StepPart:
    """The smallest unit that a slice computes: a node or a piece of one, and its modelled cycles."""

    node: str
    cycles: int


# ---- emit -> verify, report -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateSlot:
    """A persistent tensor, for comparison and checkpoints: `offset` in memory number `memory` (0: the arena)."""

    name: str
    offset: int
    size_bytes: int
    dtype: str
    memory: int = 0


@dataclass(frozen=True)
class InputSlot:
    """A further data input: the number in the name of its call (m_input_2), its elements and their type.

    name: of the file's input.
    """

    number: int
    name: str
    elements: int
    dtype: str


@dataclass(frozen=True)
class Interface:
    """All that a caller of the generated C needs to know."""

    prefix: str
    input_elements: int
    output_elements: int
    label_ctype: str
    label_elements: int
    arena_bytes: int
    persistent_bytes: int
    alignment_bytes: int
    accumulates: bool
    state: tuple[StateSlot, ...]
    micro_batch: int = 1  # samples that one call takes, for inputs and labels; outputs are of one
    input_dtype: str = "float32"
    exact: bool = False  # whether the reference must agree to the byte (int8) or within a bound (float32)
    further_bytes: tuple[int, ...] = ()  # of every memory besides the arena
    terms: LossTerms = MEAN_OF_SAMPLES
    transient_offsets: tuple[int, ...] = ()
    """Per memory, the end of the data carried from one call to the next (empty: unknown)."""
    more_inputs: tuple[InputSlot, ...] = ()  # besides the first
    input_rows: int = 0  # of an image that comes row by row; 0: it is passed whole
    feature_bytes: int = 0  # written by m_features; 0: the step is not cut
    hear_rows: int = 0  # rows that m_hear takes in a call; 0: there is none
    infers_open: bool = False  # whether there is m_infer_open
    window: InputSlot | None = None  # that m_hear takes row by row, if the input is not a sample but features of one
    trains: bool = True  # False: the project only infers, and loads checkpoints
    arena_macro: str = ""  # of the arena's size, without the prefix, if a project has several plans
    counted: bool = False  # whether calls pass their number of samples: plans of the project take different numbers

    @property
    def sample(self) -> InputSlot:
        """Return elements and type of the samples of a call, as a user has them: of the input, or of windows."""
        return self.window or InputSlot(1, "", self.input_elements, self.input_dtype)


@dataclass(frozen=True)
class SourceBundle:
    """The generated project: path inside the output folder -> text; small: its C files that are compiled with -Os.

    external: C files of the user (--kernels), compiled without our warnings. smaller: interfaces of smaller plans, by
    size, if there are several.
    parts: of a step that can be computed in slices. example: writes the example of a package, None for the flat output,
    with the board's names there: path in the output folder -> text. No build of the project compiles it.
    """

    files: Mapping[str, str]
    interface: Interface
    small: tuple[str, ...] = ()
    external: tuple[str, ...] = ()
    smaller: tuple[Interface, ...] = ()
    parts: tuple[StepPart, ...] = ()
    example: Callable[[str | None, BoardNames], Mapping[str, str]] = lambda _package, _board: {}


# ---- verify -> report -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class Samples:
    """Data for verification, in the graph's own layout: x (n, *one input's shape), y (n, ...) labels of n samples.

    x of several inputs is n records (ir/records.py).
    checkpoint: loaded by a project that does not train.
    """

    x: Array
    y: Array
    checkpoint: bytes = b""
