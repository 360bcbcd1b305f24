"""Loops over the lanes of a vector: their number of turns, their mark, and the helpers that they may call.

Schedules make such loops (TIR's vectorised ones), kernels fit their tiles to them, and the printers read these facts.
"""

from __future__ import annotations

LANES, LARGEST_PITCH = 4, 4096
"""Numbers in a vector; largest step of tt_gather8 and tt_widen8."""
VECTORISED = 2
"""The kind that `Schedule.vectorize` gives to a loop (tvm's ForKind)."""
OPERANDS = {
    "tt_add_x4": "vv",
    "tt_bits_x4": "i",
    "tt_clamp_x4": "vss",
    "tt_halve_above_x4": "vs",
    "tt_halve_x4": "vs",
    "tt_high_multiply_x4": "vs",
    "tt_keep_x4": "e",
    "tt_lifted_x4": "vss",
    "tt_moved_bias_x4": "vvvv",
    "tt_noise_x4": "ssi",
    "tt_passes_x4": "vss",
    "tt_quick_move_x4": "vvssvss",
    "tt_rescale_x4": "vss",
    "tt_requantise8_above_x4": "vvvvsss",
    "tt_requantise8_down_above_x4": "vvvvsss",
    "tt_requantise8_down_x4": "vvvvsss",
    "tt_requantise8_once_x4": "vvvvssss",
    "tt_requantise8_x4": "vvvvsss",
    "tt_rescaled_error_x4": "vvvvs",
    "tt_saturate8_x4": "vsss",
    "tt_summed_error_x4": "vvss",
}
"""Arguments of helpers on four lanes: a vector (v), shared by all lanes (s), of the first lane (i), four scalars
(e)."""
