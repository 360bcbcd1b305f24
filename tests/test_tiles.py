"""The file of tiles: what is read, written, refused; and that tiles change loops and no result."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from testing.cores import missing_tools
from testing.ops import case_quantised as quantised
from testing.ops.case import Case, make
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import runtime_headers
from tinytrain_compile.files.tiles import RULE, Found, TileKey, candidates, read_tiles, tile_key, write_tiles
from tinytrain_compile.lower.kernels import InstructionSet, KernelContext
from tinytrain_compile.lower.lower import ScratchError, lower_node
from tinytrain_compile.ops import op_def, run_node
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.target import load_target
from tinytrain_compile.verify import find_tools
from tinytrain_compile.verify.kernel_runs import KernelRun, count_kernels

KEY = TileKey("cortex-m7", "12.2.1", "Gemm 1x4:float32, 2x4:float32 -> 1x2:float32", "0123456789ab")


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def gemm(columns: int = 16) -> Case:
    return make("Gemm", (rng().standard_normal((6, 20)), rng().standard_normal((columns, 20))), GemmAttrs())


DENSE = ((1, 6, 6, 8), 8, ConvAttrs((3, 3), pads=(1, 1, 1, 1)))
DEPTHWISE = ((1, 8, 8, 8), 8, ConvAttrs((5, 5), pads=(2, 2, 2, 2), groups=8))
ODD = ((1, 5, 5, 7), 5, ConvAttrs((3, 3), (2, 2), (1, 1, 1, 1)))
POINTWISE = ((1, 4, 4, 24), 16, ConvAttrs((1, 1)))
CASES = {
    "float product": gemm,
    "pairs": lambda: quantised.qconv(rng(), POINTWISE, 0),
    "rows": lambda: quantised.qconv(rng(), DENSE, 0),
    "depthwise": lambda: quantised.qconv(rng(), DEPTHWISE, 0),
    "maps": lambda: quantised.qconv_update(rng(), DENSE, 0),
    "rows of errors": lambda: quantised.qconv_grad_input(rng(), DENSE, 0, NO_CLAMP),
    "weight gradient": lambda: quantised.qconv_update(rng(), ODD, 0),
    "data gradient": lambda: quantised.qconv_grad_input(rng(), ODD, 0, NO_CLAMP),
}


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    known = {KEY: Found("tile=2x8", 100, 90), TileKey("cortex-m4", "10", "QConv 1:int8", "0" * 12): Found("rule", 5, 5)}
    write_tiles(tmp_path / "a.txt", known)
    assert read_tiles(tmp_path / "a.txt") == known
    lines = [line for line in (tmp_path / "a.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines == sorted(lines)
    assert [path.name for path in tmp_path.iterdir()] == ["a.txt"]


@pytest.mark.parametrize(
    "line", ["x", "m7 | 12 | Gemm | 0 | rule | 1 -> 2", "a | 1 | k | 0123456789ab | rule | -1 -> 2"]
)
def test_a_damaged_line_is_named(line: str, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text(f"# head\n\n{line}\n", encoding="utf-8")
    with pytest.raises(CompileError, match=r"a\.txt, line 3") as caught:
        read_tiles(tmp_path / "a.txt")
    assert caught.value.code == "E0109"


def test_what_a_choice_depends_on_is_in_its_key() -> None:
    node = gemm().node()
    key = tile_key(node, "cortex-m7", "12.2.1", True)
    assert key == tile_key(gemm().node(), "cortex-m7", "12.2.1", True)
    others = [
        tile_key(gemm(columns=18).node(), "cortex-m7", "12.2.1", True),
        tile_key(node, "cortex-m4", "12.2.1", True),
        tile_key(node, "cortex-m7", "13.1.0", True),
        tile_key(node, "cortex-m7", "12.2.1", False),
    ]
    assert len({key, *others}) == 5


def test_unknown_tiles_mean_nothing() -> None:
    assert Found("tile=99x1", 2, 1).known is None
    assert Found("rule", 2, 2).known == RULE


@pytest.mark.qemu
@pytest.mark.skipif(bool(missing_tools()), reason="needs QEMU")
def test_no_tiles_change_a_byte() -> None:
    """Every candidate of every kind of kernel, on a board: what the rule's kernel gives, others give too."""
    target = load_target("cortex-m7")
    runs: list[KernelRun] = []
    variants: dict[str, set[str]] = {}
    for name, case in CASES.items():
        one = case()
        node = one.node()
        expected = reference_bytes(one)
        for number, tiles in enumerate((RULE, *candidates(node))):
            kernel_name = f"bench_{len(runs)}_{number}"
            context = KernelContext(InstructionSet(target.features.fpu)).tuned(tiles)
            try:
                kernel = lower_node(node, kernel_name, context, fuse_multiply_add=False)
            except ScratchError:
                continue
            variants.setdefault(name, set()).add(kernel.source.replace(kernel_name, ""))
            inputs = tuple(np.ascontiguousarray(array).tobytes() for array in one.float32())
            sizes = tuple(value.size_bytes for value in node.outputs)
            runs.append(KernelRun(kernel, inputs, sizes, *alias_and_scratch(one), expected))
    counts = count_kernels(runs, target, find_tools(target), runtime_headers())
    assert [count.equal for count in counts] == [True] * len(runs)
    alone = {name for name, texts in variants.items() if len(texts) == 1}
    assert alone == {"pairs", "maps"}, "whose tiles the planner knows; all others have loops to choose from"
    assert len({count.instructions for count in counts}) > len(CASES)


def alias_and_scratch(case: Case) -> tuple[dict[int, int], int]:
    definition = op_def(case.node().op)
    return dict(definition.alias), definition.scratch(case.node())


def reference_bytes(case: Case) -> tuple[bytes, ...]:
    return tuple(np.ascontiguousarray(array).tobytes() for array in run_node(case.node(), case.float32(), exact=True))
