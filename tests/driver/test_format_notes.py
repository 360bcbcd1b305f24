"""The note that float32 regions may make int8 the slower format."""

from __future__ import annotations

from testing.networks import models
from tests.quantize import nets
from tinytrain_compile.driver.summary import format_notes
from tinytrain_compile.target.loader import load_target

FPU, NO_FPU = load_target("cortex-m7"), load_target("cortex-m0plus")


def test_attention_in_float32_is_noted_on_a_core_with_an_fpu() -> None:
    train = nets.int8_train(models.transformer())
    (note,) = format_notes(train, FPU)
    assert "of a step's multiply-accumulates stay in float32" in note and "--quant fp32" in note
    assert format_notes(train, NO_FPU) == ()


def test_a_network_of_integers_and_one_of_floats_have_none() -> None:
    assert format_notes(nets.int8_train(nets.cnn(), head="int8"), FPU) == ()
    assert format_notes(nets.float_train(models.transformer()), FPU) == ()
