"""Try the derivative check of int8 steps. Exit code 1 if something is wrong.

    zoo [dev|fresh]   networks of ../shared/zoo and zoo3 in int8 (--calib: their samples): alarms, slopes, evaluations
    options           the same for six networks with every option that changes an update
    cost              CPU seconds of the check beside those of a compilation, three real models, --update last:12
    faults [WORDS]    faults planted in the numpy reference, in three networks each: refused, the right tensor named

dev: every other network of zoo, by which the bounds were chosen; fresh: all others. --keep FILE: rows are appended
there, and what it has is not run again.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robustness.derivative_networks import costs, kept_row, options_of, step_of
from testing.networks.zoo import Network, networks, networks3
from tinytrain_compile.driver.checks.model_options import training_options
from tinytrain_compile.driver.derivative import integers
from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend import EvaluatorLacksError, FileFunction
from tinytrain_compile.ir.graph import GraphError
from tinytrain_compile.ops.int8 import conv, error, loss, steps, subspace, update
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.sparse.select import layers_of

MODELS = ("mcunet-5fps-10c-qdq", "mbv2-w0.35-qdq", "proxyless-w0.3-qdq")
MOST_EVALUATIONS, MOST_SHARE = 8.0, 0.35
"""Evaluations for a trained layer, and CPU seconds added to a compilation."""
CHANGED = 0.3
"""A fault is exercised by a tensor whose gradient it changes by so much of its norm."""
OPTIONS: tuple[Mapping[str, Any], ...] = (
    {"batch": 4},
    {"batch": 4, "accumulate": "inplace"},
    {"batch": 4, "micro_batch": "2"},
    {"optimizer": "momentum"},
    {"optimizer": "momentum", "batch": 4},
    {"clip_norm": 0.5},
    {"clip_norm": 0.5, "batch": 4},
    {"clip_norm": 0.5, "clip_per": "layer"},
    {"clip_norm": 0.5, "optimizer": "momentum"},
    {"clip_norm": 0.05, "clip_per": "layer", "batch": 4},
    {"clip_norm": 0.05, "clip_per": "layer", "optimizer": "momentum"},
    {"batch": 8, "micro_batch": 8, "activations": "asi"},
    {"batch": 8, "micro_batch": 8, "activations": "subspace"},
    {"weight_store": "sr8"},
    {"weight_store": "q8.8"},
    {"rescale": "on"},
    {"head": "int8"},
    {"head": "int8", "batch": 4, "optimizer": "momentum"},
    {"update": "last:2"},
)
ON_OPTIONS = ("torch-ts/densenet", "torch-ts/kws_dscnn", "zoo3/mbv2_block.ts", "keras/se_block", "torch-ts/lstm")


def judged(options: CompileOptions) -> tuple[integers.IntegerCheck, dict[str, Any]]:
    """Judge a command's step: the check, and a row of figures."""
    model, train, samples, options = step_of(options)
    trained = [model.sources[part.parameter].tensor for part in train.trained.values()]
    file = FileFunction(options.model, options.model_output, options.weights, (*trained, *model.fresh))
    check = integers.IntegerCheck(file, model, train, samples, options)
    row: dict[str, Any] = {"error": "", "skipped": [], "unjudged": 0, "integer": train.integer}
    try:
        found = check.run()
        row |= {"skipped": found.skipped, "unjudged": found.unjudged, "evaluations": found.evaluations}
        row |= {"seconds": found.seconds}
    except CompileError as refused:
        row |= {"error": refused.what, "where": refused.where, "evaluations": file.work}
    parameters = {part.parameter for part in train.trained.values()}
    layers = [layer for layer in layers_of(model.graph) if not parameters.isdisjoint(v.name for v in layer.parameters)]
    row |= {"layers": len(layers), "again": check.disagreed}
    row["rows"] = [
        [one.part.origin, check.is_real(one.part), one.length, one.distance, one.noise, one.strength]
        for one in check.slopes.found.values()
        if sum(one.ours)
    ]
    return check, row


def int8_options(network: Network, more: Mapping[str, Any]) -> CompileOptions:
    """Return the options of an int8 command with the network's own samples to calibrate by."""
    update = more.get("update")
    rest = {name: value for name, value in more.items() if name != "update"}
    made = options_of(network, {"quant": "int8", "calib": network.data, **rest})
    return made if update is None else replace(made, update=update)


def zoo(which: str, keep: Path | None) -> bool:
    """Judge networks as they are."""
    whole = [*networks()]
    chosen = {"dev": whole[::2], "fresh": [*whole[1::2], *networks3()], "": [*whole, *networks3()]}[which]
    return _table(((n.name, n, {}) for n in chosen), keep)


