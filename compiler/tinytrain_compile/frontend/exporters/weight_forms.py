"""Forms in which an exporter writes a weight once more: moved, or put through one function. Found by the numbers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tinytrain_compile.frontend.exporters.derived_numbers import FEW
from tinytrain_compile.frontend.file.model import OnnxNode, new_node
from tinytrain_compile.ir.types import Array

_AXES_ARE_INPUTS = 18
"""Opset from which ReduceL2 has its axes as an input."""
_ULPS = 4e-7
"""How far float32 results of one function may be apart, of themselves: a few units in the last place."""
_MOST_AXES = 5
"""Axes of the weight of a convolution in three dimensions: 120 orders are tried."""

Step = tuple[str, Mapping[str, Any], Array | None]
"""An operator, its attributes, and a second input that is constant."""

_FUNCTIONS: Mapping[str, Callable[[Array], Array]] = {
    "Exp": np.exp,
    "Neg": np.negative,
    "Reciprocal": np.reciprocal,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Sqrt": np.sqrt,
    "Tanh": np.tanh,
}
"""Of each element."""


@dataclass(frozen=True, eq=False)
class Form:
    """How a tensor follows from a weight: operators in order, with attributes and further constant inputs.

    moves: whether its elements are the weight's own; then `of` gives them.
    """

    steps: tuple[Step, ...]
    of: Callable[[Array], Array]

    def nodes(self, weight: str, tensor: str, name: Callable[[str], str]) -> tuple[list[OnnxNode], dict[str, Array]]:
        """Return nodes that make `tensor` of `weight`, and the constants that they read. name: makes one unused."""
        made: list[OnnxNode] = []
        constants: dict[str, Array] = {}
        source = weight
        for index, (op, attrs, extra) in enumerate(self.steps):
            last = index == len(self.steps) - 1
            output = tensor if last else name(f"{tensor}.{op.lower()}")
            inputs = [source]
            if extra is not None:
                inputs.append(name(f"{tensor}.{op.lower()}.of"))
                constants[inputs[1]] = extra
            title = f"{tensor}.copy" if last else f"{tensor}.{op.lower()}"
            made.append(new_node(title, op, inputs, (output,), attrs))
            source = output
        return made, constants


def form_of(array: Array, weight: Array, opset: int) -> Form | None:
    """Return how an array follows from a weight; None if it does not, or if its numbers are too few to tell."""
    flat = array.reshape(-1)
    if len(np.unique(flat)) < min(FEW, flat.size):
        return None
    forms = itertools.chain(_moved(array, weight), _functions(array, weight), _lengths(array, weight, opset))
    return next(forms, None)


def _moved(array: Array, weight: Array) -> Iterator[Form]:
    """Yield the same elements in another order of axes, in whatever shape."""
    if weight.size != array.size:
        return
    axes = [axis for axis in range(weight.ndim) if weight.shape[axis] > 1]
    if len(axes) > _MOST_AXES or sorted(dim for dim in array.shape if dim > 1) != sorted(weight.shape[a] for a in axes):
        if np.array_equal(array.reshape(-1), weight.reshape(-1)):
            yield _placed((), array.shape)
        return
    squeezed = weight.reshape([weight.shape[axis] for axis in axes])
    for perm in itertools.permutations(range(len(axes))):
        if np.array_equal(squeezed.transpose(perm).reshape(-1), array.reshape(-1)):
            identity = perm == tuple(range(len(axes)))
            whole = (*(axes[index] for index in perm), *(axis for axis in range(weight.ndim) if axis not in axes))
            yield _placed(() if identity else whole, array.shape)
            return


def _placed(perm: tuple[int, ...], shape: tuple[int, ...]) -> Form:
    transposed = (("Transpose", {"perm": list(perm)}, None),) if perm else ()

    def of(numbers: Array) -> Array:
        return (numbers.transpose(perm) if perm else numbers).reshape(shape)

    return Form((*transposed, ("Reshape", {}, np.array(shape, np.int64))), of)


def _functions(array: Array, weight: Array) -> Iterator[Form]:
    if weight.size != array.size:
        return
    wide = weight.astype(np.float64)
    for op, function in _FUNCTIONS.items():
        with np.errstate(all="ignore"):
            if _is_close(function(wide).reshape(-1), array.reshape(-1)):
                shape = np.array(array.shape, np.int64)
                yield Form(((op, {}, None), ("Reshape", {}, shape)), _through(function, array.shape))


def _lengths(array: Array, weight: Array, opset: int) -> Iterator[Form]:
    """Yield lengths of the vectors along some axes, as normalisation divides by."""
    wide = weight.astype(np.float64)
    for count in range(1, weight.ndim):
        for axes in itertools.combinations(range(weight.ndim), count):
            if math.prod(dim for axis, dim in enumerate(weight.shape) if axis not in axes) != array.size:
                continue
            if _is_close(_length(wide, axes).reshape(-1), array.reshape(-1)):
                given = np.array(axes, np.int64) if opset >= _AXES_ARE_INPUTS else None
                attrs = {"keepdims": 1} | ({} if given is not None else {"axes": list(axes)})
                reshape: Step = ("Reshape", {}, np.array(array.shape, np.int64))
                yield Form(
                    (("ReduceL2", attrs, given), reshape), _through(lambda x, a=axes: _length(x, a), array.shape)
                )


def _length(array: Array, axes: tuple[int, ...]) -> Array:
    return np.sqrt((array * array).sum(axis=axes))


def _through(function: Callable[[Array], Array], shape: tuple[int, ...]) -> Callable[[Array], Array]:
    return lambda numbers: function(numbers.astype(np.float64)).reshape(shape).astype(numbers.dtype)


def _is_close(made: Array, found: Array) -> bool:
    return bool((np.abs(made - found) <= _ULPS * np.abs(found)).all())
