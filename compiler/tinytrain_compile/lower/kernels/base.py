"""The table of kernels: how each op is computed, as a TE definition plus a schedule."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tvm import ir, s_tir, te, tirx

from tinytrain_compile.ir.kernels import Tiles
from tinytrain_compile.ir.types import Node, Value
from tinytrain_compile.target.model import Features as CoreFeatures


@dataclass(frozen=True)
class CodeStyle:
    """What kernels spend code on. small: compiled with -Os, and shared by layers that differ in their numbers alone.

    pair_steps: steps of four products in a turn of a product's innermost loop, at most. row_calls: helper calls per sum
    in a turn of a dense convolution's, at most. unrolled_rows: kernels of at most this height have the loop over their
    rows unrolled. unroll_moves: loops that move data are unrolled. ragged_tiles: float products whose operands lie as
    neighbours along a tile's long side may peel its last one, and phases without taps have code of their own.
    vector_terms: multiply-adds in a turn of the innermost loop of a float matrix-vector product, at most.
    """

    small: bool = False
    pair_steps: int = 4
    row_calls: int = 5
    unrolled_rows: int = 3
    unroll_moves: bool = True
    ragged_tiles: bool = True
    vector_terms: int = 32


LOW_REGISTERS = 8
"""Registers that most instructions of Armv6-M reach."""
SPEED = CodeStyle()
SIZE = CodeStyle(
    True, pair_steps=2, row_calls=1, unrolled_rows=0, unroll_moves=False, ragged_tiles=False, vector_terms=1
)


@dataclass(frozen=True)
class Features:
    """What a kernel may ask of its target, what code it may spend, and how its operands lie.

    turned: the kernel of a 1x1 data gradient gets its weight as (in, out) channels. vectors: of integers (Helium).
    float_vectors: of float32, which take denormals for 0. float_pairs: multiply-adds read neighbours in memory as
    pairs, see printing/float_pairs.py. dsp: two products of int16 are one instruction. gpr: registers that plain code
    reaches. given_tile: instead of the rule's register tile (see Tiles).
    """

    fpu: bool = True
    style: CodeStyle = SPEED
    turned: bool = False
    vectors: bool = False
    float_vectors: bool = False
    float_pairs: bool = False
    given_tile: tuple[int, int] | None = None
    dsp: bool = True
    gpr: int = 13

    def tuned(self, tiles: Tiles) -> Features:
        """The same with the tiles that a search found, for this kernel."""
        numbers = {key: getattr(tiles, key) for key in ("pair_steps", "row_calls", "unrolled_rows")}
        style = replace(self.style, **{key: number for key, number in numbers.items() if number is not None})
        return replace(self, style=style, given_tile=tiles.tile)

    @property
    def lanes(self) -> bool:
        """Whether kernels are on vectors: not those that layers share, which lack the constants that assembly takes."""
        return self.vectors and not self.style.small

    @property
    def float_lanes(self) -> bool:
        """Whether float kernels are on vectors."""
        return self.float_vectors and not self.style.small

    @property
    def pairs(self) -> bool:
        """Whether float products are on pairs: not those that layers share, whose strides are numbers in memory."""
        return self.float_pairs and not self.style.small

    @property
    def tile(self) -> tuple[int, int]:
        """Register tile (rows, columns) of float matrix products: 24 accumulators with an FPU, 4 without."""
        return self.given_tile or ((4, 6) if self.fpu else (2, 2))

    @property
    def paired_tile(self) -> tuple[int, int]:
        """Register tile of float products that read pairs along their sums: 16 accumulators."""
        return self.given_tile or (4, 4)

    @property
    def ragged(self) -> bool:
        """Whether float products may peel the last tile of the long side."""
        return self.fpu and self.style.ragged_tiles

    @property
    def integer_tile(self) -> tuple[int, int]:
        """Register tile (rows, columns) of integer products: 4 sums, 4 operands and 4 pointers fill a Cortex-M."""
        return self.given_tile or (2, 2)

    def widens(self, one_call: bool, zeros: bool) -> bool:
        """Whether sums of k x k gradients are over operands widened in scratch, where no border is tested for.

        one_call: all sums of a tile are one helper call, without which 8 registers do not suffice. zeros: some taps are
        0, since phases of a stride have taps of their own; only products in pairs make up for that.
        """
        enough = self.gpr > LOW_REGISTERS or (one_call and not self.style.small)
        return self.dsp or (enough and not zeros)

    @property
    def wide_tile(self) -> tuple[int, int]:
        """`tile` turned: more rows than columns, for weight gradients."""
        rows, columns = self.tile
        return columns, rows


def features_of(core: CoreFeatures, fused: bool, style: CodeStyle = SPEED) -> Features:
    """What a core has. fused: its code may fuse float products and sums (no int8 network's does)."""
    vectors = core.mve_float and fused
    pairs = core.fpu and fused and not vectors
    return Features(
        core.fpu,
        style,
        vectors=core.mve_int,
        float_vectors=vectors,
        float_pairs=pairs,
        dsp=core.dsp,
        gpr=core.gpr,
    )


@dataclass(frozen=True)
class KernelSpec:
    """inputs: one placeholder per node input; outputs: one tensor per node output; schedule: edits the loops in place.

    A placeholder may have any shape with the value's element count: the C sees plain pointers.
    An output that overwrites an input (OpDef.alias) may be None: then a helper that is called with the input's
    address (see `address`) writes it.
    """

    inputs: Sequence[te.Tensor]
    outputs: Sequence[te.Tensor | None]
    schedule: Callable[[s_tir.Schedule], None]


KernelRule = Callable[[Node, Features], KernelSpec]
KERNELS: dict[str, KernelRule] = {}
VectorRule = Callable[[Node, Features], "KernelSpec | None"]
VECTOR_KERNELS: dict[str, VectorRule] = {}
"""For targets with integer vectors: a rule gives None where the one of KERNELS is meant."""


def kernel(*ops: str) -> Callable[[KernelRule], KernelRule]:
    """Enter a rule as the kernel of these ops."""

    def enter(rule: KernelRule) -> KernelRule:
        for op in ops:
            if op in KERNELS:
                raise ValueError(f"op {op} has two kernels")
            KERNELS[op] = rule
        return rule

    return enter


def vector_kernel(*ops: str) -> Callable[[VectorRule], VectorRule]:
    """Enter a rule as the kernel of these ops where there are vectors."""

    def enter(rule: VectorRule) -> VectorRule:
        VECTOR_KERNELS.update(dict.fromkeys(ops, rule))
        return rule

    return enter


def kernel_spec(node: Node, features: Features) -> KernelSpec:
    """How a node is computed on such a target."""
    rule = VECTOR_KERNELS.get(node.op) if features.lanes else None
    return (rule and rule(node, features)) or KERNELS[node.op](node, features)


def placeholder(value: Value, name: str, shape: Sequence[int] | None = None) -> te.Tensor:
    """A kernel operand for a graph value; "bits" are bytes; `shape` may regroup its elements."""
    if value.dtype == "bits":
        return te.placeholder((value.size_bytes,), "uint8", name)
    return te.placeholder(tuple(shape or value.shape or (1,)), value.dtype, name)


def f32(value: float) -> Any:
    """A float32 constant expression."""
    return tirx.const(float(value), "float32")


def call(function: str, *args: Any) -> Any:
    """A float32 scalar helper of tt_runtime.h."""
    return tirx.call_pure_extern("float32", function, *args)


def call_int(function: str, *args: Any, dtype: str = "int32") -> Any:
    """An integer helper (tt_fixed.h, tt_qloss.h, tt_dsp.h); it may write through addresses among its arguments."""
    return tirx.call_extern(dtype, function, *args)


def address(operand: te.Tensor, *index: Any) -> Any:
    """The address of an operand's element (its first without an index), for a helper that writes there."""
    element = operand(*(index or [0] * len(operand.shape)))
    return ir.Call("tirx.address_of", [element], ret_ty=ir.PointerType(ir.PrimType(str(operand.dtype))))


def i32(value: Any) -> Any:
    """An int32 constant, or an expression widened to int32."""
    return tirx.const(value, "int32") if isinstance(value, int) else value.astype("int32")


def select(condition: Any, yes: Any, no: Any) -> Any:
    """A choice without side effects: both sides may be evaluated."""
    return tirx.Select(condition, yes, no)


def guarded(condition: Any, value: Any) -> Any:
    """`value` where the condition holds, else 0 (and then `value` is not evaluated)."""
    dtype = str(value.ty.dtype if hasattr(value, "ty") else value.dtype)
    return tirx.if_then_else(condition, value, tirx.const(0, dtype))


def total(term: Any, axes: Sequence[Any]) -> Any:
    """A sum over reduction axes."""
    return te.sum(term, list(axes))


def reduce_axes(*extents: int, prefix: str = "k") -> list[Any]:
    """Reduction axes of the given extents."""
    return [te.reduce_axis((0, extent), f"{prefix}{i}") for i, extent in enumerate(extents)]


def plain(_schedule: s_tir.Schedule) -> None:
    """The schedule of kernels whose default loops are right."""