def options(keep: Path | None) -> bool:
    """Judge a few networks with options."""
    few = [network for network in (*networks(), *networks3()) if network.name in ON_OPTIONS]
    return _table(((f"{n.name} {json.dumps(more)}", n, more) for more in OPTIONS for n in few), keep)


def _table(asked: Iterator[tuple[str, Network, Mapping[str, Any]]], keep: Path | None) -> bool:
    rows: list[dict[str, Any]] = []
    for name, network, more in asked:
        row = kept_row(keep, name, functools.partial(_row, network, more))
        rows.append(row)
        if row.get("error"):
            print(f"ALARM {name}: {row['where']}: {row['error']}", flush=True)
        for reason in row.get("skipped", ()):
            print(f"      {name}: {reason}", flush=True)
    return _summed(rows)


def _row(network: Network, more: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return judged(int8_options(network, more))[1]
    except (CompileError, EvaluatorLacksError, GraphError) as refused:
        return {"refused": str(refused)[:150]}


def _summed(rows: list[dict[str, Any]]) -> bool:
    counts = Counter("not compiled" if "refused" in r else "ALARM" if r["error"] else "agrees" for r in rows)
    judged_rows = [row for row in rows if "refused" not in row]
    tensors = sum(len(row["rows"]) for row in judged_rows)
    print(f"{dict(counts)}; {tensors} tensors, {sum(row['unjudged'] for row in judged_rows)} not judged")
    for real, kind in ((False, "integers"), (True, "float32")):
        found = np.array([one[2:4] for row in judged_rows for one in row["rows"] if one[1] == real])
        if len(found):
            shares = (0, 0.01, 0.05, 0.5, 0.95, 0.99, 1)
            lengths, apart = (np.round(np.quantile(found[:, i], shares), 3).tolist() for i in (0, 1))
            print(f"{kind:9} {len(found)} tensors; at {shares}: length {lengths}, squared distance {apart}")
    dear = False
    for again, kind in ((False, "nothing disagrees"), (True, "judged again")):
        chosen = [row for row in judged_rows if row["layers"] and bool(row["again"]) == again]
        each = [row["evaluations"] / row["layers"] for row in chosen]
        if each:
            above = [row["name"] for row, one in zip(chosen, each, strict=True) if one > MOST_EVALUATIONS]
            dear = dear or (bool(above) and not again)
            print(
                f"evaluations for a trained layer, {kind} ({len(each)} networks): median {np.median(each):.1f}, "
                f"95 % {np.quantile(each, 0.95):.1f}, most {max(each):.1f}; above {MOST_EVALUATIONS:g}: {above}"
            )
    return not counts["ALARM"] and not dear


def cost() -> bool:
    """Print what the check adds to the compilation of the real models."""
    good = True
    for found, share, text in costs(MODELS, update="last:12", quant="int8"):
        good = good and share <= MOST_SHARE and found.evaluations <= 12 * MOST_EVALUATIONS
        each = f"({found.evaluations / 12:.1f} a layer)"
        print(f"{text} {each}, {found.tensors} tensors judged, {found.unjudged} not", flush=True)
    return good


# ---- planted faults -------------------------------------------------------------------------------------------------

Change = Callable[[Any], Any]


def _after(change: Change) -> Change:
    """A function whose result is changed."""
    return lambda old: lambda *a, **k: change(old(*a, **k))


def _errors(change: Change) -> Change:
    """`finish_error` of changed values."""
    return lambda old: lambda values, *a, **k: old(change(values), *a, **k)


_GRADIENTS = ((update, "weight_gradient"),)
_ROWS = ((update, "row_moves"),)
FAULTS: tuple[tuple[str, tuple[tuple[Any, str], ...], Change, Mapping[str, Any]], ...] = (
    ("error of a convolution twice too large", ((conv, "finish_error"),), _errors(lambda v: 2 * v), {}),
    ("error of a convolution half again too large", ((conv, "finish_error"),), _errors(lambda v: v + v // 2), {}),
    ("sign of the error of a convolution", ((conv, "finish_error"),), _errors(lambda v: -v), {}),
    (
        "weight gradient by the error of the next channel",
        _GRADIENTS,
        lambda old: lambda x, g, *a: old(x, np.roll(g, 1, -1), *a),
        {},
    ),
    ("zero point left out of a weight gradient", _GRADIENTS, lambda old: lambda x, g, _, c: old(x, g, 0, c), {}),
    ("sums of biases doubled", ((update, "channel_sums"),), _after(lambda sums: 2 * sums), {}),
    ("error of the loss doubled", ((loss, "finish_error"),), _errors(lambda v: 2 * v), {"head": "int8"}),
    ("mask of a clamp lost", ((error, "masked"),), lambda _: lambda values, *_a: values, {}),
    ("step of the next channel", ((steps, "step_size"), (update, "step_size")), lambda old: _rolled(old), {}),
    (
        "half of a weight's rows are not updated",
        ((steps, "moves_of"),),
        _after(lambda moves: np.where(np.arange(len(moves)).reshape(-1, *[1] * (moves.ndim - 1)) % 2, moves, 0)),
        {},
    ),
    (
        "momentum is left out",
        ((update, "moved_velocity"),),
        lambda old: lambda v, *a: old(np.zeros_like(v), *a),
        {"optimizer": "momentum"},
    ),
    (
        "sign of the gradient of a low-rank copy",
        ((subspace, "_steps"),),
        lambda old: lambda q, attrs: old(q, attrs) * np.float32(-1 if attrs.zero else 1),  # an error has no zero point
        {"batch": 8, "micro_batch": 8, "activations": "asi"},
    ),
    (
        "sums of a batch: weight gradients doubled",
        ((update, "weight_gradient"),),
        _after(lambda g: 2 * g),
        {"batch": 4},
    ),
)
ON_FAULTS = ("torch-ts/kws_dscnn", "zoo3/mbv2_block.ts", "torch-ts/densenet", "keras/kws_dscnn", "torch-ts/resnet")


def _rolled(old: Callable[..., Any]) -> Callable[..., Any]:
    def made(*arrays: Any, **more: Any) -> Any:
        multiplier, exponent = old(*arrays, **more)
        return np.roll(multiplier, 1), np.roll(exponent, 1)

    return made


@contextlib.contextmanager
def planted(places: tuple[tuple[Any, str], ...], change: Change) -> Iterator[None]:
    """Change functions of the numpy reference for a while."""
    kept = [(module, name, getattr(module, name)) for module, name in places if hasattr(module, name)]
    for module, name, old in kept:
        setattr(module, name, change(old))
    try:
        yield
    finally:
        for module, name, old in kept:
            setattr(module, name, old)


def _gradients(asked: CompileOptions) -> dict[str, Any]:
    """The gradients that updates show on the first batch, by tensor."""
    model, train, samples, asked = step_of(asked)
    trained = [model.sources[part.parameter].tensor for part in train.trained.values()]
    file = FileFunction(asked.model, asked.model_output, asked.weights, (*trained, *model.fresh))
    check = integers.IntegerSlopes(file, model, train, samples, training_options(asked, model, train.batch))
    _, found, _ = check.run(0)
    shown = check.step.gradients(found, check.step.parts)
    made = {part.origin: np.where(shown[part.name].known, shown[part.name].gradient, 0) for part in check.step.parts}
    if train.velocity is not None:
        later = check.step.later(found)[1]
        made |= {part.origin: np.stack([made[part.origin], later[part.name].gradient]) for part in check.step.parts}
    return made


def faults(word: str) -> bool:
    """Plant each fault; True if every one is refused in three networks, with a tensor named that it changes."""
    every = {network.name: network for network in (*networks(), *networks3())}
    good = True
    for name, places, change, more in (fault for fault in FAULTS if word in fault[0]):
        said, right, tried = list[str](), True, 0
        for network in (every[one] for one in ON_FAULTS if one in every):
            asked = int8_options(network, more)
            healthy = _gradients(asked)
            with planted(places, change):
                now = _gradients(asked)
                changed = {k for k, g in healthy.items() if np.linalg.norm(now[k] - g) > CHANGED * np.linalg.norm(g)}
                if not changed:
                    continue
                row = judged(asked)[1]
            named = row.get("where", "").removeprefix("tensor ")
            refused = bool(row["error"]) and named in changed
            said.append(f"{network.name} {'refused: ' + named if refused else row['error'] or 'PASSED'}")
            right, tried = right and refused, tried + 1
            if tried == 3:
                break
        good = good and right and tried == 3
        print(f"{'ok  ' if right and tried == 3 else 'BAD '} {name}: {'; '.join(said)}", flush=True)
    return good


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("zoo", "options", "cost", "faults"))
    parser.add_argument("which", nargs="?", default="", help="dev, fresh; words of a fault")
    parser.add_argument("--keep", type=Path)
    asked = parser.parse_args()
    run: dict[str, Callable[[], bool]] = {
        "zoo": lambda: zoo(asked.which, asked.keep),
        "options": lambda: options(asked.keep),
        "cost": cost,
        "faults": lambda: faults(asked.which),
    }
    return 0 if run[asked.what]() else 1


if __name__ == "__main__":
    sys.exit(main())
