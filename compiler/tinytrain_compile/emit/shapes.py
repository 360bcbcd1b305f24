"""What the public header says of the input, the output and the label: types, axes, sizes, the order of an image."""

from __future__ import annotations

from tinytrain_compile.emit.weights import C_TYPES
from tinytrain_compile.ir.stages import Interface, TrainGraph

_IMAGE_RANK = 4
_SIGNAL_RANK = 3


def shape_data(train: TrainGraph, interface: Interface, one_sample: bool = False) -> dict[str, object]:
    """For the templates: C types and shapes; image: height, width and channels of an input of four axes, and whether
    channels come last; signal: length and channels of one whose channels were asked to come last.
    one_sample: shapes of one sample, not of all that a call takes."""
    given = train.graph.inputs[0]
    image = None
    if len(given.shape) == _IMAGE_RANK:
        last = given.layout == "NHWC"
        height, width, channels = given.shape[1:] if last else (*given.shape[2:], given.shape[1])
        image = {"last": last, "height": height, "width": width, "channels": channels}
    asked = len(given.shape) == _SIGNAL_RANK and given.layout == "NWC"
    return {
        "signal": {"length": given.shape[1], "channels": given.shape[2]} if asked else None,
        "input_ctype": C_TYPES[interface.input_dtype],
        "image": image,
        "shapes": [
            ("INPUT", "the input", train.of_one(given) if one_sample else given.shape),
            ("OUTPUT", "the output of one sample", train.of_one(train.graph.outputs[0])),
            ("LABEL", "the label", train.of_one(train.label) if one_sample else train.label.shape),
        ],
    }
