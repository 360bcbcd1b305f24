"""The call sequences of a project: one, or several plans of the same training behind one API (ADR 42)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import cast

import jinja2

from tinytrain_compile.emit.c_text import fitted
from tinytrain_compile.ir.slices import StepPart
from tinytrain_compile.ir.stages import Interface

Model = dict[str, object]
"""What templates know of one plan."""


def with_plans(models: Sequence[Model], prefix: str) -> None:
    """Tells each model which plan it is, and all of them which there are: by size, the smallest first."""
    upper, several = prefix.upper(), len(models) > 1
    sizes = [model["arena_bytes"] for model in models]
    plans = [
        {"number": k, "bytes": size, "name": f"{prefix}_plan_{k}", "macro": f"{upper}_PLAN_{k}_BYTES"}
        for k, size in enumerate(sizes)
    ]
    for plan, model in zip(plans, models, strict=True):
        model["plans"] = plans if several else []
        model["plan_number"] = plan["number"]
        model["f"] = plan["name"] if several else prefix
        model["arena_macro"] = plan["macro"] if several else f"{upper}_ARENA_BYTES"


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
    largest = {**models[-1], "dispatched": _dispatched(prefix, bool(models[-1]["accumulates"]))}
    return {
        f"{prefix}_train.c": rendered("plans.c", largest),
        **{f"{prefix}_plan_{k}.c": rendered("train.c", model) for k, model in enumerate(models)},
        f"{prefix}_plans.h": rendered("plans.h", largest),
    }


def _dispatched(p: str, accumulates: bool) -> list[tuple[str, str, str, str]]:
    """(result, name, parameters, arguments) of every function of the API that goes to the plan of an instance."""
    upper, status = p.upper(), f"{p}_status "
    memories = f"{p}_t **m, void *const mem[{upper}_MEMORIES], const size_t size[{upper}_MEMORIES]"
    step = (f"{p}_t *m, const {p}_label_t *label, float *loss", "m, label, loss")
    more = [(status, "accumulate", *step), (status, "apply", f"{p}_t *m", "m")] if accumulates else []
    return [
        (status, "init_memories", memories, "m, mem, size"),
        (f"{p}_input_t *", "input", f"{p}_t *m", "m"),
        (status, "infer", f"{p}_t *m, {p}_output_t *out", "m, out"),
        (status, "train_step", *step),
        *more,
        (status, "set_lr", f"{p}_t *m, float lr", "m, lr"),
        (status, "save", f"{p}_t *m, {p}_write_fn write, void *ctx", "m, write, ctx"),
        (status, "load", f"{p}_t *m, {p}_read_fn read, void *ctx", "m, read, ctx"),
    ]
