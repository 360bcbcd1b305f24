"""What `finetune` found, for people and programs: lines for the terminal, and a TOML file."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from tinytrain_compile.ir.learning import ENOUGH, LOSS_POINT, POINT, Finding, Learned, Score, Tried
from tinytrain_compile.report.layout import WIDTH, block, grouped, plural, printable, sentence, table

BARS = "▁▂▃▄▅▆▇█"
MOST_BARS = 60
"""Epochs that a line of the terminal shows."""
_GUARD_ROUNDING = 1e-5
"""Share of golden samples below one of the most that a guard has, for rounding."""


Text = tuple[str, str]
"""A key and running text: a row of the terminal."""


def finding_lines(finding: Finding, width: int = WIDTH) -> list[str]:
    """Tell what was tried, what it gives, what it costs and what is recommended."""
    before = [*(("note", printable(note)) for note in finding.notes), ("update", printable(finding.update))]
    after = [_flatness(finding), *(text for one in finding.learned for text in _learned(finding, one))]
    after += _copies(finding)
    after += [*_costs(finding), *_advice(finding)]
    return [*_lines(before, width), *_rounds(finding, width), *_lines(after, width)]


def _lines(texts: Sequence[Text], width: int) -> list[str]:
    return block(sentence(key, text, width) for key, text in texts)


def guard_note(lost: Sequence[float], drop: float) -> str:
    """Return how often a guard would refuse the recommended training, and a limit that refuses none of it.

    lost: share of golden samples lost at each end of an epoch. drop: --guard-drop.
    """
    refused = sum(not one <= drop + _GUARD_ROUNDING for one in lost)
    said = f"a guard with --guard-drop {100 * drop:g}% refuses {refused} of {len(lost)} ends of epochs"
    if not refused:
        return said
    worst = max(one if math.isfinite(one) else math.inf for one in lost)
    most = math.ceil(100 * worst - 100 * _GUARD_ROUNDING) if worst < math.inf else 100
    if most >= 100:
        return f"{said}: the golden samples are unlike the samples to train on"
    return f"{said}; --guard-drop {most}% refuses none"


def score_text(score: Score) -> str:
    """Write the accuracy, if there is one, or the area under the curve, and the loss."""
    right = [] if score.accuracy is None else [f"accuracy {score.accuracy:.1%}"]
    area = [] if score.auc is None else [f"AUC {score.auc:.3f}"]
    return ", ".join((*right, *area, f"loss {score.loss:.4g}"))


def _rounds(finding: Finding, width: int) -> list[str]:
    """Return a table: what each rate gave on samples that were held back, after the best of its epochs."""
    all_tried = [(number, one) for number, tried in enumerate(finding.rounds, 1) for one in tried]
    judged = [name for name in ("accuracy", "auc") if all(getattr(one.best, name) is not None for _, one in all_tried)]
    rows = [("round", "batch", "clip", "rate", "seeds", "epoch", *(_HEADS[name] for name in judged), "loss", "")]
    for number, one in all_tried:
        epoch = f"{one.best_epoch} of {len(one.curve) - 1}"
        start = (str(number), str(one.batch), f"{one.clip:g}" if one.clip else "-", f"{one.rate:.3g}", str(one.seeds))
        scores = (_FORMATS[name].format(getattr(one.best, name)) for name in judged)
        rows.append((*start, epoch, *scores, f"{one.best.loss:.4g}", _remark(finding, one)))
    held = f"{grouped(finding.held)} of your {plural(finding.samples, 'sample')}, held back"
    said = f"rates, judged on {held}, after the best epoch of each"
    return [*_lines([("tried", said)], width), *table(rows, width, "  ")]


_HEADS = {"accuracy": "accuracy", "auc": "AUC"}
_FORMATS = {"accuracy": "{:.1%}", "auc": "{:.3f}"}
"""Heading and format of a score, by its name."""


def _remark(finding: Finding, one: Tried) -> str:
    """Return what the columns of the table have no room for."""
    ways = ["clipped per layer"] if one.per_layer else []
    ways += [f"warm-up {one.warm_up:.3g}"] if one.warm_up else []
    ways += [f"mean of {one.average}"] if one.average else []
    ways += [f"{plural(one.failed, 'run')} ended in NaN or infinity"] if one.failed else []
    return ", ".join([*(["<- taken"] if one is finding.chosen else []), *ways])


def _copies(finding: Finding) -> list[Text]:
    """Tell what low-rank copies lose, with its standard error."""
    lost, count = finding.copies, len(finding.copies)
    if not lost:
        return []
    values = finding.learned[0].curve[-1].accuracy is None
    what = "loss larger by {} %" if values else "{} points of accuracy less"
    if not all(map(math.isfinite, lost)):
        return [("copies", "against exact inputs: some trainings ended in NaN or infinity")]
    mean = sum(lost) / count
    error = (sum((one - mean) ** 2 for one in lost) / (count - 1) / count) ** 0.5
    text = what.format(f"{100 * mean:.1f} +- {100 * error:.1f}")
    return [("copies", f"{text} than with exact inputs (test samples; standard error over {count} seeds)")]


def _flatness(finding: Finding) -> Text:
    """Tell which rates are as good as the chosen one, and whether others were tried beyond them."""
    rates, tried = [one.rate for one in finding.flat], [one.rate for one in finding.alike]
    right = finding.chosen.best.accuracy
    limit, judged = (f"{LOSS_POINT:.0%}", "loss") if right is None else (f"{100 * POINT:g} point", "accuracy")
    if right is not None:
        count = max(1, finding.held * finding.chosen.seeds)
        judged += f", standard error {100 * (right * (1 - right) / count) ** 0.5:.1f} points"
    beyond = [name for name, end in (("smaller", min), ("larger", max)) if end(rates) == end(tried)]
    more = f"; none {' or '.join(beyond)} had as long a training" if beyond else ""
    which = f"rates {rates[0]:.3g} to {rates[-1]:.3g} lose" if len(rates) > 1 else f"only {rates[0]:.3g} loses"
    return "flat", f"{which} at most {limit} against the one taken ({judged}){more}"


def _learned(finding: Finding, one: Learned) -> list[Text]:
    """Compare before and after, on test samples and on old ones."""
    first, last, how = one.curve[0], one.curve[-1], f", with {one.replay} old samples replayed" if one.replay else ""
    tests = plural(finding.tests, "test sample")
    said = f"{score_text(first)} -> {score_text(last)} ({_spread(finding, one)})"
    lines = [("learned", f"{tests}{how}: {said}"), ("", f"{bars(one.curve)}  epoch 0 to {one.epochs}")]
    if last.threshold is not None and first.threshold is not None:
        lines += [("", text) for text in (_threshold("before", first), _threshold("after", last))]
    if one.old:
        price = f" ({_kept(finding, one.replay)})" if one.replay else ""
        before = f"what was known before{how}{price}"
        lines.append(("old", f"{before}: {score_text(one.old[0])} -> {score_text(one.old[-1])}"))
    return lines


def _spread(finding: Finding, one: Learned) -> str:
    """Tell how much seeds differ; a single one tells nothing of that."""
    seeds = finding.chosen.seeds
    if seeds == 1:
        return "1 seed"
    spread = f"{one.spread:.3g}" if one.curve[-1].accuracy is None else f"{one.spread:.1%}"
    return f"+-{spread} between {plural(seeds, 'seed')}"


def _kept(finding: Finding, samples: int) -> str:
    """Tell what a reservoir takes of the RAM."""
    return f"{grouped(samples * finding.record_bytes)} B of RAM beside the arena"


def _threshold(when: str, score: Score) -> str:
    alarms = "" if score.false_alarms is None else f", {score.false_alarms:.1%} false alarms"
    detected = "" if score.detected is None else f", {score.detected:.1%} of faults found"
    which = "99 % of the errors of own samples kept from training"
    return f"threshold {when}, {which}: {score.threshold:.4g}{alarms}{detected}"


def _costs(finding: Finding) -> list[Text]:
    """Tell time and energy on the device, by its figures."""
    taken = finding.taken
    updates = taken.epochs * taken.steps
    most = taken.epochs_to_most
    found = finding.device(updates)
    cost = "" if found is None else f": {found[0]:.3g} s, {found[1]:.3g} J by the figures of {finding.target}"
    passes = plural(taken.epochs, "epoch")
    return [
        ("device", f"{passes} of {plural(taken.steps, 'update')}, {grouped(updates)} in all{cost} (a model)"),
        ("enough", f"{ENOUGH:.0%} of the gain after {plural(most, 'epoch')}: {grouped(most * taken.steps)} updates"),
    ]


def _advice(finding: Finding) -> list[Text]:
    if not finding.worth_it:
        return [("recommend", "nothing: no rate made anything better on samples that were held back")]
    kept = f"; keep {finding.replay} old samples ({_kept(finding, finding.replay)})" if finding.replay else ""
    kept += ", replay one after each new one" if finding.replay else ""
    clip = f" --clip-norm {finding.chosen.clip:g}" if finding.chosen.clip else ""
    clip += " --clip-per layer" if finding.chosen.per_layer else ""
    options = f"--lr {finding.rate:.4g}{clip} --batch {finding.chosen.batch} --epochs {finding.taken.epochs}"
    options += f" --warm-up {finding.warm_up}" if finding.warm_up else ""
    falling = ("", "falling to 0 along a cosine over all updates (--runtime schedule, docs/training-loop.md)")
    mean = ("", f"keeping a mean of the ends of epochs (--runtime average={finding.chosen.average})")
    more = [*([falling] if finding.chosen.settles else []), *([mean] if finding.chosen.average else [])]
    return [("recommend", f"{options}{kept}"), *more, *_next_arena(finding)]


def _next_arena(finding: Finding) -> list[Text]:
    """Name the next larger arena that is worth having."""
    found = finding.next_arena
    if found is None:
        return []
    needed = f"--arena {found.arena_bytes} ({grouped(found.more_bytes)} B more) holds --update {found.update}"
    return [("next step", f"{needed}: gain {found.gain:.1f} by its table of gains, {found.gain_now:.1f} now")]


def bars(curve: Sequence[Score]) -> str:
    """Draw a curve in one line: the higher the bar the better; long ones lose epochs in between."""
    values = [-one.loss if one.accuracy is None else one.accuracy for one in curve]
    values = (
        [values[index * (len(values) - 1) // max(1, MOST_BARS - 1)] for index in range(MOST_BARS)]
        if (len(values) > MOST_BARS)
        else values
    )
    known = [value for value in values if math.isfinite(value)] or [0.0]
    low, high = min(known), max(known)
    values = [value if math.isfinite(value) else low for value in values]
    reach = high - low or 1.0
    return "".join(BARS[min(len(BARS) - 1, int((value - low) / reach * len(BARS)))] for value in values)


def finding_toml(finding: Finding, options: Mapping[str, Any]) -> str:
    """Write what --config reads: options that were given (long name -> value), and what is recommended."""
    found = {**options, "lr": float(f"{finding.rate:.4g}"), "batch": finding.chosen.batch}
    found |= {"clip-norm": str(finding.chosen.clip)} if finding.chosen.clip else {}
    found |= {"clip-per": "layer"} if finding.chosen.per_layer else {}
    found["epochs"] = finding.taken.epochs
    found |= {"warm-up": finding.warm_up} if finding.warm_up else {}
    parts = [
        *(["schedule"] if finding.chosen.settles else []),
        *([f"replay={finding.replay}"] if finding.replay else []),
        *([f"average={finding.chosen.average}"] if finding.chosen.average else []),
    ]
    found |= _with_parts(options, parts)
    return _toml(found, finding)


def _with_parts(options: Mapping[str, Any], parts: Sequence[str]) -> dict[str, str]:
    """Return --runtime with these parts behind those that were given."""
    asked = [part.strip() for part in str(options.get("runtime", "")).split(",") if part.strip()]
    known = {part.partition("=")[0] for part in asked}
    together = [*asked, *(part for part in parts if part.partition("=")[0] not in known)]
    return {"runtime": ",".join(together)} if together else {}


def _toml(found: Mapping[str, Any], finding: Finding) -> str:
    lines = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in found.items()]
    texts = (*_learned(finding, finding.taken)[:1], *_costs(finding), *_advice(finding))
    said = [f"# {key:<10} {text}" for key, text in texts]
    return "\n".join(("# tinytrain-compile finetune", *said, "", *lines, ""))
