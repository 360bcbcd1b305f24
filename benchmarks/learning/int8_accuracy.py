"""Compare int8 with float32 on 24 seeds in six orders, by the generated C (40 minutes).

Network, task and rates of `convergence`, which trains by the numpy reference; here the twin trains, a thousand
times as fast, with the same bytes. Every seed has its pre-trained network and its images, and is trained in several
orders; what counts is the mean over them of its difference to float32 in the same orders. Prints the mean over seeds
with its 95 % confidence interval; exits 1 if the default store misses the bar.

Whatever is chosen is chosen on the development seeds 100 to 117. Seeds 300 to 323 are for reports: they were looked at
once per report, and nothing was chosen by them.

usage: python -m benchmarks int8-accuracy [--seeds 300-323] [--orders 6] [--batches 8,1] [--rate 0.008] [--rate-int8 R]
                                          [--variants mixed,q8.8] [--cache DIR] [--keep FILE.json]
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx

import tinytrain_compile as tt
from benchmarks.learning.convergence import make_model
from benchmarks.learning.digit_domains import Split, domain_a, load_digits
from benchmarks.learning.pretrain import pretrain
from tinytrain_compile.options.compile_options import CompileOptions

RATE, EPOCHS, ORDERS, SEEDS = 0.008, {8: 12, 1: 6}, 6, "300-323"
DEFAULT: str = CompileOptions.weight_store
BAR = -0.5
"""Points that the default store may lose."""
VARIANTS: dict[str, dict[str, Any]] = {
    **{store: {"weight_store": store} for store in ("sr8", "mixed", "q8.8")},
    "percentile": {"calib_range": "percentile"},
    "rescale": {"rescale": "on"},
}
"""Options of int8, by the name that --variants knows."""
T95 = (0, 12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23, 2.20, 2.18, 2.16, 2.14, 2.13, 2.12, 2.11, 2.10)
"""Student's t by degrees of freedom, where it is above 2.1."""
Key = tuple[str, int, int]
"""(variant, batch, seed)"""


def interval(differences: Any) -> tuple[float, float]:
    """Mean and half width of its 95 % confidence interval (Student's t)."""
    count = len(differences)
    if count < 2:
        return float(np.mean(differences)), math.inf
    t95 = T95[count - 1] if count - 1 < len(T95) else 2.07
    return float(np.mean(differences)), t95 * float(np.std(differences, ddof=1)) / math.sqrt(count)


class Seed:
    """A pre-trained network, kept on disk since it takes ten seconds, with its images."""

    def __init__(self, seed: int, cache: Path) -> None:
        self.seed = seed
        upright, self.part, self.test = load_digits(seed)
        known = cache / f"seed{seed}.npz"
        if not known.exists():
            np.savez(known, **{name: np.asarray(w, np.float32) for name, w in pretrain(seed, upright).items()})
        with np.load(known) as kept:
            self.weights = {name: kept[name] for name in kept.files}
        self.model, self.calib = cache / f"seed{seed}.onnx", cache / f"seed{seed}-calib.npz"
        onnx.save(make_model(self.weights, 1), self.model)
        np.savez(self.calib, x=np.concatenate([domain_a(upright.x, seed * 977 + 99), self.part.x[:64]]))

    def in_layout(self, name: str) -> Any:
        """A parameter as a float32 build has it."""
        array = self.weights[name]
        return array.transpose(0, 2, 3, 1).ravel() if array.ndim == 4 else array.ravel()


class Study:
    """Builds and runs. One float32 build serves all seeds; an int8 build has its seed's formats."""

    def __init__(self, cache: Path, rate: float, rate_int8: float, orders: int) -> None:
        self._cache, self._rate, self._rate_int8, self._orders = cache, rate, rate_int8, orders
        self._floats: dict[int, tt.Compiled] = {}

    def accuracies(self, variant: str, batch: int, seed: Seed) -> list[float]:
        """Per cent of the test images after training in each order."""
        if variant == "fp32":
            if batch not in self._floats:
                self._floats[batch] = self._compiled(seed, batch, quant="fp32")
            return self._trained(self._floats[batch], batch, seed, tuple(seed.weights))
        own = {"quant": "int8", "calib": seed.calib, **VARIANTS[variant]}
        return self._trained(self._compiled(seed, batch, **own), batch, seed, ())

    def _compiled(self, seed: Seed, batch: int, **own: Any) -> tt.Compiled:
        common = {"batch": batch, "update": "all", "seed": seed.seed, "loss": "cross-entropy", "verify": "none"}
        return tt.compile(seed.model, **common, **own)

    def _trained(self, build: tt.Compiled, batch: int, seed: Seed, replaced: tuple[str, ...]) -> list[float]:
        found: list[float] = []
        with build.twin() as twin:
            x, y = twin.as_slots(seed.part.x, seed.part.y)
            test = twin.as_inputs(seed.test.x)
            for order in range(self._orders):
                twin.reset()
                for name in replaced:
                    twin.instance.tensor(name)[:] = seed.in_layout(name)
                _train(twin.instance, Split(x, y), batch, self._rate if replaced else self._rate_int8, order)
                found.append(100 * float((twin.instance.infer(test).argmax(axis=1) == seed.test.y[:, 0]).mean()))
        return found


