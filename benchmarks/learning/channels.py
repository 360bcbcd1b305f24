"""Compare rankings of output channels by the target's data with the leading channels, at equal bytes (20 minutes).

The network of 7 convolutions and two tasks of `choice`: turned images, low contrast with noise. Trained are a share of
the output channels of each point-wise convolution, all biases, and the head. Only which channels differs. Rankings look
at 64 of the device's own samples:

    errors       sum of squared errors, over pixels and samples
    Fisher       sum over samples of the squared sum of output times error (TinyTrain)
    magnitude    sum of absolute values of the mean gradient of the weight
    norm         norm of the weight's gradient, mean over batches of 8
    moved        distance that a channel's weight moves if everything is trained for all passes: no device knows it

"random" is the mean of 8 random lists, "best of 8" the one of them that does best on 150 samples, which judge nothing.
Rates are chosen for each ranking on development seeds. Accuracy is that of other seeds and samples.

usage: python -m benchmarks channels [--seeds N] [--orders N] [--shares 4,2] [--jobs N] [--keep FILE]
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.choice import BATCH, CLIP, DEVELOPMENT, PASSES, Task, interval, make_task
from benchmarks.learning.convergence import make_model
from benchmarks.learning.digit_domains import Split
from benchmarks.learning.pretrain import LAYERS, convolution_gradients, convolve
from benchmarks.record import Record
from tinytrain_compile.ir.stages import ChannelSlice
from tinytrain_compile.ir.types import Array
from tinytrain_compile.learn.short_runs import Desk, Run, Updates, begun, make_desk, train_for_a_while
from tinytrain_compile.options.compile_options import CompileOptions

TASKS, RATES = ("turned", "contrast"), (0.1, 0.3, 1.0)
POINTWISE = (2, 4, 6)
SAMPLES, LISTS = 64, 8
RANKINGS = ("errors", "Fisher", "magnitude", "norm", "moved")
RULES = ("leading", *RANKINGS, "random", "best of 8")
Lists = Mapping[int, tuple[int, ...]]
"""Trained channels by convolution."""


@dataclass(frozen=True, eq=False)
class Bench:
    """One build that trains everything, and its library."""

    desk: Desk
    library: Path

    def desk_of(self, task: Task) -> Desk:
        """With a task's numbers; judged by both of its parts, first those that choose."""
        start = dict[str, Array]()
        for name in self.desk.weights:
            array = np.asarray(task.start[name])
            start[name] = array.transpose(0, 2, 3, 1) if array.ndim == 4 else array
        x, y = (np.concatenate([getattr(part, key) for part in (task.check, task.test)]) for key in ("x", "y"))
        held = replace(self.desk.held, x=_rows(x), y=y)
        return replace(self.desk, x=_rows(task.own.x), y=task.own.y, held=held, start=start, clip=CLIP)

    def accuracies(self, task: Task, lists: Lists, rate: float, order: int) -> tuple[float, float]:
        """In per cent, on samples that choose and on samples that judge."""
        desk = self.desk_of(task)
        outputs = train_for_a_while(self.library, desk.job(Run(updates_of(desk, lists), rate, order)))
        if outputs is None:
            return 10.0, 10.0
        right = outputs.reshape(len(desk.held.y), -1).argmax(1) == desk.held.y[:, 0]
        count = len(task.check.y)
        return 100 * float(right[:count].mean()), 100 * float(right[count:].mean())

    def moved(self, task: Task, rate: float) -> list[Array]:
        """Return how far each output channel of each convolution moves if all is trained."""
        desk = self.desk_of(task)
        job, instance = (
            desk.job(Run(dict.fromkeys(desk.weights), rate)),
            begun(self.library, desk.bundle.interface, desk.start),
        )
        instance.set_rate(rate)
        for step in range(job.count):
            chosen = job.order[step * job.piece : (step + 1) * job.piece]
            instance.train(job.x[chosen], job.y[chosen])
        first = [desk.start[f"w{i}"] for i in range(len(LAYERS))]
        moves = (instance.tensor(f"w{i}").reshape(array.shape) - array for i, array in enumerate(first))
        return [np.square(move).reshape(len(move), -1).sum(1) for move in moves]


