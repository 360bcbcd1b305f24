"""Whether an image can come row by row (`--input-lines`): what options, model and plan have to be for that."""

from __future__ import annotations

from tinytrain_compile.data.samples import labelled
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.options.compile_options import CompileOptions

_WHERE = "--input-lines"


def check_lines(train: TrainGraph, plan: MemoryPlan, model: ImportedModel, options: CompileOptions) -> None:
    """Raise E0113 unless a plan takes the image row by row, never twice, and never needs more than some rows of it."""
    stream = next((node for node in plan.order if takes_lines(node)), None)
    image = train.graph.inputs[0]
    if stream is None or not isinstance(stream.attrs, StreamAttrs):
        first = next((n for n in train.graph.nodes if image in n.inputs), train.graph.nodes[0])
        what = f"{first.origin or first.name!r} ({first.op}) cannot be computed row by row"
        other = "" if options.input_layout != "chw" else "add --input-layout hwc, or "
        raise CompileError(
            "E0113", _WHERE, what, f"{other}leave --input-lines out; docs/streams.md says which layers can"
        )
    if stream.attrs.nodes[0].outputs[0].name in stream.attrs.outputs:
        what = f"--update {options.update} trains a layer that reads the image, which then has to be there as a whole"
        raise CompileError("E0113", _WHERE, what, "freeze the first layer: --update last:N, or a scheme")
    if not train.exponents_known and (options.calib is None or not labelled(options.calib, model)):
        what = "the first step would compute errors twice to find their exponents"
        raise CompileError("E0113", _WHERE, what, "give --calib with x and y, which compiles the exponents in")