def _train(instance: Any, part: Split, batch: int, rate: float, order: int) -> None:
    """Shuffled by `order`, with a cosine schedule, as convergence.finetune does."""
    rng, per_epoch, epochs = np.random.default_rng(7 + order), len(part.x) // batch, EPOCHS[batch]
    for epoch in range(epochs):
        for i, chosen in enumerate(rng.permutation(len(part.x))[: per_epoch * batch].reshape(per_epoch, -1)):
            progress = (epoch * per_epoch + i) / (epochs * per_epoch)
            instance.set_rate(rate * 0.5 * (1 + math.cos(math.pi * progress)))
            instance.train(part.x[chosen], part.y[chosen])


def judged(results: Mapping[Key, list[float]], variants: list[str], batch: int, seeds: list[int]) -> bool:
    """Print one block; whether the default store, if it is there, meets the bar."""
    base = np.asarray([results["fp32", batch, seed] for seed in seeds])
    print(
        f"batch {batch}, {len(seeds)} seeds x {base.shape[1]} orders: accuracy %, difference to fp32 (95 %), worst seed"
    )
    print(f"  {'fp32':12} {base.mean():5.1f}")
    met = True
    for variant in variants:
        own = np.asarray([results[variant, batch, seed] for seed in seeds])
        differences = (own - base).mean(axis=1)
        mean, half = interval(differences)
        bar = "" if variant != DEFAULT else f"   bar {BAR}: {'met' if mean >= BAR else 'MISSED'}, the default"
        met &= variant != DEFAULT or mean >= BAR
        print(
            f"  {variant:12} {own.mean():5.1f}   {mean:+5.2f} +- {half:.2f}   {differences.min():+5.1f}{bar}",
            flush=True,
        )
    return met


def _numbers(text: str) -> list[int]:
    first, _, last = text.partition("-")
    return list(range(int(first), int(last or first) + 1))


def main() -> int:
    """Run the experiment."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=_numbers, default=_numbers(SEEDS))
    parser.add_argument("--orders", type=int, default=ORDERS)
    parser.add_argument("--batches", default="8,1")
    parser.add_argument("--rate", type=float, default=RATE)
    parser.add_argument("--rate-int8", type=float, help="of int8 (default: that of --rate)")
    parser.add_argument("--variants", default=f"{DEFAULT},q8.8")
    parser.add_argument("--cache", type=Path, default=Path("out/int8-accuracy"))
    parser.add_argument("--keep", type=Path, help="results of earlier runs of this code, read and written")
    options = parser.parse_args()
    options.cache.mkdir(parents=True, exist_ok=True)
    start, variants = time.time(), options.variants.split(",")
    study = Study(options.cache, options.rate, options.rate_int8 or options.rate, options.orders)
    results: dict[Key, list[float]] = {}
    if options.keep and options.keep.exists():
        results = {(v, b, s): found for v, b, s, found in json.loads(options.keep.read_text())}
    batches = [int(batch) for batch in options.batches.split(",")]
    for number in options.seeds:
        missing = [k for b in batches for v in ("fp32", *variants) if len(results.get(k := (v, b, number), ())) == 0]
        seed = Seed(number, options.cache) if missing else None
        for key in missing:
            assert seed is not None
            results[key] = study.accuracies(key[0], key[1], seed)
        if options.keep:
            options.keep.write_text(json.dumps([[*key, found] for key, found in results.items()]))
    met = [judged(results, variants, batch, options.seeds) for batch in batches]
    print(f"{time.time() - start:.0f} s")
    return 0 if all(met) else 1
