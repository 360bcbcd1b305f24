"""What looks like a mistake in the user's data or options: never an error, but a note with a word on what to do.

Every rule is one that sound data hardly meets: better no note than one too many. `compile`, `finetune` and
`contribution` all take their notes from here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tinytrain_compile.data.samples import (
    class_count,
    ignored_labels,
    is_binary,
    label_shape,
    load_inputs,
    raw_labels,
    rows_of,
)
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.records import parts
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.ir.summary import VerifyReport
from tinytrain_compile.ir.types import Array, Graph, Value
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.base import has_trait
from tinytrain_compile.ops.interpreter import run_nodes
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer

ENOUGH = 8
"""Samples from which on labels that are all the same are a remark worth."""
COMPARED = 256
"""Samples whose numbers are looked at."""
SUMMED = 16
"""Samples whose sums in the first layer are computed."""
OUTSIDE_SHARE = 0.2
"""Share of inputs outside the range of the model's input from which on they are scaled in another way."""
LARGE_SUM, LARGE_SUM_OF_BYTES = 100.0, 20.0
"""Sums of the first layer, in the root mean square, that a network does not have on inputs that are scaled as in its
training: sigmoids are flat there, and a step at a usual rate overshoots. Of 217 networks of other frameworks the first
layers make 0.1 to 4.7 of their own samples, and 23 in a sine network (SIREN). Raw counts of 12 bits make 1,000."""
FEW_CHANGES, MOST_CHANGES = 0.25, 12
"""Samples are in order of class if their labels change less often than this share of what a random order would have,
and a random order would have at least so many changes."""
LARGEST_SHARE, RARE_SHARE = 0.9, 0.1
"""Share of all samples from which on one class outweighs all others; share of an equal part below which one is rare."""


@dataclass(frozen=True)
class DataNote:
    """text: for the user; stops: whether it may be why nothing is learned."""

    text: str
    stops: bool = True


def data_notes(model: ImportedModel, train: TrainGraph, options: CompileOptions) -> tuple[str, ...]:
    """Return notes on --data and --calib, which have been read without an error before."""
    paths = dict.fromkeys(path for path in (options.data, options.calib) if path is not None)
    notes = [note.text for path in paths for note in _of_file(path, model, train)]
    if options.data is not None:
        count = len(load_inputs(options.data, model))
        if options.batch > count:
            what = f"--batch {options.batch}: {options.data.name} has {count} samples, so an update repeats some"
            notes.append(f"{what}; give more samples, or --batch {count} at most")
    return tuple(notes)


def notes_of(name: str, x: Array, y: Array | None, model: ImportedModel, train: TrainGraph) -> tuple[DataNote, ...]:
    """Return notes on samples that a model takes.

    name: of their file; x: in the graph's layout; y: as it is in the file.
    """
    found = list(_of_inputs(name, x, model))
    if y is not None and y.dtype.kind in "fiub" and y.size:
        found += _of_labels(name, y, label_shape(len(x), model, train), train)
    return tuple(found)


def _of_file(path: Path, model: ImportedModel, train: TrainGraph) -> tuple[DataNote, ...]:
    return notes_of(path.name, load_inputs(path, model), raw_labels(path, model), model, train)


# ---- inputs ---------------------------------------------------------------------------------------------------------


def _of_inputs(name: str, x: Array, model: ImportedModel) -> Iterator[DataNote]:
    for one, part, source in zip(model.data, parts(x), model.graph.inputs, strict=True):
        yield from _of_input(one.name if model.more else "x", name, part, model, source)


def _of_input(what: str, name: str, x: Array, model: ImportedModel, source: Value) -> Iterator[DataNote]:
    if x.min() == x.max():
        yield DataNote(f"{what} of {name} is {x.min():g} everywhere: is it the right array?")
        return
    if len(x) > 1 and (x == x[0]).all():
        yield DataNote(f"all {len(x)} samples {what} of {name} are the same: are they the right ones?")
    scale = _scale(x, model, source)
    if scale:
        yield DataNote(f"{what} of {name}{scale} as in training")