def updates_of(desk: Desk, lists: Lists) -> Updates:
    """Biases, the head, and these channels."""
    parts = {f"w{layer}": ChannelSlice("out", channels) for layer, channels in lists.items()}
    return {name: parts.get(name) for name in desk.weights if name in parts or name[0] == "b" or name == "wh"}


def rankings(start: Mapping[str, Array], own: Split) -> dict[str, list[Array]]:
    """Scores of each output channel of each convolution."""
    found = {name: [np.zeros(layer[1]) for layer in LAYERS] for name in ("errors", "Fisher", "norm")}
    whole: list[Any] = [0.0] * len(LAYERS)
    for first in range(0, SAMPLES, BATCH):
        part = slice(first, first + BATCH)
        for i, (outputs, errors, weight) in enumerate(_backward(start, _rows(own.x[part]), own.y[part, 0])):
            flat = weight.reshape(-1, weight.shape[-1])
            found["errors"][i] += np.square(errors).sum((0, 1, 2))
            found["Fisher"][i] += np.square((outputs * errors).sum((1, 2))).sum(0)
            found["norm"][i] += np.sqrt(np.square(flat).sum(0))
            whole[i] = whole[i] + flat
    return found | {"magnitude": [np.abs(each).sum(0) for each in whole]}


def _backward(start: Mapping[str, Array], x: Array, labels: Array) -> list[tuple[Array, Array, Array]]:
    """(outputs, errors, gradient of the weight) of each convolution."""
    kept: list[Any] = []
    weights = [start[f"w{i}"].transpose(2, 3, 1, 0) for i in range(len(LAYERS))]
    weights = [w.reshape(-1, *w.shape[2:]) for w in weights]
    for i, layer in enumerate(LAYERS):
        taps, y = convolve(layer, x, weights[i])
        kept.append((x.shape, taps, y + start[f"b{i}"]))
        x = np.maximum(kept[-1][2], 0)
    logits = x.mean((1, 2)) @ start["wh"].T + start["bh"]
    d = np.exp(logits - logits.max(1, keepdims=True))
    d /= d.sum(1, keepdims=True)
    d[np.arange(len(d)), labels] -= 1
    g: Any = np.broadcast_to((d @ start["wh"])[:, None, None] / (x.shape[1] * x.shape[2]), x.shape)
    found = list[tuple[Array, Array, Array]]()
    for i in reversed(range(len(LAYERS))):
        shape, taps, outputs = kept[i]
        errors = g * (outputs > 0)
        weight, g = convolution_gradients(LAYERS[i], shape, taps, weights[i], errors)
        found.append((outputs, errors, weight))
    return found[::-1]


