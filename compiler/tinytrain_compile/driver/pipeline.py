"""The order of the stages, and nowhere else: model file in, complete output folder and summary out."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from tinytrain_compile.data.samples import labelled, load_inputs, load_samples, random_samples
from tinytrain_compile.driver.candidate import AUTO, Candidate, core_model
from tinytrain_compile.driver.candidates.external_kernels import Externals, blaming, load_externals
from tinytrain_compile.driver.candidates.inference_only import inference_candidate, with_checkpoint
from tinytrain_compile.driver.candidates.low_rank import as_locked
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.candidates.prepared import with_prepared_weights
from tinytrain_compile.driver.checks.combinations import check_loss, check_machine, check_model, option_notes
from tinytrain_compile.driver.checks.model_options import with_file_training, with_number_format
from tinytrain_compile.driver.checks.project import check_files, prefix_of, project_files, recorded
from tinytrain_compile.driver.code.generate import generate
from tinytrain_compile.driver.code.verified import SWITCHED_OFF, verified
from tinytrain_compile.driver.derivative import check_derivative
from tinytrain_compile.driver.file_check.check import check_file
from tinytrain_compile.driver.file_check.litert import check_litert
from tinytrain_compile.driver.progress import Counting, Progress, silent
from tinytrain_compile.driver.search.board import (
    buffers_of,
    check_constants,
    check_flash,
    check_ram,
    feature_bytes_of,
    leaving_room,
    lowered_note,
    with_board,
)
from tinytrain_compile.driver.search.choose import choose, with_micro_batch
from tinytrain_compile.driver.search.fit import check_fit
from tinytrain_compile.driver.search.pareto import pareto
from tinytrain_compile.driver.search.rounds import SCHEME
from tinytrain_compile.driver.summary import activation_notes, fates_of, format_notes, layer_updates
from tinytrain_compile.driver.trial import compare, like_one, with_exponents
from tinytrain_compile.emit.project import with_stack
from tinytrain_compile.emit.tables import constant_bytes
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.buffers import part_ram
from tinytrain_compile.ir.cost import NodeTimes
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.records import parts
from tinytrain_compile.ir.stages import Samples, SourceBundle, TrainGraph, UpdatePlan
from tinytrain_compile.ir.summary import BoardUse, OfferedKernels, Record, Summary, VerifyReport
from tinytrain_compile.ir.text import print_graph
from tinytrain_compile.ir.types import Graph
from tinytrain_compile.ops.names import names_of
from tinytrain_compile.options.compile_options import CompileOptions, taken
from tinytrain_compile.parts.registry import asked_parts, parts_of
from tinytrain_compile.plan.counted import listening
from tinytrain_compile.plan.lock import Lock, read_lock
from tinytrain_compile.plan.price import node_ps
from tinytrain_compile.quantize import calibrate, prepare, saturated
from tinytrain_compile.report.data import plan_json, report_json
from tinytrain_compile.sparse import entries_of_plan, resolve_update, scheme_text
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.target.model import Target

ByData = Callable[[Planner, Progress], Candidate]
"""Chooses the update by short trainings on the user's samples."""

STAGES = ("frontend", "training", "plan")
"""Stages whose result --dump-after prints."""


@dataclass(frozen=True, eq=False)
class Result:
    """summary: what the report shows; files: paths written, relative to the output folder; dump: for --dump-after."""

    summary: Summary | None
    files: tuple[str, ...] = ()
    digest: str = ""
    dump: str = ""


@dataclass(frozen=True, eq=False)
class Project:
    """A compilation in memory. files: all of the output folder, reports included; inputs: files that the user gave.

    bundle: the C project alone; model: as it is trained (with formats, for int8); one: a step of one sample.
    """

    summary: Summary
    bundle: SourceBundle
    files: Mapping[str, str | bytes]
    inputs: tuple[Path, ...]
    model: ImportedModel
    one: TrainGraph


