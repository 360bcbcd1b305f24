"""Files with formats: the loss that they stand for, and masks at the ends of ranges."""

from pathlib import Path

import pytest

from testing.networks.models import Network
from tests.frontend.qoperator import qoperator_form
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.derivative import check_derivative
from tinytrain_compile.ir.summary import DerivativeAgreement
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target


def judged(path: Path, quant: str) -> DerivativeAgreement:
    """Judge a step that trains all of a file, on random samples."""
    options = CompileOptions(model=path, update="all", verify="host", quant=quant)
    model = pipeline.stored(pipeline.imported(options), options)
    planner = Planner(model, options, load_target("cortex-m7"), pipeline.load_externals(options))
    train = planner.training(options.update)
    found = check_derivative(model, train, random_samples(train, 4, 1), options)
    assert found is not None
    return found


@pytest.mark.parametrize("quant", ["fp32", "int8"])
@pytest.mark.parametrize("end", ["Sigmoid", "Softmax <axis=1>"])
def test_a_qlinear_operator_at_the_end_has_the_loss_of_its_real_one(end: str, quant: str, tmp_path: Path):
    net = Network("net", "float[1, 6] x", "float[1, 3] y", 5)
    scores = net.dense("fc", net.relu(net.dense("first", "x", 6, 5)), 5, 3)
    net.node("end", f"y = {end} ({scores})")
    path = qoperator_form(net.model(), tmp_path)
    found = judged(path, quant)
    assert (found.tensors, found.unjudged) == (4, 0)


def test_a_relu_in_float32_masks_its_gradient_in_a_symmetric_format(tmp_path: Path):
    """Zero is in the middle of the range that the file gives the ReLU's result: the range's end is no mask."""
    net = Network("net", "float[1, 2, 6, 6] x", "float[1, 3] y", 5)
    first, second = net.weight("first", 4, 2, 3, 3), net.weight("second", 4, 4, 1, 1)
    gain, shift = net.near("gain", 1.0, 0.1, 4), net.near("shift", 0.0, 0.1, 4)
    raw = net.node("conv", f"raw = Conv <pads = [1, 1, 1, 1]> (x, {first})")
    norm = net.node("norm", f"norm = InstanceNormalization ({raw}, {gain}, {shift})")
    conv = net.node("again", f"again = Conv ({net.relu(norm)}, {second})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({conv})")
    net.node("end", f"y = Identity ({net.dense('fc', flat, 144, 3)})")
    path = qoperator_form(net.model(), tmp_path, extra_options={"ActivationSymmetric": True})
    found = judged(path, "int8")
    assert (found.tensors, found.unjudged) == (6, 0)
