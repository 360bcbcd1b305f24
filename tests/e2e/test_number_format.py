"""--quant auto: the number format that a model's file is made for, wherever it counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks.models import mlp
from tests.e2e.command import run
from tests.frontend.models import write
from tests.frontend.qdq import Maker
from tests.quantize import nets
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.compile_options import CompileOptions

HOST = ("--verify", "host", "--update", "all")


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "report.json").read_text())


@pytest.fixture
def quantised(tmp_path: Path) -> Path:
    return write(nets.quantised(), tmp_path, "qdq.onnx")


def test_a_quantised_model_trains_in_int8_unless_told_otherwise(quantised: Path, tmp_path: Path) -> None:
    outcome = run(quantised, *HOST, "-o", tmp_path / "auto").check_success()
    said = " ".join(outcome.out.split())
    assert "note int8, because the model is quantised (QDQ): --quant fp32 trains it in float32 " in said
    auto = report(tmp_path / "auto")
    assert auto["quant"] == "int8" and auto["verify"]["result"] == "pass"
    assert auto["notes"][0].startswith("int8, because the model is quantised")
    assert "int8" in (tmp_path / "auto" / "report.html").read_text()
    plain = run(quantised, *HOST, "--quant", "int8", "-o", tmp_path / "int8").check_success()
    assert "because" not in plain.out
    sources = [sorted((tmp_path / kind).glob("*.[ch]")) for kind in ("auto", "int8")]
    assert [a.read_bytes() for a in sources[0]] == [b.read_bytes() for b in sources[1]]
    outcome = run(quantised, *HOST, "--quant", "fp32", "-o", tmp_path / "fp32").check_success()
    floats = report(tmp_path / "fp32")
    assert floats["quant"] == "fp32" and floats["verify"]["result"] == "pass" and "because" not in outcome.out
    assert "QConv" in run(quantised, "--dump-after", "training").check_success().out


def test_a_float_model_trains_in_float32(tmp_path: Path) -> None:
    outcome = run(write(mlp(), tmp_path), "--dry-run", "-o", tmp_path / "out").check_success()
    assert ", fp32 " in outcome.out and "because" not in outcome.out


def test_weights_alone_that_are_stored_as_integers_are_no_reason_for_int8(tmp_path: Path) -> None:
    m = Maker()
    w = m.weight("w", (3, 4), 3)
    text = f"""net (float[1, 4] input) => (float[1, 3] output) {{
        wd = DequantizeLinear<axis = 0>(w, {w})
        output = Gemm<transB = 1>(input, wd)
        }}"""
    assert ", fp32 " in run(write(m.model(text), tmp_path), "--dry-run").check_success().out


@pytest.mark.parametrize("flags", [("--optimizer", "adam"), ("--optimizer", "adamw"), ("--weight-decay", "0.1")])
def test_what_int8_lacks_names_the_way_out(flags: tuple[str, str], quantised: Path) -> None:
    outcome = run(quantised, *flags, "--update", "all", "--dry-run").check_error("E0113", 2)
    assert "--quant fp32" in outcome.err and "quantised model" in outcome.err
    run(quantised, *flags, "--update", "all", "--quant", "fp32", "--dry-run").check_success()
    run(quantised, *flags, "--update", "head", "--dry-run").check_success()  # the head is float32


@pytest.mark.parametrize("flag", ["--weight-store mixed", "--rescale on", "--head int8"])
def test_flags_of_int8_are_refused_for_a_float_model_only(flag: str, quantised: Path, tmp_path: Path) -> None:
    model = write(mlp(), tmp_path)
    outcome = run(model, *flag.split(), "--dry-run").check_error("E0113", 2)
    assert flag.split()[0] in outcome.err and "--quant int8" in outcome.err
    run(quantised, *flag.split(), "--update", "all", "--dry-run").check_success()
    run(quantised, *flag.split(), "--quant", "fp32", "--dry-run").check_error("E0113", 2)


def test_callers_of_the_compiler_get_the_same(quantised: Path, tmp_path: Path) -> None:
    known = compile_model(CompileOptions(quantised, dry_run=True)).summary
    assert known is not None and known.quant == "int8"
    np.savez(tmp_path / "calib.npz", x=np.zeros((2, 12), np.float32))
    options = CompileOptions(write(mlp(), tmp_path), dry_run=True, calib=tmp_path / "calib.npz")
    with pytest.raises(CompileError, match="--quant int8"):
        compile_model(options)