@dataclass(frozen=True, eq=False)
class _Read:
    """Options, target and model, as they were read.

    options: with what the board offers and the file says; asked: without what the board offers. floats: the graph
    before the formats of int8; None: the file brings them.
    """

    options: CompileOptions
    asked: CompileOptions
    target: Target
    externals: Externals | None
    model: ImportedModel
    floats: Graph | None
    notes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class _Planned:
    """A plan that has room on the target. options: those of the plan; smaller: plans of parts beside it, by size."""

    read: _Read
    options: CompileOptions
    candidate: Candidate
    summary: Summary
    smaller: tuple[Candidate, ...]


def make_project(
    options: CompileOptions, progress: Progress = silent, by_data: ByData | None = None
) -> Project | Result:
    """Run all stages; a Result if only a plan or a dump is asked for.

    by_data: makes the choice of --update auto for labelled samples. It compiles by this function, so it is given.
    """
    read = _read(options, progress)
    if isinstance(read, Result):
        return read
    counting = Counting(progress, "planning", 0.1)
    with listening(counting.add):
        planned = _plan(read, counting, by_data)
    return planned if isinstance(planned, Result) else _write(planned, progress)


def _read(options: CompileOptions, progress: Progress) -> _Read | Result:
    """Read the model, and settle what the target and the file decide about the options."""
    for part in asked_parts(options):
        options = part.settled(options)
    given, target, offered = options, load_target(options.target), ()
    if target.board is not None or options.reserve_bytes is not None:
        options, target, offered = with_board(options, target)
    check_machine(options, target)
    externals = load_externals(options) if options.kernels else None
    progress("reading the model", 0.0)
    model = imported(options)
    options, notes = _resolved(options, model)
    asked = replace(options, arena_bytes=given.arena_bytes, memories=given.memories)
    if options.dump_after == "frontend":
        return Result(None, dump=print_graph(stored(model, options).graph, names_of))
    check_loss(options, model)
    floats = None if model.quantised else model.graph
    return _Read(options, asked, target, externals, stored(model, options), floats, (*notes, *offered))


def _plan(read: _Read, progress: Progress, by_data: ByData | None) -> _Planned | Result:
    """Choose what is trained and plan it; check that it has room on the target."""
    model, asked = read.model, read.asked
    progress("planning", 0.1)
    planner = Planner(model, read.options, read.target, read.externals)
    if read.target.board is None:
        candidate, notes = _choose(planner, progress, by_data), read.notes
    else:
        planner, candidate = leaving_room(planner, asked, lambda planner: _choose(planner, progress, by_data))
        notes = (*read.notes, *lowered_note(read.options, planner.options))
    options = planner.options
    if options.dump_after == "training":
        return Result(None, dump=print_graph(candidate.train.before_remat or candidate.train.graph, names_of))
    for part in parts_of(options, candidate.train):
        part.check(candidate.train, candidate.plan)
    if options.flash_budget_bytes is not None:
        candidate = with_prepared_weights(planner, candidate, _lowering(progress))
    options = planner.emitted_options(candidate)
    summary = _summarise(model, candidate, options, read.target)
    notes = (*notes, *option_notes(options, len(summary.layers)), *format_notes(candidate.train, read.target))
    summary = replace(summary, notes=notes)
    if options.dump_after == "plan":
        return Result(None, dump=json.dumps(plan_json(summary), indent=1))
    _check_target(summary, planner, candidate, asked)
    summary, smaller = _with_parts(summary, planner, candidate)
    summary = _with_pareto(summary, planner, progress)
    if options.dry_run:
        return _planned_only(summary, model, candidate, options)
    return _Planned(read, options, candidate, summary, smaller)


