"""Placement: always valid; equal to brute force on small problems; the solver never above the greedy."""

from __future__ import annotations

import csv
import random

import pytest

from testing.places import SHARED
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.plan.place import choose
from tinytrain_compile.plan.place.cpsat import decide, minimise
from tinytrain_compile.plan.place.placement import (
    Packing,
    Placement,
    build_packing,
    fit,
    greedy,
    improve_placement,
    sequences,
)
from tinytrain_compile.plan.place.skyline import search

INSTANCES = SHARED / "benchmarks" / "minimalloc"


def random_rectangles(seed: int, count: int, steps: int) -> list[Buffer]:
    draw = random.Random(seed)
    found: list[Buffer] = []
    for index in range(count):
        first = draw.randrange(steps)
        last = min(steps - 1, first + draw.choice([0, 1, 1, 2, 3, steps]))
        found.append(Buffer(f"b{index}", "tensor", 8 * draw.randint(1, 9), 0, first, last, ()))
    return found


def assert_valid(items: list[Buffer], packing: Packing, placement: Placement) -> None:
    """Checks against the rectangles, not against what the packing says about them."""
    unit = packing.unit_bytes
    ranges = [(o * unit, o * unit + item.size_bytes) for o, item in zip(placement.offsets, items, strict=True)]
    for i, one in enumerate(items):
        assert ranges[i][0] >= 0
        for j, other in enumerate(items[:i]):
            together = one.first_step <= other.last_step and other.first_step <= one.last_step
            assert not (together and ranges[i][0] < ranges[j][1] and ranges[j][0] < ranges[i][1])
    assert placement.height * unit == max(high for _, high in ranges)
    steps = {item.first_step for item in items}
    load = max(sum(i.size_bytes for i in items if i.first_step <= s <= i.last_step) for s in steps)
    assert packing.bound * unit == load <= placement.height * unit


def brute_force(items: list[Buffer]) -> int:
    """The least height: some optimal placement arises by placing boxes one by one, each as low as it can lie.

    (Sort an optimal placement by offset and push every box down.) Branches on which box comes next.
    """
    best = sum(item.size_bytes for item in items)

    def place(left: list[int], placed: list[tuple[int, int]], height: int) -> None:
        nonlocal best
        if height >= best:
            return
        if not left:
            best = height
            return
        for index in left:
            item = items[index]
            floor = 0
            for other, offset in placed:
                rival = items[other]
                if item.first_step <= rival.last_step and rival.first_step <= item.last_step:
                    floor = max(floor, offset + rival.size_bytes)  # never below an earlier box: offsets only rise
            top = max(height, floor + item.size_bytes)
            place([i for i in left if i != index], [*placed, (index, floor)], top)

    place(list(range(len(items))), [], 0)
    return best


def best_of_all(packing: Packing) -> Placement:
    start, sequence = greedy(packing)
    improved = improve_placement(packing, start, sequence, 0.2, 0)
    return improved if improved.proven else minimise(packing, improved, 5.0, 0)


def test_a_thousand_small_problems_equal_brute_force() -> None:
    """The skyline search on all of them, greedy and CP-SAT's minimisation where greedy leaves a gap."""
    searched = 0
    for seed in range(1000):
        items = random_rectangles(seed, 3 + seed % 5, 4 + seed % 4)
        packing = build_packing(items)
        least = brute_force(items) // packing.unit_bytes
        found = search(packing, least, 1.0)
        assert found.placement is not None
        assert_valid(items, packing, found.placement)
        assert found.placement.height == least
        assert search(packing, least - 1, 1.0).answer == "no"
        naive = fit(packing, range(len(items)))
        if not naive.proven:
            solved = minimise(packing, naive, 5.0, 0)
            assert_valid(items, packing, solved)
            assert solved.proven
            assert solved.height == least
            searched += 1
        best = best_of_all(packing)
        assert best.proven
        assert best.height == least
    assert searched >= 100  # the comparison is not only about problems that any guess solves


