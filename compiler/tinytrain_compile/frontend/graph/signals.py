"""Signals (batch, channels, length) that the firmware has with the channels of a point in time together."""

from __future__ import annotations

from tinytrain_compile.frontend.file.model import Links
from tinytrain_compile.frontend.graph.entries import Order, plain

SIGNAL_RANK = 3
_CHANNELS_FIRST_READERS = frozenset(
    (
        *("Conv", "ConvTranspose", "BatchNormalization", "InstanceNormalization", "GroupNormalization", "PRelu"),
        *("MaxPool", "AveragePool", "LpPool", "GlobalAveragePool", "GlobalMaxPool", "GlobalLpPool"),
    )
)
"""Operators whose channels are axis 1."""
_PASSING = frozenset(("Add", "Sub", "Mul", "Div", "Cast", "Identity", "Clip", "Abs", "Neg", "Pad", "Dropout"))
"""What may come before them: scaling of the input, and its borders. (A quantised file has no QDQ pairs here.)"""


def signal_order(links: Links, name: str) -> Order:
    """Return the order with channels last of a signal.

    One that goes to no convolution has its length in front already: recurrent layers, tokens, TensorFlow's files.
    """
    return (0, 2, 1) if _is_channels_first(links, name) else plain(SIGNAL_RANK)


def _is_channels_first(links: Links, name: str) -> bool:
    """Tell whether a convolution or the like reads the input, directly or behind what leaves its axes as they are."""
    seen, tensors = {name}, [name]
    for one in tensors:  # grows
        for node in links.readers(one):
            if node.op in _CHANNELS_FIRST_READERS:
                return True
            if node.op in _PASSING and node.output(0) not in seen:
                seen.add(node.output(0))
                tensors.append(node.output(0))
    return False
