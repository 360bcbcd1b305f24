"""Channels that the device chooses: values of the templates, and options with which they are not possible."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from tinytrain_compile.emit.part import PlanCode
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.choice import FIXED, OPEN, SCORED, SCORING, ChannelChoice, scoring_nodes
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.options.compile_options import as_typed, is_asked_for
from tinytrain_compile.parts.part import Part


class Choice(Part):
    """`m_score` and `m_rescore`."""

    name, has_fragments = "choice", True
    flag = 'chosen = "device"'
    not_with = (
        *("input_lines", "features=on", "slices", "plans", "inference_only", "rescale=on"),
        *("runtime=delta", "runtime=average"),
    )

    def prepare(self, code: PlanCode) -> None:
        """Let nodes that only scores need run only in calls that score."""
        choice = _choice_of(code.train)
        flag = code.sequencer.typed("I32", choice.flag.name)
        scoring = scoring_nodes(code.train.graph, choice)
        code.sequencer.guards = dict.fromkeys(scoring, f"*{flag} == CHANNELS_SCORING")
        code.interface = replace(code.interface, chooses=True)

    def values(self, code: PlanCode) -> Mapping[str, object]:
        """Return the flag, its values, and for every layer the places of its tables."""
        train, sequencer, choice = code.train, code.sequencer, _choice_of(code.train)
        # Bytes of a channel: the state has only the chosen channels, so its first axis counts them.
        rows = {value.name: value.size_bytes // value.shape[0] for value in train.graph.state if value.shape}
        layers = [
            {
                "place": sequencer.typed("I32", layer.place.name),
                "scores": sequencer.typed("F32", layer.scores.name),
                "part": sequencer.pointer(layer.part.name),
                "whole": code.tables.of(layer.whole.name),
                "total": layer.place.elements,
                "count": layer.part.shape[0],
                "row_bytes": rows[layer.part.name],
            }
            for layer in choice.layers
        ]
        tables = (value.name for layer in choice.layers for value in (layer.place, layer.scores))
        state, slots = {choice.flag.name, *tables}, code.model["first_slots"]
        return {
            "initial_function": "/* All but which channels are trained. */\nstatic void write_first_parameters",
            "first_slots": [slot for slot in slots if slot["value"] not in state],
            "values_by_loop": False,
            "choice": {
                "flag": sequencer.typed("I32", choice.flag.name),
                "values": (("OPEN", OPEN), ("FIXED", FIXED), ("SCORED", SCORED), ("SCORING", SCORING)),
                "slots": [slot for slot in slots if slot["value"] in state],
                "layers": layers,
            },
        }

    def check_options(self) -> None:
        """Raise E0113 for options that do not support a choice."""
        for other in self.not_with:
            if is_asked_for(self.asked, other):
                what = f"is not possible with {self.flag}"
                raise CompileError("E0113", as_typed(other), what, "leave one of the two out")

    def check(self, train: TrainGraph, plan: MemoryPlan) -> None:
        """Raise E0113 for options that do not support a choice; E0302 for a layer in which it would cost too much."""
        self.check_options()
        for node in train.training_step.graph.nodes:
            if _reads_chosen(node):
                what = "float32 layers are trained below it, and their gradient through chosen channels is slow"
                way = f"leave {self.flag} out, train nothing below the layer, or use --quant int8"
                raise CompileError("E0302", node.origin or node.name, what, way)


def _choice_of(train: TrainGraph) -> ChannelChoice:
    assert train.choice is not None, "a project has this part if its device chooses channels"
    return train.choice


def _reads_chosen(node: Node) -> bool:
    """Tell whether a node is a float32 data gradient through a weight of chosen channels (+14 % of a digits step)."""
    split = getattr(getattr(node.attrs, "conv", node.attrs), "split", None)
    backward = has_trait(node.op, "data_gradient")
    return backward and split is not None and split.on_device


PART = Choice
