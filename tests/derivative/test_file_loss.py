"""The loss that a file stands for, whatever form its last operators have."""

from pathlib import Path

import pytest

from testing.models import Network
from tests.frontend.qoperator import qoperator_form
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.derivative import check_derivative
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target import load_target


@pytest.mark.parametrize("quant", ["fp32", "int8"])
@pytest.mark.parametrize("end", ["Sigmoid", "Softmax <axis=1>"])
def test_a_qlinear_operator_at_the_end_has_the_loss_of_its_real_one(end: str, quant: str, tmp_path: Path):
    net = Network("net", "float[1, 6] x", "float[1, 3] y", 5)
    scores = net.dense("fc", net.relu(net.dense("first", "x", 6, 5)), 5, 3)
    net.node("end", f"y = {end} ({scores})")
    path = qoperator_form(net.model(), tmp_path)
    options = CompileOptions(model=path, update="all", verify="host", quant=quant)
    model = pipeline.stored(pipeline.imported(options), options)
    planner = Planner(model, options, load_target("cortex-m7"), pipeline.load_externals(options))
    train = planner.training(options.update)
    found = check_derivative(model, train, random_samples(train, 4, 1), options)
    assert found is not None
    assert (found.tensors, found.unjudged) == (4, 0)
