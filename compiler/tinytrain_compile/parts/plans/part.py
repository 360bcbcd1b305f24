"""Several plans of the same training under one API, whose instances use the largest that fits (ADR 42).

If plans take different numbers of samples, types of the API hold one sample, and calls pass their number. A plan's call
sequence still reads one array of all values of its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tinytrain_compile.emit.c_text import Names
from tinytrain_compile.emit.interface import label_ctype, shape_data
from tinytrain_compile.emit.part import PlanCode, Render
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import Interface, MemoryPlan, PlannedStep, TrainGraph
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ir.types import Array
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.part import AnyPlanned, InImage, Part
from tinytrain_compile.parts.plans.sizes import FLAG, AllPlans, plans_json, plans_note, smaller_plans, told_apart


def counts_samples(options: CompileOptions) -> bool:
    """Tell whether plans of one image may take different numbers of samples, so that the caller passes their number.

    That depends only on the options: an API does not change because a model shrank.
    """
    several = options.batch > 1 and options.accumulate == "exact"
    return bool(options.plans) and options.micro_batch == "auto" and several


class Plans(Part):
    """`m_plan`, and an API that dispatches to the plan of an instance."""

    name, row, has_fragments = "plans", "plans", True
    flag, one_input = FLAG, True
    not_with = (
        *("arena_bytes", "lock", "memories", "input_lines", "features=on", "flash_budget_bytes", "optimise"),
        *("max_step_ps", "inference_only", "count", "cycles", "runtime=delta", "runtime=average"),
    )
    named_update = "all plans train the same layers, and --update auto chooses them by one arena"

    def settled(self, options: CompileOptions) -> CompileOptions:
        """Return the options of the largest plan; the others come beside it."""
        return replace(options, arena_bytes=options.plans[-1])

    def beside(self, largest: AnyPlanned, make: Callable[[int], AnyPlanned]) -> tuple[AnyPlanned, ...]:
        """Plan the others, by size. E0401 for one that does not fit, E0113 for two that are the same."""
        copies = self.asked.activations != "exact" or bool(largest.update.activations)
        if counts_samples(self.asked) and copies:  # they follow the samples of a step, and are state
            what = "low-rank copies of activations are other ones where a step takes several samples"
            raise CompileError("E0113", f"{FLAG} with --micro-batch auto", what, "leave --micro-batch out")
        return smaller_plans(self.asked.plans, largest, make)

    def told(self, summary: Summary, planned: Sequence[PlannedStep]) -> Summary:
        """Return the summary with a note on all plans, and with them for report.json."""
        known = AllPlans(tuple((one.plan, one.train.micro_batch) for one in planned))
        return replace(summary, notes=(plans_note(known), *summary.notes)).with_fact(known)

    def json(self, summary: Summary) -> list[Any]:
        """Return a row for each plan."""
        known = summary.fact(AllPlans)
        return [] if known is None else plans_json(known)

    def in_one_image(self, largest: MemoryPlan, smaller: tuple[InImage, ...]) -> tuple[InImage, ...]:
        """Return the smaller plans with names that no other plan uses for a different node."""
        return told_apart(largest, smaller)

    def tables(self, planned: Sequence[tuple[TrainGraph, MemoryPlan]], prefix: str) -> list[Names]:
        """Return names of each plan's tables, in the order of the plans. The last plan has the plain names."""
        shared, known = Names(f"{prefix}_w_"), _constants(*planned[-1])
        found = list[Names]()
        for number, each in enumerate(planned[:-1]):
            numbers = _constants(*each)
            own = frozenset(name for name, data in numbers.items() if not _equal(data, known.get(name, data)))
            known = {**numbers, **known}
            found.append(PlanTables(shared, own, f"@plan{number}"))
        return [*found, shared]

    def prepare(self, code: PlanCode) -> None:
        """Set whether calls pass their number of samples."""
        code.interface = replace(code.interface, counted=counts_samples(self.asked))

    def together(self, codes: Sequence[PlanCode]) -> None:
        """Tell each model its plan's number, and all of them the list of plans: by size, the smallest first."""
        prefix = codes[-1].interface.prefix
        plans = [
            {
                "number": number,
                "bytes": code.interface.arena_bytes,
                "samples": code.interface.micro_batch,
                "name": f"{prefix}_plan_{number}",
                "macro": f"{prefix.upper()}_PLAN_{number}_BYTES",
            }
            for number, code in enumerate(codes)
        ]
        for plan, code in zip(plans, codes, strict=True):
            number = plan["number"]
            title = f"plan {number} of {len(plans)}, counted from 0: its call sequence, and the API around it"
            code.model |= {
                "plans": plans,
                "f": plan["name"],
                "arena_macro": plan["macro"],
                "least_arena": plans[0]["macro"],
                "sizes_text": f"{plans[0]['macro']} says; the largest plan that fits is taken",
                "sequence_title": title,
                "sequence_header": "plans",
                "plan_file": "plan.json" if plan == plans[-1] else "plan.json is that of the largest plan",
                "last_fields": [f"m->plan = {number};"],
            }
            if code.interface.counted:
                code.model |= _counted_labels(code.interface, prefix)
                slots = f"Returns the slots of {prefix}_micro_batch samples, one after the other"
                code.model |= {"slots_text": (slots, "them", "their"), "sample_text": "of the first sample"}
        for number, code in enumerate(codes[:-1]):
            code.interface = replace(code.interface, arena_macro=f"PLAN_{number}_BYTES")

    def public(self, code: PlanCode) -> Mapping[str, object]:
        """Return the values on one sample for the public header and parts of the loop, if calls count samples."""
        train, interface = code.train, code.interface
        if not interface.counted:
            return {}
        together = train.micro_batch
        one = replace(
            interface,
            micro_batch=1,
            input_elements=interface.input_elements // together,
            label_elements=interface.label_elements // together,
        )
        several = one.label_elements > 1
        return {
            "i": one,
            "label_array": several,
            "label_type": label_ctype(train) if several else code.model["label_type"],
            "input_shape": "x".join(map(str, train.of_one(train.graph.inputs[0]))),
            **shape_data(train, one, one_sample=True),
        }

    def sequences(self, codes: Sequence[PlanCode], render: Render) -> Mapping[str, str]:
        """Return each plan's call sequence, the API, and their shared files: file name -> text."""
        prefix, models = codes[-1].interface.prefix, [code.model for code in codes]
        largest = {**models[-1], "dispatched": _dispatched(prefix, models[-1])}
        return {
            f"{prefix}_train.c": render("plans/plans.c.j2", largest),
            **{f"{prefix}_plan_{k}.c": render("train.c.j2", model) for k, model in enumerate(models)},
            f"{prefix}_plans.h": render("plans/plans.h.j2", largest),
        }