def _write(planned: _Planned, progress: Progress) -> Project:
    """Judge the import and the step by the file, generate C, check it, and put the output folder together."""
    read, options, candidate, summary = planned.read, planned.options, planned.candidate, planned.summary
    model, floats, target, smaller = read.model, read.floats, read.target, planned.smaller
    samples = _samples(model, candidate.train.training_step, options)
    summary = replace(summary, own_samples=0 if options.data is None else len(samples.x))
    progress("comparing the file with what was imported", 0.13)
    step = candidate.of_one.training_step
    compared = options.verify != "none"
    graph = floats if options.quant == "int8" else model.graph
    agreed = check_file(model, graph, step, samples, options) if compared else None
    litert = check_litert(model, graph, step, samples, options) if compared else None
    summary = summary if litert is None else summary.with_fact(litert)
    progress("comparing a training step with the derivative of the file", 0.15)
    if options.data is not None or options.calib is not None:
        candidate, summary = _on_data(candidate, summary, model, floats, options)
    derived = check_derivative(model, candidate.train.on_windows, samples, options) if compared else None
    loaded = None
    if options.inference_only:
        samples, loaded = with_checkpoint(candidate.train.on_windows, samples, options)
    with nullcontext() if read.externals is None else blaming(candidate.plan.order):
        made = generate(candidate, options, target, _lowering(progress), smaller)
        if options.guard is not None:
            from tinytrain_compile.driver.golden import with_golden_features

            made = replace(made, bundle=with_golden_features(made.bundle, options))
        summary = replace(made.summarised(summary), verify=SWITCHED_OFF)
        if compared:
            both = agreed, derived
            summary = verified(summary, made.bundle, samples, options, target, progress, both, loaded, smaller)
    if target.board is not None:
        check_flash(target, summary.code_bytes, summary.const_bytes)
    progress("writing", 0.98)
    more = check_files(made.bundle, samples, options, target, candidate.train.batch)
    bundle = with_stack(made.bundle, summary.verify.stack_bytes)
    files = {**project_files(bundle, options, target), **more, **_reports(summary, options)}
    return Project(summary, bundle, files, _inputs(options, read.externals), model, candidate.of_one.on_windows)


def _planned_only(summary: Summary, model: ImportedModel, candidate: Candidate, options: CompileOptions) -> Result:
    """Return what a dry run ends in: it refuses the samples that the run itself would refuse."""
    if options.data is not None:
        _samples(model, candidate.train.training_step, options)
    noted = options.data is not None or options.calib is not None
    return Result(_noted(summary, model, candidate, options) if noted else summary)


def _resolved(options: CompileOptions, model: ImportedModel) -> tuple[CompileOptions, tuple[str, ...]]:
    """Return the options with what the file says of its training and number format, and remarks on that. Errors:
    E0113."""
    options, said = with_file_training(options, model)
    options, notes = with_number_format(options, model)
    check_model(options, model)
    return options, (*said, *notes)


def _check_target(summary: Summary, planner: Planner, candidate: Candidate, asked: CompileOptions) -> None:
    """Raise E0401 to E0405 for what has no room on the target, or takes too long; stack and code are measured later."""
    if planner.target.board is not None:
        check_constants(planner.target, summary.least_const_bytes, planner.options.quant)
        check_ram(summary, planner, candidate, asked)
    if planner.options.arena_bytes is not None or planner.options.max_step_ps is not None:
        check_fit(summary, planner, candidate, asked)


def _with_parts(summary: Summary, planner: Planner, candidate: Candidate) -> tuple[Summary, tuple[Candidate, ...]]:
    """Return the plans that parts put beside this one, and the report with them and the activations that are kept."""
    if planner.options.activations != "exact" or candidate.train.low_rank:
        summary = replace(summary, notes=(*summary.notes, *activation_notes(planner, candidate)))
    smaller = tuple[Candidate, ...]()
    for part in parts_of(planner.options, candidate.train):
        smaller += part.beside(candidate, lambda size: choose(planner.with_options(arena_bytes=size)))
        summary = part.told(summary, (*smaller, candidate))
    return summary, smaller


def _on_data(
    candidate: Candidate, summary: Summary, model: ImportedModel, floats: Graph | None, options: CompileOptions
) -> tuple[Candidate, Summary]:
    """Add the exponents of errors that --calib shows; and what --data says of the model, and the model of --data."""
    one = with_exponents(candidate.of_one.on_windows, model, options)
    candidate = replace(candidate, train=like_one(candidate.train, one))
    step = one.training_step
    agreement = compare(step, model, floats, options)
    summary = replace(summary, train=candidate.train)
    summary = summary if agreement is None else summary.with_fact(agreement)
    return candidate, _noted(summary, model, candidate, options)


