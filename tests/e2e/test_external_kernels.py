"""--kernels: functions of the user compute layers, with planned workspace, and a wrong one does not get through."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from testing.places import ROOT
from tests.e2e.command import Outcome, run
from tests.e2e.marks import needs_qemu

DIGITS, OWN = ROOT / "examples" / "digits", ROOT / "examples" / "external"
INT8 = ("--quant", "int8", "--calib", DIGITS / "calib.npz")

GRADIENTS = """#include "tt_external.h"
TT_EXTERNAL_GEMM_DX(gemm_dx)
{
    (void)workspace;
    for (int32_t k = 0; k < layer->rows * layer->in_c; ++k) {
        float sum = 0.0f;
        for (int32_t o = 0; o < layer->out_c; ++o) {
            sum += dy[k / layer->in_c * layer->out_c + o] * w[o * layer->in_c + k % layer->in_c];
        }
        dx[k] = sum;
    }
}
TT_EXTERNAL_GEMM_DW(gemm_dw)
{
    (void)workspace;
    for (int32_t k = 0; k < layer->out_c * layer->in_c; ++k) {
        float sum = 0.0f;
        for (int32_t row = 0; row < layer->rows; ++row) {
            sum += dy[row * layer->out_c + k / layer->in_c] * x[row * layer->in_c + k % layer->in_c];
        }
        dw[k] = sum;
    }
}
/* Calls visit(output pixel, input pixel, tap) wherever a tap lies inside the image. */
#define EACH_TAP(visit) \\
    for (int32_t q = 0; q < layer->batch * layer->out_h * layer->out_w; ++q) { \\
        for (int32_t tap = 0; tap < layer->kernel_h * layer->kernel_w; ++tap) { \\
            const int32_t row = q / layer->out_w % layer->out_h * layer->stride_h - layer->pad_top \\
                                + tap / layer->kernel_w * layer->dilation_h; \\
            const int32_t column = q % layer->out_w * layer->stride_w - layer->pad_left \\
                                   + tap % layer->kernel_w * layer->dilation_w; \\
            const int32_t image = q / (layer->out_h * layer->out_w); \\
            const int32_t p = (image * layer->in_h + row) * layer->in_w + column; \\
            if (row >= 0 && row < layer->in_h && column >= 0 && column < layer->in_w) { \\
                for (int32_t o = 0; o < layer->out_c; ++o) { \\
                    for (int32_t i = 0; i < layer->in_c; ++i) { visit; } \\
                } \\
            } \\
        } \\
    }
#define WEIGHT ((o * layer->kernel_h * layer->kernel_w + tap) * layer->in_c + i)
TT_EXTERNAL_CONV(conv)
{
    (void)workspace;
    for (int32_t k = 0; k < layer->batch * layer->out_h * layer->out_w * layer->out_c; ++k) {
        y[k] = bias == NULL ? 0.0f : bias[k % layer->out_c];
    }
    EACH_TAP(y[q * layer->out_c + o] += x[p * layer->in_c + i] * w[WEIGHT])
}
TT_EXTERNAL_CONV_DX(conv_dx)
{
    (void)workspace;
    for (int32_t k = 0; k < layer->batch * layer->in_h * layer->in_w * layer->in_c; ++k) {
        dx[k] = 0.0f;
    }
    EACH_TAP(dx[p * layer->in_c + i] += dy[q * layer->out_c + o] * w[WEIGHT])
}
TT_EXTERNAL_CONV_DW(conv_dw)
{
    (void)workspace;
    for (int32_t k = 0; k < layer->out_c * layer->kernel_h * layer->kernel_w * layer->in_c; ++k) {
        dw[k] = 0.0f;
    }
    EACH_TAP(dw[WEIGHT] += dy[q * layer->out_c + o] * x[p * layer->in_c + i])
}
"""
FUNCTIONS = {
    "Conv": "conv",
    "ConvGradInput": "conv_dx",
    "ConvGradWeight": "conv_dw",
    "GemmGradInput": "gemm_dx",
    "GemmGradWeight": "gemm_dw",
}


def entry(op: str = "QConv", function: str = "plain_conv", files: str = '["plain_conv.c"]', more: str = "") -> str:
    return f'[[kernel]]\nop = "{op}"\nfunction = "{function}"\nfiles = {files}\n{more}\n'


PLAIN = entry(more='when = "groups == 1"\nworkspace = "4 * out_c"')


def compiled(folder: Path, toml: str, *flags: str | Path, sources: dict[str, str] | None = None) -> Outcome:
    """digits.onnx with a kernel file beside the example's C files, some of them changed."""
    shutil.copytree(OWN, folder / "own")
    for name, text in (sources or {}).items():
        (folder / "own" / name).write_text(text, encoding="utf-8")
    (folder / "own" / "k.toml").write_text(toml, encoding="utf-8")
    model = DIGITS / "digits.onnx"
    return run(model, "--kernels", folder / "own" / "k.toml", "-o", folder / "out", *flags)


