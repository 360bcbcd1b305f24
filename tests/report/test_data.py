"""report.json and plan.json: the contract's keys, and values against the net made by hand."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.report.hand import LAYERS, VERIFIED, deep_summary, two_layers_summary
from tinytrain_compile.ir.summary import LayerUpdate, Suggestion, VerifyReport
from tinytrain_compile.report.data import plan_json, report_json

CONTRACT = {
    "target": None,
    "quant": None,
    "contract": None,
    "update": ("layer", "bias", "channels", "axis"),
    "memory": (
        "arena_bytes",
        "persistent_bytes",
        "transient_bytes",
        "lower_bound_bytes",
        "stack_bytes",
        "stack_measured_bytes",
        "regions",
    ),
    "flash": ("code_bytes", "const_bytes"),
    "plan": ("order_proven", "placement_proven", "gap_bytes", "peak_step", "remat", "paging"),
    "work": ("forward_macs", "backward_macs", "train_step_instructions", "infer_instructions", "kernels"),
    "quant_tensors": None,
    "verify": ("mode", "steps", "result", "losses"),
}


def test_every_key_of_the_contract_is_there() -> None:
    report = report_json(two_layers_summary())
    assert set(CONTRACT) <= set(report)
    for key, inner in CONTRACT.items():
        if inner is not None:
            part = report[key][0] if key == "update" else report[key]
            assert set(inner) <= set(part), key


def test_memory_and_plan() -> None:
    report = report_json(two_layers_summary())
    memory = report["memory"]
    assert memory["arena_bytes"] == 368
    assert memory["persistent_bytes"] == 132
    assert memory["transient_bytes"] == 236
    assert memory["lower_bound_bytes"] == 336
    assert memory["regions"] == [{"name": "arena", "used_bytes": 368, "limit_bytes": 400}]
    assert memory["peak_bytes"]["gradients"] == 144
    assert sum(memory["peak_bytes"].values()) == 336
    assert memory["peak_live"][0] == {
        "name": "fc1_w",
        "value": "fc1_w",
        "category": "weights",
        "size_bytes": 128,
        "reason": "updated weight (permanent)",
    }
    assert report["plan"] == {
        "order_proven": True,
        "placement_proven": False,
        "gap_bytes": 32,
        "peak_step": 9,
        "peak_node": "d_w",
        "peak_origin": "fc1",
        "steps": 11,
        "streams": None,
        "remat": None,
        "paging": None,
        "objective": None,
        "model": None,
        "ladder": [],
    }


def test_what_nobody_measured_is_null() -> None:
    report = report_json(two_layers_summary())
    assert report["memory"]["stack_bytes"] is None
    assert report["memory"]["stack_measured_bytes"] is None
    assert report["flash"] == {
        "code_bytes": None,
        "const_bytes": None,
        "kinds": [
            {"what": "initial state", "part": "constants", "size_bytes": 132},
            {"what": "frozen weights", "part": "constants", "size_bytes": 48},
            {"what": "other constants", "part": "constants", "size_bytes": 4},
        ],
        "infer_one_bytes": None,
        "budget_bytes": None,
        "code": "speed",
        "other_code_bytes": None,
        "small_nodes": [],
        "turned_weights": [],
        "prepared_weights": [],
    }
    assert report["work"]["train_step_instructions"] is None
    assert report["verify"] == {
        "mode": "none",
        "steps": 0,
        "result": "skipped",
        "samples": None,
        "losses": [],
        "message": "not verified",
        "unverified": None,
        "saturations": None,
        "max_error": None,
        "file": None,
        "litert": None,
        "derivative": None,
    }


def test_what_was_measured_is_reported() -> None:
    report = report_json(two_layers_summary(verify=VERIFIED))
    assert report["memory"]["stack_bytes"] == 480
    assert report["memory"]["stack_measured_bytes"] == 400
    assert (report["flash"]["code_bytes"], report["flash"]["const_bytes"]) == (2048, 512)
    assert report["verify"]["losses"] == [1.5, 1.25, 1.0]
    assert report_json(two_layers_summary(verify=VERIFIED, code_bytes=4096))["flash"]["code_bytes"] == 4096


def test_update_lists_trained_layers_in_the_words_of_a_scheme() -> None:
    layers = (
        *LAYERS,
        LayerUpdate("conv1", True, True, 12, "in", 40, 90),
        LayerUpdate("conv2", True, False, None, None, 8, 72),
    )
    report = report_json(two_layers_summary(layers=layers))
    assert [(u["layer"], u["bias"], u["channels"], u["axis"]) for u in report["update"]] == [
        ("fc1", False, "all", None),
        ("conv1", True, 12, "in"),
        ("conv2", True, 0, None),
    ]
    assert report["update_totals"] == {
        "label": "last:1",
        "layers": 3,
        "total_layers": 4,
        "parameters": 80,
        "total_parameters": 206,
        "untrained": 0,
    }


def test_loss_optimizer_work_and_suggestions() -> None:
    ways = (Suggestion("--update head", 300, "fc2 only"),)
    report = report_json(two_layers_summary(suggestions=ways))
    assert report["loss"] == "cross-entropy"
    assert report["optimizer"] == {"name": "sgd", "learning_rate": 0.1}
    assert (report["work"]["forward_macs"], report["work"]["backward_macs"]) == (44, 44)
    assert report["suggestions"] == [{"options": "--update head", "arena_bytes": 300, "note": "fc2 only"}]
    assert report_json(deep_summary(2))["loss"] == "mse"


def test_reports_are_strict_json_even_with_a_nan_loss() -> None:
    failed = VerifyReport("host", 1, "fail", "loss is NaN", (float("nan"),), max_error=float("inf"))
    summary = two_layers_summary(verify=failed)
    text = json.dumps(report_json(summary), allow_nan=False)
    assert json.loads(text)["verify"]["losses"] == [None]
    assert json.loads(json.dumps(plan_json(summary), allow_nan=False)) == plan_json(summary)


def test_plan_json_holds_the_picture() -> None:
    plan = plan_json(two_layers_summary())
    assert plan["arena_bytes"] == 368
    assert plan["lower_bound_bytes"] == 336
    assert plan["peak_step"] == 9
    assert plan["load_bytes"] == [200, 200, 216, 232, 224, 240, 240, 240, 224, 336, 288]
    assert plan["order"][9] == {
        "name": "d_w",
        "op": "GemmGradWeight",
        "origin": "fc1",
        "phase": "step",
        "role": "backward",
        "macs": 32,
    }
    assert plan["buffers"][4] == {
        "name": "fc1",
        "kind": "tensor",
        "category": "activations",
        "size_bytes": 16,
        "offset": 184,
        "memory": "arena",
        "first_step": 0,
        "last_step": 8,
        "values": ["fc1", "relu"],
    }


def test_same_summary_same_bytes() -> None:
    first, second = (json.dumps((report_json(s), plan_json(s))) for s in (deep_summary(5), deep_summary(5)))
    assert first == second


def test_a_loss_of_any_other_node_is_written_out() -> None:
    summary = two_layers_summary(contract=2)
    assert report_json(summary)["contract"] == 2
    head = replace(summary.train, loss=summary.train.graph.nodes[3].outputs[0])
    assert report_json(replace(summary, train=head))["loss"] == "written out in nodes"
