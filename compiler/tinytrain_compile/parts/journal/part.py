"""The journal in C: a tensor of the state, and the values of the template of m_journal.c."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import chain, count

import numpy as np

from tinytrain_compile.emit.checkpoint import stored
from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.buffers import RuntimeBuffer
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ir.types import Value, first_free
from tinytrain_compile.parts.journal.twin import HEAD, HEAD_WORDS, Layout, model_bytes
from tinytrain_compile.parts.part import Part

_ORIGIN = "--runtime journal"
"""Origin of the tensor that a journal adds to the state: its name may be another if the model has one of that name."""
_POINTER, _WORD = 4, 4
"""Bytes of a pointer and of a count on a 32-bit machine."""


class Journal(Part):
    """`m_journal.h`."""

    name, row, files = "journal", "runtime", ("journal.h", "journal.c")
    flag, one_input = "--runtime journal", True
    not_with = ("features", "slices", "listen", "plans", "input_lines", "kernels")

    def with_state(self, train: TrainGraph) -> TrainGraph:
        """Return a step whose checkpoint also has the head of the chain and the number of updates."""
        graph = train.graph
        taken = {value.name for node in graph.nodes for value in (*node.inputs, *node.outputs)}
        taken |= {*graph.constants, *(node.name for node in graph.nodes), *(value.name for value in graph.inputs)}
        name = first_free(chain((HEAD,), (f"{HEAD}.{number}" for number in count(2))), taken)
        head = Value(name, (HEAD_WORDS,), "int32", origin=_ORIGIN)
        constants = {**graph.constants, name: np.zeros(HEAD_WORDS, np.int32)}
        return replace(train, graph=replace(graph, state=(*graph.state, head), constants=constants))

    def check(self, train: TrainGraph, plan: MemoryPlan) -> None:
        """Raise E0113 for a batch of which a checkpoint may hold a part."""
        super().check(train, plan)
        if train.in_place:
            what = "is not possible with --accumulate inplace, where a checkpoint may hold a part of a batch"
            raise CompileError("E0113", self.flag, what, "leave one of the two out")

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return the sizes of a record and of a sample, and the places of the head, the rate and the noise."""
        train, layout = code.train, Layout(code.train.batch)
        places = {value.name: place for place, value in enumerate(stored(train))}
        together = train.micro_batch
        journal = {
            "head": places[head_name(train)],
            "noise": places.get(noise_of(train)),
            "samples": layout.samples,
            "record_bytes": layout.record_bytes,
            "x_bytes": train.graph.inputs[0].size_bytes // together,
            "label_bytes": train.label.size_bytes // together if reads_label(train) else 0,
            "together": together,
            "model": list(model_bytes(code.model["hash"])),
        }
        return {"journal": journal, "shares_weights": True}

    def buffer(self, train: TrainGraph, feature_bytes: int) -> RuntimeBuffer:
        """Return the RAM of a journal with its newest record."""
        return RuntimeBuffer(self.name, "newest record (journal)", _ram(train), "{p}_journal_t journal")

    def pieces(self, summary: Summary) -> list[str]:
        """Return the bytes of a record and of a journal's RAM."""
        found = self.json(summary)
        return [f"journal ({found['record_bytes']} B an update, {found['bytes']} B of RAM)"]

    def json(self, summary: Summary) -> dict[str, int]:
        """Return the bytes of a record and of a journal's RAM."""
        train = summary.train
        return {"record_bytes": Layout(train.batch).record_bytes, "bytes": _ram(train)}


def head_name(train: TrainGraph) -> str:
    """Return the tensor of the state with the number of updates and the head of the chain."""
    return next(value.name for value in train.graph.state if value.origin == _ORIGIN)


def noise_of(train: TrainGraph) -> str:
    """Return the tensor of the state with the noise of int8 rounding, "" for none."""
    return next((node.inputs[0].name for node in train.graph.nodes if node.op == "NoiseTick"), "")


def reads_label(train: TrainGraph) -> bool:
    """Tell whether the loss reads labels."""
    return any(value == train.label for node in train.graph.nodes for value in node.inputs)


def _ram(train: TrainGraph) -> int:
    """Return the bytes of m_journal_t: a key, a count, a record."""
    return _POINTER + _WORD + Layout(train.batch).record_bytes


PART = Journal
