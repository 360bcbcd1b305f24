"""The next larger arena that finetune names: what it promises is so, and it is named only where there is one."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.driver.planning import planner
from tests.driver.search.test_update_choice import dense_chain, small_chain
from tests.e2e.broken import write
from tinytrain_compile.driver.search.choose import choose, search_update
from tinytrain_compile.driver.search.next_arena import next_arena, with_next_arena
from tinytrain_compile.sparse import PRIOR, UNITS, gain_of_plan


@pytest.mark.parametrize("seed", range(2))
def test_more_is_gained_in_the_next_arena(seed: int, tmp_path: Path) -> None:
    """The named update fits there, and --update auto gains at least as much there as is said."""
    make = (dense_chain, small_chain)[seed % 2]
    path = Path(write(make(random.Random(seed), 4), tmp_path))
    least, most = (choose(planner(path, update=update)).plan.arena_bytes for update in ("head", "all"))
    limit = (least + most) // 2
    small = planner(path, arena_bytes=limit)
    graph, chosen = small.model.graph, search_update(small, small.layer_count)
    found = next_arena(small, chosen)
    assert found is not None and found.arena_bytes == limit + found.more_bytes > limit
    assert found.gain > found.gain_now == gain_of_plan(graph, chosen.update, PRIOR) / UNITS
    larger = planner(path, arena_bytes=found.arena_bytes)
    assert larger.fitting(found.update) is not None
    there = search_update(larger, larger.layer_count)
    assert gain_of_plan(graph, there.update, PRIOR) / UNITS >= found.gain


def test_none_is_named_where_all_layers_fit_or_nothing_was_limited(tmp_path: Path) -> None:
    path = Path(write(dense_chain(random.Random(1), 3), tmp_path))
    free = planner(path)
    whole = search_update(free, free.layer_count)
    assert with_next_arena(free, whole) is whole
    roomy = planner(path, arena_bytes=2 * whole.plan.arena_bytes)
    assert next_arena(roomy, search_update(roomy, roomy.layer_count)) is None