def lists_of(bench: Bench, task: Task, share: int, seed: int) -> dict[str, list[Lists]]:
    """Return the lists of channels by rule: one list each, several of the random rule."""
    counts = {layer: LAYERS[layer][1] // share for layer in POINTWISE}
    rng = np.random.default_rng(90 + seed)
    scores = rankings(task.start, task.own) | {"moved": bench.moved(task, 0.03)}
    found: dict[str, list[Lists]] = {"leading": [{layer: tuple(range(n)) for layer, n in counts.items()}]}
    for name in RANKINGS:
        found[name] = [
            {layer: _sorted(np.argsort(-scores[name][layer], kind="stable")[:n]) for layer, n in counts.items()}
        ]
    for _ in range(LISTS):
        one = {layer: _sorted(rng.permutation(LAYERS[layer][1])[:n]) for layer, n in counts.items()}
        found.setdefault("random", []).append(one)
    return found


def _sorted(channels: Array) -> tuple[int, ...]:
    return tuple(sorted(channels.tolist()))


def _rows(x: Array) -> Array:
    return np.ascontiguousarray(x.transpose(0, 2, 3, 1))


Trial = dict[tuple[int, str, float], list[tuple[float, float]]]
"""Accuracies of the lists of a rule at a share and a rate, means over orders."""


def trial(bench: Bench, name: str, seed: int, cells: list[tuple[int, str, float]], orders: int) -> Trial:
    """Train a task's network of one seed by every rule."""
    task, found = make_task("7", name, seed), Trial()
    shares = {share: lists_of(bench, task, share, seed) for share in {share for share, _, _ in cells}}
    for share, rule, rate in cells:
        each = ([bench.accuracies(task, lists, rate, o) for o in range(orders)] for lists in shares[share][rule])
        found[share, rule, rate] = [tuple(np.mean(one, 0).tolist()) for one in each]
    return found


def bench_in(folder: Path) -> Bench:
    """Return the build that trains all layers, compiled in a folder."""
    task = make_task("7", "turned", 0)
    (folder / "net.onnx").write_bytes(make_model(dict(task.start), 1, LAYERS).SerializeToString())
    np.savez(folder / "own.npz", x=task.own.x, y=task.own.y[:, 0])
    options = CompileOptions(folder / "net.onnx", data=folder / "own.npz", quant="fp32", batch=BATCH)
    desk = make_desk(options, PASSES * len(task.own.x) // BATCH, lambda _what, _share: None)
    return Bench(desk, desk.library(folder / "all"))


def table(name: str, share: int, rates: Mapping[tuple[int, str], float], trials: list[Trial]) -> list[str]:
    """Accuracy of each rule, and its difference to the leading channels by seed with the 95 % interval."""
    lines = [
        f"**{name}, 1 / {share} of the channels**, {len(trials)} seeds",
        "",
        "| channels | rate | accuracy | less leading |",
    ]
    lines.append("|---|---|---|---|")
    judged = dict[str, Array]()
    for rule in RULES:
        of = rates[share, "random" if rule == "best of 8" else rule]
        each = [one[share, "random" if rule == "best of 8" else rule, of] for one in trials]
        taken = [max(lists)[1] if rule == "best of 8" else np.mean([judge for _, judge in lists]) for lists in each]
        judged[rule] = np.asarray(taken)
        less = "" if rule == "leading" else interval(judged[rule] - judged["leading"])
        lines.append(f"| {rule} | {of:g} | {judged[rule].mean():.1f} | {less} |")
    return [*lines, ""]


def main() -> None:
    """Choose rates, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--orders", type=int, default=2)
    parser.add_argument("--shares", default="4,2")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--keep", type=Path, help="a file of what is done: called again, it goes on from there")
    given = parser.parse_args()
    record, shares = Record(given.keep), [int(each) for each in given.shares.split(",")]
    with tempfile.TemporaryDirectory() as folder:
        bench = bench_in(Path(folder))
        for name in TASKS:
            cells = [(share, rule, rate) for share, rule, rate in product(shares, RULES[:-1], RATES)]
            work = {("rates", name, str(seed)): (bench, name, seed, cells, 1) for seed in DEVELOPMENT}
            tried: list[Trial] = record.each(trial, work, given.jobs)
            rates = {
                (share, rule): max(
                    RATES,
                    key=lambda rate: np.mean(
                        [np.mean([check for check, _ in one[share, rule, rate]]) for one in tried]
                    ),
                )
                for share, rule in product(shares, RULES[:-1])
            }
            cells = [(share, rule, rate) for (share, rule), rate in rates.items()]
            work = {
                ("judged", name, str(seed)): (bench, name, seed, cells, given.orders) for seed in range(given.seeds)
            }
            trials: list[Trial] = record.each(trial, work, given.jobs)
            for share in shares:
                print("\n".join(table(name, share, rates, trials)), flush=True)
