"""Operators that move blocks of pixels into channels and back."""

from __future__ import annotations

from collections.abc import Mapping

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext, Unsupported
from tinytrain_compile.frontend.graph.entries import channels_last
from tinytrain_compile.frontend.graph.handler import Handler
from tinytrain_compile.ir.types import Value
from tinytrain_compile.ops.shape import TransposeAttrs


def _block(ctx: ImportContext, node: OnnxNode) -> tuple[Value, int]:
    """The image, channels last, and the side of a block."""
    x = ctx.entry(node.input(0))
    side = node.integer("blocksize", 0)
    if x.rank != 4 or side < 1:
        raise ValueError(f"blocks of {side} in a tensor of rank {x.rank}")
    return ctx.value(node, x, channels_last(4)), side


def _moved(
    ctx: ImportContext, node: OnnxNode, x: Value, split: tuple[int, ...], perm: tuple[int, ...], to: tuple[int, ...]
) -> None:
    """Reshape, Transpose, Reshape; `to` is the shape with channels last."""
    moved = ctx.emit(node, "Transpose", (ctx.reshape(node, x, split),), TransposeAttrs(perm), "blocks")
    n, h, w, c = to
    ctx.define_value(node.output(0), ctx.reshape(node, moved, to), (n, c, h, w), channels_last(4))


def _channels_first(node: OnnxNode) -> bool:
    """Whether the places in a block count faster than the channels (CRD, as PyTorch has it)."""
    mode = node.text("mode", "DCR")
    if mode not in ("DCR", "CRD"):
        raise Unsupported("mode", f"{mode} is no known mode", "DCR or CRD")
    return mode == "CRD"


def _depth_to_space(ctx: ImportContext, node: OnnxNode) -> None:
    x, b = _block(ctx, node)
    n, h, w, c = x.shape
    rest = c // (b * b)
    split, perm = ((n, h, w, b, b, rest), (0, 1, 3, 2, 4, 5))
    if _channels_first(node):
        split, perm = ((n, h, w, rest, b, b), (0, 1, 4, 2, 5, 3))
    _moved(ctx, node, x, split, perm, (n, h * b, w * b, rest))


def _space_to_depth(ctx: ImportContext, node: OnnxNode) -> None:
    x, b = _block(ctx, node)
    n, h, w, c = x.shape
    if h % b or w % b:
        raise ValueError(f"blocks of {b} in an image of {h}x{w}")
    perm = (0, 1, 3, 5, 2, 4) if _channels_first(node) else (0, 1, 3, 2, 4, 5)
    _moved(ctx, node, x, (n, h // b, b, w // b, b, c), perm, (n, h // b, w // b, b * b * c))


HANDLERS: Mapping[str, Handler] = {"DepthToSpace": _depth_to_space, "SpaceToDepth": _space_to_depth}
