"""Try what the derivative check refuses, and that it refuses nothing else. Exit code 1 otherwise.

    python -m benchmarks derivative zoo      every network of ../shared/zoo and zoo3: no alarm; evaluations; unjudged
    python -m benchmarks derivative nodes    the operator tests of ONNX as training steps: no alarm
    python -m benchmarks derivative cost     CPU seconds of the check beside those of a compilation, three real models
    python -m benchmarks derivative faults [WORDS ...]   derivative_faults.toml, in three networks each

A fault is planted in a copy of the compiler, and each network is tried in a process of its own. A network counts if
the fault changes what two steps make of one of its tensors; only such tensors may be named. The smallest of the three
is compiled as well, with all judges in their order. A row: expected judge, who refused the compilation, the rest.
--keep FILE: results are appended there, and what it has is not run again.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.robustness.derivative_networks import costs, every, kept_row, named, options_of, step_of
from benchmarks.robustness.derivative_nodes import nodes
from testing.derivative_faults import faults as planted_faults
from testing.derivative_faults import with_fault
from testing.places import ROOT
from tinytrain_compile import compilation
from tinytrain_compile.driver import pipeline
from tinytrain_compile.driver.checks.model_options import training_options
from tinytrain_compile.driver.derivative import check_derivative
from tinytrain_compile.driver.derivative.judged import JudgedStep
from tinytrain_compile.driver.derivative.optimizers import Step
from tinytrain_compile.driver.derivative.update_rule import gradients_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.options.compile_options import CompileOptions

WITH_OPTIONS = ("torch-ts/kws_dscnn", "torch-ts/ecg_cnn1d", "keras/se_block", "torch-ts/flatten")
"""Networks on which options are tried."""
MODELS = ("mcunet-5fps-10c", "mbv2-w0.35-10c", "proxyless-w0.3-10c")
EXERCISED = 3
"""Networks that each fault is judged in."""
SEEN = 1e-3
"""A fault is exercised if it changes a gradient by so much of its norm."""
NOTHING = 1e-3
"""Gradients below that share of the largest are rounding: a bias in front of a normalisation has none."""


def gradients(options: CompileOptions) -> dict[str, np.ndarray]:
    """Return what two steps make of each tensor and its optimizer state: no judge has a say."""
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
    made: dict[str, np.ndarray] = {}
    for part in judged.parts:
        first, state, later = (judged.tensors(part, one, how.optimizer) for one in (judged.initial, after, again))
        made[part.origin] = found[part.name]
        made |= {f"{part.origin}|{kind} at first": array for kind, array in first.items() if kind != "w"}
        made |= {f"{part.origin}|{kind}": array for kind, array in state.items()}
        made |= {f"{part.origin}|{kind} later": array for kind, array in later.items()}
    return made


# ---- a fault, in a process that imports the copy of the compiler ----------------------------------------------------


def worker(name: str, more: Mapping[str, Any], healthy: Path) -> dict[str, Any]:
    """Judge one network with the compiler that is imported. healthy: its gradients by the real one."""
    options = options_of(named(name), more)
    with np.load(healthy) as known:
        before = {key: known[key] for key in known.files}
    try:
        now = gradients(options)
    except Exception as problem:
        said = f"{type(problem).__name__}: {problem}"[:200]
        return {"network": name, "changed": ["the step is not built"], "code": "validator", "where": said}
    largest: dict[str, float] = {}
    for key, array in before.items():
        kind = key.partition("|")[2]
        largest[kind] = max(largest.get(kind, 0.0), float(np.linalg.norm(array)))
    least = {key: NOTHING * largest[key.partition("|")[2]] for key in before}
    changed = {key for key in before if key not in now or _differs(before[key], now[key], least[key])}
    if not changed:
        return {"network": name, "changed": []}
    found = {"network": name, "changed": sorted({key.partition("|")[0] for key in changed}), "code": ""}
    model, train, samples, options = step_of(options)
    try:
        check_derivative(model, train, samples, options)
    except CompileError as refused:
        return {**found, "code": refused.code, "where": refused.where, "what": refused.what}
    return found


JUDGES = {"E0605": "file", "E0607": "derivative", "E0601": "reference", "validator": "validator", "": "none"}
"""Who refuses a compilation, by the id of its error."""


def compiled(name: str, more: Mapping[str, Any]) -> dict[str, Any]:
    """Compile a network with all judges in their order: the file, the derivative, the C against the reference."""
    options = options_of(named(name), _given(more, name))
    with tempfile.TemporaryDirectory() as folder:
        try:
            compilation.compile_model(replace(options, out=Path(folder) / "out"))
        except CompileError as refused:
            return {"network": name, "judge": JUDGES.get(refused.code, refused.code), "said": str(refused)[:200]}
        except Exception as problem:
            return {"network": name, "judge": "validator", "said": f"{type(problem).__name__}: {problem}"[:200]}
    return {"network": name, "judge": "none", "said": ""}


def _differs(before: np.ndarray, now: np.ndarray, least: float) -> bool:
    if before.shape != now.shape:
        return True
    return bool(np.linalg.norm(before - now) > SEEN * max(float(np.linalg.norm(before)), least, 1e-12))


# ---- the parent -----------------------------------------------------------------------------------------------------


def planted(fault: Mapping[str, Any], folder: Path) -> None:
    """Copy the compiler into a folder, with the fault."""
    shutil.copytree(ROOT / "compiler", folder / "compiler", ignore=shutil.ignore_patterns("__pycache__"))
    for data in ("targets", "runtime_c"):
        (folder / data).symlink_to(ROOT / data)
    path = folder / "compiler" / "tinytrain_compile" / fault["file"]
    path.write_text(with_fault(fault, path.read_text()))


def tried(fault: Mapping[str, Any], healthy: Path) -> dict[str, Any]:
    """Return what became of the fault in the first networks that exercise it, and of a compilation of the smallest.

    healthy: a folder of right gradients.
    """
    more = dict(fault.get("options", {}))
    first = list(fault.get("on", WITH_OPTIONS))
    names = [*first, *(network.name for network in every() if network.name not in first)] if not more else first
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        planted(fault, folder)
        own = folder / "healthy" if more else healthy
        for name in names if more or not any(healthy.iterdir()) else ():
            _keep_gradients(name, more, own)
        env = {**os.environ, "PYTHONPATH": f"{folder / 'compiler'}:{ROOT}"}
        command = [sys.executable, "-m", "benchmarks", "derivative", "--worker", json.dumps([names, more, str(own)])]
        run = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=1800)
    if run.returncode:
        raise SystemExit(f"{fault['name']}: {run.stderr[-2000:]}")
    return {"judge": fault["judge"], **json.loads(run.stdout.splitlines()[-1])}


def _keep_gradients(name: str, more: Mapping[str, Any], folder: Path) -> None:
    """Write the gradients of a network by the real compiler, if that compiles it."""
    folder.mkdir(exist_ok=True)
    try:
        found = gradients(options_of(named(name), _given(more, name)))
    except CompileError:
        return
    np.savez(_kept(folder, name), **found)


def _bytes(name: str) -> int:
    path = named(name).path
    return path.stat().st_size if path.is_file() else 0


def _kept(folder: Path, name: str) -> Path:
    return folder / f"{name.replace('/', '+')}.npz"


def _given(more: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Options of a fault; update "half": every other output channel of each layer with weights."""
    if more.get("update") != "half":
        return dict(more)
    from tinytrain_compile.sparse.select import layers_of

    model = pipeline.imported(options_of(named(name), {}))
    lines: list[str] = []
    for layer in layers_of(model.graph):
        for weight in layer.weights[:1]:
            if len(weight.shape) > 1 and weight.shape[0] > 2:
                half = list(range(0, weight.shape[0] - 1, 2))
                lines.append(f'[[update]]\nlayer = {json.dumps(layer.name)}\nweight = {half}\naxis = "out"\n')
    path = Path(tempfile.gettempdir()) / f"half-{name.replace('/', '-')}.toml"
    path.write_text("\n".join(lines))
    return {**more, "update": str(path)}