def _scale(x: Array, model: ImportedModel, source: Value) -> str:
    """Tell what is wrong with the scale of inputs, and what to do; "" if nothing is."""
    x = x[:COMPARED].astype(np.float64)
    pixels = x.min() >= 0 and 20 < x.max() <= 255 and (x == np.rint(x)).all()
    known = _input_range(model.graph, source)
    misfit = "" if known is None else _misfit(x, *known)
    if known is not None and misfit:
        whose = "of the model's input" if model.quantised else "that --calib shows"
        what = f": {misfit} the range {whose}, {known[0]:g} to {known[1]:g}"
        scale = "scale it" if model.quantised else "scale both files"
        return f"{what}: {'divide pixels' if pixels else scale}"
    sums = 0.0 if model.quantised else _first_sums(x[:SUMMED], model.graph, source)
    if pixels and sums > LARGE_SUM_OF_BYTES:
        return " looks like pixels from 0 to 255, the model like one for numbers of about 1: divide them"
    if sums > LARGE_SUM:
        what = f" is out of scale: it goes from {x.min():.4g} to {x.max():.4g}, and the first layer"
        return f"{what} makes sums of about {sums:.2g} of it, where 1 is usual: scale it"
    return ""


def _misfit(x: Array, low: float, high: float) -> str:
    """Tell what is wrong with inputs for a format that holds numbers from low to high; "" if nothing is."""
    step = (high - low) / 255
    outside = float(((x < low - step) | (x > high + step)).mean())
    if outside > OUTSIDE_SHARE:
        return f"{outside:.0%} is outside"
    return "it has less than a twentieth of" if x.max() - x.min() < (high - low) / 20 else ""


def _input_range(graph: Graph, source: Value) -> tuple[float, float] | None:
    """Return what the format of the input holds; None if it has none."""
    if source.quant is not None:
        q = source.quant
        return (q.low - q.zero) * q.scale[0], (q.high - q.zero) * q.scale[0]
    readers = graph.consumers().get(source.name, [])
    attrs = readers[0].attrs if len(readers) == 1 else None
    if isinstance(attrs, ClipAttrs) and math.isfinite(attrs.high - attrs.low):
        return attrs.low, attrs.high
    return None


def _first_sums(x: Array, graph: Graph, source: Value) -> float:
    """Return the root mean square of the sums that the first layers with weights make of samples; 0 without any.

    What comes before these layers (a normalisation, a division) is computed, so that inputs that the network scales
    itself are not out of scale.
    """
    if rows_of(graph, source):
        return 0.0
    made, first, needed = {source.name}, list[str](), list[str]()
    behind = {value.name for value in graph.inputs if value != source}
    for node in graph.nodes:
        names = {value.name for value in node.inputs}
        outputs = {value.name for value in node.outputs}
        if names & behind:
            behind |= outputs
        elif names & made and has_trait(node.op, "matrix"):
            first.append(node.outputs[0].name)
            behind |= outputs
        elif names & made:
            made |= outputs
    wanted = [value for node in graph.nodes for value in node.outputs if value.name in first]
    needed = graph.ancestors(tuple(wanted))
    nodes, shape = [node for node in graph.nodes if node.name in needed], source.shape
    squares = [0.0]
    for one in x.astype(np.float32):
        with np.errstate(all="ignore"):
            values = run_nodes(nodes, {**graph.constants, source.name: one.reshape(shape)})
        squares += [float(np.square(values[name].astype(np.float64)).mean()) for name in first]
    return math.sqrt(sum(squares) / max(1, len(squares) - 1))


# ---- labels ---------------------------------------------------------------------------------------------------------


def _of_labels(name: str, y: Array, wanted: tuple[int, ...], train: TrainGraph) -> Iterator[DataNote]:
    classes = class_count(train)
    if y.size != math.prod(wanted):
        return
    if y.shape != wanted:
        yield DataNote(f"y of {name} has shape {y.shape}, and is taken as {wanted}", stops=False)
    found = np.unique(y)
    kind = "class" if classes else "label"
    if len(found) == 1 and len(y) >= ENOUGH:
        yield DataNote(f"all {len(y)} samples of {name} have {kind} {found[0]:g}: nothing can be told apart")
    if classes and found[0] == 1 and len(found) == classes - 1 and classes > 2 and y.size >= 10 * classes:
        yield DataNote(f"no sample of {name} has class 0, all others are there: class indices begin at 0")
    if y.size == len(y) and (classes or (is_binary(train) and len(found) == 2)):
        labels = y.ravel()
        yield from _of_classes(name, labels[~np.isin(labels, ignored_labels(train))])


