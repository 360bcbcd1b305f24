"""--update auto with --data: several rules propose, samples that are held back decide (ADR 33).

Every rule's best scheme for the true arena is planned; each is trained on this machine for a short while, at rates of
its own, and the one with the least loss on held-back samples is taken. Work is counted: see the constants.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from tinytrain_compile.driver.candidates import Candidate, Planner
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.pipeline import Progress
from tinytrain_compile.driver.short_runs import RATE_STEPS, Desk, Outcome, Run, begun, make_desk
from tinytrain_compile.driver.summary import layer_updates
from tinytrain_compile.driver.update_search import search_update
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.cost import RuleTried
from tinytrain_compile.report import work_of
from tinytrain_compile.sparse import GainTable, layers_of, tables_of_gradients, tables_without_data
from tinytrain_compile.sparse.rules import SPREAD, Scores
from tinytrain_compile.verify import find_tools, work_folder

WORK_MACS, MOST_PASSES, LEAST_UPDATES = 10**11, 2, 16
"""Multiply-accumulates of all short runs together; passes over the samples at most, and updates of a run at least."""
GRADIENT_SAMPLES = 32
"""Samples whose gradients are looked at: more of them choose the same."""
FEWEST = 40
"""Samples below which too few are held back to tell schemes apart."""


def choose_by_data(planner: Planner, progress: Progress) -> Candidate:
    """What --update auto trains, where --data has labelled samples; the prior's choice where all layers fit, nothing
    does, there are too few samples, or there is no C compiler on this machine: then it is said why."""
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


def proposed(planner: Planner, first: Candidate, tables: Iterable[GainTable], progress: Progress) -> list[Candidate]:
    """What the prior and these tables would train, each once."""
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
    """Tables of all rules but the prior. library: of the desk."""
    layers = layers_of(planner.model.graph)
    yield from tables_without_data(layers)
    if planner.model.training is not None:  # the file says how it is trained: its steps are not its gradients
        return
    plain = _float_desk(planner.options, desk, progress)
    its = library if plain is desk else plain.library(folder / "gradients")
    yield from tables_of_gradients(layers, gradients_of(plain, its), plain.weights)


def _float_desk(options: CompileOptions, desk: Desk, progress: Progress) -> Desk:
    """A desk whose steps subtract gradients as they are: SGD in float32."""
    plain = {"optimizer": "sgd", "weight_decay": 0.0, "batch": 1, "accumulate": "exact", "quant": "fp32"}
    if all(getattr(options, name) == value for name, value in plain.items()):
        return desk
    return make_desk(replace(options, **plain, nesterov=False, dampening=0.0), 1, progress)  # type: ignore[arg-type]


def gradients_of(desk: Desk, library: Path) -> Iterator[Scores]:
    """Of single samples, by what a step at rate 1 subtracts."""
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
    """Train all, take the one of least loss; what was tried is told with it."""
    rates = [desk.rate * step for step in RATE_STEPS]
    runs = [Run({}), *(Run(one.update.updates, rate, planner.options.seed) for one in found for rate in rates)]
    desk = replace(desk, count=updates_within(desk, len(runs)))

    def done(index: int, _outcome: Outcome) -> None:
        progress(f"choosing what to train: run {index + 1} of {len(runs)}", 0.12)

    untrained, *outcomes = desk.run_all(runs, library, -1, done)
    each = [outcomes[first : first + len(rates)] for first in range(0, len(outcomes), len(rates))]
    losses = [min(one, key=lambda outcome: outcome.loss) for one in each]
    best = min(range(len(found)), key=lambda index: losses[index].loss)
    tried = (
        RuleTried("nothing trained", 0, 0, untrained.loss, untrained.accuracy, None),
        *(
            RuleTried(
                SPREAD if one is found[0] or one.choice.update is None else one.choice.update.gains,
                sum(layer.elements for layer in layer_updates(planner.model.graph, one.update)),
                one.plan.arena_bytes,
                outcome.loss,
                outcome.accuracy,
                rates[runs_of.index(outcome)],
            )
            for one, outcome, runs_of in zip(found, losses, each, strict=True)
        ),
    )
    chosen = found[best]
    assert chosen.choice.update is not None
    choice = replace(chosen.choice.update, tried=tried, held=len(desk.held.x))
    return replace(chosen, choice=replace(chosen.choice, update=choice))


def updates_within(desk: Desk, runs: int) -> int:
    """Of a run, so that all stay below the work that is allowed. Held-back samples are passed forward once a run."""
    forward, backward = work_of(desk.train)
    left = WORK_MACS // runs - forward * len(desk.held.x)
    most = MOST_PASSES * len(desk.x) // desk.train.batch
    return max(LEAST_UPDATES, min(most, left // max(1, (forward + backward) * desk.train.batch)))
