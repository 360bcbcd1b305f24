"""Try what the derivative check refuses, and that it refuses nothing else. Exit code 1 otherwise.

    python -m benchmarks derivative zoo      every network of ../shared/zoo and zoo3: no alarm; evaluations; unjudged
    python -m benchmarks derivative cost     CPU seconds of the check beside those of a compilation, three real models
    python -m benchmarks derivative faults [WORDS ...]   benchmarks/derivative_faults.toml, in three networks each

A fault is planted in a copy of the compiler, and each network is tried in a process of its own. A network counts if
the fault changes what a step makes of one of its tensors; only such tensors may be named.
--keep FILE: results are appended there, and what it has is not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from testing.places import ROOT, SHARED
from testing.zoo import Network, networks, networks3
from testing.zoo_verdicts import OTHERWISE
from tinytrain_compile import compilation
from tinytrain_compile.data.samples import load_samples, random_samples
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.candidates.training_options import training_options
from tinytrain_compile.driver.derivative import check_derivative
from tinytrain_compile.driver.derivative.judged import JudgedStep
from tinytrain_compile.driver.derivative.optimizers import Step
from tinytrain_compile.driver.derivative.update_rule import gradients_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.ir.stages import Samples, TrainGraph
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target import load_target

FAULTS = ROOT / "benchmarks" / "robustness" / "derivative_faults.toml"
WITH_OPTIONS = ("torch-ts/kws_dscnn", "torch-ts/ecg_cnn1d", "keras/se_block", "torch-ts/flatten")
"""Networks on which options are tried."""
MODELS = ("mcunet-5fps-10c", "mbv2-w0.35-10c", "proxyless-w0.3-10c")
EXERCISED = 3
"""Networks that each fault is judged in."""
SEEN = 1e-3
"""A fault is exercised if it changes a gradient by so much of its norm."""


def step_of(options: CompileOptions) -> tuple[ImportedModel, TrainGraph, Samples, CompileOptions]:
    """Return the training step of a command, without a plan, and samples for it."""
    model = pipeline.imported(options)
    options, _ = pipeline.with_file_training(options, model)
    options, _ = pipeline.with_number_format(options, model)
    model = pipeline.stored(model, options)
    planner = Planner(model, options, load_target(options.target), pipeline.load_externals(options))
    train = planner.training(options.update)
    if options.data is None:
        return model, train, random_samples(train, 2 * train.batch, 0, model.whole), options
    return model, train, load_samples(options.data, model, train), options


def named(name: str) -> Network:
    """Return a network by folder/name."""
    return next(network for network in _all() if network.name == name)


def _all() -> Iterator[Network]:
    yield from networks()
    yield from networks3()


def options_of(network: Network, more: Mapping[str, Any]) -> CompileOptions:
    """Return the options of a command that trains it as its framework did; more: further ones."""
    further, _ = OTHERWISE.get(network.name, ({}, ""))
    given = {"update", "loss", "learning_rate", *further, *more}
    known = {"verify": "host", "target": "cortex-m7", "data": network.data, **further, **more}
    update = known.pop("update", "all")
    return replace(network.options(out=Path("out"), given=frozenset(given), **known), update=update)


def gradients(options: CompileOptions) -> dict[str, np.ndarray]:
    """Return the gradient that one step implies, by tensor: no judge has a say."""
    model, train, samples, options = step_of(options)
    judged, how = JudgedStep(train, model), training_options(options, model, train.batch)
    size = train.micro_batch if train.in_place else train.batch
    chosen = [index % len(samples.x) for index in range(size)]
    begin = judged.shaken(0.05, 0)
    rate = 4096.0 if how.optimizer in ("sgd", "momentum") else 1.0
    after, _ = judged.step(begin, samples.x[chosen], samples.y[chosen], rate)
    update = Step(rate / train.batch if train.in_place else rate, how.steps_before)
    again, _ = judged.step({**after, **judged.numbers(begin)}, samples.x[chosen], samples.y[chosen], rate)
    found = gradients_of(judged, how, update, begin, after)
    later = {part.name: np.asarray(again[part.name], np.float64).reshape(part.shape) for part in judged.parts}
    return {part.origin: np.stack([found[part.name], later[part.name]]) for part in judged.parts}


# ---- a fault, in a process that imports the copy of the compiler ----------------------------------------------------


def worker(name: str, more: Mapping[str, Any], healthy: Path) -> dict[str, Any]:
    """Judge one network with the compiler that is imported. healthy: its gradients by the real one."""
    options = options_of(named(name), more)
    with np.load(healthy) as known:
        before = {key: known[key] for key in known.files}
    try:
        now = gradients(options)
    except Exception as problem:
        return {"network": name, "changed": [], "error": f"{type(problem).__name__}: {problem}"[:200]}
    changed = [key for key in before if key in now and _differs(before[key], now[key])]
    changed += [key for key in before if key not in now]
    if not changed:
        return {"network": name, "changed": []}
    model, train, samples, options = step_of(options)
    try:
        check_derivative(model, train, samples, options)
    except CompileError as refused:
        return {"network": name, "changed": changed, "code": refused.code, "where": refused.where, "what": refused.what}
    return {"network": name, "changed": changed, "code": ""}


def _differs(before: np.ndarray, now: np.ndarray) -> bool:
    if before.shape != now.shape:
        return True
    return bool(np.linalg.norm(before - now) > SEEN * max(float(np.linalg.norm(before)), 1e-12))


# ---- the parent -----------------------------------------------------------------------------------------------------


def planted(fault: Mapping[str, Any], folder: Path) -> None:
    """Copy the compiler into a folder, with the fault."""
    shutil.copytree(ROOT / "compiler", folder / "compiler", ignore=shutil.ignore_patterns("__pycache__"))
    for data in ("targets", "runtime_c"):
        (folder / data).symlink_to(ROOT / data)
    path = folder / "compiler" / "tinytrain_compile" / fault["file"]
    text = path.read_text()
    for old, new in ((fault["old"], fault["new"]), *fault.get("more", ())):
        if text.count(old) != 1:
            raise SystemExit(f"{fault['name']}: {text.count(old)} places in {fault['file']}")
        text = text.replace(old, new)
    path.write_text(text)


def tried(fault: Mapping[str, Any], folder: Path, healthy: Path) -> list[dict[str, Any]]:
    """Return what became of the fault in the first networks that exercise it. healthy: a folder of right gradients."""
    more = dict(fault.get("options", {}))
    first = list(fault.get("on", WITH_OPTIONS))
    names = [*first, *(network.name for network in _all() if network.name not in first)] if not more else first
    planted(fault, folder)
    own = folder / "healthy" if more else healthy
    for name in names if more or not any(healthy.iterdir()) else ():
        _keep_gradients(name, more, own)
    env = {**os.environ, "PYTHONPATH": f"{folder / 'compiler'}:{ROOT}"}
    command = [sys.executable, "-m", "benchmarks", "derivative", "--worker", json.dumps([names, more, str(own)])]
    run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=1800)
    if run.returncode:
        raise SystemExit(f"{fault['name']}: {run.stderr[-2000:]}")
    return json.loads(run.stdout.splitlines()[-1])


def _keep_gradients(name: str, more: Mapping[str, Any], folder: Path) -> None:
    """Write the gradients of a network by the real compiler, if that compiles it."""
    folder.mkdir(exist_ok=True)
    try:
        found = gradients(options_of(named(name), _given(more, name)))
    except CompileError:
        return
    np.savez(_kept(folder, name), **found)


def _kept(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '+')}.npz"


def _given(more: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Options of a fault; update "half": every other output channel of each layer with weights."""
    if more.get("update") != "half":
        return dict(more)
    from tinytrain_compile.sparse.layers import layers_of

    model = pipeline.imported(options_of(named(name), {}))
    lines: list[str] = []
    for layer in layers_of(model.graph):
        for weight in layer.weights[:1]:
            if len(weight.shape) > 1 and weight.shape[0] > 2:
                half = list(range(0, weight.shape[0] - 1, 2))
                lines.append(f'[[update]]\nlayer = {json.dumps(layer.name)}\naxis = "out"\nweight = {half}\n')
    path = Path(tempfile.gettempdir()) / f"half-{name.replace('/', '-')}.toml"
    path.write_text("\n".join(lines))
    return {**more, "update": str(path)}


