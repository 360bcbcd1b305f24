"""What to change in arrays of samples."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tinytrain_compile.data.array_advice import missing_arrays, way_to_npz, way_to_shape
from tinytrain_compile.data.samples import read_arrays
from tinytrain_compile.errors import CompileError


@pytest.mark.parametrize(
    ("shape", "wanted"),
    [
        ((7, 16, 16, 3), (3, 16, 16)),
        ((7, 20, 16, 3), (3, 20, 16)),
        ((7, 3, 16, 16), (16, 16, 3)),
        ((7, 4, 9), (9, 4)),
        ((16, 16, 3), (3, 16, 16)),
        ((3, 16, 16), (3, 16, 16)),
        ((12, 7), (12,)),
        ((3, 16, 16, 7), (3, 16, 16)),
        ((16, 16, 3, 7), (3, 16, 16)),
        ((8, 8, 1, 7), (1, 8, 8)),
        ((7, 768), (3, 16, 16)),
        ((7, 16, 16), (1, 16, 16)),
        ((2, 7, 12), (12,)),
        ((7,), (1,)),
        ((7, 1, 6, 6), (3, 6, 6)),
        ((7, 4, 6, 6), (3, 6, 6)),
        ((7, 3, 6, 6), (1, 6, 6)),
    ],
)
def test_the_line_of_numpy_makes_the_shape(shape: tuple[int, ...], wanted: tuple[int, ...]) -> None:
    names = {"np": np, "x": np.zeros(shape, np.float32)}
    exec(way_to_shape("x", shape, wanted).partition(": ")[2], names)
    assert np.shape(names["x"])[1:] == wanted


def test_channels_last_become_channels_first_although_rows_are_as_many_as_columns() -> None:
    assert way_to_shape("x", (7, 16, 16, 3), (3, 16, 16)).endswith("x = x.transpose(0, 3, 1, 2)")
    both = way_to_shape("x", (7, 32, 32, 3), (3, 16, 16))
    assert "resize the images to 16 x 16" in both and "x.transpose(0, 3, 1, 2)" in both


@pytest.mark.parametrize(
    ("shape", "said"),
    [((7, 13), "remove 1 column"), ((7, 9), "add the missing 3 columns"), ((7, 5, 5), "give samples as")],
)
def test_what_no_line_can_mend(shape: tuple[int, ...], said: str) -> None:
    assert said in way_to_shape("x", shape, (12,))


def test_arrays_of_other_names_are_recognised() -> None:
    what, way = missing_arrays("own.npz", ("x", "y"), ("x", "y"), ("images", "labels", "ids"))
    assert what == "has no array x and no y; it holds images, labels, ids"
    assert way == "save it again: np.savez('own.npz', x=images, y=labels)"
    assert missing_arrays("", ("b",), ("a", "b"), ("a",))[1] == "give dict(a=a, b=...)"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "is empty"),
        (b"a,b\n1,2\n", "is text, not an .npz"),
        (b"\x93NUMPY\x01\x00", "x=np.load('own.npy')"),
        (b"PK\x03\x04 half", "breaks off"),
        (b"\x89HDF\r\n", "is not an .npz file"),
    ],
)
def test_a_file_that_is_no_npz(content: bytes, said: str, tmp_path: Path) -> None:
    (tmp_path / "own.npy").write_bytes(content)
    assert said in "; ".join(way_to_npz("own.npy", content, ("x", "y")))
    with pytest.raises(CompileError, match="E0105") as problem:
        read_arrays(tmp_path / "own.npy", ("x", "y"))
    assert said in str(problem.value)


def test_a_misspelt_file_gets_the_one_beside_it(tmp_path: Path) -> None:
    np.savez(tmp_path / "samples.npz", x=np.zeros(3))
    with pytest.raises(CompileError, match=r"did you mean .*samples\.npz\?"):
        read_arrays(tmp_path / "sample.npz", ("x",))
