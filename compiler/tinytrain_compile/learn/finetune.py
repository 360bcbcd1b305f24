"""`tinytrain-compile finetune`: which learning rate, how many epochs, which batch; and what that gains on own samples.

`rate_search.py` chooses by samples that are held back. What it recommends is trained again on all own samples, and
judged by samples that nothing was chosen by; if that made nothing better, finetune ends in an error.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain_compile.data.own_data import OwnData, own_data, read_own_data
from tinytrain_compile.data.samples import class_count, graph_inputs, in_slots, names_in
from tinytrain_compile.driver.candidate import AUTO
from tinytrain_compile.driver.checks.data_notes import DataNote, notes_of
from tinytrain_compile.driver.pipeline import Project, Result, imported, make_project
from tinytrain_compile.driver.progress import Progress
from tinytrain_compile.driver.search.board import most_samples, with_board
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.output_folder import replace_files
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.learning import Finding, Learned, Score, StreamOrder
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.ir.summary import BoardUse, Summary
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.choice_by_data import choose_and_look_above
from tinytrain_compile.learn.rate_search import Place, RateSearch, Searched, Trainings, Variant
from tinytrain_compile.learn.runs import PARTIAL, KnownRuns, check_out, unwritten
from tinytrain_compile.learn.training import CHECK_SHARE, KEPT_AFTER_EACH, Build, held_back
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.options.effort import FinetuneEffort
from tinytrain_compile.parts.guard.part import Guard
from tinytrain_compile.parts.part import refuse_shifted
from tinytrain_compile.parts.replay.part import record_bytes
from tinytrain_compile.report.learning import finding_lines, finding_toml, guard_note, score_text
from tinytrain_compile.report.pages.finetune import finding_html
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.build import build_library
from tinytrain_compile.verify.tools import find_tools, work_folder

FEWEST_KEPT = 20
"""Old samples that are tried first: in learning tasks these brought back 57 of the 65 points that 100 brought back."""
KEPT = 60
"""Own samples that a device keeps against the order of its stream (`make bench NAME=order`)."""
FORGOTTEN, REPLAY_GAIN, FORGOTTEN_LOSS = 0.02, 0.01, 1.1
"""Of the accuracy on old samples: what may be lost before replay is asked for, and what more of it has to bring back;
where labels are values, how many times larger the loss on them may become."""


@dataclass(frozen=True)
class Room:
    """Memory of old samples: bytes of each, and how many the target's RAM holds beside the model (None: not known)."""

    target: str
    record_bytes: int
    most: int | None

    def notes(self, wanted: int) -> tuple[str, ...]:
        """Return the note for so many old samples that have no room."""
        if self.most is None or self.most >= wanted:
            return ()
        many = f"at most {self.most} old samples" if self.most else "no old samples"
        needed = f"{min(FEWEST_KEPT, wanted)} need {min(FEWEST_KEPT, wanted) * self.record_bytes:,} B"
        return (f"{self.target} has room for {many} beside the model ({needed}): a smaller --arena leaves more",)


def room_for(options: CompileOptions, summary: Summary) -> Room:
    """Return room for old samples beside a compilation and the other parts of --runtime."""
    target = with_board(options, load_target(options.target))[1]
    feature_bytes = summary.feature_bytes
    most = most_samples(target, summary.plan, summary.train, options.runtime, feature_bytes)
    return Room(target.name, record_bytes(summary.train, feature_bytes), most)