def test_a_gap_that_no_placement_closes_is_proven() -> None:
    """The load is 4 at every step and yet 5 are needed: a-c, b-d, a-b and c-d would all have to be neighbours."""
    table = {"x": (2, 0, 0), "z": (2, 0, 1), "a": (1, 1, 2), "c": (1, 1, 3)}
    table |= {"b": (1, 2, 2), "d": (1, 2, 3), "y": (2, 3, 4), "v": (2, 4, 4)}
    for mirrored in (False, True):
        items = [
            Buffer(name, "tensor", 8 * size, 0, *((4 - last, 4 - first) if mirrored else (first, last)), ())
            for name, (size, first, last) in table.items()
        ]
        packing = build_packing(items)
        assert packing.bound == 4
        assert decide(packing, 4, 5.0, 0).answer == search(packing, 4, 1.0).answer == "no"
        for found in (best_of_all(packing), search(packing, 5, 1.0).placement):
            assert found is not None
            assert_valid(items, packing, found)
            assert found.height * packing.unit_bytes == brute_force(items) == 40
        assert best_of_all(packing).proven


def test_decision_agrees_with_brute_force() -> None:
    for seed in range(60):
        items = random_rectangles(seed + 1000, 6, 5)
        packing = build_packing(items)
        least = brute_force(items) // packing.unit_bytes
        for decision in (decide, choose.decide):
            yes = decision(packing, least, 5.0, 0)
            assert yes.answer == "yes"
            assert yes.placement is not None
            assert_valid(items, packing, yes.placement)
            assert decision(packing, least - 1, 5.0, 0).answer == "no"


def test_larger_problems_are_valid_in_any_sequence() -> None:
    for seed in range(30):
        items = random_rectangles(seed, 60, 25)
        packing = build_packing(items)
        shuffled = list(range(60))
        random.Random(seed).shuffle(shuffled)
        for tightest in (False, True):
            assert_valid(items, packing, fit(packing, shuffled, tightest))
        start, sequence = greedy(packing)
        better = improve_placement(packing, start, sequence, 0.2, seed)
        lowest = minimise(packing, better, 0.5, seed)
        for placement in (start, better, lowest):
            assert_valid(items, packing, placement)
        assert lowest.height <= better.height <= start.height


def test_greedy_takes_the_first_of_its_lowest_passes() -> None:
    """Passes are given up where they are no lower: what is found is what whole passes find."""
    for seed in range(40):
        packing = build_packing(random_rectangles(seed, 30, 20))
        passes = [(fit(packing, one, tightest), one) for one in sequences(packing) for tightest in (False, True)]
        found, sequence = greedy(packing)
        assert (found, sequence) == min(passes, key=lambda one: one[0].height)
        lower = improve_placement(packing, found, sequence, 0.02, seed)
        by_offset = sorted(range(30), key=lambda box: lower.offsets[box])
        assert fit(packing, by_offset).height <= lower.height <= found.height


def test_maximal_live_sets_cover_every_pair() -> None:
    items = random_rectangles(11, 40, 20)
    packing = build_packing(items)
    pairs = {(i, j) for i, found in enumerate(packing.neighbours) for j in found}
    assert pairs == {(i, j) for live in packing.live for i in live for j in live if i != j}
    assert all(not set(a) < set(b) for a in packing.live for b in packing.live)


def test_nothing_to_place() -> None:
    packing = build_packing([])
    placement, _ = greedy(packing)
    assert placement == Placement((), 0, True)


@pytest.mark.skipif(not INSTANCES.is_dir(), reason=f"no MiniMalloc instances in {INSTANCES}")
@pytest.mark.parametrize("name", ["A", "C", "D", "E", "F", "G", "I", "K"])
def test_minimalloc_instances_are_placed_validly(name: str) -> None:
    with (INSTANCES / f"{name}.1048576.csv").open() as file:
        items = [
            Buffer(row["id"], "tensor", int(row["size"]), 0, int(row["lower"]), int(row["upper"]) - 1, ())
            for row in csv.DictReader(file)
        ]
    packing = build_packing(items)
    start, sequence = greedy(packing)
    assert_valid(items, packing, start)
    assert start.height <= 1.45 * packing.bound
    assert_valid(items, packing, improve_placement(packing, start, sequence, 0.5, 0))
    if name in "ACFGIK":  # D and E take a little longer (make bench NAME=placement)
        limit = (1 << 20) // packing.unit_bytes
        solved = search(packing, limit, 4.0) if name == "I" else choose.decide(packing, limit, 5.0, 0)
        assert solved.placement is not None
        assert_valid(items, packing, solved.placement)
        assert solved.placement.height * packing.unit_bytes <= 1 << 20
