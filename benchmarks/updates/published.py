"""Compare `--update auto` with two published rules at equal arenas (`auto published`).

Both rules choose by an additive model of memory: what is kept of a layer's input, plus what is trained. Here they are
written anew, with the gains that `auto` has without data, and every scheme is then planned for real: `auto` gets
the arena that the scheme turns out to need.

* per byte: parts of layers by gain for each byte that they add, as far as a budget goes (after MCUNetV3's contribution
  analysis, Lin et al., NeurIPS 2022, whose search is over such sums).
* per byte and MAC: whole layers by gain over parameters and over MACs, each relative to the largest, then as large a
  share of a layer's channels as the budget has room for (TinyTrain, Kwon et al., ICML 2024).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import product
from statistics import mean

from benchmarks.record import Record
from benchmarks.updates.auto_cases import automatic, case_of
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.sparse import PRIOR, UNITS, LayerWays, Way, axes_of, layer_ways, scheme_plan

BUDGETS = (25_000, 50_000, 100_000)
"""Bytes by the additive model."""
WEIGHT_BYTES, BIAS_BYTES = 2, 4
"""Of a trained int8 weight with its fraction, and of a bias."""
Choice = list[int]


def added_bytes(item: LayerWays, way: Way) -> int:
    """What the additive model says that a way costs."""
    if way.kind == "frozen":
        return 0
    biases = sum(value.elements for value in item.layer.biases) if way.entry.bias else 0
    if way.entry.weight == 0:
        return BIAS_BYTES * biases
    kept = item.layer.node.inputs[0].elements
    if isinstance(way.entry.weight, int) and way.entry.axis == "in":
        kept = kept * way.entry.weight // axes_of(item.layer)["in"]
    return kept + WEIGHT_BYTES * (way.elements - biases) + BIAS_BYTES * biases


def per_byte(layers: Sequence[LayerWays], budget: int) -> Choice:
    """The step to a better way that gains most for its bytes, again and again."""
    chosen, left = [0] * len(layers), budget
    while True:
        steps = [
            ((way.gain - now.gain) / (cost - paid), index, place, cost - paid)
            for index, item in enumerate(layers)
            for now in (item.ways[chosen[index]],)
            for paid in (added_bytes(item, now),)
            for place, way in enumerate(item.ways)
            for cost in (added_bytes(item, way),)
            if way.gain > now.gain and paid < cost <= paid + left
        ]
        if not steps:
            return chosen
        _, index, place, cost = max(steps)
        chosen[index], left = place, left - cost


def per_byte_and_mac(layers: Sequence[LayerWays], budget: int) -> Choice:
    """Layers by score; of each the way of most gain that there is still room for."""
    size = [max(1, sum(value.elements for value in item.layer.parameters)) for item in layers]
    work = [max(1, op_def(item.layer.node.op).macs(item.layer.node)) for item in layers]
    score = [
        item.ways[-1].gain / (s / max(size) * m / max(work)) for item, s, m in zip(layers, size, work, strict=True)
    ]
    chosen, left = [0] * len(layers), budget
    for index in sorted(range(len(layers)), key=lambda i: -score[i]):
        item = layers[index]
        fitting = [place for place, way in enumerate(item.ways) if added_bytes(item, way) <= left]
        chosen[index] = max(fitting, key=lambda place: item.ways[place].gain)
        left -= added_bytes(item, item.ways[chosen[index]])
    return chosen


RULES: dict[str, Callable[[Sequence[LayerWays], int], Choice]] = {
    "per byte": per_byte,
    "per byte and MAC": per_byte_and_mac,
}


def last_is_trained(layers: Sequence[LayerWays], chosen: Choice) -> Choice:
    """A new task needs its head: both rules train the last layer."""
    return [*chosen[:-1], chosen[-1] or len(layers[-1].ways) - 1]


def against(name: str, record: Record) -> Iterator[tuple[str, bool]]:
    """Rows of a network, and whether auto gains at least as much; then how much more on average."""
    ratios = list[float]()
    for rule, budget in product(RULES, BUDGETS):
        needed, gain = record.once((name, rule, str(budget)), partial(needs, name, rule, budget))
        auto = automatic(name, needed, record)
        ratios.append(auto.point.gain / gain if auto.point is not None else 0.0)
        yield f"{name:15} {f'{rule}, {budget} B':25} {needed:9,} {gain:8.1f}", True
        yield f"{'':15} {'auto':25} {auto.text}", ratios[-1] >= 1.0
    yield f"{name:15} auto gains {mean(ratios):.3f} times as much on average, at least {min(ratios):.3f} times", True


def needs(name: str, rule: str, budget: int) -> tuple[int, float]:
    """The arena that a scheme of a rule turns out to need, and its gain."""
    planner = case_of(name).planner()
    layers = layer_ways(planner.model.graph, PRIOR)
    chosen = last_is_trained(layers, RULES[rule](layers, budget))
    ways = [item.ways[place] for item, place in zip(layers, chosen, strict=True)]
    label = planner.named(scheme_plan(layers, ways, f"{rule}, {budget} B"))
    return planner.exact(label).plan.arena_bytes, sum(way.gain for way in ways) / UNITS
