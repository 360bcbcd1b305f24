"""Low-rank copies in int8 networks: numpy == C == boards to the byte, and checkpoints that go on."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.e2e import chain
from tests.e2e.exact import check_exact, check_on, in_turn
from tests.e2e.marks import needs_qemu
from tests.e2e.test_low_rank import RESUMED, subspaces
from tests.emit.test_generated_c import NUMERIC, build, sources, write_files
from tests.quantize.test_low_rank import fixed_graph, followed, int8_graph

VARIANTS: list[tuple[str, dict[str, Any]]] = [
    ("sr8", {}),
    ("mixed", {"batch": 2, "store": "mixed"}),
    ("momentum", {"optimizer": "momentum", "store": "q8.8"}),
]


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize(("name", "options", "board"), in_turn(VARIANTS))
def test_a_board_equals_numpy(name: str, options: dict[str, Any], board: str) -> None:
    train = int8_graph(followed, **options)
    assert len(subspaces(train)) == 4 * 3 + 1
    check_exact(check_on(train, board))


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("board", ["cortex-m0plus", "cortex-m7", "cortex-m55"])
def test_fixed_subspaces_on_a_board_equal_numpy(board: str) -> None:
    train = fixed_graph(batch=2)
    assert not subspaces(train)
    check_exact(check_on(train, board))


def test_a_checkpoint_goes_on_to_the_byte(tmp_path: Path) -> None:
    """Subspaces, weights, exponents and noise: an instance that loads ends with the same bytes."""
    made = chain.project(int8_graph(followed))
    write_files(tmp_path, made.bundle.files)
    whole = "= (signed char)((int)((unsigned)k * 37u + number * 11u) % 201 - 100);"
    start = RESUMED.index("= (float)((int)((unsigned)k")
    end = RESUMED.index(";", start) + 1
    (tmp_path / "resumed.c").write_text(RESUMED[:start] + whole + RESUMED[end:])
    for flags, code in (((), 0), (("-DNOT_LOADED",), 6)):
        build(["gcc", "-std=c11", *NUMERIC, *flags, "resumed.c", *sources(made.bundle), "-o", "resumed"], tmp_path)
        assert subprocess.run([tmp_path / "resumed"], check=False).returncode == code
