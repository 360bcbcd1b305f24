"""Channels that the device chooses (`chosen = "device"` in a scheme): with what that is not possible."""

from __future__ import annotations

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.runtime_parts import OF_WEIGHTS
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Node
from tinytrain_compile.options.compile_options import CompileOptions

_WHERE = 'chosen = "device"'


def check_choice(train: TrainGraph, options: CompileOptions) -> None:
    """E0101 for options that know nothing of a choice; E0302 for a layer in which it would cost too much."""
    step = train.training_step
    if step.choice is None:
        return
    others = (
        ("--input-lines", options.input_lines),
        ("--features on", options.features == "on"),
        ("--slices on", options.slices == "on"),
        ("--plans", bool(options.plans)),
        ("--inference-only", options.inference_only),
        ("--rescale on", options.rescale == "on"),
        *((f"--runtime {name}", name in options.runtime.names) for name in OF_WEIGHTS),
    )
    for flag, given in others:
        if given:
            raise CompileError("E0101", flag, f"is not possible with {_WHERE}", "leave one of the two out")
    for node in step.graph.nodes:
        if _reads_chosen(node):
            what = "float32 layers are trained below it, and their gradient through chosen channels is slow"
            way = f"leave {_WHERE} out, train nothing below the layer, or use --quant int8"
            raise CompileError("E0302", node.origin or node.name, what, way)


def _reads_chosen(node: Node) -> bool:
    """Whether a node is a float32 data gradient through a weight of chosen channels (+14 % of a digits step)."""
    split = getattr(getattr(node.attrs, "conv", node.attrs), "split", None)
    backward = node.op in ("ConvGradInput", "GemmGradInput")
    return backward and split is not None and split.on_device


def refuse_choice(train: TrainGraph, command: str) -> None:
    """E0101 for a command that trains without a first pass that scores."""
    if train.training_step.choice is not None:
        what = f"is chosen on the device, by scores that {command} does not gather"
        raise CompileError("E0101", _WHERE, what, "name the channels in the scheme")
