"""What choosing by data is worth: accuracy on shifted digits at equal arenas (`make bench-choice`).

The network of examples/digits, float32, plain SGD, batch 1. Tasks: turned images, inverted ones, low contrast with
noise (there the front must learn). For every task, arena and seed each rule says what is trained; it is trained on 400
samples for 8 passes at five rates, in two orders. The rate with the least loss on 150 samples is taken; accuracy is
that on 497 images that nothing else sees. A rule that does not fit an arena is left out there. Short runs train, so one
build is enough (ADR 32).

usage: python -m benchmarks.choice [--seeds N] [--first SEED]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np

from tinytrain_compile.driver.candidates import Candidate, Planner
from tinytrain_compile.driver.choice_by_data import choose_by_data
from tinytrain_compile.driver.external_kernels import Externals
from tinytrain_compile.driver.micro_batch import choose
from tinytrain_compile.driver.options import CompileOptions
from tinytrain_compile.driver.pipeline import imported, stored
from tinytrain_compile.driver.short_runs import Desk, Run, make_desk
from tinytrain_compile.driver.update_search import deepest
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import ChannelSlice, Samples
from tinytrain_compile.ir.types import Array
from tinytrain_compile.target import load_target
from tinytrain_compile.verify import work_folder

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "examples" / "digits"))
make_data: Any = import_module("make_data")

MODEL = ROOT / "examples" / "digits" / "digits.onnx"
ARENAS = (12 * 1024, 16 * 1024, 20 * 1024)
TRAIN, PASSES, RATES, ORDERS = 400, 8, (0.001, 0.003, 0.01, 0.03, 0.1), 2
RULES = ("head", "bias", "last:N", "auto", "auto, data")
Updates = Mapping[str, ChannelSlice | None]


def task(name: str, images: Array, seed: int) -> Array:
    """Images as a device with this shift sees them: (samples, 1, 8, 8)."""
    random = np.random.default_rng(seed)
    if name == "turned":
        seen = make_data.seen_by_device(images, seed)
    elif name == "inverted":
        seen = 1 - images
    else:
        seen = 0.3 + 0.35 * images + random.normal(0, 0.1, images.shape)
    return np.clip(seen, 0, 1).astype(np.float32)[:, None]


TASKS = ("turned", "inverted", "contrast")


def plans(options: CompileOptions, arena: int) -> Iterator[tuple[str, Candidate]]:
    """What each rule trains in an arena, where it fits."""
    model = stored(imported(options), options)
    for rule in RULES:
        update = {"last:N": "auto", "auto, data": "auto"}.get(rule, rule)
        asked = replace(options, arena_bytes=arena, update=update, verify="none")
        planner = Planner(model, asked, load_target("cortex-m7"), Externals())
        try:
            if rule == "last:N":
                found = deepest(planner, planner.layer_count)
                candidate = None if found is None else found[1]
            else:
                candidate = choose_by_data(planner, lambda _what, _share: None) if "data" in rule else choose(planner)
        except CompileError:
            continue
        if candidate is not None and candidate.plan.arena_bytes <= arena:
            yield rule, candidate


def accuracy(desk: Desk, library: Path, updates: Updates, check: Samples, test: Samples) -> float:
    """On the test images, at the rate that does best on those to check with; mean over orders."""
    found = list[float]()
    for order in range(ORDERS):
        runs = [Run(updates, rate, order) for rate in RATES]
        tried = replace(desk, held=check).run_all(runs, library, 2, lambda _index, _outcome: None)
        best = min(range(len(runs)), key=lambda index: tried[index].loss)
        (last,) = replace(desk, held=test).run_all([runs[best]], library, 1, lambda _index, _outcome: None)
        found.append(last.accuracy or 0.0)
    return float(np.mean(found))


def run(name: str, seed: int, folder: Path) -> dict[tuple[int, str], float]:
    """Accuracies of one task and seed by (arena, rule)."""
    _, (images, labels), (unseen, truth) = make_data.parts()
    order = np.random.default_rng((seed, 7)).permutation(len(images))
    x, y = task(name, images[order], seed), labels[order]
    np.savez(folder / "own.npz", x=x[:TRAIN], y=y[:TRAIN])
    options = CompileOptions(MODEL, data=folder / "own.npz", seed=seed, quant="fp32")
    desk = make_desk(options, 1, lambda _what, _share: None)

    def as_slots(images: Array, labels: Array) -> Samples:
        return Samples(np.ascontiguousarray(images.transpose(0, 2, 3, 1)), labels.astype(np.int32))

    whole, check = as_slots(x[:TRAIN], y[:TRAIN]), as_slots(x[TRAIN : TRAIN + 150], y[TRAIN : TRAIN + 150])
    test = as_slots(task(name, unseen, seed + 1000), truth)
    desk = replace(desk, x=whole.x, y=whole.y, count=PASSES * TRAIN)
    library, found = desk.library(folder / f"{name}{seed}"), dict[tuple[int, str], float]()
    known = dict[str, float]()
    for arena in ARENAS:
        for rule, candidate in plans(options, arena):
            key = repr(sorted((n, repr(piece)) for n, piece in candidate.update.updates.items()))
            if key not in known:
                known[key] = accuracy(desk, library, candidate.update.updates, check, test)
            found[arena, rule] = known[key]
    return found


def main() -> None:
    """Print accuracies and how far rules are from last:N."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--first", type=int, default=0)
    chosen = parser.parse_args()
    seeds = range(chosen.first, chosen.first + chosen.seeds)
    each: dict[tuple[str, int], dict[tuple[int, str], float]] = {}
    print(f"accuracy on unseen images, %, mean of {len(seeds)} seeds x {ORDERS} orders")
    print("task      arena  " + "".join(f"{rule:>12}" for rule in RULES))
    with work_folder() as folder:
        for name in TASKS:
            for seed in seeds:
                each[name, seed] = run(name, seed, folder)
            for arena in ARENAS:
                cells = [[each[name, seed].get((arena, rule)) for seed in seeds] for rule in RULES]
                text = [f"{100 * np.mean(c):12.1f}" if None not in c else f"{'-':>12}" for c in cells]  # type: ignore[arg-type]
                print(f"{name:9} {arena:6} " + "".join(text), flush=True)
    for rule in RULES:
        gaps = [
            100 * (row[arena, rule] - row[arena, "last:N"])
            for row in each.values()
            for arena in ARENAS
            if (arena, rule) in row and (arena, "last:N") in row
        ]
        by_cell = [
            np.mean([100 * (each[name, seed][arena, rule] - each[name, seed][arena, "last:N"]) for seed in seeds])
            for name in TASKS
            for arena in ARENAS
            if all((arena, rule) in each[name, seed] and (arena, "last:N") in each[name, seed] for seed in seeds)
        ]
        if gaps and by_cell:
            error = 1.96 * np.std(gaps, ddof=1) / np.sqrt(len(gaps)) if len(gaps) > 1 else 0.0
            print(f"{rule:12} to last:N {np.mean(gaps):+5.1f} +- {error:.1f}, worst task and arena {min(by_cell):+.1f}")


if __name__ == "__main__":
    main()
