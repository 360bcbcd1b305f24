"""The task of the convergence experiment: 16 x 16 digits, upright (domain A) and rotated, shrunk, shifted, noisy (B).

All randomness is numpy's, drawn from the seed: split, augmentation, initial weights.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
SIDE = 16


@dataclass(frozen=True, eq=False)
class Split:
    """Images (n, 1, 16, 16) in [0, 1] and labels (n, 1) of one part of one seed's data."""

    x: Array
    y: Array


def load_digits(seed: int) -> tuple[Split, Split, Split]:
    """(700 upright images for pre-training, 500 of domain B for training, 597 of domain B for testing)."""
    from sklearn.datasets import load_digits as load

    data: Any = load()
    rng = np.random.default_rng(1000 + seed)
    order = rng.permutation(len(data.images))
    images = data.images[order].astype(np.float32) / 16
    labels = data.target[order].astype(np.int32)[:, None]
    parts = (slice(0, 700), slice(700, 1200), slice(1200, None))
    a, b, c = (Split(images[p][:, None], labels[p]) for p in parts)
    return a, Split(domain_b(b.x, 31 + seed), b.y), Split(domain_b(c.x, 77 + seed), c.y)


def domain_a(x: Array, seed: int) -> Array:
    """Nearly upright digits with a little noise."""
    rng = np.random.default_rng(seed)
    big = _warp(x, rng, (-8, 8), (0.95, 1.05), 0.05)
    return np.clip(big + 0.03 * rng.standard_normal(big.shape), 0, 1).astype(np.float32)


def domain_b(x: Array, seed: int) -> Array:
    """Rotated by 25 to 45 degrees, shrunk, shifted, contrast 0.7, noise."""
    rng = np.random.default_rng(seed)
    big = _warp(x, rng, (25, 45), (0.75, 0.95), 0.12)
    return np.clip(0.15 + 0.7 * big + 0.08 * rng.standard_normal(big.shape), 0, 1).astype(np.float32)


def _warp(x: Array, rng: np.random.Generator, degrees: Any, scales: Any, shift: float) -> Array:
    """Rotate, scale and shift 8 x 8 images while enlarging them to 16 x 16, bilinear, zero outside."""
    count = len(x)
    angle = np.deg2rad(rng.uniform(*degrees, count))[:, None, None]
    scale = rng.uniform(*scales, count)[:, None, None]
    dx, dy = (rng.uniform(-shift, shift, count)[:, None, None] for _ in range(2))
    axis = (np.arange(SIDE) + 0.5) / SIDE * 2 - 1
    v, u = np.meshgrid(axis, axis, indexing="ij")
    column = (np.cos(angle) * u - np.sin(angle) * v) / scale + dx
    row = (np.sin(angle) * u + np.cos(angle) * v) / scale + dy
    return _sample(x[:, 0], (row + 1) * x.shape[2] / 2 - 0.5, (column + 1) * x.shape[3] / 2 - 0.5)[:, None]


def _sample(images: Array, row: Array, column: Array) -> Array:
    height, width = images.shape[1:]
    padded = np.pad(images, ((0, 0), (1, 1), (1, 1)))
    r, c = np.clip(row + 1, 0, height + 0.999), np.clip(column + 1, 0, width + 0.999)
    r0, c0 = np.floor(r).astype(int), np.floor(c).astype(int)
    fr, fc = r - r0, c - c0
    n = np.arange(len(images))[:, None, None]
    top = padded[n, r0, c0] * (1 - fc) + padded[n, r0, c0 + 1] * fc
    bottom = padded[n, r0 + 1, c0] * (1 - fc) + padded[n, r0 + 1, c0 + 1] * fc
    return (top * (1 - fr) + bottom * fr).astype(np.float32)