def reservoir_sizes(asked: int, old: int, most: int | None) -> tuple[int, ...]:
    """Return sizes to try, smallest first.

    asked: the largest that the user allows; old: old samples of the file, half of which judge; most: what fits (None:
    anything).
    """
    allowed = min(asked, old // 2, asked if most is None else most)
    return tuple(sorted({min(FEWEST_KEPT, allowed), allowed} - {0}))


def final_trainings(trainings: Trainings, place: Place, epochs: int, sizes: Sequence[int]) -> tuple[Learned, ...]:
    """Train without replay, and with reservoirs of these sizes until one keeps what was known."""
    learned = [trainings.learned(place, epochs, 0)]
    for size in sizes:
        learned.append(trainings.learned(place, epochs, size))
        if not _lost(learned[-1]):
            break
    return tuple(learned)


def kept_of(learned: Sequence[Learned]) -> int:
    """Return how many old samples to keep: 0 if nothing is forgotten without them, or nothing is brought back.

    More only if that brings back more.
    """
    best = learned[0]
    for one in learned[1:]:
        if _lost(best) and _brings_back(one.old[-1], best.old[-1]):
            best = one
    return best.replay


def _lost(one: Learned) -> bool:
    """Tell whether what was known before is forgotten."""
    first, last = one.old[0], one.old[-1]
    if first.accuracy is None or last.accuracy is None:
        return not last.loss <= FORGOTTEN_LOSS * first.loss
    return first.accuracy - last.accuracy > FORGOTTEN


def _brings_back(one: Score, other: Score) -> bool:
    if one.accuracy is None or other.accuracy is None:
        return one.loss < other.loss
    return one.accuracy - other.accuracy > REPLAY_GAIN


KNOWN = 0.98
"""Accuracy before training from which on there is little left to learn."""


def check_learned(finding: Finding, where: str) -> None:
    """Raise E0309 if neither held-back nor test samples are known better after training, or only the former."""
    if finding.worth_it:
        return
    cause, way = _cause(finding)
    first, last = _ends(finding)
    what = f"nothing was learned ({first} -> {last} at the best rate); likely cause: {cause}"
    raise CompileError("E0309", where, what, way, tuple(finding_lines(finding)))


def _ends(finding: Finding) -> tuple[str, str]:
    """Return the scores before and after that an error shows."""
    curve = finding.learned[0].curve if _held_back_are_known(finding) else finding.chosen.curve
    return score_text(curve[0]), score_text(curve[-1])


def _cause(finding: Finding) -> tuple[str, str]:
    """Return the first of the known causes that this looks like, and what to do."""
    tried = [one for rounds in finding.rounds for one in rounds]
    first = finding.chosen.curve[0]
    if finding.suspects:
        return finding.suspects[0], "mend the samples and call it again"
    if _knows(first):
        return "the network knows these samples already", "give samples that it does not know, or use it as it is"
    if all(one.failed == one.seeds for one in tried):
        cause = f"all rates from {min(one.rate for one in tried):.2g} ended in NaN or infinity"
        return cause, "scale x as in training, or give a smaller --lr to begin with"
    if _held_back_are_known(finding):
        return "x_test is unlike x, whose held-back samples were learned", "draw both from the same samples"
    own = [one.rate for one in finding.rounds[0]]
    if max(finding.rounds[0], key=lambda one: one.best.worth).rate in (min(own), max(own)):
        return f"the best of the rates {min(own):.2g} to {max(own):.2g} is at an end", "give another --lr to begin with"
    return "y does not belong to x, or the trained layers cannot learn it", "check the labels, or try --update all"


def _held_back_are_known(finding: Finding) -> bool:
    """Tell whether held-back samples were learned, so that it is the test samples that were not."""
    return replace(finding, learned=(replace(finding.learned[0], curve=finding.chosen.curve),)).worth_it


def _knows(score: Score) -> bool:
    return score.accuracy is not None and math.isfinite(score.loss) and score.accuracy >= KNOWN


def finetune(
    options: CompileOptions, effort: FinetuneEffort, out: Path, progress: Progress, keep: bool = False
) -> Finding:
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
            "E0113", "--warm-ups", "is about --schedule cosine, the one that finetune.toml asks for", way
        )
    check_out(out, ".toml", "the file that --config will read")
    for path in _files(out):
        check_out(path, path.suffix, "another file")
    if "x" not in names_in(options.data):
        _check_inputs(imported(options))
    arrays, notes = read_own_data(options.data, options.seed)
    with ExitStack() as kept:
        folder = kept.enter_context(work_folder())
        variants = list(_variants(options, effort, arrays, folder, progress))
        projects = [variant.project for variant in variants]
        data = own_data(options.data.name, arrays, projects[0].model, projects[0].summary.train)
        _check_batches(options.data.name, variants, data)
        if effort.order == "sorted" and (data.own.y[:1].size != 1 or not class_count(projects[0].summary.train)):
            what = "sorts by class, and a sample has no single class here"
            raise CompileError("E0113", "--order sorted", what, "use --order as-recorded")
        builds = _builds(projects, data, folder)
        known = KnownRuns(out, _digest(projects, data))
        trainings = Trainings(variants, builds, effort, options.seed, known, progress)
        remarks = _data_notes(options.data.name, arrays, projects[0])
        notes = (*notes, *data.notes, *(note.text for note in remarks))
        try:
            finding = replace(_found(trainings, notes, options, data, folder), suspects=_stopping(remarks))
            finding = _with_scheme_named(finding, out)
        except KeyboardInterrupt as problem:
            problem.args = (f"what was tried is in {known.path.name}; call it again to go on",)
            raise
        if not (finding.worth_it and keep):
            known.forget()
    check_learned(finding, options.data.name)
    return finding


