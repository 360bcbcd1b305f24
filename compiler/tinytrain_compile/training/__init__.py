"""Makes a training step out of a forward graph: loss, reverse mode, optimizer. Only what the update plan needs."""

from tinytrain_compile.training.build import build_training
from tinytrain_compile.training.joins import join_pieces
from tinytrain_compile.training.options import Accumulate, TrainingOptions

__all__ = ["Accumulate", "TrainingOptions", "build_training", "join_pieces"]
