"""Construction of a training step from a forward graph, as the update plan needs: loss, reverse mode, optimizer."""

from tinytrain_compile.training.build import build_training
from tinytrain_compile.training.loss import end_of, is_probability
from tinytrain_compile.training.optimizer import Accumulate, TrainingOptions
from tinytrain_compile.training.rewrites import fuse_updates, join_pieces, mask_clips, stack_products
from tinytrain_compile.training.samples import SamplesMixError

__all__ = [
    "Accumulate",
    "SamplesMixError",
    "TrainingOptions",
    "build_training",
    "end_of",
    "fuse_updates",
    "is_probability",
    "join_pieces",
    "mask_clips",
    "stack_products",
]
