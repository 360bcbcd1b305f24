"""The order of the stages, and nowhere else: model file in, complete output folder and summary out."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from tinytrain_compile.data import load_inputs, make_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.external import Externals, blaming, load_externals
from tinytrain_compile.fit import Candidate, Planner
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.generate import Generated, generate
from tinytrain_compile.ir import print_graph
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, SourceBundle, TrainGraph
from tinytrain_compile.ir.summary import Summary, VerifyReport
from tinytrain_compile.micro_batch import choose
from tinytrain_compile.options import CompileOptions
from tinytrain_compile.output import check_place, write_output
from tinytrain_compile.plan import Lock, read_lock
from tinytrain_compile.quantize import calibrate, count_saturations, prepare
from tinytrain_compile.reference import run_reference
from tinytrain_compile.report import (
    does_not_fit_text,
    milliseconds,
    plan_json,
    report_html,
    report_json,
    too_slow_text,
)
from tinytrain_compile.rounding import StepwiseReference
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.summary import layer_updates
from tinytrain_compile.target import Target, load_target
from tinytrain_compile.trial import compare, like_one, with_exponents
from tinytrain_compile.tune import Tiling, choose_tiles
from tinytrain_compile.ways_out import faster, suggestions

Progress = Callable[[str, float], None]
"""(what is being done, share done from 0 to 1)"""

STAGES = ("frontend", "training", "plan")
"""Stages whose result --dump-after prints."""


@dataclass(frozen=True, eq=False)
class Result:
    """summary: what the report shows; files: paths written, relative to the output folder; dump: for --dump-after."""

    summary: Summary | None
    files: tuple[str, ...] = ()
    digest: str = ""
    dump: str = ""


def _silent(_what: str, _share: float) -> None:
    return None


def compile_model(options: CompileOptions, progress: Progress = _silent) -> Result:
    """Run all stages. Raises CompileError; then the output folder is as it was."""
    target = load_target(options.target)
    externals = load_externals(options)
    if not options.dry_run and not options.dump_after:
        check_place(options.out, _sources(options, externals))
    progress("reading the model", 0.0)
    model = _load(options)
    if options.dump_after == "frontend":
        return Result(None, dump=print_graph(_stored(model, options).graph))
    progress("planning", 0.1)
    floats, model = None if model.quantised else model.graph, _stored(model, options)
    candidate = _choose(model, options, target, externals)
    if options.dump_after == "training":
        return Result(None, dump=print_graph(candidate.train.before_remat or candidate.train.graph))
    summary = _summarise(model, candidate, options, target)
    if options.dump_after == "plan":
        return Result(None, dump=json.dumps(plan_json(summary), indent=1))
    _check_fit(summary, model, candidate, options, target)
    if options.dry_run:
        return Result(summary)
    samples = make_samples(model, candidate.train, options)
    progress("running the model on your data", 0.15)
    one = with_exponents(candidate.of_one, model, options)
    candidate = replace(candidate, train=like_one(candidate.train, one) if candidate.one is not None else one)
    summary = replace(summary, train=candidate.train, agreement=compare(one, model, floats, options))
    with blaming(candidate.plan.order):
        tiling = _tiles(candidate, options, target, samples, progress)
        made = _generate(candidate, options, target, progress, tiling)
        summary = replace(summary, calls=made.kernels.calls, code=made.choice, tiles=tiling.used)
        summary = _verify(summary, made.bundle, samples, options, target, progress)
    progress("writing", 0.98)
    tiling.save(options)
    return _write(summary, made.bundle, samples, options, target)


def _load(options: CompileOptions) -> ImportedModel:
    """The forward graph."""
    wanted = FrontendOptions(
        options.input_shapes,
        options.input_layout,
        options.label,
        classes=options.classes,
        seed=options.seed,
    )
    return load_model(options.model, wanted)


def _stored(model: ImportedModel, options: CompileOptions) -> ImportedModel:
    """For int8: the graph with formats, and with the saturation of its storage."""
    if options.quant == "fp32":
        return model
    graph = model.graph
    if not model.quantised:
        if options.calib is None:
            what = "int8 training of a float model needs calibration data"
            raise CompileError("E0306", options.model.name, what, "give --calib FILE.npz with inputs x, or a QDQ model")
        graph = calibrate(graph, load_inputs(options.calib, model), options.calib_range)
    return replace(model, graph=prepare(graph, options.head == "fp32"))


def _sources(options: CompileOptions, externals: Externals) -> tuple[Path, ...]:
    """Files that the user gave: they must not vanish with an earlier output."""
    named = [Path(text) for text in (options.target, options.update) if text.endswith(".toml")]
    given = (options.data, options.lock, options.tiles)
    named += [path for path in given if path is not None and path != options.out / "plan.json"]
    return (options.model, *named, *externals.paths)


def _choose(model: ImportedModel, options: CompileOptions, target: Target, externals: Externals) -> Candidate:
    planner = Planner(model, options, target, externals)
    if options.lock is not None:
        return _locked(planner, options.update, read_lock(options.lock))
    return choose(planner)


def _locked(planner: Planner, update: str, lock: Lock) -> Candidate:
    """The plan of a lock; `--update auto` is then what the lock trains."""
    spec = lock.update.removeprefix("auto: ") if update == "auto" else update
    candidate = planner.locked(resolve_update(planner.model.graph, spec), lock)
    return replace(candidate, label=lock.update) if update == "auto" else candidate


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
        external_functions=candidate.externals.functions,
    )


def _check_fit(
    summary: Summary, model: ImportedModel, candidate: Candidate, options: CompileOptions, target: Target
) -> None:
    limit, needed = options.arena_bytes, candidate.plan.arena_bytes
    if limit is None or needed <= limit:
        _check_time(summary, model, candidate, options, target)
        return
    ways = suggestions(Planner(model, options, target, candidate.externals), candidate)
    summary = replace(summary, suggestions=ways)
    fitting = [way.options for way in ways if way.arena_bytes <= limit]
    try_ = f"try {fitting[0]}" if fitting else f"nothing to update fits; {ways[0].options} does"
    what = f"training needs {needed} B, the arena is {limit} B (over by {needed - limit} B)"
    raise CompileError("E0401", f"--update {candidate.label}", what, try_, tuple(does_not_fit_text(summary)))


def _check_time(
    summary: Summary, model: ImportedModel, candidate: Candidate, options: CompileOptions, target: Target
) -> None:
    longest, needed = options.max_step_ps, candidate.choice.cost.ps
    if longest is None or needed <= longest:
        return
    ways = faster(Planner(model, options, target, candidate.externals), candidate)
    what = f"a step takes {milliseconds(needed)} by the target's figures, the limit is {milliseconds(longest)}"
    details = too_slow_text(replace(summary, suggestions=ways))
    raise CompileError("E0402", f"--update {candidate.label}", what, f"try {ways[0].options}", tuple(details))


def _tiles(
    candidate: Candidate, options: CompileOptions, target: Target, samples: Samples, progress: Progress
) -> Tiling:
    def report(done: int, count: int) -> None:
        progress(f"searching tiles, {done} of {count} kernels", 0.2)

    return choose_tiles(candidate, options, target, samples, report)


def _generate(
    candidate: Candidate, options: CompileOptions, target: Target, progress: Progress, tiling: Tiling
) -> Generated:
    def report(done: int, count: int) -> None:
        progress(f"lowering kernels, {done} of {count} nodes", 0.2 + 0.4 * done / max(count, 1))

    return generate(candidate, options, target, report, tiling.used.nodes)


def _verify(
    summary: Summary,
    bundle: SourceBundle,
    samples: Samples,
    options: CompileOptions,
    target: Target,
    progress: Progress,
) -> Summary:
    from tinytrain_compile.verify import verify

    if options.verify == "none":
        return replace(
            summary, verify=VerifyReport("none", 0, "skipped", "verification was switched off (--verify none)")
        )
    progress("running the numpy reference", 0.62)
    train = summary.train
    whole = run_reference(train, samples, options.verify_steps) if train.integer else None
    reference = whole or StepwiseReference(train, samples, options.seed)
    progress(f"building and running the firmware ({options.verify})", 0.75)
    report = verify(
        bundle,
        target,
        samples,
        reference,
        options.verify,
        steps=options.verify_steps,
        batch=summary.train.batch,
        count=options.count or options.cycles,
        cycles=options.cycles,
    )
    if whole is not None:
        report = replace(report, saturations=count_saturations(train, whole.states[-1]))
    return replace(summary, verify=report, code_bytes=report.code_bytes, const_bytes=report.const_bytes)


def _write(summary: Summary, bundle: SourceBundle, samples: Samples, options: CompileOptions, target: Target) -> Result:
    files: dict[str, str | bytes] = dict(bundle.files)
    files["report.json"] = json.dumps(report_json(summary), indent=1) + "\n"
    files["plan.json"] = json.dumps(plan_json(summary), indent=1) + "\n"
    if "html" in options.report:
        files["report.html"] = report_html(summary)
    files.update(_check_files(bundle, samples, options, target, summary.train))
    digest = write_output(options.out, files)
    return Result(summary, tuple(sorted(files)), digest)


def _check_files(
    bundle: SourceBundle, samples: Samples, options: CompileOptions, target: Target, train: TrainGraph
) -> dict[str, str | bytes]:
    from tinytrain_compile.verify.firmware import verification_files, verification_input

    files: dict[str, str | bytes] = dict(verification_files(bundle, target))
    files["verify/vectors.bin"] = verification_input(bundle.interface, samples, options.verify_steps, train.batch, None)
    return files
