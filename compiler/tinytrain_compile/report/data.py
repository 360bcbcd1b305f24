"""The machine-readable reports, report.json (docs/contract.md, 4) and plan.json: no time, date or path in them."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from tinytrain_compile.ir.cost import PlanChoice
from tinytrain_compile.ir.stages import FurtherMemory, MemoryPlan, TrainGraph
from tinytrain_compile.ir.summary import FileAgreement, LayerUpdate, Summary
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.ops.int8.loss import LOSSES
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.report.analysis import Analysis, analyse, work_of
from tinytrain_compile.report.choice import choice_json, update_choice_json
from tinytrain_compile.report.formats import float_regions, quant_tensors
from tinytrain_compile.report.locks import for_a_lock
from tinytrain_compile.report.pareto import pareto_json
from tinytrain_compile.report.rows.board import board_json
from tinytrain_compile.report.rows.code import code_json
from tinytrain_compile.report.rows.derivative import derivative_json
from tinytrain_compile.report.rows.external import external_json
from tinytrain_compile.report.rows.kernels import cycles_json, kernel_work
from tinytrain_compile.report.rows.low_rank import low_rank_json
from tinytrain_compile.report.rows.ram import ram_json
from tinytrain_compile.report.rows.runtime import features_json, replay_bytes, runtime_json, slices_json
from tinytrain_compile.report.rows.untrained import fate_json, left_out
from tinytrain_compile.report.words import grouped

LOSS_NAMES = {"MeanSquaredError": "mse", "SigmoidCrossEntropy": "bce", **LOSSES}


def report_json(summary: Summary) -> dict[str, Any]:
    """The content of report.json: the contract's keys (unknown is None), and further ones that only ever grow."""
    analysis = analyse(summary.train, summary.plan)
    return {
        "model": summary.model,
        "target": summary.target,
        "energy_source": summary.energy_source or None,
        "board": board_json(summary),
        "quant": summary.quant,
        "contract": summary.contract,
        "loss": loss_name(summary),
        "optimizer": {"name": summary.optimizer, "learning_rate": _number(summary.learning_rate)},
        "batch": summary.train.batch,
        "micro_batch": summary.train.micro_batch,
        "accumulate": "inplace" if summary.train.in_place else "exact",
        "notes": list(summary.all_notes),
        "update": [_layer(layer) for layer in summary.layers if is_updated(layer)],
        "options": dict(summary.options),
        "scheme": summary.scheme,
        "update_totals": update_totals(summary),
        "update_choice": update_choice_json(summary.choice),
        "pareto": [] if summary.choice is None else pareto_json(summary.choice.pareto),
        "low_rank": low_rank_json(summary),
        "parameters": [fate_json(fate) for fate in summary.fates],
        "memory": _memory(summary, analysis),
        "runtime": runtime_json(summary),
        "features": features_json(summary),
        "slices": slices_json(summary),
        "inference_only": inference_json(summary.train),
        "plans": _plan_rows(summary),
        "flash": {"code_bytes": code_bytes(summary), "const_bytes": const_bytes(summary), **code_json(summary)},
        "plan": _plan(analysis, summary.choice),
        "work": _work(summary),
        "quant_tensors": quant_tensors(summary.train),
        "islands": [asdict(region) for region in float_regions(summary.train)],
        "agreement": None if summary.agreement is None else asdict(summary.agreement),
        "verify": _verify(summary),
        "suggestions": [
            {"options": s.options, "arena_bytes": s.arena_bytes, "note": s.note} for s in summary.suggestions
        ],
    }