def faults(words: Sequence[str], keep: Path | None) -> bool:
    """Plant every fault; True if each whose judge is the derivative was refused, with a tensor that it changes."""
    good = True
    healthy = Path(tempfile.mkdtemp())
    for fault in planted_faults():
        if words and not any(word in fault["name"] or word in fault["family"] for word in words):
            continue
        row = kept_row(keep, fault["name"], functools.partial(tried, fault, healthy))
        good = _say(fault, row) and good
    return good


def _say(fault: Mapping[str, Any], row: Mapping[str, Any]) -> bool:
    """Print a row of the table, and whether it is as expected."""
    said: list[str] = []
    alone = fault["judge"] == "derivative"
    good = len(row["tried"]) >= EXERCISED or not alone
    for found in row["tried"]:
        code, where = found.get("code", ""), found.get("where", "")
        right = code == "E0607" and (where.removeprefix("tensor ") in found["changed"] or where.startswith("loss"))
        verdict = "refused" if right else f"refused ({code}): {where}" if code else "passed"
        said.append(f"{found['network']}: {verdict}")
        good = good and (right or not alone)
    first = row["compiled"].get("judge", "none")  # without a network that exercises it nobody refuses it
    good = good and first == fault.get("first", fault["judge"])
    print(
        f"{'ok  ' if good else 'BAD '} {fault['judge']:<10} {first:<10} {fault['family']:<14} {fault['name']}: "
        f"by the derivative alone: {'; '.join(said)}",
        flush=True,
    )
    return good


def zoo() -> bool:
    """Check every network as it is; True if none is refused."""
    counts: Counter[str] = Counter()
    tensors = unjudged = 0
    evaluations: list[float] = []
    for network in every():
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
    for found, share, text in costs(MODELS, update="all", arena_bytes=1 << 26):
        good = good and share <= 0.10
        print(f"{text}, {found.tensors} tensors", flush=True)
    return good


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", nargs="?", choices=("zoo", "nodes", "cost", "faults"))
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
        least = min((one["network"] for one in found), key=_bytes, default="")
        print(json.dumps({"tried": found, "compiled": compiled(least, more) if least else {}}))
        return 0
    run = {"zoo": zoo, "nodes": nodes, "cost": cost, "faults": lambda: faults(asked.words, asked.keep)}
    chosen = [asked.what] if asked.what else list(run)
    return 0 if all(run[what]() for what in chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