def faults(words: Sequence[str], keep: Path | None) -> bool:
    """Plant every fault; True if each whose judge is the derivative was refused, with a tensor that it changes."""
    table: list[dict[str, Any]] = tomllib.loads(FAULTS.read_text())["fault"]
    done = (
        {}
        if keep is None or not keep.exists()
        else {row["name"]: row for row in map(json.loads, keep.read_text().splitlines())}
    )
    good = True
    healthy = Path(tempfile.mkdtemp())
    for fault in table:
        if words and not any(word in fault["name"] or word in fault["family"] for word in words):
            continue
        row = done.get(fault["name"])
        if row is None:
            with tempfile.TemporaryDirectory() as folder:
                row = {"name": fault["name"], "judge": fault["judge"], "tried": tried(fault, Path(folder), healthy)}
            if keep is not None:
                with keep.open("a") as stream:
                    stream.write(json.dumps(row) + "\n")
        good = _say(fault, row) and good
    return good


def _say(fault: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Print a row of the table, and whether it is as expected."""
    said: list[str] = []
    good = len(row["tried"]) >= EXERCISED or fault["judge"] != "derivative"
    for found in row["tried"]:
        code = found.get("code", "")
        right = code == "E0607" and any(name in found["where"] for name in found["changed"])
        right = right or (code == "E0607" and found["where"].startswith("loss"))
        verdict = "refused" if right else f"refused, {found['where']}" if code else found.get("error") or "PASSED"
        said.append(f"{found['network']}: {verdict}")
        good = good and (right or fault["judge"] != "derivative")
    print(
        f"{'ok  ' if good else 'BAD '} {fault['judge']:<10} {fault['family']:<14} {fault['name']}: {'; '.join(said)}",
        flush=True,
    )
    return good


def zoo() -> bool:
    """Check every network as it is; True if none is refused."""
    counts: Counter[str] = Counter()
    tensors = unjudged = 0
    evaluations: list[float] = []
    for network in _all():
        try:
            model, train, samples, options = step_of(options_of(network, {}))
        except CompileError:
            counts["not compiled"] += 1
            continue
        try:
            found = check_derivative(model, train, samples, options)
        except CompileError as refused:
            counts["ALARM"] += 1
            print(f"ALARM {network.name}: {refused}", flush=True)
            continue
        if found is None:
            counts["not judged"] += 1
            continue
        counts["agrees"] += 1
        tensors, unjudged = tensors + found.tensors + found.unjudged, unjudged + found.unjudged
        evaluations.append(found.evaluations)
        for reason in found.skipped:
            print(f"      {network.name}: {reason}")
    print(
        f"{dict(counts)}; {tensors} tensors, {unjudged} not judged ({unjudged / max(tensors, 1):.1%}); "
        f"evaluations: median {np.median(evaluations):.1f}, most {max(evaluations):.1f}"
    )
    return counts["ALARM"] == 0


def cost() -> bool:
    """Print CPU seconds and evaluations of the check beside a compilation, and their share (must: at most 10 %)."""
    good = True
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            options = CompileOptions(
                model=SHARED / "models" / f"{name}.onnx",
                update="all",
                target="cortex-m7",
                verify="host",
                arena_bytes=1 << 26,
                out=Path(folder) / "out",
                given=frozenset({"update", "arena_bytes"}),
            )
            begin = time.process_time(), os.times().children_user
            made = compilation.compile_model(options)
            seconds = time.process_time() - begin[0] + os.times().children_user - begin[1]
        found = made.summary.verify.derivative if made.summary is not None else None
        if found is None:
            raise SystemExit(f"{name}: not judged")
        share = found.seconds / (seconds - found.seconds)
        good = good and share <= 0.10
        print(
            f"{name}: {found.seconds:.2f} of {seconds:.1f} CPU s ({share:.1%} added), "
            f"{found.evaluations:.1f} evaluations, {found.tensors} tensors",
            flush=True,
        )
    return good


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("zoo", "cost", "faults"))
    parser.add_argument("words", nargs="*")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.worker:
        names, more, folder = json.loads(asked.worker)
        found: list[dict[str, Any]] = []
        for name in names:
            if len(found) < EXERCISED and _kept(Path(folder), name).exists():
                one = worker(name, _given(more, name), _kept(Path(folder), name))
                found += [one] if one["changed"] else []
        print(json.dumps(found))
        return 0
    run = {"zoo": zoo, "cost": cost, "faults": lambda: faults(asked.words, asked.keep)}
    chosen = [asked.what] if asked.what else list(run)
    return 0 if all(run[what]() for what in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