def plan_json(summary: Summary) -> dict[str, Any]:
    """The content of plan.json: what runs when, what lies where, and how full the arena is at every step."""
    plan, analysis = summary.plan, analyse(summary.train, summary.plan)
    names = ["arena", *(memory.name for memory in plan.further)]
    return {
        "update": summary.update_label,
        "micro_batch": summary.train.micro_batch,
        "arena_bytes": plan.arena_bytes,
        "arena_limit_bytes": summary.arena_limit_bytes,
        **({"replay_bytes": replay_bytes(summary)} if summary.replay is not None else {}),
        "lower_bound_bytes": plan.lower_bound_bytes,
        "gap_bytes": plan.gap_bytes,
        "order_proven": plan.order_proven,
        "placement_proven": plan.placement_proven,
        "peak_step": plan.peak_step,
        "order": [
            {"name": node.name, "op": node.op, "origin": node.origin, "phase": node.phase, "role": role, "macs": macs}
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
        **for_a_lock(summary),
    }


def is_updated(layer: LayerUpdate) -> bool:
    """Whether training changes anything in this layer."""
    return layer.bias or layer.weight


def update_totals(summary: Summary) -> dict[str, Any]:
    """How much of the model is trained; summary.layers names every layer, frozen ones too."""
    return {
        "label": summary.update_label,
        "layers": sum(is_updated(layer) for layer in summary.layers),
        "total_layers": len(summary.layers),
        "parameters": sum(layer.elements for layer in summary.layers),
        "total_parameters": sum(layer.total_elements for layer in summary.layers) + left_out(summary),
        "untrained": left_out(summary),
    }


def batch_text(train: TrainGraph) -> str:
    """Samples per update, and how many make a step; of an inference alone, what it keeps of a checkpoint."""
    loads = inference_json(train)
    if loads is not None:
        kept, whole = (grouped(loads[key]) for key in ("kept_bytes", "state_bytes"))
        return f"no training: keeps {kept} of the {whole} B that a checkpoint holds"
    how = " in place" if train.in_place else f", {train.micro_batch} at a time" if train.micro_batch > 1 else ""
    return f"batch {train.batch}{how}"


def _plan_rows(summary: Summary) -> list[dict[str, Any]]:
    plans = (*summary.smaller, summary.plan) if summary.smaller else ()
    return [_plan_row(plan) | {"micro_batch": n} for plan, n in zip(plans, summary.plan_samples, strict=True)]


def _plan_row(plan: MemoryPlan) -> dict[str, Any]:
    """One of several plans: its arena, and what it does for it. streams: the layers that each computes row by row."""
    remat = plan.remat
    return {
        "arena_bytes": plan.arena_bytes,
        "nodes": len(plan.order),
        "streams": [node.origin for node in plan.order if isinstance(node.attrs, StreamAttrs)],
        "second_runs": 0 if remat is None else len(remat.runs),
        "extra_macs": 0 if remat is None else remat.extra_macs,
    }


def inference_json(train: TrainGraph) -> dict[str, int] | None:
    """Bytes of the state in a checkpoint, and of what an inference alone keeps of it; None for a training step."""
    if train.reads_state_of is None:
        return None
    states = (train.reads_state_of.graph.state, train.graph.state)
    whole, kept = (sum(value.size_bytes for value in state) for state in states)
    return {"state_bytes": whole, "kept_bytes": kept}


def loss_name(summary: Summary) -> str:
    """The loss in the words of --loss (`nll` for a model that brings log-probabilities along)."""
    step = summary.train.training_step
    producers = step.graph.producers()
    node = producers[step.loss.name]
    if node.op == "NegativeLogLikelihood":
        source = producers.get(node.inputs[0].name)
        return "cross-entropy" if source is not None and source.op == "LogSoftmax" else "nll"
    return LOSS_NAMES.get(node.op, "written out in nodes")


def code_bytes(summary: Summary) -> int | None:
    """Bytes of generated code in flash, if something measured them."""
    return summary.verify.code_bytes if summary.code_bytes is None else summary.code_bytes


def const_bytes(summary: Summary) -> int | None:
    """Bytes of constant tables in flash, if something measured them."""
    return summary.verify.const_bytes if summary.const_bytes is None else summary.const_bytes


def _layer(layer: LayerUpdate) -> dict[str, Any]:
    """`channels` as in a scheme file: "all", 0 (only the bias) or the number of channels on `axis`."""
    channels: str | int = 0
    if layer.weight:
        channels = "all" if layer.channels is None else layer.channels
    return {
        "layer": layer.name,
        **({"module": layer.module} if layer.module else {}),
        "bias": layer.bias,
        "channels": channels,
        "axis": layer.axis,
        "parameters": layer.elements,
        "total_parameters": layer.total_elements,
    }


def _memory(summary: Summary, analysis: Analysis) -> dict[str, Any]:
    plan = summary.plan
    return {
        "arena_bytes": plan.arena_bytes,
        "arena_limit_bytes": summary.arena_limit_bytes,
        "persistent_bytes": plan.persistent_bytes,
        "transient_bytes": plan.total_bytes - plan.persistent_bytes,
        "lower_bound_bytes": plan.lower_bound_bytes,
        "stack_bytes": summary.verify.stack_bytes,
        "stack_measured_bytes": summary.verify.stack_measured_bytes,
        "arena_measured_bytes": summary.verify.arena_measured_bytes,
        "replay_bytes": replay_bytes(summary),
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
    """The arena and every further memory; what accesses cost more there is by the target's figures."""
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


def _plan(analysis: Analysis, choice: PlanChoice | None) -> dict[str, Any]:
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
        "streams": _streams(plan),
        "remat": _remat(analysis),
        "paging": _paging(plan),
        **choice_json(choice),
    }


def _paging(plan: MemoryPlan) -> dict[str, Any] | None:
    """Copies between memories in one step; None if there are none. Time and energy are by the target's figures."""
    if not plan.paging:
        return None
    return {
        "moves": [
            {"name": m.name, "of": m.value, "op": m.op, "memory": m.memory, "size_bytes": m.size_bytes}
            for m in plan.paging
        ],
        "moved_bytes": sum(m.size_bytes for m in plan.paging),
        "extra_us": sum(m.ps for m in plan.paging) / 1e6,
        "extra_uj": sum(m.pj for m in plan.paging) / 1e6,
    }


def _streams(plan: MemoryPlan) -> dict[str, Any] | None:
    """What is computed row by row; None if nothing is. ring_rows: of every map that never lies there whole.

    input_lines: whether the image is one of these, since its rows come from the caller.
    """
    if plan.streams is None:
        return None
    return {
        "streams": [
            {
                "name": node.name,
                "origin": node.origin,
                "nodes": [inner.name for inner in node.attrs.nodes],
                "ring_rows": {ring.name: ring.rows for ring in node.attrs.rings},
                "scratch_bytes": node.attrs.scratch_bytes,
            }
            for node in plan.order
            if isinstance(node.attrs, StreamAttrs)
        ],
        "input_lines": any(map(takes_lines, plan.order)),
        "arena_without_bytes": plan.streams.arena_without_bytes,
        "saved_bytes": plan.streams.saved_bytes,
    }


def _remat(analysis: Analysis) -> dict[str, Any] | None:
    """What is computed twice; None if nothing is."""
    remat = analysis.plan.remat
    if remat is None:
        return None
    return {
        "tensors": [
            {"name": run.of, "again": run.name, "origin": run.origin, "size_bytes": run.size_bytes, "macs": run.macs}
            for run in remat.runs
        ],
        "extra_macs": remat.extra_macs,
        "cheapest_proven": remat.cheapest,
        "arena_without_bytes": remat.arena_without_bytes,
        "saved_bytes": remat.arena_without_bytes - analysis.plan.arena_bytes,
    }


def _work(summary: Summary) -> dict[str, Any]:
    forward, backward = work_of(summary.train)
    counts = summary.verify.counts
    return {
        "forward_macs": forward,
        "backward_macs": backward,
        "train_step_instructions": sum(counts.step.values()) if counts else None,
        "infer_instructions": sum(counts.infer.values()) if counts else None,
        "apply_instructions": sum(counts.apply.values()) if counts and counts.apply is not None else None,
        "counted_step": counts.step_index if counts else None,
        **cycles_json(summary),
        "kernels": [asdict(work) for work in kernel_work(summary)],
        "external": external_json(summary),
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
        "saturations": None if report.saturations is None else asdict(report.saturations),
        "max_error": None if report.max_error is None else _number(report.max_error),
        "file": None if report.file is None else _file(report.file),
        "derivative": derivative_json(summary),
    }


def _file(found: FileAgreement) -> dict[str, Any]:
    """How the model file agrees with the reference; no time, which would differ from run to run."""
    return {key: value for key, value in asdict(found).items() if key != "seconds"}


def _number(value: float) -> float | None:
    """JSON knows no NaN and no infinity."""
    return float(value) if math.isfinite(value) else None
