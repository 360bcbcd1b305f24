"""Archives of arrays as --data and --calib take them: wrong types, shapes, numbers, headers, members, bytes."""

from __future__ import annotations

import io
import zipfile
from random import Random

import numpy as np

from tests.campaign.byte_mutants import byte_mutant

FACTORS = (0.0, 1e-45, 1e-40, 1e-38, 1e-20, 1e-3, 1.0, 1e3, 1e18, 1e30, 1e38, 3.4e38, float("nan"), float("inf"))
HEADERS = (
    *(b"{'descr': '<f4', 'fortran_order': False, 'shape': (%d,), }" % n for n in (0, 7, 2**31, 2**62)),
    *(
        b"{'descr': '|O', 'fortran_order': False, 'shape': (3,), }",
        b"{'descr': '<f4'}",
        b"[" * 5000,
        b"__import__('os')",
    ),
    *(b"{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (3,), }", b"\xff" * 30, b""),
    *(b"{'descr': '<f4', 'fortran_order': True, 'shape': (-3, 12), }", b"{'descr': '<M8[s]', 'shape': (3,)}"),
)


def npz_mutant(x: np.ndarray, y: np.ndarray, source: Random) -> bytes:
    """An archive of samples x and labels y with something in it changed."""
    kind = source.randrange(5)
    if kind == 0:
        return byte_mutant(_archive({"x.npy": _npy(x), "y.npy": _npy(y)}, source), source)
    if kind == 1:
        members = {"x.npy": _npy(x), "y.npy": _npy(y)}
        name = source.choice(("x.npy", "y.npy"))
        members[name] = _with_header(source.choice(HEADERS), source) + members[name][128:]
        return _archive(members, source)
    with np.errstate(all="ignore"):
        for _ in range(source.choice((1, 1, 2))):
            x, y = _changed(x, source), (_changed(y, source) if source.randrange(3) == 0 else y)
    members = {source.choice(("x", "x", "x", "x", "X", "\0")) + ".npy": _npy(x), "y.npy": _npy(y)}
    if source.randrange(10) == 0:
        members.pop(source.choice(sorted(members)))
    if source.randrange(10) == 0:
        members["../z.npy"] = _npy(np.zeros(3))
    return _archive(members, source)


def _changed(array: np.ndarray, source: Random) -> np.ndarray:
    if array.dtype.kind in "SU":  # text is computed with no further
        return array
    kind = source.randrange(6)
    if kind < 2 and array.size:
        array = array.astype(np.float64 if source.randrange(4) == 0 else np.float32)
        place = source.randrange(array.size)
        array.reshape(-1)[place] = source.choice(FACTORS) * source.choice((1, -1))
    elif kind == 2:
        array = array * np.float32(source.choice(FACTORS))
    elif kind == 3:
        types = (np.float16, np.float64, np.int8, np.uint8, np.int64, np.uint64, np.bool_, np.complex64, "S4", "U3")
        array = array.astype(source.choice(types))
    elif kind == 4:
        shapes = ((-1,), (1, *array.shape), array.shape[::-1], (*array.shape, 1), array.shape[:1])
        shape = source.choice(shapes)
        array = array.reshape(shape) if shape == (-1,) or np.prod(shape) == array.size else np.zeros(shape, array.dtype)
    else:
        array = array[: source.choice((0, 1, 2))]
    return array


def _npy(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()


def _with_header(text: bytes, source: Random) -> bytes:
    version = source.choice((b"\x01\x00", b"\x02\x00", b"\x03\x00", b"\x09\x00"))
    size = source.choice((len(text), len(text), len(text), 0, 65535)).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + version + size + text


def _archive(members: dict[str, bytes], source: Random) -> bytes:
    stream = io.BytesIO()
    methods = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA)
    with zipfile.ZipFile(stream, "w", source.choice(methods)) as archive:
        for name, data in members.items():
            archive.writestr(zipfile.ZipInfo(name), data, source.choice(methods))
    return stream.getvalue()
