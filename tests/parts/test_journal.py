"""Journals (--runtime journal): boards and the desk compute the same, and an audit names the first record that does
not fit."""

from __future__ import annotations

import ctypes
import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tinytrain_compile as tt
from testing.journal.device import record
from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import build, needs_gcc
from tinytrain_compile.cli.python_options import options_from
from tinytrain_compile.driver.checks.project import read_project
from tinytrain_compile.emit.checkpoint import model_hash
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.learn.audit import Evidence, audit, compare, repeat
from tinytrain_compile.parts.journal.part import noise_of
from tinytrain_compile.parts.journal.twin import HEAD, Chain, Layout, head_of
from tinytrain_compile.twin import Twin

pytestmark = needs_gcc
COUNT, KEY = 24, bytes(range(1, 33))
OPTIONS: dict[str, dict[str, Any]] = {
    "fp32": {"target": "cortex-m0plus"},
    "int8": {"target": "cortex-m4", "quant": "int8", "batch": 4, "micro_batch": 2},
}


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Samples of the network below."""
    path, rng = tmp_path_factory.mktemp("journal") / "own.npz", np.random.default_rng(7)
    np.savez(path, x=rng.normal(size=(COUNT, 12)).astype(np.float32), y=rng.integers(0, 4, COUNT).astype(np.int32))
    return path


@pytest.fixture(scope="module")
def build_of(own: Path) -> Callable[[str], tt.Compiled]:
    """A small network with a journal, by the name of its options."""
    model = write(models.mlp(), own.parent, "m.onnx")

    @cache
    def made(name: str) -> tt.Compiled:
        calib = {"calib": own} if name == "int8" else {}
        return tt.compile(model, update="all", runtime="journal", verify="none", **OPTIONS[name], **calib)

    return made


@dataclass
class Device:
    """A twin that trains by the calls of m_journal.h."""

    twin: Twin
    own: Path
    key: bytes | None = None

    def __post_init__(self) -> None:
        layout = Layout(self.twin.batch)

        class Journal(ctypes.Structure):
            _fields_ = (
                ("key", ctypes.c_char_p),
                ("samples", ctypes.c_uint32),
                ("record", ctypes.c_uint8 * layout.record_bytes),
            )

        self.journal, self._at = Journal(), 0
        self.call("init", self.key)
        with np.load(self.own) as data:
            self.x, self.y = self.twin.as_slots(data["x"], data["y"])

    def call(self, name: str, *given: Any) -> None:
        function = self.twin.instance.function(f"journal_{name}")
        assert function(ctypes.byref(self.journal), *given) == 0

    def update(self, rate: float = 0.05) -> bytes:
        """Make an update, and return its record."""
        instance, together = self.twin.instance, self.twin.instance.interface.micro_batch
        instance.set_rate(rate)
        for _ in range(self.twin.batch // together):
            x, y = (np.ascontiguousarray(each[self._at : self._at + together]) for each in (self.x, self.y))
            slot, loss = instance.function("input", ctypes.c_void_p)(instance.handle), ctypes.c_float()
            ctypes.memmove(slot, x.ctypes.data, x.nbytes)
            step = "accumulate" if instance.interface.accumulates else "train_step"
            self.call(step, instance.handle, ctypes.c_void_p(y.ctypes.data), ctypes.byref(loss))
            self._at = (self._at + together) % COUNT
        if instance.interface.accumulates:
            self.call("apply", instance.handle)
        return bytes(self.journal.record)


def audited(made: tt.Compiled, own: Path, data: bytes, key: bytes | None = None, before: bytes = b"") -> bytes:
    """The checkpoint to which a journal leads. before: the one that it begins with."""
    with made.twin() as twin:
        if before:
            twin.instance.load(before)
        repeat(made.project, twin, ("d.jnl", data, key), own)
        return twin.instance.save()


def fault(made: tt.Compiled, own: Path, data: bytes, **more: Any) -> str:
    with pytest.raises(CompileError) as caught:
        audited(made, own, data, **more)
    assert caught.value.code == "E0608"
    return caught.value.what


@pytest.mark.parametrize(("name", "key"), [("fp32", None), ("int8", KEY)], ids=OPTIONS)
def test_every_flipped_bit_is_found(name: str, key: bytes | None, own: Path, build_of: Any) -> None:
    """The audit names the record with the bit, and reaches the checkpoint of a journal without."""
    made, updates = build_of(name), 2
    with made.twin() as twin:
        device = Device(twin, own, key)
        data = b"".join(device.update(0.05 - 0.01 * i) for i in range(updates))
        checkpoint, (number, head) = twin.instance.save(), head_of(twin.instance.tensor(HEAD))
    assert audited(made, own, data, key) == checkpoint
    size = len(data) // updates
    assert (number, head[:8]) == (updates, data[-8:]) and size == Layout(twin.batch).record_bytes
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        assert fault(made, own, bytes(flipped), key=key).startswith(f"record {1 + bit // 8 // size} "), bit


def test_what_does_not_fit_is_named(own: Path, build_of: Any, tmp_path: Path) -> None:
    made = build_of("fp32")
    with made.twin() as twin:
        device = Device(twin, own)
        records = [device.update() for _ in range(4)]
        middle = twin.instance.save()
        later = [device.update() for _ in range(2)]
        end = twin.instance.save()
        twin.instance.load(middle)
        twin.instance.train(device.x[:1], device.y[:1])  # an update without a record
        hidden = device.update()
    data = b"".join(records)
    assert audited(made, own, data) == middle
    assert audited(made, own, b"".join(later), before=middle) == end
    assert "record 1 does not continue the chain" in fault(made, own, b"".join(later))
    assert "record 1 does not continue the chain" in fault(made, own, data, key=KEY)
    assert "record 3 does not continue the chain" in fault(made, own, b"".join((*records[:2], records[3], records[2])))
    assert "record 3 ends after 43 of 44 bytes" in fault(made, own, data[: 3 * 44 - 1])
    assert "it has no record" in fault(made, own, b"")
    assert "record 1 has the loss" in fault(made, own, hidden, before=middle)
    few = tmp_path / "few.npz"
    with np.load(own) as arrays:
        np.savez(few, x=arrays["x"][:2], y=arrays["y"][:2])
    assert re.match(r"record 3 names a sample [0-9a-f]{32} that --samples does not have", fault(made, few, data))


def test_a_sound_chain_of_other_updates_is_found(own: Path, build_of: Any) -> None:
    """Other noise, which no loss shows; and numbers of a forger, who can make a chain but not the updates."""
    made = build_of("int8")
    with made.twin() as twin:
        device = Device(twin, own)
        data, train = device.update(), made.project.summary.train
        before = twin.instance.save()
        twin.instance.tensor(noise_of(train))[:] += 1
        assert "record 1 has the noise" in fault(made, own, device.update(), before=before)
    chain, content = Chain(model_hash(train)), data[:-8]
    for number in (0, 2):
        content = number.to_bytes(4, "little") + content[4:]
        forged = content + chain.after(bytes(32), content)[:8]
        assert f"record 1 is of update {number}, where update 1 must follow" in fault(made, own, forged)


def test_an_update_that_was_not_made_has_no_record(own: Path, build_of: Any) -> None:
    """Neither NaN nor a wrong label changes the head; a batch has at most its samples."""
    made = build_of("int8")
    with made.twin() as twin:
        device, instance = Device(twin, own), twin.instance
        data, loss = device.update(), ctypes.c_float()
        before, wrong = instance.save(), np.full(2, 9, np.int32)
        step, apply = instance.function("journal_accumulate"), instance.function("journal_apply")
        journal, label = ctypes.byref(device.journal), ctypes.c_void_p(device.y.ctypes.data)
        assert step(journal, instance.handle, ctypes.c_void_p(wrong.ctypes.data), ctypes.byref(loss)) == 1
        assert step(journal, instance.handle, None, ctypes.byref(loss)) == 1
        assert apply(journal, instance.handle) == 4, "nothing was accumulated"
        assert instance.save() == before
        assert [step(journal, instance.handle, label, ctypes.byref(loss)) for _ in range(3)] == [0, 0, 1]
        device.call("init", None)
        instance.load(before)
        data += device.update()
        assert audited(made, own, data) == instance.save()


def test_hashes(build_of: Any, tmp_path: Path) -> None:
    """SHA-256 of every number of bytes in up to three blocks, by hashlib."""
    for name, text in build_of("fp32").project.bundle.files.items():
        (tmp_path / name).write_text(text)
    wrapper = """#include "m_journal.c"
        void hashed(const uint8_t *from, uint32_t size, uint8_t *to);
        void hashed(const uint8_t *from, uint32_t size, uint8_t *to)
        { hash_t hash; begin(&hash); take(&hash, from, size); finish(&hash, to, 32); }"""
    (tmp_path / "hashed.c").write_text(wrapper)
    build(["gcc", "-std=c11", "-shared", "-fPIC", "hashed.c", "-o", "hashed.so"], tmp_path)
    hashed, found = ctypes.CDLL(str(tmp_path / "hashed.so"), os.RTLD_LAZY).hashed, ctypes.create_string_buffer(32)
    for size in range(3 * 64):
        data = bytes((7 * i + size) % 256 for i in range(size))
        hashed(data, size, found)
        assert found.raw == hashlib.sha256(data).digest(), size


def test_the_command(own: Path, build_of: Any, tmp_path: Path) -> None:
    """A project that is compiled again from its output, a key in hexadecimal digits, and a checkpoint before."""
    made, model = build_of("int8"), own.parent / "m.onnx"
    made.save(tmp_path / "out")
    files = {name: tmp_path / name for name in ("before", "journal", "checkpoint", "key", "other")}
    with made.twin() as twin:
        device = Device(twin, own, KEY)
        device.update()
        twin.save(files["before"])
        files["journal"].write_bytes(b"".join(device.update() for _ in range(3)))
        twin.save(files["checkpoint"])
        twin.instance.train(device.x[:4], device.y[:4])  # without a record
        twin.save(files["other"])
    files["key"].write_text(KEY.hex() + "\n")
    options, scheme = read_project(tmp_path / "out", {"calib": own})
    given = Evidence(files["journal"], own, files["checkpoint"], files["before"], files["key"])
    found = audit(options_from(model, options), scheme, given, lambda _what, _share: None)
    assert (found.updates, found.checkpoint_bytes, found.keyed) == (3, files["checkpoint"].stat().st_size, True)
    with (
        made.twin() as twin,
        pytest.raises(CompileError, match=r"all records of journal fit, but they lead to another .*weight") as caught,
    ):
        compare(made.project, twin, replace(given, checkpoint=files["other"]), True)
    assert caught.value.code == "E0608"


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("name", OPTIONS)
def test_a_board_keeps_the_journal_of_the_desk(name: str, own: Path, build_of: Any, tmp_path: Path) -> None:
    made, updates = build_of(name), 6
    with made.twin() as twin, np.load(own) as arrays:
        x, y = twin.as_slots(arrays["x"], arrays["y"])
        found = record(made.project, OPTIONS[name]["target"], Samples(x, y), [0.05] * updates, tmp_path, key=KEY)
        device = Device(twin, own, KEY)
        assert found.journal == b"".join(device.update() for _ in range(updates))
        assert found.checkpoint == twin.instance.save()
    assert audited(made, own, found.journal, KEY) == found.checkpoint
