"""Einsum, Resize, Tile, block moves, masks and reductions on images: onnxruntime's numbers."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from tests.frontend.models import check_against_onnxruntime, ops_of, parse, write
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import load_model

EQUATIONS: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {
    "bchw,cd->bd": ((1, 3, 4, 5), (3, 2)),
    "bij,jk->bik": ((1, 3, 4), (4, 2)),
    "bij,kj->bki": ((1, 3, 4), (2, 4)),
    "ij,bjk->bik": ((3, 4), (1, 4, 2)),
    "bhid,bhjd->bhij": ((1, 2, 3, 4), (1, 2, 5, 4)),
    "bchw,kc->bkhw": ((1, 3, 4, 5), (2, 3)),
    "bi,bj->bij": ((1, 3), (1, 4)),
    "...ij,jk": ((1, 2, 3, 4), (4, 2)),
    "bnd,d->bn": ((1, 3, 4), (4,)),
    "bi,bi->bi": ((1, 3), (1, 3)),
}


@pytest.mark.parametrize("equation", EQUATIONS)
def test_einsum(equation: str, tmp_path: Path) -> None:
    operands = EQUATIONS[equation]
    data = 1 if operands[1][0] == 1 and operands[0][0] != 1 else 0
    y = np.einsum(equation, *(np.zeros(shape) for shape in operands))
    names = ["w", "w"]
    names[data] = "x"
    text = f"""net (float{list(operands[data])} x) => (float{list(y.shape)} y) {{
        y = Einsum <equation = "{equation}"> ({", ".join(names)}) }}"""
    weight = np.random.default_rng(1).normal(size=operands[1 - data]).astype(np.float32)
    check_against_onnxruntime(parse(text, {"w": weight}), tmp_path)


RESIZES = {
    "PyTorch, nearest": 'mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor"',
    "PyTorch, bilinear": 'mode = "linear", coordinate_transformation_mode = "half_pixel"',
    "PyTorch 1, bilinear": 'mode = "linear", coordinate_transformation_mode = "pytorch_half_pixel"',
    "corners": 'mode = "linear", coordinate_transformation_mode = "align_corners"',
    "Keras, nearest": 'coordinate_transformation_mode = "half_pixel", nearest_mode = "round_prefer_ceil"',
    "defaults": "",
    "cubic": 'mode = "cubic", cubic_coeff_a = -0.75',
}


@pytest.mark.parametrize("to", [(8, 10), (6, 7), (2, 5), (4, 3)], ids=str)
@pytest.mark.parametrize("form", RESIZES)
def test_resize(form: str, to: tuple[int, int], tmp_path: Path) -> None:
    text = f"""net (float[1, 3, 4, 5] x) => (float[1, 3, {to[0]}, {to[1]}] y) {{
        c = Conv <kernel_shape = [1, 1]> (x, w)
        y = Resize <{RESIZES[form]}> (c, , , sizes) }}""".replace("<>", "")
    weights = {"w": np.random.default_rng(1).normal(size=(3, 3, 1, 1)).astype(np.float32)}
    sizes = np.array([1, 3, *to], np.int64)
    check_against_onnxruntime(parse(text, {**weights, "sizes": sizes}), tmp_path, tolerance=2e-5)


def test_a_whole_factor_only_repeats_elements(tmp_path: Path) -> None:
    text = f"""net (float[1, 3, 4, 5] x) => (float[1, 3, 8, 15] y) {{
        y = Resize <{RESIZES["PyTorch, nearest"]}> (x, , scales) }}"""
    model = parse(text, {"scales": np.array([1, 1, 2, 3], np.float32)})
    assert "Resize" not in ops_of(check_against_onnxruntime(model, tmp_path))


@pytest.mark.parametrize(
    "body",
    [
        "m = ReduceMax <keepdims = 1> (c)\ny = Sub (c, m)",
        "g = Greater (c, x)\ny = Where (g, c, x)",
        "y = Max (c, x)",
        's = SpaceToDepth <blocksize = 2> (c)\ny = DepthToSpace <blocksize = 2, mode = "CRD"> (s)',
        "t = Tile (c, twice)\ny = Slice (t, from, to, axes)",
        "y = Where (mask, c, lowest)",
        "e = Elu (c)\ns = Selu (e)\nt = Celu <alpha = 2.0> (s)\nu = Softsign (t)\nv = Softplus (u)\ny = Cos (v)",
    ],
)
def test_on_images(body: str, tmp_path: Path) -> None:
    text = f"net (float[1, 3, 4, 6] x) => (float[1, 3, 4, 6] y) {{ c = Conv <kernel_shape = [1, 1]> (x, w)\n{body} }}"
    rng = np.random.default_rng(1)
    constants = {
        "w": rng.normal(size=(3, 3, 1, 1)).astype(np.float32),
        "twice": np.array([1, 2, 1, 3], np.int64),
        "from": np.array([2, 3], np.int64),
        "to": np.array([5, 9], np.int64),
        "axes": np.array([1, 3], np.int64),
        "mask": rng.random((1, 1, 4, 6)) < 0.5,
        "lowest": np.array(-1e9, np.float32),
    }
    used = {name: data for name, data in constants.items() if name in text}
    check_against_onnxruntime(parse(text, used), tmp_path)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ('y = Einsum <equation = "bcii->bci"> (x)', "Einsum, equation"),
        (
            'y = Resize <coordinate_transformation_mode = "tf_crop_and_resize"> (x, r, s)',
            "coordinate_transformation_mode",
        ),
        ("y = Resize <exclude_outside = 1> (x, r, s)", "Resize, exclude_outside"),
        ("y = Elu <alpha = -1.0> (x)", "Elu, alpha"),
    ],
)
def test_forms_without_an_operator_are_named(body: str, told: str, tmp_path: Path) -> None:
    text = f"net (float[1, 3, 4, 4] x) => (float[N] y) {{ {body} }}"
    constants = {"r": np.array([0, 0, 0, 0, 1, 1, 1, 1], np.float32), "s": np.array([1, 1, 2, 2], np.float32)}
    with pytest.raises(CompileError) as caught:
        check_against_onnxruntime(parse(text, {k: v for k, v in constants.items() if f" {k}" in body}), tmp_path)
    assert caught.value.code == "E0501"
    assert told in caught.value.details[0]


@pytest.mark.parametrize(
    ("form", "size"), [("linear", 2**24), ("cubic", 2**24), ("nearest", 2**28), ("nearest", 2**40), ("cubic", 2**40)]
)
def test_a_resize_that_is_too_large_takes_no_memory(form: str, size: int, tmp_path: Path) -> None:
    """By its table of weights, or by its result."""
    text = f'net (float[1, 8, 1] x) => (float[N] y) {{ y = Resize <mode = "{form}"> (x, , , s) }}'
    path = write(parse(text, {"s": np.array([1, 8, size], np.int64)}), tmp_path)
    tracemalloc.start()
    try:
        with pytest.raises(CompileError) as caught:
            load_model(path)
        assert caught.value.code == "E0217"
        assert tracemalloc.get_traced_memory()[1] < 100 << 20
    finally:
        tracemalloc.stop()
