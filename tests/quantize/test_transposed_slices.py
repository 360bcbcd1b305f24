"""Channels of a transposed convolution in int8: its scales belong to the last axis of its weight."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from testing.networks.models import Network
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.options.compile_options import CompileOptions


@pytest.mark.parametrize("axis", ["out", "in"])
def test_channels_of_a_transposed_convolution_keep_their_scales(axis: str, tmp_path: Path):
    net = Network("net", "float[1, 2, 4, 4] x", "float[1, 3] y", 5)
    first = net.relu(net.node("first", f"c = Conv (x, {net.weight('first_weight', 6, 2, 1, 1)})"))
    up = net.node("up", f"u = ConvTranspose <strides = [2, 2]> ({first}, {net.weight('up_weight', 6, 4, 2, 2)})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({net.node('pool', f'p = GlobalAveragePool ({up})')})")
    net.node("end", f"y = Identity ({net.dense('fc', flat, 4, 3)})")
    onnx.save(net.model(), tmp_path / "net.onnx")
    (tmp_path / "scheme.toml").write_text(f'[[update]]\nlayer = "up"\nweight = 2\naxis = "{axis}"\n')
    np.savez(tmp_path / "c.npz", x=np.random.default_rng(0).standard_normal((8, 2, 4, 4)).astype(np.float32))
    options = CompileOptions(
        model=tmp_path / "net.onnx",
        out=tmp_path / "out",
        update=str(tmp_path / "scheme.toml"),
        quant="int8",
        calib=tmp_path / "c.npz",
        verify="host",
        target="host",
    )
    summary = compile_model(options).summary
    assert summary is not None and summary.verify.result == "pass"
    assert summary.verify.derivative is not None and summary.verify.derivative.tensors == 1
