"""int8: ranges measured on samples, saturation in the float graph, and its integer form."""

from tinytrain_compile.quantize.calibrate import Method, calibrate
from tinytrain_compile.quantize.forms import ends_of
from tinytrain_compile.quantize.prepare import inner_clamps, prepare, saturated, storage_clamps
from tinytrain_compile.quantize.rewrite import quantise
from tinytrain_compile.quantize.storage import WeightStore, count_saturations
from tinytrain_compile.quantize.update import QuantOptions

__all__ = [
    "Method",
    "QuantOptions",
    "WeightStore",
    "calibrate",
    "count_saturations",
    "ends_of",
    "inner_clamps",
    "prepare",
    "quantise",
    "saturated",
    "storage_clamps",
]
