"""The API of plans that take different numbers of samples: types hold one sample, calls say how many they give.

What a plan's call sequence reads is one array of all values of its samples, as ever; the tables of constants of plans
whose graphs are of different lengths are told apart here too.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tinytrain_compile.emit.c_text import Names
from tinytrain_compile.emit.interface import label_ctype, shape_data
from tinytrain_compile.ir.stages import Interface, MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Array


class PlanTables(Names):
    """Names of the tables of one of several plans: those of all, but for constants that it has with other numbers."""

    def __init__(self, shared: Names, own: Collection[str], ending: str) -> None:
        super().__init__()
        self._shared, self._own, self._ending = shared, own, ending

    def of(self, key: str) -> str:
        """The identifier of a key: always the same for the same key."""
        return self._shared.of(f"{key}{self._ending}" if key in self._own else key)


def tables_of_plans(planned: Sequence[tuple[TrainGraph, MemoryPlan]], prefix: str) -> list[Names]:
    """Names of each plan's tables, in the order of the plans. The last one's are the plain ones."""
    shared, known = Names(f"{prefix}_w_"), _constants(*planned[-1])
    found = list[Names]()
    for number, each in enumerate(planned[:-1]):
        numbers = _constants(*each)
        own = frozenset(name for name, data in numbers.items() if not _equal(data, known.get(name, data)))
        known = {**numbers, **known}
        found.append(PlanTables(shared, own, f"@plan{number}"))
    return [*found, shared]


def _constants(train: TrainGraph, plan: MemoryPlan) -> Mapping[str, Array]:
    return {**({} if plan.inference is None else plan.inference.graph.constants), **train.graph.constants}


def _equal(array: Array, other: Array) -> bool:
    return array is other or (array.dtype == other.dtype and np.array_equal(array, other))


def counted_labels(interface: Interface, prefix: str) -> dict[str, object]:
    """For the call sequence of a plan: where the values of its labels are, and how many."""
    one, kind = interface.label_elements // interface.micro_batch, interface.label_ctype
    whole = f"(const {kind} *)(const void *)labels" if one > 1 else "labels"
    return {
        "counted": True,
        "count_parameter": "uint32_t n, ",
        "label_values": whole,
        "label_elements": f"{interface.label_elements}u",
        "label_type": f"{prefix}_label_t" if interface.label_elements == 1 else kind,
    }


def header_data(train: TrainGraph, interface: Interface, model: Mapping[str, object]) -> dict[str, object]:
    """What the public header and parts of the loop know instead: one sample of each."""
    together = train.micro_batch
    one = replace(
        interface,
        micro_batch=1,
        input_elements=interface.input_elements // together,
        label_elements=interface.label_elements // together,
    )
    several = one.label_elements > 1
    return {
        **model,
        "i": one,
        "label_array": several,
        "label_type": label_ctype(train) if several else model["label_type"],
        "input_shape": "x".join(map(str, train.of_one(train.graph.inputs[0]))),
        **shape_data(train, one, one_sample=True),
    }
