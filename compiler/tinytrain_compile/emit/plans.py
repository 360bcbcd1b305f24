"""The call sequences of a project: one, or several plans of the same training behind one API (ADR 42)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import jinja2

from tinytrain_compile.emit.c_text import fitted
from tinytrain_compile.emit.counted import counted_labels
from tinytrain_compile.ir.slices import StepPart
from tinytrain_compile.ir.stages import Interface

Model = dict[str, object]
"""What templates know of one plan."""


def with_plans(models: Sequence[Model], interfaces: Sequence[Interface], prefix: str) -> None:
    """Tells each model which plan it is, and all of them which there are: by size, the smallest first."""
    upper, several = prefix.upper(), len(models) > 1
    plans = [
        {
            "number": k,
            "bytes": each.arena_bytes,
            "samples": each.micro_batch,
            "name": f"{prefix}_plan_{k}",
            "macro": f"{upper}_PLAN_{k}_BYTES",
        }
        for k, each in enumerate(interfaces)
    ]
    for plan, model, interface in zip(plans, models, interfaces, strict=True):
        model |= counted_labels(interface, prefix) if interface.counted else {"counted": False, "count_parameter": ""}
        model["plans"] = plans if several else []
        model["plan_number"] = plan["number"]
        model["f"] = plan["name"] if several else prefix
        model["arena_macro"] = plan["macro"] if several else f"{upper}_ARENA_BYTES"
    of_plans = [step_parts(model) for model in models]
    for model in models:
        model["step_cycles"] = max(sum(part.cycles for part in parts) for parts in of_plans)
        model["longest_cycles"] = max((part.cycles for parts in of_plans for part in parts), default=0)


def numbered(smaller: Sequence[Interface]) -> tuple[Interface, ...]:
    """Interfaces of smaller plans that know how the header names their arenas."""
    return tuple(replace(each, arena_macro=f"PLAN_{k}_BYTES") for k, each in enumerate(smaller))


def step_parts(model: Model) -> tuple[StepPart, ...]:
    """Of a step that can be computed in slices."""
    return cast("tuple[StepPart, ...]", model["slices"])


def sequence_names(models: Sequence[Model], prefix: str) -> list[str]:
    """The C files of `sequence_files`."""
    return [f"{prefix}_train.c", *(f"{prefix}_plan_{k}.c" for k in range(len(models)) if len(models) > 1)]


def sequence_files(environment: jinja2.Environment, models: Sequence[Model], prefix: str) -> Mapping[str, str]:
    """File name -> text: of one plan the call sequence; of several each of them, the API, and what they share."""

    def rendered(name: str, model: Model) -> str:
        return fitted(environment.get_template(f"{name}.j2").render(model))

    if len(models) == 1:
        return {f"{prefix}_train.c": rendered("train.c", models[0])}
    largest = {**models[-1], "dispatched": _dispatched(prefix, models[-1])}
    return {
        f"{prefix}_train.c": rendered("plans.c", largest),
        **{f"{prefix}_plan_{k}.c": rendered("train.c", model) for k, model in enumerate(models)},
        f"{prefix}_plans.h": rendered("plans.h", largest),
    }


Function = tuple[str, str, str, str]
"""Of the API: its result, name, parameters, and the arguments that pass these on."""


def _dispatched(p: str, model: Model) -> list[Function]:
    """Every function of the API that goes to the plan of an instance."""
    upper, status, counted = p.upper(), f"{p}_status ", bool(model["counted"])
    memories = f"{p}_t **m, void *const mem[{upper}_MEMORIES], const size_t size[{upper}_MEMORIES]"
    step = (f"{p}_t *m, const {p}_label_t *label, float *loss", "m, label, loss")
    several = (f"{p}_t *m, const {p}_label_t *labels, uint32_t n, float *loss", "m, labels, n, loss")
    outputs = (f"{p}_t *m, {p}_output_t *out, uint32_t n", "m, out, n")
    batch: list[Function] = [(status, "infer_batch", *outputs)] if counted else []
    if model["batch_parts"] and not counted:
        batch = [(status, "infer_batch", f"{p}_t *m, {p}_output_batch_t *out", "m, out")]
    steps: list[Function] = [] if counted else [(status, "train_step", *step)]
    parameters, arguments = several if counted else step
    more: list[Function] = [(status, "accumulate", parameters, arguments), (status, "apply", f"{p}_t *m", "m")]
    slice_parameters = parameters.replace("float *loss", "uint32_t budget, float *loss, int *done")
    slice_arguments = arguments.replace("loss", "budget, loss, done")
    slices: list[Function] = [
        (status, "step_begin", f"{p}_t *m", "m"),
        (status, "step_slice", slice_parameters, slice_arguments),
    ]
    return [
        (status, "init_memories", memories, "m, mem, size"),
        (f"{p}_input_t *", "input", f"{p}_t *m", "m"),
        (status, "infer", f"{p}_t *m, {p}_output_t *out", "m, out"),
        *batch,
        *steps,
        *(more if model["accumulates"] else []),
        *(slices if model["slices"] else []),
        (status, "set_lr", f"{p}_t *m, float lr", "m, lr"),
        (status, "save", f"{p}_t *m, {p}_write_fn write, void *ctx", "m, write, ctx"),
        (status, "load", f"{p}_t *m, {p}_read_fn read, void *ctx", "m, read, ctx"),
    ]