def _noted(summary: Summary, model: ImportedModel, candidate: Candidate, options: CompileOptions) -> Summary:
    """Return the summary with what looks like a mistake in --data and --calib."""
    from tinytrain_compile.driver.checks.data_notes import data_notes

    notes = data_notes(model, candidate.of_one.training_step, options)
    return replace(summary, notes=(*summary.notes, *notes))


def imported(options: CompileOptions, chosen: Mapping[str, bool] | None = None) -> ImportedModel:
    """Return the forward graph of the model file. chosen: whether an initializer is a parameter, where rules do not say
    it."""
    wanted = taken(
        FrontendOptions,
        options,
        input_layout=_input_layout(options),
        output=options.model_output,
        dropout=options.dropout == "on",
        chosen=chosen or {},
    )
    return load_model(options.model, wanted)


def _input_layout(options: CompileOptions) -> Literal["hwc", "chw", "lc", "cl"]:
    """Return the layout of the input.

    hwc is the default for images; who asks for it means channels last of signals too.
    """
    asked = options.input_layout == "hwc" and "input_layout" in options.given
    return "lc" if asked else options.input_layout


def stored(model: ImportedModel, options: CompileOptions) -> ImportedModel:
    """Return for int8 the graph with formats. For that, and for a quantised model, with the saturation of storage as
    Clips."""
    graph = model.graph
    if options.quant == "fp32":
        return replace(model, graph=saturated(graph)) if model.quantised else model
    if options.batch_norm == "keep":
        what = "integer layers take the normalisation behind them into their weights"
        raise CompileError("E0113", "--batch-norm keep", what, "leave --batch-norm out, or use --quant fp32")
    if not model.quantised:
        if options.calib is None:
            what = "int8 training of a float model needs calibration data"
            raise CompileError("E0306", options.model.name, what, "give --calib FILE.npz with inputs x, or a QDQ model")
        inputs = load_inputs(options.calib, model)
        if all(part.min() == part.max() for part in parts(inputs)):
            what = f"x is {parts(inputs)[0].min():g} everywhere, so that it shows no ranges for int8"
            raise CompileError("E0306", options.calib.name, what, "give typical inputs x, as the device will see them")
        graph = calibrate(graph, inputs, options.calib_range, floats=model.floats)
    return replace(model, graph=prepare(graph, options.head == "fp32", model.quantised))


def _samples(model: ImportedModel, train: TrainGraph, options: CompileOptions) -> Samples:
    """Return enough for all verification steps: of --data, or random."""
    if options.data is not None:
        return load_samples(options.data, model, train)
    return random_samples(train, options.verify_steps * train.batch, options.seed, model)


def _inputs(options: CompileOptions, externals: Externals | None) -> tuple[Path, ...]:
    """Return files that the user gave."""
    named = [Path(text) for text in (options.target, options.update) if text.endswith(".toml")]
    return (*named, *options.files, *(() if externals is None else externals.paths))


def _choose(planner: Planner, progress: Progress, by_data: ByData | None) -> Candidate:
    options = planner.options
    if options.inference_only:
        return inference_candidate(planner)
    if options.lock is not None:
        return _locked(planner, options.update, read_lock(options.lock))
    asks = options.update == "auto" and options.gains is None
    if asks and options.data is not None and labelled(options.data, planner.model):
        if by_data is None:
            raise TypeError("--update auto with labelled samples asks for by_data")
        return with_micro_batch(planner, by_data(planner, progress))
    return choose(planner)


def _with_pareto(summary: Summary, planner: Planner, progress: Progress) -> Summary:
    if not planner.options.pareto or summary.choice is None:
        return summary
    points = pareto(planner, lambda done, count: progress(f"choosing for other arenas, {done + 1} of {count}", 0.12))
    return replace(summary, choice=replace(summary.choice, pareto=points))


