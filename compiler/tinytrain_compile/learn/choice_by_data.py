"""--update auto with --data: several rules propose, samples that are held back decide (ADR 33).

Every rule's best scheme for the true arena is planned, and trained on this machine for a short while at several rates.
The better ones, and the prior's, are trained for longer, on several parts of the samples, and judged by the others: the
most accurate one is taken. Work is counted: see the constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.progress import Progress
from tinytrain_compile.driver.search.choose import search_update
from tinytrain_compile.driver.search.next_arena import with_next_arena
from tinytrain_compile.driver.summary import layer_updates
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import RuleTried
from tinytrain_compile.ir.learning import Score, mean_score
from tinytrain_compile.learn.short_runs import RATE_STEPS, Desk, Run, begun, make_desk
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.report.analysis import work_of
from tinytrain_compile.sparse import GainTable, layers_of, tables_of_gradients, tables_without_data
from tinytrain_compile.sparse.rules import SPREAD, Scores
from tinytrain_compile.verify.tools import find_tools, work_folder

WORK_MACS, FIRST_PASSES, MOST_PASSES, LEAST_UPDATES = 10**11, 4, 12, 16
"""Multiply-accumulates of all short runs together, half of them for each round; passes over the samples at most in the
first and in the second, and updates of a run at least."""
FINALISTS, RATES_AGAIN, PARTS = 3, 2, 3
"""Schemes of the second round, the prior's among them; rates of each, the best of the first; parts of the samples, that
each judge once what was trained on the others."""
GRADIENT_SAMPLES = 32
"""Samples whose gradients are looked at: more of them choose the same."""
FEWEST = 40
"""Samples below which too few are held back to tell schemes apart."""


def choose_by_data(planner: Planner, progress: Progress) -> Candidate:
    """Choose what --update auto trains if --data has labelled samples.

    The prior chooses, and a note says why, if all layers fit, nothing does, there are too few samples, or this machine
    has no C compiler.
    """
    first = search_update(planner, planner.layer_count)
    if first.choice.update is None:
        return first
    if find_tools().host_cc is None:
        return _with_why(first, "--data had no say: there is no C compiler on this machine to train candidates with")
    try:
        desk = make_desk(planner.options, 1, progress)
    except CompileError:
        return first  # samples that the compilation itself will complain of
    count = len(desk.x) + len(desk.held.x)
    if count < FEWEST:
        return _with_why(first, f"--data had no say: {count} samples are too few to tell candidates apart ({FEWEST})")
    with work_folder() as folder:
        library = desk.library(folder / "all")
        tables = _tables(planner, desk, library, folder, progress)
        return best_of(planner, desk, proposed(planner, first, tables, progress), library, progress)


def choose_and_look_above(planner: Planner, progress: Progress) -> Candidate:
    """Choose as choose_by_data does, and look for the next larger arena worth having."""
    return with_next_arena(planner, choose_by_data(planner, progress))


def proposed(planner: Planner, first: Candidate, tables: Iterable[GainTable], progress: Progress) -> list[Candidate]:
    """Return what the prior and these tables would train, each once."""
    found = [first]
    for table in tables:
        progress(f"choosing what to train: {table.source}", 0.12)
        candidate = search_update(planner, planner.layer_count, table, proof=False)
        if candidate.choice.update is not None and _new(candidate, found):
            found.append(candidate)
    return found


def _with_why(candidate: Candidate, sentence: str) -> Candidate:
    assert candidate.choice.update is not None
    update = replace(candidate.choice.update, why=(*candidate.choice.update.why, sentence))
    return replace(candidate, choice=replace(candidate.choice, update=update))


def _new(candidate: Candidate, known: list[Candidate]) -> bool:
    return all(candidate.update.updates != other.update.updates for other in known)


def _tables(planner: Planner, desk: Desk, library: Path, folder: Path, progress: Progress) -> Iterator[GainTable]:
    """Yield tables of all rules but the prior. library: of the desk."""
    layers = layers_of(planner.model.graph)
    yield from tables_without_data(layers)
    if planner.model.training is not None:  # the file says how it is trained: its steps are not its gradients
        return
    plain = _float_desk(planner.options, desk, progress)
    its = library if plain is desk else plain.library(folder / "gradients")
    yield from tables_of_gradients(layers, gradients_of(plain, its), plain.weights)


def _float_desk(options: CompileOptions, desk: Desk, progress: Progress) -> Desk:
    """Make a desk whose steps subtract gradients as they are: SGD in float32."""
    plain = {"optimizer": "sgd", "weight_decay": 0.0, "batch": 1, "accumulate": "exact", "quant": "fp32"}
    if all(getattr(options, name) == value for name, value in plain.items()):
        return desk
    return make_desk(replace(options, **plain, nesterov=False, dampening=0.0), 1, progress)  # type: ignore[arg-type]


def gradients_of(desk: Desk, library: Path) -> Iterator[Scores]:
    """Yield the gradients of single samples, from what a step at rate 1 subtracts."""
    weights, face = desk.weights, desk.bundle.interface
    for index in range(min(GRADIENT_SAMPLES, len(desk.x))):
        instance = begun(library, face, desk.start)
        instance.set_rate(1.0)
        try:
            instance.train(desk.x[index : index + 1], desk.y[index : index + 1])
        except CompileError:
            continue  # a loss that is infinite says nothing
        yield {
            name: array - instance.tensor(name).reshape(array.shape)
            for name, array in weights.items()
            if np.isfinite(instance.tensor(name)).all()
        }


def best_of(planner: Planner, desk: Desk, found: list[Candidate], library: Path, progress: Progress) -> Candidate:
    """Train all, take the best; what was tried is told with it. The first one is the prior's."""
    first = _round(planner, desk, [(one, RATE_STEPS) for one in found], library, (FIRST_PASSES, 1), progress)
    order = sorted(range(len(found)), key=lambda index: first[index].score.worth, reverse=True)
    again = sorted({0, *order[: FINALISTS - (0 not in order[:FINALISTS])]})
    rates = [(found[index], first[index].best_steps(RATES_AGAIN)) for index in again]
    second = dict(zip(again, _round(planner, desk, rates, library, (MOST_PASSES, PARTS), progress), strict=True))
    best = max(second, key=lambda index: second[index].score.worth)
    untrained = desk.run_all([Run({})], library, 1, lambda _index, _outcome: None)[0]
    tried = [RuleTried("nothing trained", 0, 0, untrained.loss, untrained.accuracy, None)]
    for index, one in enumerate(found):
        judged = second.get(index, first[index])
        shown = judged.score
        source = SPREAD if index == 0 or one.choice.update is None else one.choice.update.gains
        count = sum(layer.elements for layer in layer_updates(planner.model.graph, one.update))
        rate = desk.rate * judged.step
        tried.append(RuleTried(source, count, one.plan.arena_bytes, shown.loss, shown.accuracy, rate, index in second))
    chosen = found[best]
    assert chosen.choice.update is not None
    held = len(desk.x) + len(desk.held.x)
    choice = replace(chosen.choice.update, tried=tuple(tried), held=held)
    return replace(chosen, choice=replace(chosen.choice, update=choice))


