"""Chooses what is updated: turns `--update` and scheme files into an UpdatePlan over the graph's parameters."""

from tinytrain_compile.sparse.layers import Layer, layers_of
from tinytrain_compile.sparse.select import resolve_update

__all__ = ["Layer", "layers_of", "resolve_update"]