def _found(
    trainings: Trainings, notes: tuple[str, ...], options: CompileOptions, data: OwnData, folder: Path
) -> Finding:
    """Search, train what is recommended, and say what the device needs for it."""
    old, asked = 0 if data.old is None else len(data.old.x), trainings.effort.replay
    trainings.finals = 1 + len(reservoir_sizes(asked, old, None))
    found = RateSearch(trainings).run()
    project = trainings.variants[found.place[0]].project
    room = room_for(options, project.summary)
    learned = final_trainings(
        trainings, found.place, max(1, found.chosen.best_epoch), reservoir_sizes(asked, old, room.most)
    )
    notes = (*notes, *_edge_note(found), *room.notes(min(asked, old // 2)), *_stream_note(trainings, found.place))
    copies = _lost_by_copies(trainings, found.place, learned[0].epochs, data, folder)
    made, rate, kept = len(trainings.made), found.place[1], kept_of(learned)
    lost = next(one.golden for one in learned if one.replay == kept)
    notes = (*notes, *([guard_note(lost, options.guard_drop)] if lost else ()))
    finding = Finding(found.rounds, found.chosen, rate, learned, kept, made, notes=notes, copies=copies)
    return _with_facts(finding, project, data, room)


def _with_scheme_named(finding: Finding, out: Path) -> Finding:
    """Name what is trained by the scheme file beside `out`, if there will be one."""
    return replace(finding, update=f"{AUTO}{_files(out)[1].name}") if finding.scheme else finding


def _edge_note(found: Searched) -> tuple[str, ...]:
    if not found.open_end:
        return ()
    which, way = ("largest", "larger") if found.open_end > 0 else ("smallest", "smaller")
    return (f"the best rate is the {which} that full trainings tried: --lr {found.place[1]:.4g} tries {way} ones",)


def _stream_note(trainings: Trainings, place: Place) -> tuple[str, ...]:
    """Return a note on what the order of a stream costs, and what samples that the device keeps win back."""
    order = trainings.effort.order
    if order == "off":
        return ()
    how: tuple[tuple[StreamOrder, int], ...] = (("shuffled", 0), (order, 0), (order, KEPT))
    shuffled, plain, kept = (score_text(trainings.streamed(place, *each)[-1]) for each in how)
    named = "sorted by class" if order == "sorted" else "as recorded"
    what = f"one pass at a constant rate: {shuffled} if shuffled; {plain} {named}"
    way = f"{KEPT_AFTER_EACH} of {KEPT} kept samples after each new one (--runtime replay={KEPT})"
    return (f"{what}; {kept} {named} with {way}",)


def _lost_by_copies(trainings: Trainings, place: Place, epochs: int, data: OwnData, folder: Path) -> tuple[float, ...]:
    """Return what copies of --activations lose in the recommended training (`Finding.copies`)."""
    variant = trainings.variants[place[0]]
    if variant.options.activations == "exact" or not variant.project.summary.train.low_rank:
        return ()
    exact = make_project(_exact(variant))
    assert not isinstance(exact, Result)
    trainings.builds.append(_build(exact, data, folder / "exact"))
    return trainings.losses(place, epochs, len(trainings.builds) - 1)


def _exact(variant: Variant) -> CompileOptions:
    """Return the same training with exact inputs, without limits of the device: copies may be there to keep to them."""
    options, summary = variant.options, variant.project.summary
    on = summary.fact(BoardUse)
    return replace(
        options,
        activations="exact",
        micro_batch=summary.train.micro_batch if options.micro_batch == "auto" else options.micro_batch,
        target=options.target if on is None else on.core,
        arena_bytes=None,
        reserve_bytes=None,
        memories={},
        flash_budget_bytes=None,
    )


def _check_inputs(model: ImportedModel) -> None:
    """Raise E0113 for a model of several data inputs."""
    if model.more:
        names = ", ".join(one.name for one in model.data)
        what = f"finetune trains models of one data input, and this one has {len(model.data)}: {names}"
        raise CompileError("E0113", "finetune", what, "train with compile and its twin (docs/twin.md)")


def _stopping(remarks: Iterable[DataNote]) -> tuple[str, ...]:
    return tuple(note.text for note in remarks if note.stops)


def _data_notes(where: str, arrays: Mapping[str, Array], project: Project) -> tuple[DataNote, ...]:
    """Return the remarks of compile on the samples that are trained on."""
    x = graph_inputs(where, arrays["x"], project.model)
    return notes_of(where, x, arrays.get("y"), project.model, project.summary.train)


def write_finding(finding: Finding, options: CompileOptions, given: Mapping[str, Any], out: Path) -> tuple[Path, ...]:
    """Write the options that were given and what is recommended, as --config reads it; a page.

    The scheme that --update auto has chosen. E0104 if that cannot be written.
    """
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
    """Return the page and the scheme beside a result."""
    return out.with_suffix(".html"), out.with_suffix(".update.toml")


def _variants(
    options: CompileOptions, effort: FinetuneEffort, arrays: Mapping[str, Array], folder: Path, progress: Progress
) -> Iterable[Variant]:
    """Yield a compilation for each. What chooses a scheme by samples sees only those that training may see."""
    data = None
    if "y" in arrays:
        data = folder / str(options.data and options.data.name)  # as messages name it
        with data.open("wb") as stream:  # numpy would add .npz to a name without it
            known: dict[str, Any] = {name: arrays[name] for name in ("x", "y", "domain") if name in arrays}
            np.savez(stream, **known)
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
        told = partial(_told, progress, f", batch {batch}, clip {clip:g}", index / (len(batches) * len(ways)))
        made = make_project(more, told, choose_and_look_above)
        assert not isinstance(made, Result)
        if any(effort.averages):
            refuse_shifted(made.summary.train, "--averages")
        trains_itself = made.model.training is not None
        for warm_up, average in product(effort.warm_ups, effort.averages):
            yield Variant(batch, clip, per_layer, warm_up, average, made, more)


def _check_batches(where: str, variants: Sequence[Variant], data: OwnData) -> None:
    """Raise E0105 for a batch that the samples of a run do not fill."""
    count, most = int(len(data.own.x) * (1 - CHECK_SHARE)), max(variant.batch for variant in variants)
    if most > count:
        what = f"a batch of {most} is more than the {count} samples that a run trains on"
        raise CompileError("E0105", where, what, "give more samples, or smaller batches")


def _told(progress: Progress, which: str, share: float, what: str, _share: float) -> None:
    progress(what + which, 0.1 * share)


def _builds(projects: Sequence[Project], data: OwnData, folder: Path) -> list[Build]:
    """Build each one; those of the same project share a build."""
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
    code, train = library.read_bytes(), project.summary.train
    golden = next((part.golden for part in project.summary.parts if isinstance(part, Guard)), None)
    return Build(library, code, face, project.model, train, own, test, old, data.copies, data.faults, golden)


def _digest(projects: Sequence[Project], data: OwnData) -> str:
    """Return the digest of all that decides what a run finds."""
    hashed = hashlib.sha256()
    for project in projects:
        hashed.update(repr(sorted(project.bundle.files.items())).encode())
    parts: tuple[Samples | None, ...] = (data.own, data.test, data.old)
    for part in parts:
        for array in () if part is None else (part.x, part.y):
            hashed.update(array.tobytes())
    hashed.update(b"" if data.faults is None else data.faults.tobytes())
    return hashed.hexdigest()


def _with_facts(finding: Finding, project: Project, data: OwnData, room: Room) -> Finding:
    """Add what the device needs for it, by the target's figures, and what is trained."""
    summary = project.summary
    train, choice = summary.train, summary.choice
    chosen = None if choice is None else choice.update
    return replace(
        finding,
        samples=len(data.own.x),
        tests=len(data.test.x),
        held=len(held_back(data.own, train, 0)[1]),
        target=summary.target,
        step=None if choice is None else choice.cost,
        calls=train.batch // train.micro_batch,
        update=summary.update_label,
        scheme="" if chosen is None else chosen.scheme,
        next_arena=None if chosen is None else chosen.next_arena,
        record_bytes=room.record_bytes,
        most_kept=room.most,
    )
