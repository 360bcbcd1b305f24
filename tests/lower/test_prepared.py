"""Weights that lie in flash as they are multiplied: whole maps and rows give the bytes of the int8 weight."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from testing.kernels.by_row_blocks import by_row_blocks
from testing.kernels.sanitised import Make, run_sanitised, whole
from testing.ops import case_quantised as quantised
from testing.ops.case import Case
from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower.kernels import KernelContext
from tinytrain_compile.ops.base import alias_of, row_form, scratch_bytes
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP
from tinytrain_compile.ops.int8.prepared import prepared_bytes, prepared_table, prepared_weight, with_prepared_weight
from tinytrain_compile.ops.names import position

POINT = ConvAttrs((1, 1))
SAME = ConvAttrs((3, 3), pads=(1, 1, 1, 1))
HALVED = ConvAttrs((3, 3), (2, 2), (0, 0, 1, 1))


def case(op: str, image: tuple[int, int], inputs: int, outputs: int, conv: ConvAttrs = POINT) -> Case:
    rng, geometry = np.random.default_rng(inputs + outputs), ((1, *image, inputs), outputs, conv)
    return quantised.qconv(rng, geometry, 0) if op == "y" else quantised.qconv_grad_input(rng, geometry, 0, NO_CLAMP)


CASES = [
    case("y", (8, 8), 16, 24),
    case("y", (5, 7), 16, 6),  # an odd number of pixels: of the last tile one is computed in vain
    case("y", (3, 3), 7, 10),  # no whole terms: zeros in the table
    case("y", (6, 40), 48, 8),  # strips of pixels
    case("y", (4, 2), 600, 2),  # a tile takes more than a strip should
    case("error", (8, 8), 16, 24),
    case("error", (5, 7), 12, 13),
    case("error", (6, 40), 8, 48),
    case("y", (8, 8), 3, 16, SAME),
    case("y", (9, 10), 3, 5, HALVED),  # an odd number of channels
    case("y", (4, 6), 64, 6, SAME),  # windows in turn
    case("y", (7, 7), 6, 4, ConvAttrs((5, 2), pads=(2, 0, 2, 1))),
]


def prepared(cases: Sequence[Case], make: Make) -> Make:
    """Kernels of the cases, in order, with their weights in a table of constants in place of the int8 operand."""
    left: Iterator[Case] = iter(cases)

    def made(node: Node, name: str, context: KernelContext) -> tuple[Kernel, int]:
        ready, place = with_prepared_weight(node), position(node, "w")
        kernel, scratch = make(ready, f"{name}_ready", context)
        table = prepared_table(ready, next(left).arrays[place])
        assert table.nbytes == prepared_bytes(ready)
        numbers = ", ".join(str(int(number)) for number in table.ravel())
        kept = [n for n in range(len(node.outputs)) if n not in dict(alias_of(node))]
        own = [f"p{n}" for n in range(len(node.inputs))] + [f"o{n}" for n in kept]
        own += ["scratch"] if kernel.scratch_dtype else []
        head = f"void {name}({', '.join(f'void *{word}' for word in own)})"
        given = ", ".join(f"{name}_w" if word == f"p{place}" else word for word in own)
        source = f"_Alignas(8) static const int16_t {name}_w[] = {{{numbers}}};\n"
        source += f"{head} {{ (void)p{place}; {kernel.name}({given}); }}\n"
        return Kernel(name, kernel.source + source, f"{kernel.declaration}\n{head};", kernel.scratch_dtype), scratch

    return made


@pytest.mark.parametrize("make", [whole, partial(by_row_blocks, step=1), partial(by_row_blocks, step=3, ring=True)])
def test_the_bytes_are_those_of_the_int8_weight(make: Make, tmp_path: Path) -> None:
    run_sanitised(CASES, tmp_path, make=prepared(CASES, make))


def test_a_wrong_table_is_seen(tmp_path: Path) -> None:
    """Numbers of a pair of rows exchanged, of every form."""
    for wrong in (CASES[0], CASES[5], CASES[8]):
        first = prepared_table(with_prepared_weight(wrong.node()), wrong.arrays[position(wrong.node(), "w")]).ravel()[
            :2
        ]
        old, new = ("{" + ", ".join(map(str, numbers)) for numbers in (first, first[::-1]))
        change = partial(_changed, old=old, new=new)
        with pytest.raises(AssertionError, match="differs"):
            run_sanitised([wrong], tmp_path, change, make=prepared([wrong], whole))


def _changed(text: str, old: str, new: str) -> str:
    assert old in text
    return text.replace(old, new)


def test_no_weight_lies_in_scratch() -> None:
    """Neither of a map nor by rows; what stays of a stream's scratch from call to call is nothing."""
    for one in CASES:
        node, ready = one.node(), with_prepared_weight(one.node())
        assert scratch_bytes(ready) <= max(scratch_bytes(node), 2048)
        before, after = row_form(node), row_form(ready)
        assert before is not None and after is not None
        assert after.kept_bytes == 0 < before.kept_bytes
        assert after.scratch_bytes <= max(before.scratch_bytes, 512)


def test_what_cannot_be_prepared() -> None:
    """One pixel or few read weights as they lie; depthwise weights are few; a weight in two parts is trained."""
    assert prepared_weight(case("y", (1, 1), 64, 64).node()) is None
    assert prepared_weight(case("y", (2, 2), 64, 64).node()) is None
    assert prepared_weight(case("y", (8, 8), 16, 5).node()) is None, "an odd number of rows of weights"
    assert prepared_weight(case("y", (8, 8), 8, 8, ConvAttrs((3, 3), pads=(1, 1, 1, 1), groups=8)).node()) is None
    assert prepared_weight(case("error", (8, 8), 8, 8, SAME).node()) is None
    assert prepared_weight(with_prepared_weight(CASES[0].node())) is None
    with pytest.raises(ValueError, match="no weight"):
        with_prepared_weight(case("y", (1, 1), 64, 64).node())
