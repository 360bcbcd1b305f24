"""Definitions of all operators: inference, numpy reference, gradient, memory behaviour. One file per family.

Importing this package imports all of its modules, which fills the op table; it has no other side effect.
"""

from importlib import import_module
from pkgutil import iter_modules

from tinytrain_compile.ops.base import (
    OPS,
    GradientContext,
    NonDifferentiable,
    OpDef,
    Split,
    attribute_types,
    infer,
    new_builder,
    op_def,
    run_node,
)

__all__ = [
    "OPS",
    "GradientContext",
    "NonDifferentiable",
    "OpDef",
    "Split",
    "attribute_types",
    "infer",
    "new_builder",
    "op_def",
    "run_node",
]

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