def changed(old: str, new: str, name: str = "plain_conv.c") -> dict[str, str]:
    text = (OWN / name).read_text(encoding="utf-8")
    assert old in text
    return {name: text.replace(old, new)}


def report(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "report.json").read_text(encoding="utf-8"))


# ---- what works -----------------------------------------------------------------------------------------------------


@needs_qemu
@pytest.mark.qemu
def test_the_example_is_verified_in_qemu_and_reported(tmp_path: Path) -> None:
    toml = (OWN / "kernels.toml").read_text(encoding="utf-8")
    outcome = compiled(tmp_path, toml, *INT8).check_success()
    found = report(tmp_path)
    conv, dense = found["work"]["external"]
    assert (found["verify"]["mode"], found["verify"]["result"], found["verify"]["max_error"]) == ("qemu", "pass", 0.0)
    assert (conv["function"], conv["layers"], conv["workspace_bytes"]) == (
        "plain_conv",
        ["conv1", "conv2", "conv3"],
        64,
    )
    assert (dense["function"], dense["layers"], dense["workspace_bytes"]) == ("plain_dense", ["classifier"], 0)
    assert "external   plain_conv for 3 nodes, workspace 64 B   plain_dense for 1 node\n" in outcome.out
    plan = json.loads((tmp_path / "out" / "plan.json").read_text(encoding="utf-8"))
    scratch = {b["name"]: b["size_bytes"] for b in plan["buffers"] if b["kind"] == "scratch"}
    assert [scratch[name] for name in conv["nodes"]] == [32, 64, 64]


def test_float_layers_and_all_gradients(tmp_path: Path) -> None:
    toml = "".join(entry(op, function, '["g.c"]') for op, function in FUNCTIONS.items())
    compiled(tmp_path, toml, "--verify", "host", sources={"g.c": GRADIENTS}).check_success()
    counts = {use["function"]: len(use["nodes"]) for use in report(tmp_path)["work"]["external"]}
    assert counts == {"conv": 3, "conv_dx": 2, "conv_dw": 3, "gemm_dx": 1, "gemm_dw": 1}


def test_all_of_the_workspace_is_the_kernels_own(tmp_path: Path) -> None:
    more = 'workspace = "4 * out_c + 5000"'
    spoil = changed("int32_t *sums = workspace;", "int32_t *sums = workspace; SPOIL").popitem()[1]
    loop = "#define SPOIL for (int32_t k = 0; k < 4 * c->out_c + 5000; ++k) ((volatile int8_t *)workspace)[k] = 85;\n"
    outcome = compiled(tmp_path, entry(more=more), *INT8, "--verify", "host", sources={"plain_conv.c": loop + spoil})
    outcome.check_success()
    assert report(tmp_path)["work"]["external"][0]["workspace_bytes"] == 5064


def test_what_our_kernel_promises_about_overlaps_does_not_hold_for_another(tmp_path: Path) -> None:
    flags = (*INT8, "--verify", "host", "--update", "head")
    run(DIGITS / "digits.onnx", "-o", tmp_path / "ours", *flags).check_success()
    covering = [b["over"] for b in json.loads((tmp_path / "ours" / "plan.json").read_text())["buffers"] if "over" in b]
    assert covering != [], "our own kernels do overwrite what they have read"
    clear = "for (int32_t k = 0; k < c->batch * c->out_h * c->out_w * c->out_c; ++k) ((volatile int8_t *)y)[k] = 0;"
    early = changed("int32_t *sums = workspace;", f"int32_t *sums = workspace; {clear}")
    compiled(tmp_path, PLAIN, *flags, sources=early).check_success()


@pytest.mark.parametrize(
    ("more", "target", "nodes"),
    [
        *(('features = ["dsp"]', "cortex-m3", 0), ('features = ["dsp"]', "cortex-m4", 3)),
        *(('targets = ["cortex-m4"]', "cortex-m7", 0), ('targets = ["cortex-m4"]', "cortex-m4", 3)),
        *(('layers = ["conv[12]"]', "cortex-m7", 2), ('when = "stride_h == 2 and in_c >= 8"', "cortex-m7", 1)),
    ],
)
def test_conditions(more: str, target: str, nodes: int, tmp_path: Path) -> None:
    toml = entry(more=f'{more}\nworkspace = "4 * out_c"')
    compiled(tmp_path, toml, *INT8, "--verify", "none", "--target", target).check_success()
    (use,) = report(tmp_path)["work"]["external"]
    assert len(use["nodes"]) == nodes
    assert (tmp_path / "out" / "plain_conv.c").exists() == (nodes > 0)


