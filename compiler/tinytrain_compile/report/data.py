"""The machine-readable reports, report.json (docs/contract.md, 4) and plan.json: no time, date or path in them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from tinytrain_compile.ir.stages import FurtherMemory
from tinytrain_compile.ir.summary import Agreement, FileAgreement, Record, Summary
from tinytrain_compile.ops.base import shown_name
from tinytrain_compile.ops.names import is_prepared
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.report.analysis import Analysis, analyse, work_of
from tinytrain_compile.report.choice import choice_json, update_choice_json
from tinytrain_compile.report.flash_and_ram import code_bytes, code_json, const_bytes, flash_kinds, ram_json
from tinytrain_compile.report.layers import layers_json
from tinytrain_compile.report.rows import json_of, parts_json
from tinytrain_compile.report.trained import (
    fate_json,
    is_updated,
    layer_json,
    loss_name,
    update_totals,
)

_NOT_COUNTED: dict[str, Any] = {
    "train_step_instructions": None,
    "infer_instructions": None,
    "apply_instructions": None,
    "counted_step": None,
    "train_step_cycles_model": None,
    "infer_cycles_model": None,
    "cycles_model": None,
    "kernels": [],
}
"""Keys of report.json's `work` that --count fills."""


def report_json(summary: Summary) -> dict[str, Any]:
    """Return the content of report.json: the contract's keys (unknown is None), and others that only ever grow."""
    record, agreement = summary.fact(Record), summary.fact(Agreement)
    analysis = analyse(summary.train, summary.plan)
    return {
        "model": summary.model,
        "target": summary.target,
        "energy_source": summary.energy_source or None,
        "board": json_of("board", summary),
        "quant": summary.quant,
        "contract": summary.contract,
        "loss": loss_name(summary),
        "optimizer": {"name": summary.optimizer, "learning_rate": _number(summary.learning_rate)},
        "batch": summary.train.batch,
        "micro_batch": summary.train.micro_batch,
        "accumulate": "inplace" if summary.train.in_place else "exact",
        "notes": list(summary.all_notes),
        "update": [layer_json(layer) for layer in summary.layers if is_updated(layer)],
        "options": {} if record is None else dict(record.options),
        "scheme": "" if record is None else record.scheme,
        "update_totals": update_totals(summary),
        "update_choice": update_choice_json(summary.choice),
        "pareto": json_of("pareto", summary, []),
        "low_rank": json_of("low_rank", summary, []),
        "parameters": [fate_json(fate) for fate in summary.fates],
        "memory": _memory(summary, analysis),
        "layers": layers_json(summary, analysis),
        **parts_json(summary),
        "flash": {
            "code_bytes": code_bytes(summary),
            "const_bytes": const_bytes(summary),
            "kinds": [asdict(kind) for kind in flash_kinds(summary, analysis)],
            **code_json(summary),
        },
        "plan": _plan(summary, analysis),
        "work": _work(summary),
        "quant_tensors": json_of("quant_tensors", summary, []),
        "islands": json_of("float32", summary, []),
        "agreement": None if agreement is None else asdict(agreement),
        "verify": _verify(summary),
        "suggestions": [
            {"options": s.options, "arena_bytes": s.arena_bytes, "note": s.note} for s in summary.suggestions
        ],
    }


def plan_json(summary: Summary) -> dict[str, Any]:
    """Return the content of plan.json: what runs when, what lies where, and how full the arena is at every step."""
    plan, analysis = summary.plan, analyse(summary.train, summary.plan)
    names = ["arena", *(memory.name for memory in plan.further)]
    replay = parts_json(summary)["runtime"]["replay"]
    return {
        "update": summary.update_label,
        "micro_batch": summary.train.micro_batch,
        "arena_bytes": plan.arena_bytes,
        "arena_limit_bytes": summary.arena_limit_bytes,
        **({} if replay is None else {"replay_bytes": replay["bytes"]}),
        "lower_bound_bytes": plan.lower_bound_bytes,
        "gap_bytes": plan.gap_bytes,
        "order_proven": plan.order_proven,
        "placement_proven": plan.placement_proven,
        "peak_step": plan.peak_step,
        "order": [
            {
                "name": node.name,
                "op": shown_name(node),
                "origin": node.origin,
                "phase": node.phase,
                "role": role,
                "macs": macs,
            }
            for node, role, macs in zip(plan.order, analysis.roles, analysis.macs, strict=True)
        ],
        "buffers": [
            {
                "name": holding.buffer.name,
                "kind": holding.buffer.kind,
                "category": holding.tenants[0].category,
                "size_bytes": holding.buffer.size_bytes,
                "offset": offset,
                "memory": names[memory],
                "first_step": holding.buffer.first_step,
                "last_step": holding.buffer.last_step,
                "values": list(holding.buffer.values),
                **({"over": asdict(holding.buffer.over)} if holding.buffer.over is not None else {}),
                **({"within": dict(holding.buffer.within)} if holding.buffer.within else {}),
            }
            for holding in analysis.holdings
            for memory, offset in (plan.place(holding.buffer.offset),)
        ],
        "load_bytes": list(analysis.load),
        **_for_a_lock(summary),
    }