class PlanTables(Names):
    """Names of the tables of one of several plans: the shared ones, except for constants whose numbers differ in it."""

    def __init__(self, shared: Names, own: Collection[str], ending: str) -> None:
        super().__init__()
        self._shared, self._own, self._ending = shared, own, ending

    def of(self, key: str) -> str:
        """Return the identifier of a key: always the same for the same key."""
        return self._shared.of(f"{key}{self._ending}" if key in self._own else key)


def _constants(train: TrainGraph, plan: MemoryPlan) -> Mapping[str, Array]:
    return {**({} if plan.inference is None else plan.inference.graph.constants), **train.graph.constants}


def _equal(array: Array, other: Array) -> bool:
    return array is other or (array.dtype == other.dtype and np.array_equal(array, other))


def _counted_labels(interface: Interface, prefix: str) -> dict[str, object]:
    """Tell the call sequence of a plan the place and number of its labels' values."""
    one, kind = interface.label_elements // interface.micro_batch, interface.label_ctype
    whole = f"(const {kind} *)(const void *)labels" if one > 1 else "labels"
    return {
        "counted": True,
        "count_parameter": "uint32_t n, ",
        "label_values": whole,
        "label_elements": f"{interface.label_elements}u",
        "label_type": f"{prefix}_label_t" if interface.label_elements == 1 else kind,
    }


Function = tuple[str, str, str, str]
"""Function of the API: its result, name, parameters, and the arguments that pass these on."""


def _dispatched(p: str, model: Mapping[str, Any]) -> list[Function]:
    """List every function of the API that dispatches to the plan of an instance."""
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
        *(more if model["i"].accumulates else []),
        *(slices if model["slices"] else []),
        (status, "set_lr", f"{p}_t *m, float lr", "m, lr"),
        (status, "save", f"{p}_t *m, {p}_write_fn write, void *ctx", "m, write, ctx"),
        (status, "load", f"{p}_t *m, {p}_read_fn read, void *ctx", "m, read, ctx"),
    ]


PART = Plans
