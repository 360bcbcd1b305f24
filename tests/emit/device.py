"""A generated project as a shared library of this machine, called from Python: training, and checkpoints as bytes."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tests.e2e.chain import Project
from tests.emit.test_generated_c import NUMERIC, build, sources
from tinytrain_compile.ir.types import Array
from tinytrain_compile.verify.build import write_files

OK, ERR_NAN, ERR_FORMAT = 0, 5, 7
_WRITE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
HEAD_BYTES = 16


class Device:
    """One instance of a model in an arena of its own."""

    def __init__(self, made: Project, folder: Path, flags: Iterable[str] = ("-O0",)) -> None:
        self.made, self.interface = made, made.bundle.interface
        write_files(folder, dict(made.bundle.files))
        options = ["-std=c11", *NUMERIC, *flags, "-shared", "-fPIC", "-Wl,-Bsymbolic"]
        build(["gcc", *options, *sources(made.bundle), "-o", "model.so"], folder)
        self._library = ctypes.CDLL(str(folder / "model.so"))
        self._sizes = (self.interface.arena_bytes, *self.interface.further_bytes)
        self._memories = [np.zeros(size + 64, np.uint8) for size in self._sizes]
        self._model = ctypes.c_void_p()
        assert self.restart() == OK

    def macro(self, name: str) -> str:
        """What the public header defines NET_`name` to be."""
        match = re.search(
            rf"^#define NET_{name} (.*?)(?: */\*.*)?$", self.made.bundle.files["net_train.h"], re.MULTILINE
        )
        assert match is not None, name
        return match[1]

    def _call(self, name: str, *arguments: Any, model: bool = True) -> int:
        function = getattr(self._library, f"net_{name}")
        return int(function(*([self._model] if model else []), *arguments))

    def put(self, x: Array) -> None:
        """Fill the input slot."""
        data = np.ascontiguousarray(x, np.dtype(self.interface.input_dtype))
        ctypes.memmove(self.slot(), data.ctypes.data, data.nbytes)

    def slot(self) -> int | None:
        """m_input."""
        function = self._library.net_input
        function.restype = ctypes.c_void_p
        return function(self._model)

    def try_train(self, x: Array, y: Array, call: str = "train_step") -> tuple[int, float]:
        """The status of m_train_step on as many samples as it takes, and the loss (-1 where none was written)."""
        labels = np.ascontiguousarray(y, np.int32 if self.interface.label_ctype == "int32_t" else np.float32)
        self.put(x)
        loss = ctypes.c_float(-1.0)
        return self._call(call, labels.ctypes.data_as(ctypes.c_void_p), ctypes.byref(loss)), loss.value

    def train(self, x: Array, y: Array) -> float:
        """One step on as many samples as it takes; the loss."""
        status, loss = self.try_train(x, y)
        assert status == OK
        return loss

    def try_infer(self, x: Array) -> tuple[int, Array]:
        """The status of m_infer, and what it has written."""
        self.put(x)
        out = np.zeros(self.interface.output_elements, np.float32)
        return self._call("infer", out.ctypes.data_as(ctypes.c_void_p)), out

    def apply(self) -> int:
        """The status of m_apply."""
        return self._call("apply")

    def restart(self) -> int:
        """The status of m_init on the memories that the instance has."""
        places = [(memory.ctypes.data + 63) // 64 * 64 for memory in self._memories]
        pointers, sizes = (ctypes.c_void_p * len(places))(*places), (ctypes.c_size_t * len(places))(*self._sizes)
        return self._call("init_memories", ctypes.byref(self._model), pointers, sizes, model=False)

    def set_rate(self, rate: float) -> None:
        """m_set_lr."""
        assert self._call("set_lr", ctypes.c_float(rate)) == OK

    def save(self) -> bytes:
        """A checkpoint."""
        status, checkpoint = self.try_save()
        assert status == OK
        return checkpoint

    def try_save(self, meanwhile: Callable[[], object] = lambda: None) -> tuple[int, bytes]:
        """The status of m_save, and what it has written; meanwhile: what its callback does each time."""
        pieces: list[bytes] = []

        def write(_context: int, data: int, size: int) -> int:
            meanwhile()
            pieces.append(ctypes.string_at(data, size))
            return 0

        return self._call("save", _WRITE(write), None), b"".join(pieces)

    def load(self, checkpoint: bytes, meanwhile: Callable[[], object] = lambda: None) -> int:
        """The status of m_load; meanwhile: what its callback does each time."""
        rest = memoryview(checkpoint)

        def read(_context: int, data: int, size: int) -> int:
            nonlocal rest
            meanwhile()
            if size > len(rest):
                return -1
            ctypes.memmove(data, bytes(rest[:size]), size)
            rest = rest[size:]
            return 0

        return self._call("load", _WRITE(read), None)
