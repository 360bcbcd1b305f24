"""What every operator means: inference, numpy reference, gradient, memory behaviour. One file per family.

Importing this package fills the op table; it has no other side effect.
"""

from tinytrain_compile.ops import (
    activation,
    choice,
    clip_mask,
    conv,
    elementwise,
    int8,
    linear,
    loss,
    normalise,
    page,
    pool,
    resize,
    shape,
    smooth,
    update,
    views,
)
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
    "activation",
    "attribute_types",
    "choice",
    "clip_mask",
    "conv",
    "elementwise",
    "infer",
    "int8",
    "linear",
    "loss",
    "new_builder",
    "normalise",
    "op_def",
    "page",
    "pool",
    "resize",
    "run_node",
    "shape",
    "smooth",
    "update",
    "views",
]
