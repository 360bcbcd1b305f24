"""A callback that calls the instance that calls it gets an error, and what is written or read stays whole."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.emit.device import OK, Device
from tests.emit.test_generated_c import needs_gcc
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples

pytestmark = needs_gcc
ERR_STATE = 4
PROJECTS: dict[str, Callable[[], chain.Project]] = {
    "float32": lambda: chain.project(chain.train_graph(models.mlp(), optimizer="adam")),
    "sums": lambda: chain.project(chain.train_graph(models.mlp(), batch=2)),
    "int8": lambda: chain.project(nets.int8_train(nets.cnn(4, 2))),
    "slices": lambda: chain.project(chain.train_graph(models.mlp()), slices=True),
}


class Intruder(Device):
    """A device that is called where it must not be."""

    def statuses(self) -> list[int]:
        """Of every call on the instance; its pointer to the input is none."""
        assert self.slot() is None
        label, out, loss = (ctypes.create_string_buffer(4096) for _ in range(3))
        calls = [("train_step", label, loss), ("infer", out), ("set_lr", ctypes.c_float(0.5))]
        calls += [("accumulate", label, loss), ("apply",)] if self.interface.accumulates else []
        calls += [("step_begin",)] if hasattr(self._library, "net_step_begin") else []
        return [*(self._call(*each) for each in calls), self.try_save()[0], self.load(b"")]


@pytest.mark.parametrize("name", PROJECTS)
def test_calls_from_a_callback_are_refused(name: str, tmp_path: Path) -> None:
    made = PROJECTS[name]()
    device, samples = Intruder(made, tmp_path), random_samples(made.train, 4, 1)
    samples.x[...] = np.clip(samples.x, -100, 100)
    device.try_train(samples.x[:1], samples.y[:1])
    plain, found = device.save(), list[int]()
    status, saved = device.try_save(lambda: found.extend(device.statuses()))
    assert len(found) > 20 and set(found) == {ERR_STATE}
    assert (status, saved) == (OK, plain), "nothing was changed, so the checkpoint is whole"
    device.try_train(samples.x[1:2], samples.y[1:2])
    later = device.save()
    assert later != plain
    found.clear()
    assert device.load(plain, lambda: found.extend(device.statuses())) == OK
    assert len(found) > 20 and set(found) == {ERR_STATE}
    assert device.save() == plain
    assert device.try_train(samples.x[1:2], samples.y[1:2])[0] == OK and device.save() == later


def test_who_begins_anew_in_a_callback_has_neither_saved_nor_loaded(tmp_path: Path) -> None:
    made = PROJECTS["float32"]()
    device, samples = Intruder(made, tmp_path), random_samples(made.train, 1, 1)
    initial = device.save()
    device.train(samples.x, samples.y)
    trained = device.save()
    status, saved = device.try_save(lambda: device.restart())
    assert status == ERR_STATE
    assert len(saved) < len(trained), "it has no CRC: no checkpoint"
    assert device.save() == initial
    assert device.load(trained, lambda: device.restart()) == ERR_STATE
    assert device.save() == initial
    assert device.load(trained) == OK and device.save() == trained


def test_a_callback_that_fails_gives_the_handle_back(tmp_path: Path) -> None:
    made = PROJECTS["float32"]()
    device = Intruder(made, tmp_path)
    before = device.save()
    assert device.load(before[:20]) == 6
    assert device.save() == before
