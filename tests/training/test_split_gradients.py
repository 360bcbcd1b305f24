"""The gradient of a split: one Concat where the pieces tile the whole, the sum as before where they do not."""

from __future__ import annotations

import numpy as np

from testing.networks import models
from testing.networks.models import Network
from tests.e2e import chain
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.reference.trainer import run_reference
from tinytrain_compile.training import join_pieces


def count(train: TrainGraph, op: str) -> int:
    return sum(node.op == op for node in train.graph.nodes)


def test_pieces_that_tile_the_whole_are_joined_and_give_the_same_step() -> None:
    summed = chain.train_graph(models.bands(), "all")
    joined = join_pieces(summed)
    assert (count(summed, "Embed"), count(joined, "Embed")) == (3, 0)
    assert count(summed, "Add") == count(joined, "Add") + 2
    assert count(joined, "Concat") == count(summed, "Concat") + 1
    samples = random_samples(summed, 3, 0)
    one, other = run_reference(summed, samples, 3), run_reference(joined, samples, 3)
    np.testing.assert_array_equal(one.losses, other.losses)
    for before, after in zip(one.states, other.states, strict=True):
        assert before.keys() == after.keys()
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])


def pieces(rows: str) -> TrainGraph:
    """A net that slices rows [0, 2) and what `rows` says out of four, and adds up features of both."""
    net = Network("pieces", "float[1, 2, 4, 4] x", "float[1, 3] y", seed=3)
    stem = net.relu(net.conv("stem", "x", (4, 2, 3, 3), "pads = [1, 1, 1, 1]"))
    low, high = (int(number) for number in rows.split(":"))
    net.table("axis", [2])
    for name, start, end in (("a", 0, 2), ("b", low, high)):
        net.table(f"{name}_start", [start])
        net.table(f"{name}_end", [end])
        net.node(f"cut_{name}", f"{name} = Slice ({stem}, {name}_start, {name}_end, axis)")
        net.node(f"mean_{name}", f"{name}_mean = GlobalAveragePool ({name})")
    net.node("add", "both = Add (a_mean, b_mean)")
    net.node("flat", "flat = Flatten <axis = 1> (both)")
    net.node("y", f"y = Identity ({net.dense('fc', 'flat', 4, 3)})")
    return chain.train_graph(net.model(), "all")


def test_pieces_that_overlap_or_leave_a_gap_are_summed() -> None:
    assert count(join_pieces(pieces("2:4")), "Embed") == 0
    for rows in ("1:3", "1:4", "3:4", "2:3"):
        train = pieces(rows)
        assert count(train, "Embed") == 2
        assert join_pieces(train) is train
