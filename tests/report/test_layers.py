"""Figures of every layer: against the net made by hand, whose every byte is worked out on paper."""

from __future__ import annotations

from dataclasses import replace

from tests.report.hand import VERIFIED, two_layers_summary
from tinytrain_compile.ir.cost import NodeTimes
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.analysis import analyse, work_of
from tinytrain_compile.report.data import report_json
from tinytrain_compile.report.flash_and_ram import flash_kinds
from tinytrain_compile.report.layers import layer_figures, layers_json

KERNELS = {"fc1": "gemm", "relu": "clip", "fc2": "gemm", "d_h": "clip_grad", "d_w": "gemm_grad", "fc1_w.update": "sgd"}
SIZES = {"gemm": 101, "clip": 20, "clip_grad": 30, "gemm_grad": 40, "sgd": 8, "net_infer": 50}


def measured() -> Summary:
    """Return the summary after a build that measured 300 B of code and 200 B of constants, with times of two nodes."""
    verify = replace(VERIFIED, function_bytes=SIZES, code_bytes=300, const_bytes=200)
    summary = two_layers_summary(verify=verify, calls=KERNELS)
    return summary.with_fact(NodeTimes({"fc1": 3_000_000, "d_w": 5_000_000}))


def test_every_figure_of_a_layer() -> None:
    summary = measured()
    fc1, fc2, rest = layers_json(summary, analyse(summary.train, summary.plan))
    assert fc1 == {
        "layer": "fc1",
        "kind": "fc",
        "shape": [1, 4],
        "operators": ["relu"],
        "parameters": 32,
        "total_parameters": 32,
        "forward_macs": 32,
        "backward_macs": 32,
        "step_us": 8.0,
        "activation_bytes": 16,
        "kept_bytes": 16,
        "permanent_bytes": 128,
        "const_bytes": 128,
        "code_bytes": 50 + 20 + 30 + 40 + 8,
    }
    assert (fc2["layer"], fc2["parameters"], fc2["total_parameters"]) == ("fc2", 0, 12)
    assert (fc2["forward_macs"], fc2["backward_macs"], fc2["step_us"]) == (12, 12, 0.0)
    assert (fc2["activation_bytes"], fc2["kept_bytes"], fc2["permanent_bytes"]) == (16, 0, 0)
    assert (fc2["const_bytes"], fc2["code_bytes"]) == (48, 50)
    assert (rest["layer"], rest["kind"], rest["permanent_bytes"], rest["const_bytes"]) == (None, None, 8, 8)
    assert (rest["activation_bytes"], rest["kept_bytes"]) == (16 + 8, 16)


def test_the_layers_add_up_to_the_whole_step() -> None:
    summary = measured()
    figures = layer_figures(summary, analyse(summary.train, summary.plan))
    assert work_of(summary.train) == (sum(f.forward_macs for f in figures), sum(f.backward_macs for f in figures))
    assert report_json(summary)["layers"][-1]["layer"] is None


def test_what_nobody_measured_stays_unknown() -> None:
    summary = two_layers_summary()
    first = layers_json(summary, analyse(summary.train, summary.plan))[0]
    assert (first["step_us"], first["code_bytes"]) == (None, None)


def test_flash_by_kind_adds_up_to_what_was_measured() -> None:
    summary = measured()
    kinds = {(kind.part, kind.what): kind.size_bytes for kind in flash_kinds(summary, analyse(*_parts(summary)))}
    assert kinds == {
        ("code", "kernels, forward"): 121,
        ("code", "kernels, backward and update"): 78,
        ("code", "API, order of the steps, helpers"): 101,
        ("constants", "initial state"): 132,
        ("constants", "frozen weights"): 48,
        ("constants", "other constants"): 4,
        ("constants", "tables of kernels"): 16,
    }


def _parts(summary: Summary):
    return summary.train, summary.plan