def _memory(summary: Summary, analysis: Analysis) -> dict[str, Any]:
    plan = summary.plan
    replay = parts_json(summary)["runtime"]["replay"]
    return {
        "arena_bytes": plan.arena_bytes,
        "arena_limit_bytes": summary.arena_limit_bytes,
        "persistent_bytes": plan.persistent_bytes,
        "transient_bytes": plan.total_bytes - plan.persistent_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "stack_bytes": summary.verify.stack_bytes,
        "stack_measured_bytes": summary.verify.stack_measured_bytes,
        "arena_measured_bytes": summary.verify.arena_measured_bytes,
        "replay_bytes": 0 if replay is None else replay["bytes"],
        "ram": ram_json(summary),
        "regions": _regions(summary),
        "peak_bytes": analysis.breakdown(plan.peak_step),
        "peak_live": [
            {
                "name": live.buffer.name,
                "value": live.tenant.names[0],
                "category": live.tenant.category,
                "size_bytes": live.buffer.size_bytes,
                "reason": live.reason,
            }
            for live in analysis.live(plan.peak_step)
        ],
    }


def _regions(summary: Summary) -> list[dict[str, Any]]:
    """List the arena and every further memory; what accesses cost more there is by the target's figures."""
    plan = summary.plan
    arena = {"name": "arena", "used_bytes": plan.arena_bytes, "limit_bytes": summary.arena_limit_bytes}
    return [arena, *(_further(memory) for memory in plan.further)]


def _further(memory: FurtherMemory) -> dict[str, Any]:
    return {
        "name": memory.name,
        "used_bytes": memory.used_bytes,
        "limit_bytes": memory.capacity_bytes,
        "accessed_bytes": memory.accessed_bytes,
        "extra_us": memory.extra_ps / 1e6,
        "extra_uj": memory.extra_pj / 1e6,
        "cheapest_proven": memory.cheapest,
    }


def _plan(summary: Summary, analysis: Analysis) -> dict[str, Any]:
    plan = analysis.plan
    node = plan.order[plan.peak_step] if plan.order else None
    return {
        "order_proven": plan.order_proven,
        "placement_proven": plan.placement_proven,
        "gap_bytes": plan.gap_bytes,
        "peak_step": plan.peak_step,
        "peak_node": node.name if node else None,
        "peak_origin": node.origin if node else None,
        "steps": len(plan.order),
        "streams": json_of("streams", summary),
        "remat": json_of("remat", summary),
        "paging": json_of("paging", summary),
        **choice_json(summary.choice),
    }


def _work(summary: Summary) -> dict[str, Any]:
    forward, backward = work_of(summary.train)
    return {
        "forward_macs": forward,
        "backward_macs": backward,
        **json_of("kernels", summary, _NOT_COUNTED),
        "external": json_of("external", summary, []),
    }


def _verify(summary: Summary) -> dict[str, Any]:
    report = summary.verify
    return {
        "mode": report.mode,
        "steps": report.steps,
        "result": report.result,
        "samples": None if report.mode == "none" else "data" if summary.own_samples else "random",
        "losses": [_number(loss) for loss in report.losses],
        "message": report.message,
        "unverified": None if report.unverified is None else asdict(report.unverified),
        "saturations": None if report.saturations is None else asdict(report.saturations),
        "max_error": None if report.max_error is None else _number(report.max_error),
        "file": None if report.file is None else _file(report.file),
        "litert": json_of("litert", summary),
        "derivative": json_of("derivative", summary),
    }


def _file(found: FileAgreement) -> dict[str, Any]:
    """Tell how the model file agrees with the reference; no time, which would differ from run to run."""
    return {key: value for key, value in asdict(found).items() if key != "seconds"}


def _number(value: float) -> float | None:
    """Return a number; None for NaN and infinity, which JSON does not know."""
    return float(value) if math.isfinite(value) else None


def _for_a_lock(summary: Summary) -> dict[str, Any]:
    """Return what --lock alone reads: how the graph of a plan came from that of the model and its update.

    Streams, prepared weights, low-rank copies, second runs, page moves and memories; each only if there are any.
    """
    plan, kept = summary.plan, summary.train.low_rank
    found = dict[str, Any]()
    streams = [(node.name, node.attrs) for node in plan.order if isinstance(node.attrs, StreamAttrs)]
    if streams:
        found["streams"] = [{"name": name, "nodes": [inner.name for inner in at.nodes]} for name, at in streams]
    graph = summary.train.before_remat or summary.train.graph
    if prepared := [node.name for node in graph.nodes if is_prepared(node)]:
        found["prepared"] = prepared
    if kept:
        found["copies"] = [{"layer": one.layer, "kind": one.kind, "ranks": list(one.ranks)} for one in kept]
    if plan.remat is not None:
        found["graph"] = list(plan.remat.nodes)
        found["second_runs"] = [{"name": run.name, "of": run.of} for run in plan.remat.runs]
    if plan.further:
        found["memories"] = [memory.name for memory in plan.further]
        moves = plan.paging
        found["page_moves"] = [{"name": m.name, "op": m.op, "of": m.value, "memory": m.memory} for m in moves]
    return found
