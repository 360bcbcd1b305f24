"""Context of a kernel: instructions of the core, style of code, layout of operands."""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinytrain_compile.target.model import Features

LOW_REGISTERS = 8
"""Registers that most instructions of Armv6-M reach."""
MANY_REGISTERS = 26
"""Registers for sixteen sums, five operands, two pointers and their ends (tt_dot_4x4)."""


@dataclass(frozen=True)
class InstructionSet:
    """Instructions of the core that the number format of the network allows.

    int_vectors: vectors of integers (Helium). float_vectors: of float32, which treat denormals as 0. float_pairs:
    multiply-adds read neighbours in memory as pairs, see printing/float_pairs.py. dsp: two products of int16 are one
    instruction. gpr: general registers that plain code can use. dual_issue, fpv5: as in Features.
    """

    fpu: bool = True
    int_vectors: bool = False
    float_vectors: bool = False
    float_pairs: bool = False
    dsp: bool = True
    gpr: int = 13
    dual_issue: bool = False
    fpv5: bool = False


@dataclass(frozen=True)
class CodeStyle:
    """Trade-offs between speed and size of code. small: compiled with -Os, and shared by layers that differ only in
    their numbers.

    pair_steps: most steps of four products in a turn of a product's innermost loop. row_calls: most helper calls per
    sum in a turn of a dense convolution's. unrolled_rows: kernels of at most this height have the loop over their rows
    unrolled. unroll_moves: loops that move data are unrolled. ragged_tiles: float products whose operands are
    neighbours along a tile's long side may peel the last tile, and phases without taps have code of their own.
    vector_terms: most multiply-adds in a turn of the innermost loop of a float matrix-vector product.
    """

    small: bool = False
    pair_steps: int = 4
    row_calls: int = 5
    unrolled_rows: int = 3
    unroll_moves: bool = True
    ragged_tiles: bool = True
    vector_terms: int = 32


SPEED = CodeStyle()
SIZE = CodeStyle(
    True, pair_steps=2, row_calls=1, unrolled_rows=0, unroll_moves=False, ragged_tiles=False, vector_terms=1
)


@dataclass(frozen=True)
class OperandLayout:
    """Layout of operands. transposed: the kernel of a 1x1 data gradient gets its weight as (in, out) channels."""

    transposed: bool = False


@dataclass(frozen=True)
class KernelContext:
    """Context of a kernel. Facts that depend on one of the three parts are read from it, as in `context.isa.fpu`."""

    isa: InstructionSet = InstructionSet()
    style: CodeStyle = SPEED
    layout: OperandLayout = OperandLayout()

    def without_int_vectors(self) -> KernelContext:
        """Return the context without integer vectors."""
        return replace(self, isa=replace(self.isa, int_vectors=False))

    @property
    def uses_vectors(self) -> bool:
        """True if integer kernels use vectors; shared kernels do not: they lack the constants that assembly needs."""
        return self.isa.int_vectors and not self.style.small

    @property
    def uses_float_vectors(self) -> bool:
        """True if float kernels use vectors."""
        return self.isa.float_vectors and not self.style.small

    @property
    def uses_float_pairs(self) -> bool:
        """True if float products use pairs; shared kernels do not, as their strides are numbers in memory."""
        return self.isa.float_pairs and not self.style.small

    @property
    def tile(self) -> tuple[int, int]:
        """Register tile (rows, columns) of float matrix products: 24 accumulators with an FPU, 4 without."""
        return (4, 6) if self.isa.fpu else (2, 2)

    @property
    def paired_tile(self) -> tuple[int, int]:
        """Register tile of float products that read pairs along their sums: 16 accumulators."""
        return (4, 4)

    @property
    def ragged(self) -> bool:
        """True if float products may peel the last tile of the long side."""
        return self.isa.fpu and self.style.ragged_tiles

    @property
    def integer_tile(self) -> tuple[int, int]:
        """Register tile (rows, columns) of integer products: 4 sums, 4 operands and 4 pointers fill a Cortex-M."""
        return (2, 2)

    @property
    def has_large_tiles(self) -> bool:
        """True if integer products take sixteen sums at a time, and one operand as it lies in memory (tt_dot_4x4)."""
        return self.isa.gpr >= MANY_REGISTERS and not self.isa.dsp and not self.style.small

    def widens(self, one_call: bool, zeros: bool) -> bool:
        """Tell whether sums of k x k gradients are over operands widened in scratch, which need no border tests.

        one_call: all sums of a tile are one helper call; otherwise 8 registers are not enough. zeros: some taps are 0,
        since phases of a stride have taps of their own; only products in pairs compensate for that.
        """
        enough = self.isa.gpr > LOW_REGISTERS or (one_call and not self.style.small)
        return self.isa.dsp or (enough and not zeros)

    @property
    def wide_tile(self) -> tuple[int, int]:
        """`tile` transposed: more rows than columns, for weight gradients."""
        rows, columns = self.tile
        return columns, rows


def kernel_context(core: Features, fused: bool, style: CodeStyle = SPEED) -> KernelContext:
    """Return the context of a core. fused: its code may fuse float products and sums (no int8 network's does)."""
    vectors = core.mve_float and fused
    pairs = core.fpu and not vectors and (fused or not core.mve_int)  # one printer: of pairs, or of integer vectors
    isa = InstructionSet(core.fpu, core.mve_int, vectors, pairs, core.dsp, core.gpr, core.dual_issue, core.fpv5)
    return KernelContext(isa, style)
