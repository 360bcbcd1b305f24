"""Train the networks of ../shared/zoo a few steps and write them back to ONNX. Exits 1 if one is not right.

    python -m benchmarks export [--steps N] [--int8] [PATTERN ...]

Each is compiled with all of it trained (`../shared/zoo`, or with --models `../shared/models`), trained by its twin on
its own samples, or random ones, and exported: the file is judged as the command does it.
"""

from __future__ import annotations

import argparse
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

from testing.networks.zoo import networks
from testing.networks.zoo_verdicts import OTHERWISE
from testing.places import SHARED
from tinytrain_compile.compilation import make_project
from tinytrain_compile.data.samples import in_slots, load_samples, random_samples
from tinytrain_compile.driver.pipeline import Result
from tinytrain_compile.errors import CompileError
from tinytrain_compile.learn.export import Exported, judged_file
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.twin import Instance, Twin
from tinytrain_compile.verify.build import build_library
from tinytrain_compile.verify.tools import find_tools, work_folder


def exported(options: CompileOptions, steps: int, rate: float) -> Exported:
    """A network after so many steps of its twin, written and judged."""
    made = make_project(options)
    assert not isinstance(made, Result)
    train, face = made.summary.train, made.bundle.interface
    random = options.data is None
    data = random_samples(train, steps, 0, made.model) if options.data is None else None
    data = data or load_samples(options.data or Path(), made.model, train)
    found = in_slots(face, data)
    with work_folder() as folder:
        library = build_library(made.bundle, find_tools(), folder)
        with Twin(Instance(library, face), made.model, train) as twin:
            twin.instance.set_rate(rate)
            for step in range(steps):
                chosen = [step % len(found.x)]
                try:
                    twin.instance.train(found.x[chosen], found.y[chosen])
                except CompileError as problem:
                    if problem.code != "E0603" or not random:
                        raise
            return judged_file(made, twin, options, folder / "trained.onnx")


def asked_for(patterns: list[str], models: bool, int8: bool) -> dict[str, CompileOptions]:
    """The networks whose names hold one of the patterns, and how each is compiled."""
    common: dict[str, Any] = {"verify": "none", "remat": "off", "stream": "off"}
    if models:
        paths = sorted((SHARED / "models").glob("*.onnx"))
        found = {path.stem: CompileOptions(model=path, update="all", **common) for path in paths}
    else:
        found = dict[str, CompileOptions]()
        for network in networks():
            more, _ = OTHERWISE.get(network.name, ({}, ""))
            data = network.path.with_suffix(".npz") if network.trains else None
            given = frozenset({"update", "loss", "learning_rate", *more})
            found[network.name] = replace(network.options(given=given, **{**common, **more}), data=data)
    if int8:
        found = {name: _in_int8(options) for name, options in found.items()}
    return {name: one for name, one in found.items() if not patterns or any(p in name for p in patterns)}


def _in_int8(options: CompileOptions) -> CompileOptions:
    """With formats, of the network's own samples where it brings some."""
    return replace(options, quant="int8", calib=options.data, given=options.given | {"quant", "calib"})


def main() -> int:
    """Print a line for each network, and the counts."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("patterns", nargs="*")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rate", type=float, default=0.01)
    parser.add_argument("--models", action="store_true")
    parser.add_argument("--int8", action="store_true")
    asked = parser.parse_args()
    verdicts, worst = Counter[str](), 0.0
    with tempfile.TemporaryDirectory():
        for name, options in asked_for(asked.patterns, asked.models, asked.int8).items():
            verdict, remark = "exported", ""
            try:
                done = exported(options, asked.steps, asked.rate)
                error, steps = done.agreement.outputs, done.agreement.steps
                worst = max(worst, error or 0.0)
                remark = f"{sum(done.tensors.values())} numbers, outputs {error if error is None else f'{error:.1e}'}"
                remark += "" if steps is None else f", {steps:g} steps"
                remark += "".join(f"; {note}" for note in done.notes)
            except CompileError as problem:
                verdict = "refused" if problem.code == "E0112" else "WRONG" if problem.code[:3] == "E06" else "no model"
                remark = str(problem)
            except Exception as problem:
                verdict, remark = "WRONG", f"{type(problem).__name__}: {problem}"
            verdicts[verdict] += 1
            print(f"{verdict:9} {name:32} {remark[:300]}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items())), f"; worst output {worst:.1e}")
    return int(verdicts["WRONG"] > 0)
