"""What --quant auto is for a model: the numbers that its file is made for."""

from __future__ import annotations

from dataclasses import replace

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.options.compile_options import CompileOptions


def has_formats(model: ImportedModel) -> bool:
    """Whether the model says how its activations are stored (QDQ form, or QLinear operators)."""
    values = (*model.graph.inputs, *(value for node in model.graph.nodes for value in node.outputs))
    return model.quantised and any(value.quant is not None for value in values)


def with_number_format(options: CompileOptions, model: ImportedModel) -> tuple[CompileOptions, tuple[str, ...]]:
    """The options with --quant decided, and a note if the user left it open and gets integers.

    E0101 for a flag that only int8 has a meaning for, given with a float model.
    """
    if options.quant != "auto":
        return options, ()
    if has_formats(model):
        note = "int8, because the model is quantised (QDQ): --quant fp32 trains it in float32"
        return replace(options, quant="int8"), (note,)
    given = options.int8_flags or (("--calib",) if options.calib is not None else ())
    check_int8_flags("fp32", given)
    return replace(options, quant="fp32"), ()


def check_int8_flags(quant: str, given: tuple[str, ...]) -> None:
    """E0101 for a flag that only int8 has a meaning for."""
    if quant == "fp32" and given:
        way = f"add --quant int8, or leave {given[0]} out"
        raise CompileError("E0101", given[0], "has no meaning for --quant fp32 (auto, for a float model)", way)
