"""Random chains of operators, to meet the axis orders in combinations that nobody thought of."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from tests.frontend.models import check_against_onnxruntime
from tests.frontend.nets import Net

Shape = tuple[int, ...]


class Chain:
    """A net that grows by random operators; `pool` holds (name, shape) of all tensors so far."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.net = Net("", "", seed)
        first: Shape = (1, 4, 6, 8) if seed % 3 else (1, 4, 12)
        self.pool: list[tuple[str, Shape]] = [("x", first)]
        self.first = first

    def grow(self) -> None:
        x, shape = self.pool[-1] if self.rng.random() < 0.8 else self.pool[self.rng.integers(len(self.pool))]
        kinds = [self.unary, self.reshape, self.transpose, self.binary]
        kinds += [self.constant, self.concat, self.cut, self.reduce]
        if len(shape) in (3, 4):
            kinds += [self.conv] * 3 + [self.window, self.normal]
        if len(shape) >= 2:
            kinds += [self.matmul, self.softmax]
        kinds[self.rng.integers(len(kinds))](f"t{len(self.pool)}", x, shape)

    def done(self, name: str, shape: Shape, line: str) -> None:
        self.net.add(f"{name} = {line}")
        self.pool.append((name, shape))

    def unary(self, y: str, x: str, shape: Shape) -> None:
        op = ("Relu", "Tanh", "Neg", "Sigmoid", "HardSwish", "Erf", "Identity")[self.rng.integers(7)]
        self.done(y, shape, f"{op} ({x})")

    def reshape(self, y: str, x: str, shape: Shape) -> None:
        size = math.prod(shape)
        options = [(1, size), (1, *shape[1:-2], shape[-2] * shape[-1]) if len(shape) > 2 else shape]
        options += [(1, d, size // d) for d in (2, 3, 4) if size % d == 0]
        options += [(1, 2, size // 4, 2)] if size % 4 == 0 else []
        options += [(1, *shape)] if len(shape) < 5 else [(1, size)]
        new = options[self.rng.integers(len(options))]
        self.done(y, new, f"Reshape ({x}, {self.net.table(y + '_shape', new)})")

    def transpose(self, y: str, x: str, shape: Shape) -> None:
        perm = [0, *(int(a) + 1 for a in self.rng.permutation(len(shape) - 1))]
        self.done(y, tuple(shape[a] for a in perm), f"Transpose <perm = {perm}> ({x})")

    def binary(self, y: str, x: str, shape: Shape) -> None:
        other, fit = self.pool[self.rng.integers(len(self.pool))]
        try:
            result = tuple(int(d) for d in np.broadcast_shapes(shape, fit))
        except ValueError:
            return
        if math.prod(result) < 20000 and len(result) < 6:
            self.done(y, result, f"{('Add', 'Mul', 'Sub')[self.rng.integers(3)]} ({other}, {x})")

    def constant(self, y: str, x: str, shape: Shape) -> None:
        dims = [d if self.rng.random() < 0.5 else 1 for d in shape][self.rng.integers(len(shape)) :]
        self.net.weights[y + "_k"] = self.rng.normal(size=dims).astype(np.float32)
        self.done(y, shape, f"{('Add', 'Mul')[self.rng.integers(2)]} ({x}, {y}_k)")

    def concat(self, y: str, x: str, shape: Shape) -> None:
        axis = int(self.rng.integers(1, len(shape)))
        same = [n for n, s in self.pool if s == shape]
        other = same[self.rng.integers(len(same))]
        new = tuple(d * 2 if i == axis else d for i, d in enumerate(shape))
        if math.prod(new) < 20000:
            self.done(y, new, f"Concat <axis = {axis}> ({x}, {other})")

    def cut(self, y: str, x: str, shape: Shape) -> None:
        axis = int(self.rng.integers(1, len(shape)))
        if shape[axis] < 3:
            return
        first, last, step = ((1, 100, 1), (-1, -100, -1), (0, 100, 2))[self.rng.integers(3)]
        size = len(range(shape[axis])[first:last:step])
        names = (self.net.table(f"{y}_{i}", [v]) for i, v in enumerate((first, last, axis, step)))
        self.done(y, tuple(size if i == axis else d for i, d in enumerate(shape)), f"Slice ({x}, {', '.join(names)})")

    def reduce(self, y: str, x: str, shape: Shape) -> None:
        if len(shape) < 3:
            return
        axis, keep = int(self.rng.integers(1, len(shape))), int(self.rng.integers(2))
        new = tuple(1 if i == axis else d for i, d in enumerate(shape) if i != axis or keep)
        self.done(y, new, f"ReduceMean <axes = [{axis}], keepdims = {keep}> ({x})")

    def conv(self, y: str, x: str, shape: Shape) -> None:
        kernel = tuple(min(3, d) for d in shape[2:])
        pads = [k // 2 for k in kernel] * 2
        width = int(self.rng.integers(1, 6))
        size = tuple(d + 2 * (k // 2) - k + 1 for d, k in zip(shape[2:], kernel, strict=True))
        self.net.conv(y, x, (width, shape[1], *kernel), f"pads = {pads}")
        self.pool.append((y, (shape[0], width, *size)))

    def window(self, y: str, x: str, shape: Shape) -> None:
        kernel = [min(2, d) for d in shape[2:]]
        new = (*shape[:2], *(-(-d // k) for d, k in zip(shape[2:], kernel, strict=True)))
        op = ("MaxPool", "AveragePool")[self.rng.integers(2)]
        self.done(y, new, f"{op} <kernel_shape = {kernel}, strides = {kernel}, ceil_mode = 1> ({x})")

    def normal(self, y: str, x: str, shape: Shape) -> None:
        if self.rng.random() < 0.5:
            self.net.batch_norm(y, x, shape[1])
        else:
            names = f"{self.net.weight(y + '_g', shape[1])}, {self.net.weight(y + '_b', shape[1])}"
            self.net.add(f"{y} = InstanceNormalization ({x}, {names})")
        self.pool.append((y, shape))

    def matmul(self, y: str, x: str, shape: Shape) -> None:
        self.done(y, (*shape[:-1], 5), f"MatMul ({x}, {self.net.weight(y + '_w', shape[-1], 5)})")

    def softmax(self, y: str, x: str, shape: Shape) -> None:
        self.done(y, shape, f"Softmax <axis = {self.rng.integers(1, len(shape))}> ({x})")


@pytest.mark.parametrize("seed", range(60))
def test_random_chain(seed: int, tmp_path: Path) -> None:
    chain = Chain(seed)
    while len(chain.pool) < 14:
        chain.grow()
    name, shape = chain.pool[-1]
    dims = ", ".join(map(str, chain.first))
    chain.net.header = f"net (float[{dims}] x) => (float[{', '.join(map(str, shape))}] {name})"
    # Normalising nearly constant data is ill-conditioned: the tolerance only has to tell a wrong order from rounding.
    imported = check_against_onnxruntime(chain.net.model(), tmp_path, tolerance=1e-3)
    assert imported.output_shape == shape
