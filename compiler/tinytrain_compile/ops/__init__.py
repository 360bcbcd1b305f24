"""What every operator means: inference, numpy reference, gradient, memory behaviour. One file per family.

Importing this package fills the op table; it has no other side effect.
"""

from tinytrain_compile.ops import (
    activation,
    conv,
    elementwise,
    linear,
    loss,
    normalise,
    pool,
    qconv,
    qfine,
    qloss,
    qmomentum,
    qpointwise,
    qpool,
    qupdate,
    shape,
    update,
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
    "conv",
    "elementwise",
    "infer",
    "linear",
    "loss",
    "new_builder",
    "normalise",
    "op_def",
    "pool",
    "qconv",
    "qfine",
    "qloss",
    "qmomentum",
    "qpointwise",
    "qpool",
    "qupdate",
    "run_node",
    "shape",
    "update",
]