@dataclass(frozen=True)
class _Judged:
    """A scheme after a round: at each step of the rate, the outcome by every part of the samples."""

    outcomes: Mapping[float, tuple[Score, ...]]

    def best_steps(self, count: int) -> tuple[float, ...]:
        """Return the steps of the rate at which it did best."""
        worth = {step: mean_score(found).worth for step, found in self.outcomes.items()}
        return tuple(sorted(worth, key=worth.__getitem__, reverse=True)[:count])

    @property
    def step(self) -> float:
        """At which it did best."""
        return self.best_steps(1)[0]

    @property
    def score(self) -> Score:
        """There, the mean over parts."""
        return mean_score(self.outcomes[self.step])


def _round(
    planner: Planner,
    desk: Desk,
    each: Sequence[tuple[Candidate, tuple[float, ...]]],
    library: Path,
    effort: tuple[int, int],
    progress: Progress,
) -> list[_Judged]:
    """Train schemes at steps of the rate. effort: passes over the samples, parts of the samples that judge in turn."""
    passes, parts = effort
    plan = [(index, step) for index, (_, steps) in enumerate(each) for step in steps]
    seed = planner.options.seed
    found = [dict[float, tuple[Score, ...]]() for _ in each]
    for part in range(parts):
        own = desk if parts == 1 else desk.judged_by(part, parts)
        own = replace(own, count=updates_within(own, len(plan) * parts, passes))
        runs = [Run(each[index][0].update.updates, own.rate * step, seed) for index, step in plan]

        def done(index: int, _outcome: Score, before: int = part * len(plan)) -> None:
            done_of = f"run {before + index + 1} of {len(plan) * parts}"
            progress(f"choosing what to train: round {1 if parts == 1 else 2}, {done_of}", 0.12)

        for (index, step), outcome in zip(plan, own.run_all(runs, library, -1, done), strict=True):
            found[index][step] = (*found[index].get(step, ()), outcome)
    return [_Judged(one) for one in found]


def updates_within(desk: Desk, runs: int, passes: int) -> int:
    """Return the updates of a run with which all of a round stay below half of the allowed work.

    Held-back samples are passed forward once a run.
    """
    forward, backward = work_of(desk.train)
    left = WORK_MACS // (2 * runs) - forward * len(desk.held.x)
    most = passes * len(desk.x) // desk.train.batch
    return max(LEAST_UPDATES, min(most, left // max(1, (forward + backward) * desk.train.batch)))
