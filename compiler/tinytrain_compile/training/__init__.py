"""Makes a training step out of a forward graph: loss, reverse mode, optimizer. Only what the update plan needs."""

from tinytrain_compile.training.build import build_training
from tinytrain_compile.training.end import end_of, is_probability
from tinytrain_compile.training.fused_updates import fuse_updates
from tinytrain_compile.training.low_rank import GRADIENTS, first_subspace
from tinytrain_compile.training.options import Accumulate, TrainingOptions
from tinytrain_compile.training.samples import SamplesMixError
from tinytrain_compile.training.split_gradients import join_pieces

__all__ = [
    "GRADIENTS",
    "Accumulate",
    "SamplesMixError",
    "TrainingOptions",
    "build_training",
    "end_of",
    "first_subspace",
    "fuse_updates",
    "is_probability",
    "join_pieces",
]
