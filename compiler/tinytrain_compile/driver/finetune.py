"""`tinytrain-compile finetune`: which learning rate, how many epochs, which batch; and what that gains on own samples.

The search halves successively (Jamieson and Talwalkar, AISTATS 2016): many rates for a few epochs, the better ones for
longer and on more seeds, then rates between them, and the top of the parabola through these. Work is counted: see the
constants. What is recommended is trained again on all own samples, and judged by samples that nothing was chosen by.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain_compile.driver.channel_choice import refuse_choice
from tinytrain_compile.driver.delta import refuse_shifted
from tinytrain_compile.driver.known_runs import PARTIAL, KnownRuns, check_out, unwritten
from tinytrain_compile.driver.learning import CHECK_SHARE, Build, LearningRun, learn_all
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.pipeline import Progress, Project, Result, make_project
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.output_folder import replace_files
from tinytrain_compile.files.own_data import OwnData, own_data, read_own_data
from tinytrain_compile.files.samples import in_slots
from tinytrain_compile.ir.learning import Curve, Finding, Learned, RateSchedule, Score, Tried, curve_of, mean_curve
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.ir.types import Array
from tinytrain_compile.report import finding_html, finding_toml
from tinytrain_compile.verify import build_library, find_tools, work_folder

STEP = 10.0**0.5
FIRST_RATES = tuple(STEP**power for power in range(-3, 4))
"""Learning rates of the first round, times the one that the options say."""
MORE_RATES = 4
"""At most so many more in that round, while the best is the largest or the smallest of its own."""
NEXT_TO = (10.0**-0.375, 10.0**-0.125, 10.0**0.125)
"""Rates of the last round, times the best so far: longer trainings want smaller ones."""
SURVIVORS = 3
"""Rates of the second round."""
FIRST_SHARE, SECOND_SHARE, SECOND_SEEDS = 8, 3, 2
"""Of the epochs, a run of the first and of the second round trains one in so many; on one seed and on so many."""
FORGOTTEN, REPLAY_GAIN, FORGOTTEN_LOSS = 0.02, 0.01, 1.1
"""Of the accuracy on old samples: what may be lost before replay is asked for, and what it has to bring back; where
labels are values, how many times larger the loss on them may become."""


@dataclass(frozen=True)
class Effort:
    """epochs: of a run at most; seeds: that what is recommended was judged by; replay: old samples kept (0: none);
    batches: that are compared (none: that of the options); clips: norms that gradients are clipped to, 0 for none,
    where the options do not say one; jobs: processes, -1 for all cores; schedule: what the rate does in a training;
    per_layer: of norms that are clipped to, also that of each layer alone; warm_ups: shares of the updates in which the
    rate grows before it falls; averages: ends of epochs whose mean is kept, 0 for none."""

    epochs: int = 30
    seeds: int = 3
    replay: int = 100
    batches: tuple[int, ...] = ()
    clips: tuple[float, ...] = (0.0, 1.0)
    jobs: int = -1
    schedule: RateSchedule = "cosine"
    per_layer: bool = False
    warm_ups: tuple[float, ...] = (0.0,)
    averages: tuple[int, ...] = (0,)

    def most_runs(self, builds: int, old: bool) -> int:
        """Of a search with so many builds, final ones included. old: whether there are old samples."""
        first, second = len(FIRST_RATES) * builds, SURVIVORS * min(SECOND_SEEDS, self.seeds)
        return first + MORE_RATES + second + (len(NEXT_TO) + (2 if old else 1)) * self.seeds


def finetune(options: CompileOptions, effort: Effort, out: Path, progress: Progress, keep: bool = False) -> Finding:
    """Search, then train what is recommended. What an earlier call had done already (beside `out`) is not done again.

    keep: what was done stays there, until `write_finding` has written the result.
    Deterministic: the same model, options, data and effort give the same finding, however many jobs there are.
    Raises CompileError.
    """
    if options.data is None:
        raise CompileError("E0101", "--data", "finetune needs samples", "give --data FILE.npz with arrays x and y")
    if any(effort.warm_ups) and effort.schedule == "constant":
        way = "leave one of them out: behind a warm-up the rate falls"
        raise CompileError(
            "E0101", "--warm-ups", "is about --schedule cosine, the one that finetune.toml asks for", way
        )
    check_out(out, ".toml", "the file that --config will read")
    for path in _files(out):
        check_out(path, path.suffix, "another file")
    arrays, notes = read_own_data(options.data, options.seed)
    with ExitStack() as kept:
        folder = kept.enter_context(work_folder())
        variants = list(_variants(options, effort, arrays, folder, progress))
        projects = [variant.project for variant in variants]
        data = own_data(options.data.name, arrays, projects[0].model, projects[0].summary.train)
        _check_batches(options.data.name, variants, data)
        builds = _builds(projects, data, folder)
        known = KnownRuns(out, _digest(projects, data))
        search = _Search(variants, builds, effort, options.seed, known, progress)
        try:
            finding = search.run()
        except KeyboardInterrupt as problem:
            problem.args = (f"what was tried is in {known.path.name}; call it again to go on",)
            raise
    if not keep:
        known.forget()
    return _with_facts(finding, projects[search.taken], (*notes, *data.notes), data)


def write_finding(finding: Finding, options: CompileOptions, given: Mapping[str, Any], out: Path) -> tuple[Path, ...]:
    """The options that were given and what is recommended, as --config reads it; a page; the scheme that --update auto
    has chosen. E0104 where that cannot be written."""
    page, scheme = _files(out)
    more = {"update": scheme.name} if finding.scheme else {}
    texts = {out: finding_toml(finding, {**given, **more}), page: finding_html(finding, options.model.name)}
    if finding.scheme:
        texts[scheme] = finding.scheme
    try:
        replace_files({path: text.encode() for path, text in texts.items()})
    except OSError as problem:
        raise unwritten(out, problem.strerror or "cannot be written") from problem
    out.with_name(out.name + PARTIAL).unlink(missing_ok=True)
    return tuple(texts)


def _files(out: Path) -> tuple[Path, Path]:
    """The page and the scheme beside a result."""
    return out.with_suffix(".html"), out.with_suffix(".update.toml")


@dataclass(frozen=True, eq=False)
class _Variant:
    """A compilation with one of the batches and norms that are compared, a warm-up and an average; 0 for none."""

    batch: int
    clip: float
    per_layer: bool
    warm_up: float
    average: int
    project: Project


def _variants(
    options: CompileOptions, effort: Effort, arrays: Mapping[str, Array], folder: Path, progress: Progress
) -> Iterable[_Variant]:
    """Each is compiled. What chooses a scheme by samples sees those alone that training may see."""
    data = None
    if "y" in arrays:
        data = folder / str(options.data and options.data.name)  # as messages name it
        np.savez(data, x=arrays["x"], y=arrays["y"])
    asked = replace(options, data=data, verify="none", dry_run=False, pareto=False)
    batches = effort.batches or (options.batch,)
    clips = effort.clips if options.clip_norm is None else (options.clip_norm,)
    given, trains_itself = options.given | frozenset(["batch"] if effort.batches else []), False
    compared = effort.per_layer and options.clip_per != "layer"  # else all norms are of a layer already
    ways = [(clip, per) for clip in clips for per in ((False, True) if clip and compared else (False,))]
    for index, (batch, (clip, per_layer)) in enumerate(product(batches, ways)):
        if clip and trains_itself:  # the file says how, and that is without clipping
            continue
        more = replace(asked, batch=batch, given=given)
        if clip:
            more = replace(more, clip_norm=clip, given=given | {"clip_norm"})
        if per_layer:
            more = replace(more, clip_per="layer", given=more.given | {"clip_per"})
        told = partial(_told, progress, f"batch {batch}, clip {clip:g}: ", index / (len(batches) * len(ways)))
        made = make_project(more, told)
        assert not isinstance(made, Result)
        refuse_choice(made.summary.train, "finetune")
        if any(effort.averages):
            refuse_shifted(made.summary.train, "--averages")
        trains_itself = made.model.training is not None
        for warm_up, average in product(effort.warm_ups, effort.averages):
            yield _Variant(batch, clip, per_layer, warm_up, average, made)


def _check_batches(where: str, variants: Sequence[_Variant], data: OwnData) -> None:
    """E0105 for a batch that the samples of a run do not fill."""
    count, most = int(len(data.own.x) * (1 - CHECK_SHARE)), max(variant.batch for variant in variants)
    if most > count:
        what = f"a batch of {most} is more than the {count} samples that a run trains on"
        raise CompileError("E0105", where, what, "give more samples, or smaller batches")


def _told(progress: Progress, before: str, share: float, what: str, _share: float) -> None:
    progress(before + what, 0.1 * share)


def _builds(projects: Sequence[Project], data: OwnData, folder: Path) -> list[Build]:
    """One for each; those of the same project share it."""
    made = dict[int, Build]()
    for project in projects:
        if id(project) not in made:
            made[id(project)] = _build(project, data, folder / f"build{len(made)}")
    return [made[id(project)] for project in projects]


def _build(project: Project, data: OwnData, folder: Path) -> Build:
    face = project.bundle.interface
    library = build_library(project.bundle, find_tools(), folder)
    own, test = in_slots(face, data.own), in_slots(face, data.test)
    old = None if data.old is None else in_slots(face, data.old)
    code = library.read_bytes()
    return Build(library, code, face, project.model, project.summary.train, own, test, old, data.copies, data.faults)


def _digest(projects: Sequence[Project], data: OwnData) -> str:
    """Of all that decides what a run finds."""
    hashed = hashlib.sha256()
    for project in projects:
        hashed.update(repr(sorted(project.bundle.files.items())).encode())
    parts: tuple[Samples | None, ...] = (data.own, data.test, data.old)
    for part in parts:
        for array in () if part is None else (part.x, part.y):
            hashed.update(array.tobytes())
    hashed.update(b"" if data.faults is None else data.faults.tobytes())
    return hashed.hexdigest()


@dataclass
class _Search:
    variants: Sequence[_Variant]
    builds: Sequence[Build]
    effort: Effort
    seed: int
    known: KnownRuns
    progress: Progress
    made: int = 0
    taken: int = 0

    def run(self) -> Finding:
        """Three rounds, then what is recommended on all samples."""
        epochs, seeds = self.effort.epochs, self.effort.seeds
        tried = self._first_round(max(1, epochs // FIRST_SHARE))
        each, first = list(tried), tuple(tried.values())
        ranked = sorted(range(len(each)), key=lambda index: first[index].best.worth, reverse=True)
        best, plain = ranked[:SURVIVORS], [index for index in ranked if not first[index].clip]
        if plain and plain[0] not in best:  # what clipping is compared with
            best[-1] = plain[0]
        again = [each[index] for index in sorted(best)]
        second = self._round(again, min(SECOND_SEEDS, seeds), max(1, epochs // SECOND_SHARE))
        shorter = second[number := self._best(second)]
        self.taken, rate = again[number]
        last = [(self.taken, rate * step) for step in NEXT_TO]
        third = self._round(last, seeds, epochs)
        chosen = max(third, key=lambda one: one.best.worth)
        rate = top_of(third)
        if chosen.settles and shorter.best.worth > chosen.best.worth:  # longer trainings make it worse
            chosen, rate = shorter, shorter.rate
        rate = float(f"{rate:.4g}")  # as it is written
        learned = self._final(self.taken, rate, max(1, chosen.best_epoch))
        return Finding((first, second, third), chosen, rate, learned, _replay(learned), self.made)

    def _best(self, tried: Sequence[Tried]) -> int:
        """The best; without clipping, unless that is better by more than chance may make it."""
        order = sorted(range(len(tried)), key=lambda index: tried[index].best.worth, reverse=True)
        best, plain = order[0], next((index for index in order if not tried[index].clip), order[0])
        judges = int(CHECK_SHARE * len(self.builds[0].own.x)) * tried[best].seeds
        return best if tried[best].best.better_than(tried[plain].best, judges) else plain

    def _first_round(self, epochs: int) -> dict[tuple[int, float], Tried]:
        """(variant, rate) -> how it went, in order of both: FIRST_RATES, and more where the best may lie outside."""
        rates = [variant.project.summary.learning_rate for variant in self.variants]
        each = [(build, rate * step) for build, rate in enumerate(rates) for step in FIRST_RATES]
        found = dict(zip(each, self._round(each, 1, epochs), strict=True))
        for _ in range(MORE_RATES):
            build, best = max(found, key=lambda one: found[one].best.worth)
            own = [rate for other, rate in found if other == build]
            if min(own) < best < max(own):
                break
            more = (build, best * STEP if best == max(own) else best / STEP)
            (found[more],) = self._round([more], 1, epochs)
        return dict(sorted(found.items()))

    def _round(self, each: Sequence[tuple[int, float]], seeds: int, epochs: int) -> tuple[Tried, ...]:
        runs = [self._run(b, rate, seed, epochs) for b, rate in each for seed in range(seeds)]
        curves = self._curves(runs)
        parts = [curves[first : first + seeds] for first in range(0, len(curves), seeds)]
        return tuple(
            Tried(
                self.variants[build].batch,
                self.variants[build].clip,
                rate,
                seeds,
                _means(part),
                sum(one.failed for one in part),
                runs[0].settles,
                self.variants[build].per_layer,
                self.variants[build].warm_up,
                self.variants[build].average,
            )
            for (build, rate), part in zip(each, parts, strict=True)
        )

    def _final(self, build: int, rate: float, epochs: int) -> tuple[Learned, ...]:
        """Without replay, and with it where there are old samples."""
        old = self.builds[build].old
        most = 0 if old is None else min(self.effort.replay, len(old.x) // 2)
        replays = (0, most) if most else (0,)
        seeds, learned = range(self.effort.seeds), list[Learned]()
        for replay in replays:
            runs = [replace(self._run(build, rate, seed, epochs), replay=replay, final=True) for seed in seeds]
            curves = self._curves(runs)
            old_curve = mean_curve([one.old for one in curves], [one.failed for one in curves]) if curves[0].old else ()
            ends = [one.scores[-1] for one in curves]
            spread = float(np.std([one.loss if one.accuracy is None else one.accuracy for one in ends]))
            learned.append(Learned(replay, _means(curves), old_curve, spread, curves[0].steps))
        return tuple(learned)

    def _run(self, build: int, rate: float, seed: int, epochs: int) -> LearningRun:
        how = self.variants[build]
        schedule, seed = self.effort.schedule, self.seed + seed
        return LearningRun(build, rate, seed, epochs, schedule=schedule, warm_up=how.warm_up, average=how.average)

    def _curves(self, runs: Sequence[LearningRun]) -> list[Curve]:
        missing = [run for run in runs if self.known.of(run.key) is None]
        self.made += len(runs)
        most = self.effort.most_runs(len(self.builds), self.builds[0].old is not None)

        def done(index: int, curve: Curve) -> None:
            self.known.add(missing[index].key, asdict(curve))
            count = self.made - len(missing) + index + 1
            self.progress(f"training, run {count} of {most}", 0.1 + 0.9 * count / most)

        learn_all(self.builds, missing, self.effort.jobs, done)
        return [curve_of(found) for run in runs if (found := self.known.of(run.key)) is not None]


def top_of(tried: Sequence[Tried]) -> float:
    """The rate at the top of the parabola through three accuracies (losses, where there are none), over logarithms of
    rates that are equally far apart: less noisy than the best of three. Never outside them, nor further than half a
    step from the best, which is the answer where there is no top.
    """
    below, middle, above = (-one.best.loss if one.best.accuracy is None else one.best.accuracy for one in tried)
    best = max(range(3), key=lambda index: tried[index].best.worth)
    bend = below - 2 * middle + above
    if not np.isfinite(bend) or bend >= 0:
        return tried[best].rate
    top = min(max((below - above) / (2 * bend), -1.0, best - 1.5), 1.0, best - 0.5)  # steps from the middle
    return tried[1].rate * (tried[2].rate / tried[1].rate) ** top


def _means(curves: Sequence[Curve]) -> tuple[Score, ...]:
    return mean_curve([one.scores for one in curves], [one.failed for one in curves])


def _replay(learned: Sequence[Learned]) -> int:
    """How many old samples to keep: none where nothing is forgotten without, or nothing is brought back."""
    plain, *others = learned
    if not others:
        return 0
    first, last, kept = plain.old[0], plain.old[-1], others[0].old[-1]
    if first.accuracy is None or last.accuracy is None or kept.accuracy is None:
        return others[0].replay if last.loss > FORGOTTEN_LOSS * first.loss and kept.loss < last.loss else 0
    lost, back = first.accuracy - last.accuracy, kept.accuracy - last.accuracy
    return others[0].replay if lost > FORGOTTEN and back > REPLAY_GAIN else 0


def _with_facts(finding: Finding, project: Project, notes: tuple[str, ...], data: OwnData) -> Finding:
    """With what the device needs for it, by the target's figures, and what is trained."""
    summary = project.summary
    train, choice = summary.train, summary.choice
    chosen = None if choice is None else choice.update
    return replace(
        finding,
        samples=len(data.own.x),
        tests=len(data.test.x),
        target=summary.target,
        step=None if choice is None else choice.cost,
        calls=train.batch // train.micro_batch,
        update=summary.update_label,
        scheme="" if chosen is None else chosen.scheme,
        notes=notes,
    )
