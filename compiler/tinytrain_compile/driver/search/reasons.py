"""Why --update auto trains of each layer what it does: what more of it would gain, and what stands against that."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinytrain_compile.driver.search.model import UpdateModel
from tinytrain_compile.ir.cost import LayerReason
from tinytrain_compile.plan import Row, Selection
from tinytrain_compile.sparse import UNITS


def layer_reasons(
    model: UpdateModel, chosen: Selection, memory: Sequence[Row], time: Sequence[Row]
) -> Iterator[LayerReason]:
    """One for each layer, by the model. memory, time: rows with their limits.

    The next way of a layer is the one that gains least more than what is taken, all other layers as they are.
    """
    for index, item in enumerate(model.layers):
        taken = item.ways[chosen[index]]
        better = [way for way in range(len(item.ways)) if item.ways[way].gain > taken.gain]
        if not better:
            yield LayerReason(item.layer.name, taken.kind, taken.gain / UNITS)
            continue
        most = min(better, key=lambda way: (item.ways[way].gain, way))
        other = (*chosen[:index], most, *chosen[index + 1 :])
        yield LayerReason(
            item.layer.name,
            taken.kind,
            taken.gain / UNITS,
            item.ways[most].kind,
            (item.ways[most].gain - taken.gain) / UNITS,
            _over(memory, other),
            _over(time, other),
        )


def _over(rows: Sequence[Row], selection: Selection) -> int:
    """By how much a selection is above the limit that it exceeds most; 0 if it keeps to all."""
    loads = (row.load(selection) - row.limit for row in rows if row.counts(selection))
    return max(0, max(loads, default=0))
