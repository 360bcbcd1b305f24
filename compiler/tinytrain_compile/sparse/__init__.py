"""Selection of the trained parameters: `--update` and scheme files become an UpdatePlan over the graph's parameters."""

from tinytrain_compile.sparse.choices import (
    LayerWays,
    Way,
    entries_of_plan,
    gain_of_plan,
    layer_ways,
    scheme_plan,
    scheme_text,
)
from tinytrain_compile.sparse.gains import COLUMNS, PRIOR, UNITS, GainTable, axes_of, read_gains
from tinytrain_compile.sparse.rules import tables_of_gradients, tables_without_data
from tinytrain_compile.sparse.scheme import SchemeEntry, load_scheme
from tinytrain_compile.sparse.select import Layer, entry_updates, layers_of, parameter_of, resolve_update, whole_only

__all__ = [
    "COLUMNS",
    "PRIOR",
    "UNITS",
    "GainTable",
    "Layer",
    "LayerWays",
    "SchemeEntry",
    "Way",
    "axes_of",
    "entries_of_plan",
    "entry_updates",
    "gain_of_plan",
    "layer_ways",
    "layers_of",
    "load_scheme",
    "parameter_of",
    "read_gains",
    "resolve_update",
    "scheme_plan",
    "scheme_text",
    "tables_of_gradients",
    "tables_without_data",
    "whole_only",
]
