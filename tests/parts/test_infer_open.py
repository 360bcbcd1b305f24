"""--slices infer: m_infer_open infers while a step is open, with the weights as they are, and the step goes on."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from tests.e2e import chain
from tests.emit.device import OK
from tests.emit.test_generated_c import needs_gcc
from tests.parts.test_listening import compiled, network, samples
from tests.parts.test_slices import Sliced
from tinytrain_compile.ir.kernels import KernelSet
from tinytrain_compile.ir.types import Array
from tinytrain_compile.reference.trainer import run_inference

pytestmark = needs_gcc


class Open(Sliced):
    """A device that infers while a step is open."""

    def infer_open(self, x: Array) -> Array:
        out = np.empty(self.interface.output_elements, np.float32)
        given = np.ascontiguousarray(x, self.interface.input_dtype)
        assert (
            self._call("infer_open", given.ctypes.data_as(ctypes.c_void_p), out.ctypes.data_as(ctypes.c_void_p)) == OK
        )
        return out

    def state(self) -> dict[str, Array]:
        """The state as it lies in the arena, between two slices too."""
        found = dict[str, Array]()
        arena = np.frombuffer(ctypes.string_at(self._model, self.interface.arena_bytes), np.uint8)
        for slot in self.interface.state:
            held = arena[slot.offset : slot.offset + slot.size_bytes].view(slot.dtype)
            found[slot.name] = held.reshape(self.made.train.graph.constants[slot.name].shape)
        return found


def test_output_is_of_the_weights_at_that_moment(tmp_path: Path) -> None:
    model = tmp_path / "net.onnx"
    onnx.save(network(), model)
    made = compiled(model, "int8", listen="off", slices="infer")
    summary = made.project.summary
    project = chain.Project(summary.train, summary.plan, KernelSet((), {}), made.project.bundle)
    whole, device = (Open(project, tmp_path / name) for name in ("whole", "open"))
    given = np.asarray(made.twin().as_inputs(samples(2, 5)[0]))
    x, probe = given[:1], given[1:]
    y = np.asarray([1], np.int32)
    loss = whole.train(x, y)
    device.put(x)
    assert device.begin() == OK
    found, done, outputs = float("nan"), 0, list[Array]()
    while not done:
        outputs.append(device.infer_open(probe))
        assert np.array_equal(outputs[-1], run_inference(summary.train, probe, device.state()))
        _, known, done = device.slice(y, 1)
        found = known or found
    assert found == loss
    assert device.save() == whole.save()
    assert len({output.tobytes() for output in outputs}) > 2, "half of an update is seen"


def test_price_is_in_the_report_and_dropout_is_refused() -> None:
    made = compiled(network(), "fp32", slices="infer", verify="host")
    summary = made.project.summary
    assert summary.verify.result == "pass"
    plan = summary.plan
    assert plan.open is not None
    assert plan.listening is not None
    price = plan.open.plan.arena_bytes - plan.listening.plan.arena_bytes
    assert made.report["slices"]["infer_bytes"] == price
    with pytest.raises(tt.CompileError, match=r"--slices infer: is not possible with --dropout on"):
        compiled(network(), "fp32", slices="infer", listen="off", dropout="on")
