"""Initializers that hold numbers with a known purpose: no framework trains them.

Each rule looks at what can be seen in a file (values, readers, and whether the name is an exporter's own), and is
written so that what training makes of random numbers cannot meet it by chance.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tinytrain_compile.frontend.file.folding import VIEWS
from tinytrain_compile.frontend.file.model import Links, OnnxModel, OnnxNode
from tinytrain_compile.ir.types import Array

MASK = 1e4
"""A table with larger numbers masks scores."""
EPSILON = 2e-3
"""A smaller number that is added in front of a root or a division is there to keep them finite (Keras: 1e-3)."""
_STATES = ("LSTM", "GRU", "RNN")
_PRODUCTS = ("Gemm", "MatMul")
_NORMS = ("InstanceNormalization", "GroupNormalization", "LayerNormalization")
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")
_POSITIVE = frozenset(("Abs", "Clip", "Exp", "Max", "Relu", "Sigmoid", "Softmax", "Softplus", "Sqrt"))
"""Operators whose results a trained exponent has: the gradient is a logarithm."""
_USUAL_EXPONENTS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
"""Squares, square roots and their reciprocals: somebody wrote them, and did not train them."""
_MADE = re.compile(
    r"val_\d+|onnx::\w+|const_fold_opt__\d+|scalar_tensor.*|(new_)?(zeros|ones|full|arange|empty)(_like)?(_\d+)?|\d+"
    r"|.*_output_\d+|.*/[xy](__\d+)?:0|.*Cast(_\d+)?:0|.*/Const(_\d+)?:0|.*/zeros(_\d+)?:0"
)
"""Names that exporters give to numbers of their own (PyTorch's two, tf2onnx)."""


@dataclass(frozen=True, eq=False)
class Use:
    """A node that reads an initializer, directly or through views, and as which of its inputs."""

    node: OnnxNode
    index: int


@dataclass(frozen=True, eq=False)
class Case:
    """An initializer, its values and readers, and the model around it (prepared: see prepared_inputs)."""

    name: str
    array: Array
    uses: tuple[Use, ...]
    links: Links
    prepared: frozenset[str]

    @property
    def made(self) -> bool:
        """Whether its name is one that exporters make up."""
        return _MADE.fullmatch(self.name) is not None

    @property
    def number(self) -> float | None:
        """The number that all elements are; None if they differ."""
        first = self.array.reshape(-1)[0]
        return float(first) if bool((self.array == first).all()) else None

    @property
    def table(self) -> NDArray[np.float64]:
        """Its values without axes of length 1."""
        return np.squeeze(self.array.astype(np.float64))

    def all_uses(self, holds: Callable[[Use], bool]) -> bool:
        """Tell whether something is so of every reader."""
        return bool(self.uses) and all(holds(use) for use in self.uses)


def purpose(case: Case, recorded: bool = False) -> str:
    """Return what the numbers are for, "" if that is not known: then they are a parameter.

    recorded: the exporter has recorded what they are. Then only numbers count that a module may hold as parameters
    without a gradient.
    """
    rules = ((text, rule) for text, rule in RULES if not recorded or rule in _TABLES)
    return next((text for text, rule in rules if rule(case)), "")


# ---- single numbers, and tables of one number ------------------------------------------------------------------------


def is_exporters_number(case: Case) -> bool:
    """Return a single number under a name that exporters make up, but for a slope."""
    return case.array.size == 1 and case.made and not any(use.node.op == "PRelu" for use in case.uses)


def is_epsilon(case: Case) -> bool:
    """Return a small number that is added in front of a root, a logarithm or a division."""
    if case.array.size != 1 or not 0 < float(case.array.reshape(-1)[0]) <= EPSILON:
        return False
    guards = ("Sqrt", "Div", "Pow", "Reciprocal", "Log")
    return case.all_uses(
        lambda use: (
            use.node.op in ("Add", "Max")
            and any(reader.op in guards for reader in case.links.readers(use.node.output(0)))
        )
    )


def is_exponent(case: Case) -> bool:
    """Return an exponent of numbers that may be negative, or one of the usual (a root, a square, a reciprocal)."""
    return case.all_uses(
        lambda use: (
            use.node.op == "Pow"
            and use.index == 1
            and (
                case.number in _USUAL_EXPONENTS
                or (maker := case.links.maker(use.node.input(0))) is None
                or maker.op not in _POSITIVE
            )
        )
    )


def is_attention_scale(case: Case) -> bool:
    """Return n to the power of +-1/2 or +-1/4 for a whole n, on the way from a product of two matrices to a softmax."""
    if case.array.size != 1:
        return False
    found = abs(float(case.array.reshape(-1)[0]))
    whole = any(_is_whole(found**power) for power in (-2, 2, -4, 4)) if found > 0 else False
    return whole and case.all_uses(lambda use: use.node.op in ("Mul", "Div") and _is_score(case, use))


def _is_whole(number: float) -> bool:
    return 2 <= number < 1e6 and math.isclose(number, round(number), rel_tol=1e-5)


def _is_score(case: Case, use: Use) -> bool:
    """Tell whether a node scales operand or result of a product of computed matrices whose result a softmax reads."""
    behind, seen = [use.node], 0
    while behind and seen < 8:
        node, seen = behind.pop(0), seen + 1
        if node.op == "Softmax":
            return True
        if node.op in (*VIEWS, "MatMul", "Add", "Mul", "Div", "Where"):
            behind += case.links.readers(node.output(0))
    return False


def is_unit_affine(case: Case) -> bool:
    """Scale 1 or shift 0 that an exporter wrote for a normalisation without either."""
    return case.made and case.number in (0.0, 1.0) and case.all_uses(lambda use: use.node.op in _NORMS)


def is_zero_filling(case: Case) -> bool:
    """Return zeros that a recurrent layer starts from; or, under an exporter's name, that stand where nothing is.

    A parameter may be zero before training: a residual branch's factor, a token.
    """
    if case.number != 0.0:
        return False
    return case.all_uses(
        lambda use: (
            (use.node.op in _STATES and use.index in (5, 6))
            or (case.made and (use.node.op in ("Where", "Concat") or (use.node.op in _PRODUCTS and use.index == 0)))
        )
    )


def is_mask(case: Case) -> bool:
    """Return a table that moves scores out of reach."""
    return float(np.abs(case.array).max()) >= MASK


# ---- tables ----------------------------------------------------------------------------------------------------------


def is_of_waves(case: Case) -> bool:
    """Return every column (or row) is a sampled sine: x[p + 1] + x[p - 1] = k x[p] with one k for all p."""
    return _either_way(case, _waves)


def _either_way(case: Case, holds: Callable[[NDArray[np.float64]], bool]) -> bool:
    """Tell whether something is so of a table's rows or of its columns."""
    return case.table.ndim == 2 and (holds(case.table) or holds(case.table.T))


def _waves(table: NDArray[np.float64]) -> bool:
    if table.shape[0] < 5 or table.shape[1] < 2:
        return False
    inner, around = table[1:-1], table[2:] + table[:-2]
    square = (inner * inner).sum(axis=0)
    factor = (inner * around).sum(axis=0) / np.maximum(square, 1e-30)
    largest = np.abs(table).max(axis=0)
    rest = np.abs(around - factor * inner).max(axis=0)
    moving = np.ptp(table, axis=0) > 1e-3 * np.maximum(largest, 1e-30)
    turning = bool((factor[moving] < 1.9).any())  # straight lines have 2
    return turning and bool((rest <= 1e-4 * np.maximum(largest, 1e-30)).all()) and 2 * moving.sum() >= moving.size


def is_transform(case: Case) -> bool:
    """Return every row is a cosine or sine under a window: nearly all of its energy is around one frequency."""
    return case.all_uses(lambda use: use.node.op in ("MatMul", "Gemm", "Conv")) and _either_way(case, _peaks)


def _peaks(table: NDArray[np.float64]) -> bool:
    rows, length = table.shape
    if length < 16 or rows < 4:
        return False
    energy = np.abs(np.fft.rfft(table, axis=1)) ** 2
    total = energy.sum(axis=1)
    near = np.array(
        [row[max(0, peak - 2) : peak + 3].sum() for row, peak in zip(energy, energy.argmax(1), strict=True)]
    )
    filled = total > 1e-12 * max(float(total.max()), 1e-30)
    return bool((near[filled] >= 0.99 * total[filled]).all()) and 4 * len(set(energy.argmax(1))) >= rows


def is_filter_bank(case: Case) -> bool:
    """Return triangles over frequencies, each beginning where the one before has passed (mel, bark)."""
    return case.all_uses(lambda use: use.node.op in ("MatMul", "Gemm", "Conv")) and _either_way(case, _triangles)


def _triangles(table: NDArray[np.float64]) -> bool:
    """Tell whether each row rises to one peak and falls again over neighbours, peaks in order, mostly zeros."""
    rows, length = table.shape
    if length < 16 or rows < 4 or bool((table < 0).any()) or 2 * np.count_nonzero(table) > table.size:
        return False
    peaks = table.argmax(axis=1)
    if np.count_nonzero(table) < 2 * rows:  # an identity
        return False
    if bool((np.diff(peaks) < 0).any()) or not bool((table.max(axis=1) > 0).all()):
        return False
    for row, peak in zip(table, peaks, strict=True):
        support = np.flatnonzero(row)
        joined = support[-1] - support[0] + 1 == support.size
        falls = bool((np.diff(row[: peak + 1]) >= 0).all()) and bool((np.diff(row[peak:]) <= 0).all())
        if not joined or not falls:
            return False
    return True


def is_singular_vector(case: Case) -> bool:
    """Return whether it is a vector of length 1 that only weights are multiplied by (spectral normalisation)."""
    if case.table.ndim != 1 or not math.isclose(float((case.table**2).sum()), 1.0, rel_tol=1e-4):
        return False
    products = ("MatMul", "Gemm", "Mul", "Einsum")
    return case.all_uses(
        lambda use: use.node.op in products and all(case.links.is_constant(name) for name in use.node.inputs if name)
    )


# ---- places ----------------------------------------------------------------------------------------------------------


def is_preprocessing(case: Case) -> bool:
    """Return mean, deviation and the like, a number for all or one axis, that change the input before any layer."""
    return case.table.ndim < 2 and case.all_uses(lambda use: use.node.output(0) in case.prepared)


def prepared_inputs(model: OnnxModel, links: Links) -> frozenset[str]:
    """Return the model's inputs and what views and arithmetic with constants make of them before anything else does."""
    found = {value.name for value in model.inputs}
    for node in model.nodes:
        computed = {name for name in node.inputs if name and not links.is_constant(name)}
        if node.op in (*VIEWS, *_ARITHMETIC) and len(computed) == 1 and computed <= found:
            found.add(node.output(0))
    return frozenset(found)


def is_rescaling(case: Case) -> bool:
    """Return a factor, then a shift, for each column of a dense layer that has a bias: it can do without either.

    Behind a Conv the same is a normalisation (`frontend/operators/normalisation.py`).
    """

    def holds(use: Use) -> bool:
        scale = use.node if use.node.op == "Mul" else _maker_of_other(case, use)
        if scale is None or scale.op != "Mul" or use.node.op not in ("Mul", "Add"):
            return False
        shift = case.links.sole_reader(scale.output(0))
        layer = next((m for name in scale.inputs if (m := case.links.maker(name)) is not None and m.op == "Gemm"), None)
        if shift is None or shift.op != "Add" or layer is None or not layer.input(2):
            return False
        alone = case.links.sole_reader(layer.output(0)) is scale
        return alone and all(any(case.links.is_constant(name) for name in node.inputs) for node in (scale, shift))

    return case.array.size > 1 and case.all_uses(holds)


def _maker_of_other(case: Case, use: Use) -> OnnxNode | None:
    others = [name for index, name in enumerate(use.node.inputs) if index != use.index]
    return case.links.maker(others[0]) if len(others) == 1 else None


RULES: tuple[tuple[str, Callable[[Case], bool]], ...] = (
    ("a number that the exporter wrote", is_exporters_number),
    ("it keeps a root or division finite (epsilon)", is_epsilon),
    ("an exponent", is_exponent),
    ("the scale of attention scores", is_attention_scale),
    ("scale 1 or shift 0 of a normalisation without", is_unit_affine),
    ("zeros: an initial state, or a filling", is_zero_filling),
    ("a mask", is_mask),
    ("the matrix of a Fourier transform", is_transform),
    ("a table of sines and cosines", is_of_waves),
    ("a filter bank", is_filter_bank),
    ("a singular vector of a weight (spectral normalisation)", is_singular_vector),
    ("preprocessing of the input", is_preprocessing),
    ("a fixed scale and shift behind a dense layer", is_rescaling),
)
"""What the report says, and when."""
_TABLES = (is_mask, is_transform, is_of_waves, is_filter_bank, is_preprocessing)
"""Rules for numbers that a module may hold as parameters without a gradient."""
