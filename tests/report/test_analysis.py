"""Roles, contents and reasons, on the net that hand.py works out on paper."""

from __future__ import annotations

from pathlib import Path

import pytest

import tinytrain_compile as tt
from testing.networks.models import segmenter
from tests.report.hand import deep_summary, two_layers, two_layers_plan
from tinytrain_compile.plan.check.plan import validate_plan
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import load_per_step
from tinytrain_compile.report.analysis import Analysis, analyse, work_of


@pytest.fixture
def found() -> Analysis:
    train = two_layers()
    return analyse(train, two_layers_plan(train))


def test_the_plan_made_by_hand_is_a_valid_one() -> None:
    train = two_layers()
    plan = two_layers_plan(train)
    validate_plan(train.graph, plan, PlanOptions(keep=("loss",)))
    assert load_per_step(plan) == [200, 200, 216, 232, 224, 240, 240, 240, 224, 336, 288]


def test_roles_follow_the_loss_and_the_labels(found: Analysis) -> None:
    assert found.roles == ("forward",) * 5 + ("backward",) * 5 + ("update",)


def test_load_is_that_of_the_planner(found: Analysis) -> None:
    assert list(found.load) == load_per_step(found.plan)


def test_work_counts_forward_and_all_else() -> None:
    assert work_of(two_layers()) == (8 * 4 + 4 * 3, 3 * 4 + 4 * 8)


def test_breakdown_at_the_peak(found: Analysis) -> None:
    assert found.breakdown(9) == {
        "activations": 8,
        "gradients": 144,
        "optimizer": 8,
        "weights": 128,
        "accumulators": 0,
        "scratch": 0,
        "io": 32,
        "header": 16,
    }


def test_breakdown_and_category_loads_agree_at_every_step(found: Analysis) -> None:
    loads = found.category_loads()
    for step in range(len(found.load)):
        assert found.breakdown(step) == {category: sizes[step] for category, sizes in loads.items()}
        assert sum(found.breakdown(step).values()) == found.load[step]


def test_a_deep_net_agrees_with_the_planner_at_every_step() -> None:
    summary = deep_summary(12)
    found = analyse(summary.train, summary.plan)
    assert list(found.load) == load_per_step(summary.plan)
    assert found.load[summary.plan.peak_step] == summary.plan.lower_bound_bytes
    for step in range(len(found.load)):
        assert sum(found.breakdown(step).values()) == found.load[step]


def test_bytes_that_two_buffers_share_count_once(tmp_path: Path) -> None:
    """Where a result covers an operand that dies: at that step alone."""
    (tmp_path / "m.onnx").write_bytes(segmenter().SerializeToString())
    options = {"loss": "cross-entropy", "update": "all", "stream": "off", "verify": "none"}
    summary = tt.compile(tmp_path / "m.onnx", **options).project.summary
    found = analyse(summary.train, summary.plan)
    assert any(buffer.over is not None for buffer in found.plan.buffers)
    loads = found.category_loads()
    for step in range(len(found.load)):
        assert found.breakdown(step) == {category: sizes[step] for category, sizes in loads.items()}
        assert sum(found.breakdown(step).values()) == found.load[step]


def test_contents_of_a_shared_buffer_follow_each_other(found: Analysis) -> None:
    holding = next(h for h in found.holdings if h.buffer.name == "fc1")
    assert [(t.names, t.first_step, t.last_step, t.written_at, t.read_at) for t in holding.tenants] == [
        (("fc1",), 0, 0, 0, (1,)),
        (("relu",), 1, 8, 1, (2, 8)),
    ]
    assert holding.at(0).names == ("fc1",)
    assert holding.at(8).names == ("relu",)


def test_reasons_say_what_a_person_would(found: Analysis) -> None:
    def reasons(step: int) -> dict[str, str]:
        return {item.tenant.names[0]: item.reason for item in found.live(step)}

    assert reasons(3)["x"] == "kept for backward: d_w"
    assert reasons(3)["relu"] == "kept for backward: d_h"
    assert reasons(2)["relu"] == "read here, kept for backward: d_h"
    assert reasons(3)["fc2"] == "read here"
    assert reasons(9) == {
        "fc1_w": "updated weight (permanent)",
        "d_w": "written here, waits for fc1_w.update",
        "x": "read here",
        "header": "handle of the generated API",
        "d_h": "read here",
        "learning_rate": "optimizer state (permanent)",
        "loss": "kept until the end of the pass",
    }


def test_live_buffers_come_largest_first(found: Analysis) -> None:
    assert [item.buffer.size_bytes for item in found.live(9)] == [128, 128, 32, 16, 16, 8, 8]


def test_node_label_names_the_onnx_node_where_the_name_does_not(found: Analysis) -> None:
    assert found.node_label(0) == "fc1 (Gemm)"
    assert found.node_label(9) == "d_w (GemmGradWeight of fc1)"
