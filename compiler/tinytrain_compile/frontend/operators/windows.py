"""Window attributes of convolutions and pools, in two dimensions (a signal is an image of height 1)."""

from __future__ import annotations

from dataclasses import dataclass

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import Unsupported
from tinytrain_compile.frontend.graph.entries import Entry

Pair = tuple[int, int]
MAX = 2**15
"""No window of a microcontroller is larger; products of two still fit the kernels' 32-bit indices."""


@dataclass(frozen=True)
class WindowGeometry:
    """kernel, strides, dilations as (height, width); pads as (top, left, bottom, right)."""

    kernel: Pair
    strides: Pair
    dilations: Pair
    pads: tuple[int, int, int, int]

    @property
    def reach(self) -> Pair:
        """Extent of the dilated window."""
        h, w = ((k - 1) * d + 1 for k, d in zip(self.kernel, self.dilations, strict=True))
        return h, w


def image_size(entry: Entry) -> Pair:
    """Height and width; Unsupported for other ranks than those of signals and images."""
    if entry.rank == 4:
        return entry.shape[2], entry.shape[3]
    if entry.rank == 3:
        return 1, entry.shape[2]
    raise Unsupported("rank", f"input of rank {entry.rank}", "signals (N, C, L) or images (N, C, H, W)")


def image_shape(batch: int, channels: int, size: Pair, rank: int) -> tuple[int, ...]:
    """ONNX shape of an image or signal."""
    return (batch, channels, *size) if rank == 4 else (batch, channels, size[1])


def read_window(node: OnnxNode, kernel: tuple[int, ...] | None, size: Pair, rank: int) -> WindowGeometry:
    """The window of a Conv or pool over an input of this size, auto_pad resolved."""
    spatial = rank - 2
    kernel = node.integers("kernel_shape") or kernel
    if kernel is None or len(kernel) != spatial:
        raise ValueError(f"kernel_shape {kernel} for an input of rank {rank}")
    strides = node.integers("strides") or (1,) * spatial
    dilations = node.integers("dilations") or (1,) * spatial
    pads = node.integers("pads") or (0,) * (2 * spatial)
    if len(strides) != spatial or len(dilations) != spatial or len(pads) != 2 * spatial:
        raise ValueError(f"strides {strides}, dilations {dilations}, pads {pads} for an input of rank {rank}")
    if min((*kernel, *strides, *dilations)) < 1 or min(pads) < 0 or max(*kernel, *strides, *dilations, *pads) > MAX:
        raise ValueError(f"kernel {kernel}, strides {strides}, dilations {dilations}, pads {pads}: out of range")
    if spatial == 1:
        pads = (0, pads[0], 0, pads[1])
    window = WindowGeometry(_pair(kernel), _pair(strides), _pair(dilations), (pads[0], pads[1], pads[2], pads[3]))
    return _auto_padded(node.text("auto_pad", "NOTSET"), window, size)


def auto_pad(node: OnnxNode) -> str:
    """The auto_pad attribute, checked."""
    mode = node.text("auto_pad", "NOTSET")
    if mode not in ("NOTSET", "VALID", "SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {mode}")
    return mode


def split_pads(total: Pair, upper: bool) -> tuple[int, int, int, int]:
    """Pads of both sides; the odd one goes to the end if `upper`, else to the beginning."""
    begin = [t // 2 if upper else t - t // 2 for t in total]
    return begin[0], begin[1], total[0] - begin[0], total[1] - begin[1]


def _auto_padded(mode: str, window: WindowGeometry, size: Pair) -> WindowGeometry:
    if mode == "NOTSET":
        return window
    if mode == "VALID":
        return WindowGeometry(window.kernel, window.strides, window.dilations, (0, 0, 0, 0))
    if mode not in ("SAME_UPPER", "SAME_LOWER"):
        raise ValueError(f"auto_pad {mode}")
    steps = [-(-s // stride) for s, stride in zip(size, window.strides, strict=True)]
    missing = [max((steps[i] - 1) * window.strides[i] + window.reach[i] - size[i], 0) for i in (0, 1)]
    pads = split_pads((missing[0], missing[1]), mode == "SAME_UPPER")
    return WindowGeometry(window.kernel, window.strides, window.dilations, pads)


def _pair(values: tuple[int, ...]) -> Pair:
    return (values[0], values[1]) if len(values) == 2 else (1, values[0])
