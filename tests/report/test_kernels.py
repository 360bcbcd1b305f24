"""The table of kernels: rows, totals, and nothing where nothing was counted."""

from __future__ import annotations

from dataclasses import replace

from tests.report.hand import VERIFIED, two_layers_summary
from tinytrain_compile.ir.summary import InstructionCounts, Summary
from tinytrain_compile.report.data import report_json
from tinytrain_compile.report.rows.kernels import kernel_work, kernels_lines

CALLS = {"fc1": "net_gemm_4", "fc2": "net_gemm_3", "d_r": "net_gemm_4"}
STEP = {"net_train_step": 10, "net_gemm_4": 300, "net_gemm_3": 90}


def counted() -> Summary:
    counts = InstructionCounts(1, STEP, {"net_infer": 5, "net_gemm_4": 200}, None, {"net_gemm_4": 44})
    return two_layers_summary(verify=replace(VERIFIED, counts=counts), calls=CALLS)


def test_rows_by_instructions_with_all_nodes_of_a_kernel() -> None:
    rows = kernel_work(counted())
    assert [(r.name, r.op, r.nodes, r.macs, r.instructions, r.code_bytes) for r in rows] == [
        ("net_gemm_4", "Gemm", ("fc1", "d_r"), 8 * 4 + 4 * 3, 300, 44),
        ("net_gemm_3", "Gemm", ("fc2",), 12, 90, 0),
    ]


def test_report_json() -> None:
    work = report_json(counted())["work"]
    assert (work["train_step_instructions"], work["infer_instructions"], work["counted_step"]) == (400, 205, 1)
    assert work["apply_instructions"] is None
    assert work["kernels"][0]["nodes"] == ("fc1", "d_r")


def test_updates_after_a_batch_are_added() -> None:
    summary = counted()
    assert summary.verify.counts is not None
    counts = replace(summary.verify.counts, apply={"net_apply": 2, "net_gemm_3": 1000})
    summary = replace(summary, verify=replace(summary.verify, counts=counts))
    assert kernel_work(summary)[0].instructions == 1090
    assert "1,002 in the update" in kernels_lines(summary)[0]


def test_table() -> None:
    lines = kernels_lines(counted(), shown=1)
    assert lines == [
        "counted    400 instructions in step 1, 205 in an inference (executed in QEMU)",
        "  instructions         MAC per MAC  code B  kernel",
        "           300          44    6.82      44  net_gemm_4 x2",
        "            90 in 1 more kernel",
    ]


def test_nothing_without_counts() -> None:
    summary = two_layers_summary()
    assert kernel_work(summary) == []
    assert kernels_lines(summary) == []
    assert report_json(summary)["work"]["kernels"] == []