def _of_classes(name: str, y: Array) -> Iterator[DataNote]:
    """Yield notes on one label for each sample: their order and how many of each there are."""
    found, counts = np.unique(y, return_counts=True)
    if len(found) < 2:
        return
    shares = counts / len(y)
    expected, changes = (len(y) - 1) * (1 - np.square(shares).sum()), int((y[1:] != y[:-1]).sum())
    if expected >= MOST_CHANGES and changes <= FEW_CHANGES * expected:
        what = f"samples of {name} are in order of class ({changes} changes among {len(y)} labels)"
        yield DataNote(
            f"{what}: a device that trains in this order forgets the first classes; shuffle them", stops=False
        )
    most, least = int(counts.argmax()), int(counts.argmin())
    if len(y) >= ENOUGH * len(found) and shares[most] >= LARGEST_SHARE:
        what = f"{shares[most]:.0%} of the samples of {name} have class {found[most]:g}"
        yield DataNote(f"{what}: whoever always says that is right as often; give more of the others", stops=True)
    elif len(y) >= ENOUGH * len(found) and shares[least] < RARE_SHARE / len(found):
        what = f"class {found[least]:g} of {name} has {counts[least]} of {len(y)} samples"
        yield DataNote(f"{what}: it will hardly be learned; give more of it", stops=False)


SUSPICIOUS, EXPLODED, BEYOND_GUESSING = 3.0, 10.0, 3.0
"""A later loss above so many times the first is looked at. It has exploded above so many times what the same samples
have without training, and so many times what a guess without any model has: an unlucky sample does neither."""


def exploding_note(
    train: TrainGraph, samples: Samples, report: VerifyReport, options: CompileOptions, loss: str
) -> tuple[str, ...]:
    """Return a note on a loss that is far too high: what was measured, and what to do. loss: its name.

    None for random samples, whose losses say nothing.
    """
    losses = report.losses
    if options.data is None or len(losses) < 2 or max(losses[1:]) <= SUSPICIOUS * losses[0]:
        return ()
    calm, guess = untrained_losses(train, samples, len(losses)), _guessing(train, samples)
    worst = max(range(1, len(losses)), key=lambda step: losses[step] / max(calm[step], guess / EXPLODED))
    if losses[worst] <= max(EXPLODED * calm[worst], BEYOND_GUESSING * guess):
        return ()
    rate, first = options.learning_rate, worst * train.batch % len(samples.x) + 1
    clip = "" if options.clip_norm is not None or options.quant == "int8" else ", add --clip-norm 1"
    which = f"sample {first}" if train.batch == 1 else f"the {train.batch} samples from number {first} on"
    updates = "an update" if worst == 1 else f"{worst} updates"
    return (
        f"{loss} of {which} in {options.data.name} is {losses[worst]:.3g} after {updates} at --lr {rate:g}, and "
        f"{calm[worst]:.3g} with the weights of the file. Such a rise often means a rate that is too large: try "
        f"--lr {rate / 10:g}{clip}, or let tinytrain-compile finetune search a rate",
    )


def untrained_losses(train: TrainGraph, samples: Samples, steps: int) -> list[float]:
    """Return the loss of every step's samples by the weights of the file: steps at rate 0."""
    trainer, count, found = Trainer(train), len(samples.x), list[float]()
    trainer.set_rate(0.0)
    for step in range(steps):
        chosen = [(step * train.batch + i) % count for i in range(train.batch)]
        found.append(float(np.mean(trainer.step(samples.x[chosen], samples.y[chosen]))))
    return found


def _guessing(train: TrainGraph, samples: Samples) -> float:
    """Estimate the loss of a guess: all classes alike, or 0 for every value."""
    if samples.y.dtype.kind in "iu":
        return math.log(max(train.logits.shape[-1], 2))
    return max(float(np.mean(np.square(samples.y, dtype=np.float64))), math.log(2) / 10)