def test_the_first_entry_that_fits_counts(tmp_path: Path) -> None:
    other = changed("TT_EXTERNAL_QCONV(plain_conv)", "TT_EXTERNAL_QCONV(other)")["plain_conv.c"]
    first = entry(function="other", files='["other.c"]', more='when = "in_c == 1"\nworkspace = "4 * out_c"')
    outcome = compiled(tmp_path, first + PLAIN, *INT8, "--verify", "host", sources={"other.c": other})
    outcome.check_success()
    uses = {use["function"]: use["layers"] for use in report(tmp_path)["work"]["external"]}
    assert uses == {"other": ["conv1"], "plain_conv": ["conv2", "conv3"]}


def test_a_sliced_layer_keeps_our_kernel(tmp_path: Path) -> None:
    flags = ("--verify", "host", "--update", DIGITS / "scheme.toml")
    compiled(tmp_path, PLAIN, *INT8, *flags).check_success()
    assert report(tmp_path)["work"]["external"][0]["layers"] == ["conv1", "conv2"]


# ---- what does not --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        (" - layer->x_zero", "", "the C code gives"),
        ("int32_t *sums = workspace;", "static int32_t sums[64];", "static RAM"),
        ("int32_t *sums = workspace;", "int32_t *sums = malloc(64);", "malloc"),
        ("(plain_conv)", "(plain_cnov)", "plain_conv"),
        ("const int32_t per_pixel", "per_pixel = 3; const int32_t n", "compiling plain_conv.c"),
    ],
)
def test_a_wrong_kernel_is_caught_and_blamed(old: str, new: str, says: str, tmp_path: Path) -> None:
    outcome = compiled(tmp_path, PLAIN, *INT8, "--verify", "host", sources=changed(old, new)).check_error("E0604", 5)
    assert says in outcome.err
    assert "look at plain_conv (--kernels)" in outcome.err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("toml", "says"),
    [
        ("kernel = 1", "key 'kernel' must be a list of tables"),
        ("[[kernel]\n", "not TOML"),
        (entry(op="Softmax"), "key 'kernel[0].op' is none of Conv,"),
        (entry(function="a b"), "key 'kernel[0].function' is no name"),
        (entry(function="for"), "key 'kernel[0].function' is no name"),
        (entry(function="tt_exp"), "key 'kernel[0].function' is no name"),
        (entry(more="speed = 1"), "key 'kernel[0].speed' is not known"),
        (entry(more='when = "kernel == 1"'), "key 'kernel[0].when' knows no 'kernel'"),
        (entry(op="Gemm", more='workspace = "in_h"'), "key 'kernel[0].workspace' knows no 'in_h'"),
        (entry(more='workspace = "4 ** out_c"'), "key 'kernel[0].workspace' may use"),
        (entry(more='workspace = "out_c - 100"'), "workspace is -92 bytes for conv1"),
        (entry(more='workspace = "out_c * 1000000000"'), "workspace is 8000000000 bytes for conv1"),
        (entry(more='workspace = "8 // (out_c - 8)"'), "workspace divides by 0 for conv1"),
        (entry(more='features = ["neon"]'), "key 'kernel[0].features' may name dsp,"),
        (entry(files="[]"), "key 'kernel[0].files' must name a .c file"),
        (entry(files='["lost.c"]'), "lost.c: no such file"),
        (entry(files='["k.toml", "plain_conv.c"]'), "key 'kernel[0].files' may name .c and .h files"),
        (entry(files='["digits_train.c"]'), "begin names of generated files"),
        (PLAIN + entry(files='["sub/plain_conv.c"]'), "key 'kernel[1].files' names a second plain_conv.c"),
    ],
)
def test_a_bad_kernel_file_is_one_line(toml: str, says: str, tmp_path: Path) -> None:
    outcome = compiled(tmp_path, toml, *INT8, "--verify", "none").check_error("E0108", 2)
    assert says in outcome.err
    assert not (tmp_path / "out").exists()


def test_a_missing_kernel_file(tmp_path: Path) -> None:
    outcome = run(DIGITS / "digits.onnx", "--kernels", tmp_path / "no.toml", "-o", tmp_path / "out")
    assert "no.toml: there is no such file" in outcome.check_error("E0108", 2).err


def test_sources_of_kernels_are_not_overwritten(tmp_path: Path) -> None:
    compiled(tmp_path, PLAIN, "--verify", "none").check_success()
    shutil.copytree(OWN, tmp_path / "out", dirs_exist_ok=True)
    model, own = DIGITS / "digits.onnx", tmp_path / "out" / "kernels.toml"
    run(model, "--kernels", own, "-o", tmp_path / "out", "--verify", "none").check_error("E0104", 2)
    assert own.exists()