def _locked(planner: Planner, update: str, lock: Lock) -> Candidate:
    """Return the plan of a lock; `--update auto` is then what the lock trains, unless that is said in a file.

    But the scheme that auto has chosen itself lies beside the lock, if both are where they were written.
    """
    graph = planner.model.graph

    def planned(chosen: UpdatePlan) -> Candidate:
        return planner.locked(as_locked(planner.model, chosen, lock), lock)

    if update != "auto":
        return planned(resolve_update(graph, update))
    beside = None if planner.options.lock is None else planner.options.lock.parent / SCHEME
    if lock.update == f"{AUTO}{SCHEME}" and beside is not None and beside.is_file():
        return replace(planned(resolve_update(graph, str(beside))), automatic=True)
    try:
        chosen = resolve_update(graph, lock.update.removeprefix(AUTO), files=False)
    except CompileError as problem:
        what = f"it trains {lock.update!r}, which says nothing about this model"
        raise CompileError("E0106", lock.file, what, "name the scheme with --update, if it was one") from problem
    return replace(planned(chosen), automatic=lock.update.startswith(AUTO))


def _summarise(model: ImportedModel, candidate: Candidate, options: CompileOptions, target: Target) -> Summary:
    return Summary(
        model=options.model.name,
        target=target.name,
        target_summary=target.summary,
        quant=options.quant,
        contract=model.contract,
        optimizer=options.optimizer,
        learning_rate=options.learning_rate,
        arena_limit_bytes=options.arena_bytes,
        update_label=candidate.label,
        layers=layer_updates(model.graph, candidate.update),
        train=candidate.train,
        plan=candidate.plan,
        choice=candidate.choice,
        verify=VerifyReport("none", 0, "skipped", "not verified"),
        code_bytes=None,
        const_bytes=None,
        fates=fates_of(model, candidate.update),
        energy_source=target.core.pj_source,
        parts=parts_of(options, candidate.train),
        feature_bytes=feature_bytes_of(candidate, options) if options.features == "on" else 0,
        least_const_bytes=constant_bytes(candidate.train, candidate.plan),
        facts=tuple(_facts(model, candidate, options, target)),
    )


def _facts(model: ImportedModel, candidate: Candidate, options: CompileOptions, target: Target) -> Iterator[object]:
    """Yield what single rows of the report need."""
    scheme = scheme_text(entries_of_plan(model.graph, candidate.update), "")
    core = core_model(target)
    yield NodeTimes({node.name: node_ps(node, core) for node in candidate.train.graph.nodes})
    yield Record(recorded(options, model.training is not None, candidate.train), scheme)
    yield part_ram(target.board, candidate.plan, buffers_of(candidate, options) if options.runtime.names else ())
    if target.board is not None:
        machine = "" if target.qemu is None else target.qemu.core
        yield BoardUse(target.board, target.core_name, machine or target.core_name)
    if candidate.externals is not None and candidate.externals.functions:
        yield OfferedKernels(candidate.externals.functions)


def _lowering(progress: Progress) -> Callable[[int, int], None]:
    def report(done: int, count: int) -> None:
        progress(f"lowering kernels, {done} of {count} nodes", 0.2 + 0.4 * done / max(count, 1))

    return report


def _reports(summary: Summary, options: CompileOptions) -> dict[str, str | bytes]:
    """Make the files of the output folder that are about the project."""
    parts = parts_of(options, summary.train)
    files: dict[str, str | bytes] = {
        **{name: text for part in parts for name, text in part.reports(summary.train, prefix_of(options)).items()},
        "report.json": json.dumps(report_json(summary), indent=1) + "\n",
        "plan.json": json.dumps(plan_json(summary), indent=1) + "\n",
    }
    chosen = None if summary.choice is None else summary.choice.update
    if chosen is not None:
        files[SCHEME] = chosen.scheme
    if summary.choice is not None and summary.choice.pareto:
        from tinytrain_compile.report.rows.pareto import PARETO_CSV, pareto_csv

        files[PARETO_CSV] = pareto_csv(summary.choice.pareto)
    if "html" in options.report:
        from tinytrain_compile.report.pages.html import report_html

        files["report.html"] = report_html(summary)
    return files
