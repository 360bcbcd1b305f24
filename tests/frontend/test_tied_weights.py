"""One weight of the file is one parameter, however many places read it in however many arrangements.

The oracle trains the file itself (tests/frontend/file_training.py): a weight that became two parameters has other
losses after one step.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.frontend.file_training import check_training, import_file
from tests.frontend.models import parse
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import Claim, Origin, rearrangement, tied_weights
from tinytrain_compile.ir.types import Array, Value

RANDOM = np.random.default_rng(3)


def weights(**shapes: tuple[int, ...]) -> dict[str, np.ndarray]:
    """Weights that keep numbers near 1, from one to three inputs summed."""
    found = {name: RANDOM.standard_normal(shape).astype(np.float32) / 2 for name, shape in shapes.items()}
    return {name: np.abs(data) + np.float32(0.5) if name.startswith("var") else data for name, data in found.items()}


def dense(body: str, extra: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """x [1, 4] -> y [1, 3]: `body` makes h [1, 4] with the weights W [4, 4] and b [4]."""
    text = f"net (float[1, 4] x) => (float[1, 3] y) {{ {body} y = MatMul (h, head) }}"
    return parse(text, weights(W=(4, 4), b=(4,), head=(4, 3)) | (extra or {}))


def image(body: str, extra: dict[str, np.ndarray] | None = None) -> onnx.ModelProto:
    """x [1, 2, 3, 3] -> y [1, 3]: `body` makes h [1, 2, 3, 3] with the kernels K [2, 2, 1, 1] and b [2]."""
    text = f"""net (float[1, 2, 3, 3] x) => (float[1, 3] y) {{
        {body}
        pooled = GlobalAveragePool (h)
        flat = Flatten (pooled)
        y = MatMul (flat, head) }}"""
    return parse(text, weights(K=(2, 2, 1, 1), b=(2,), head=(2, 3)) | (extra or {}))


def symmetric() -> onnx.ModelProto:
    """W and its transpose are equal at first: equal numbers, but not the same elements."""
    model = dense("p = MatMul (x, W) a = Tanh (p) T = Transpose <perm = [1, 0]> (W) h = MatMul (a, T)")
    W = next(t for t in model.graph.initializer if t.name == "W")
    data = np.frombuffer(W.raw_data, np.float32).reshape(4, 4)
    W.raw_data = (data + data.T).tobytes()
    return model


NORM = weights(gamma=(2,), beta=(2,), mean=(2,), var=(2,))
STATISTICS = ("mean", "var")
MODELS = {
    "plain and transB": dense("p = MatMul (x, W) a = Tanh (p) q = Gemm <transB = 1> (a, W) h = Add (q, b)"),
    "plain and Transpose": dense("p = MatMul (x, W) a = Tanh (p) T = Transpose <perm = [1, 0]> (W) h = MatMul (a, T)"),
    "symmetric at first": symmetric(),
    "Identity and Reshape": dense(
        "I = Identity (W) p = MatMul (x, I) a = Tanh (p) R = Reshape (W, sixteen) S = Reshape (R, square)"
        "C = Cast <to = 1> (S) h = Gemm <transB = 1> (a, C)",
        {"sixteen": np.array([16]), "square": np.array([4, 4])},
    ),
    "alpha at one use": dense("p = MatMul (x, W) a = Tanh (p) h = Gemm <alpha = 0.5, beta = 2.0> (a, W, b)"),
    "beta at one use": dense("p = Gemm (x, W, b) a = Tanh (p) h = Gemm <beta = 2.0> (a, V, b)", weights(V=(4, 4))),
    "a part and the whole": dense(
        "p = MatMul (x, W) a = Tanh (p) P = Slice (W, zero, two, axis) q = MatMul (a, P) r = MatMul (q, V)h = Tanh (r)",
        {"zero": np.array([0]), "two": np.array([2]), "axis": np.array([1])} | weights(V=(2, 4)),
    ),
    "twice itself": dense("p = MatMul (x, W) a = Tanh (p) D = Add (W, W) h = MatMul (a, D)"),
    "weight and addend": dense("p = Gemm (x, W, b) a = Tanh (p) q = Sub (a, b) r = Mul (q, b) h = PRelu (r, b)"),
    "weight and scale": dense(
        "p = MatMul (x, W) a = Tanh (p) V = Reshape (W, sixteen) P = Slice (V, zero, four) h = Mul (a, P)",
        {"sixteen": np.array([16]), "zero": np.array([0]), "four": np.array([4])},
    ),
    "kernels and matrix": image(
        "c = Conv (x, K, b) a = Tanh (c) M = Reshape (K, square) t = Transpose <perm = [0, 2, 3, 1]> (a)"
        "m = MatMul (t, M) h = Transpose <perm = [0, 3, 1, 2]> (m)",
        {"square": np.array([2, 2])},
    ),
    "Conv and ConvTranspose": image("c = Conv (x, K, b) a = Tanh (c) h = ConvTranspose (a, K)"),
    "norm behind one use": image(
        "c = Conv (x, K, b) n = BatchNormalization (c, gamma, beta, mean, var) a = Tanh (n) h = Conv (a, K, b)", NORM
    ),
    "one norm behind two weights": image(
        "c = Conv (x, K, b) n = BatchNormalization (c, gamma, beta, mean, var) a = Tanh (n)"
        "d = Conv (a, L) h = BatchNormalization (d, gamma, beta, mean, var)",
        NORM | weights(L=(2, 2, 1, 1)),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_a_shared_weight_trains_as_one(name: str, tmp_path: Path) -> None:
    model = MODELS[name]
    imported = import_file(model, tmp_path)
    check_training(model, imported, frozen=STATISTICS)
    found = {value.name for value in imported.graph.parameters}
    floats = {t.name for t in model.graph.initializer if t.data_type == onnx.TensorProto.FLOAT}
    assert found <= floats - set(STATISTICS), "every parameter has the name of a weight of its own"


def test_tables_of_one_weight_train_that(tmp_path: Path) -> None:
    """Standardised kernels, computed at each of two uses: what they are computed from is the parameter."""
    body = """m1 = ReduceMean <axes = [1, 2, 3]> (K) K1 = Sub (K, m1) c = Conv (x, K1) a = Tanh (c)
        m2 = ReduceMean <axes = [1, 2, 3]> (K) K2 = Sub (K, m2) h = Conv (a, K2, b)"""
    imported = import_file(image(body), tmp_path)
    assert [value.name for value in imported.graph.parameters] == ["K", "b", "head"]


def test_a_norm_that_both_uses_share_is_folded(tmp_path: Path) -> None:
    body = """c = Conv (x, K, b) n = BatchNormalization (c, gamma, beta, mean, var) a = Tanh (n)
        d = Conv (a, K, b) h = BatchNormalization (d, gamma, beta, mean, var)"""
    imported = import_file(image(body, NORM), tmp_path)
    assert [value.name for value in imported.graph.parameters] == ["K", "b", "head"]
    assert not any(node.op in ("Mul", "Add") for node in imported.graph.nodes)


def test_parts_that_have_no_element_in_common_stay_weights_of_their_own(tmp_path: Path) -> None:
    model = dense(
        "L, R = Split <axis = 1> (W, halves) p = MatMul (x, L) q = MatMul (x, R) c = Concat <axis = 1> (p, q)"
        "h = Tanh (c)",
        {"halves": np.array([1, 3])},
    )
    imported = import_file(model, tmp_path)
    assert [value.name for value in imported.graph.parameters] == ["L", "R", "head"]
    check_training(model, imported)


def test_a_constant_node_is_a_weight_like_any(tmp_path: Path) -> None:
    body = (
        "C = Constant <value_floats = [1.0, 0.5, 0.2, -1.0]> () M = Reshape (C, square) p = MatMul (x, M) a = Tanh (p)"
    )
    text = f"net (float[1, 2] x) => (float[1, 2] y) {{ {body} y = Gemm <transB = 1> (a, M) }}"
    imported = import_file(parse(text, {"square": np.array([2, 2])}), tmp_path)
    assert len(imported.graph.parameters) == 1


def test_a_copy_that_the_importer_makes_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The check behind the import, with a fault planted in front of it: every use gets a parameter of its own."""
    arranged = ImportContext.arranged

    def copied(self: ImportContext, data: Array, hint: str, node: OnnxNode, origin: Origin) -> Value:
        self._arrangements.pop(origin.base, None)
        return arranged(self, data, hint, node, origin)

    monkeypatch.setattr(ImportContext, "arranged", copied)
    with pytest.raises(CompileError) as error:
        import_file(MODELS["plain and transB"], tmp_path)
    assert (error.value.code, error.value.where) == ("E0504", "weight W")


def test_conflicts_are_told_by_elements() -> None:
    whole = Origin("W", (2, 3))
    left, right = whole.laid(lambda a: a[:, :1]), whole.laid(lambda a: a[:, 1:])
    table, other = Origin("T", (2,), parents=(left,)), Origin("S", (2,), parents=(left,))

    def tied(*origins: Origin, trained: str = "0") -> set[str]:
        claims = [Claim(str(index), str(index), (origin,)) for index, origin in enumerate(origins)]
        return set(tied_weights(claims, frozenset(trained)))

    assert tied(whole, whole.laid(lambda a: a.T)) == {"W"}
    assert tied(whole, left) == {"W"}
    assert tied(left, right) == set()
    assert tied(left, whole, trained="x") == set(), "nothing is trained"
    assert tied(table, right) == set()
    assert tied(table, left) == {"W"}
    assert tied(table, other) == {"W"}
    assert tied(table, table.laid(lambda a: a[::-1])) == {"T"}
    assert tied(table.laid(lambda a: a[:1]), table.laid(lambda a: a[1:])) == set()


@pytest.mark.parametrize(
    ("shape", "perm"), [((2, 3), (1, 0)), ((2, 3, 4), (2, 0, 1)), ((1, 1), (1, 0)), ((2, 2, 2), (0, 2, 1))]
)
def test_rearrangements_are_found(shape: tuple[int, ...], perm: tuple[int, ...]) -> None:
    own = np.arange(np.prod(shape)).reshape(shape)[::1]
    for first, second in ((own, own.transpose(perm)), (own.transpose(perm), own.transpose(perm[::-1]))):
        move = rearrangement(first, second)
        assert move is not None
        moved = first.reshape(move.dims).transpose(move.perm).reshape(second.shape)
        np.testing.assert_array_equal(moved, second)


def test_what_no_transposition_gives_is_no_rearrangement() -> None:
    own = np.arange(6)
    assert rearrangement(own, own[::-1]) is None
    assert rearrangement(own, np.array([0, 2, 1, 3, 4, 5])) is None
    assert rearrangement(own, own[:3]) is None
