"""Trains a model of your own on your own samples in QEMU: what finetune recommended, on the board.

    tinytrain-compile finetune model.onnx --data own.npz
    tinytrain-compile model.onnx --config finetune.toml
    python examples/own/run.py model.onnx --data own.npz
    tinytrain-compile export model.onnx --checkpoint own/trained.bin -o trained.onnx
    python examples/own/judge.py trained.onnx

Any model and number format; own.npz is what finetune takes (docs/finetune.md). Its test samples train nothing. Where
the project has a reservoir (--runtime replay=N) and there are x_old and y_old, one old sample follows every new one.
Without these the device keeps its own samples, and two of them follow every new one.
Into the folder own/ go main.c and its headers with your model's name, to copy, the checkpoint trained.bin, and
judged.npz: the test samples with what the board made of them. Without arm-none-eabi-gcc or qemu-system-arm it trains on
the host alone, and says so.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from board import Firmware, check_equal, facts, say, show, train

import tinytrain_compile as tt
from tinytrain_compile.data.own_data import old_parts, read_own_data
from tinytrain_compile.driver.checks.project import read_project
from tinytrain_compile.target.loader import load_target

HERE = Path(__file__).resolve().parent


def own_arrays(path: Path, seed: int) -> dict[str, Any]:
    """x, y, x_test, y_test of an .npz as finetune takes them: what is missing is split off, or repeats the input."""
    arrays, notes = read_own_data(path, seed)
    for note in notes:
        say(f"samples    {note}")
    if "y" not in arrays:
        say("samples    there is no y: the network learns to repeat its input")
        if "y_test" in arrays:  # 1: a fault, which it should not repeat
            arrays["x_test"] = arrays["x_test"][arrays["y_test"].reshape(-1) == 0]
            say(f"samples    it is judged by the {len(arrays['x_test'])} test samples that are no faults")
        arrays |= {f"y{part}": arrays[f"x{part}"] for part in ("", "_test", "_old") if f"x{part}" in arrays}
    return arrays


def twin_of(model: Path, project: Path, scheme: Path, calib: Path | None, target: str | None) -> tt.Twin:
    """The model of an output folder on the desk; scheme: where to put what it trains. target: a file of the user's."""
    options, text = read_project(project, {"calib": calib, "weights": None})
    if target is not None:
        options["target"] = load_target(target).base or target
    scheme.write_text(text, encoding="utf-8")
    plain: dict[str, Any] = {"update": scheme, "verify": "none", "remat": "off", "stream": "off"}
    return tt.compile(model, **{**options, **plain}).twin()


def samples(twin: tt.Twin, arrays: Mapping[str, Any], together: int, seed: int, replayed: int) -> dict[str, bytes]:
    """train.bin, test.bin and old.bin: what main.c reads in place of a sensor. The order is drawn once.

    together: samples that a call takes. replayed: old ones that the device keeps; they are those of finetune.
    """

    def calls(part: str, order: Any) -> bytes:
        x, y = twin.as_slots(arrays[f"x{part}"], arrays[f"y{part}"])
        each = (order[at : at + together] for at in range(0, len(order) - together + 1, together))
        return b"".join(x[call].tobytes() + y[call].tobytes() for call in each)

    own = calls("", np.random.default_rng(seed).permutation(len(arrays["x"])))
    old = calls("_old", old_parts(len(arrays["x_old"]), replayed)[0]) if replayed else b""
    return {"train.bin": own, "old.bin": old, "test.bin": twin.as_inputs(arrays["x_test"]).tobytes()}


@dataclass(frozen=True)
class Kept:
    """What the reservoir holds: samples of the file that are kept from the start, or own ones.

    form: of samples.h. after_each: samples that follow each new one. old: samples that are kept from the start.
    """

    form: str = "samples_new.h"
    after_each: int = 0
    old: int = 0

    def in_epoch(self, new: int) -> int:
        """Samples to train on in a pass over so many new ones."""
        return new + self.after_each * (new if self.old else new - 1)  # nothing is kept yet before the first


def kept_samples(report: Mapping[str, Any], arrays: Mapping[str, Any]) -> Kept:
    """What the device keeps; said where the project has a reservoir."""
    room, streams = report["runtime"]["replay"], report["plan"]["streams"]
    rows = streams is not None and streams["input_lines"]
    if room is None or not room["samples"]:
        return Kept()
    if rows or report["micro_batch"] > 1 or report["features"] is not None:
        say("replay     none: main.c has no loop for it with --input-lines, --micro-batch or --features")
        return Kept()
    beside = f"{room['bytes']:,} B beside the arena"
    if "x_old" not in arrays:
        say(f"replay     {room['samples']} own samples, two after each new one; {beside}")
        return Kept("samples_kept.h", after_each=2)
    count = min(room["samples"], len(arrays["x_old"]) // 2)
    say(f"replay     {count} old samples, one after each new one; {beside}")
    return Kept("samples_old_too.h", after_each=1, old=count)


def own_program(project: Path, work: Path, samples: int, form: str) -> Path:
    """main.c with the prefix of a project, and beside it the files of parts/ that the project needs.

    samples: of an epoch, kept ones too. form: of samples.h.
    """
    (path,) = project.glob("*_train.h")
    header, prefix = path.read_text(encoding="utf-8"), path.name.removesuffix("_train.h")

    def has(macro: str) -> bool:
        return f"#define {prefix.upper()}_{macro}" in header

    chosen = {
        "check.h": "check.h",
        "memories.h": "memories_two.h" if has("MEMORY_1_BYTES") else "memories_one.h",
        "input.h": "input_rows.h" if has("INPUT_ROWS") else "input_whole.h",
        "samples.h": form,
        "update.h": "update_calls.h" if has("HAS_ACCUMULATE 1") else "update_one_call.h",
        "rate.h": "rate_falling.h" if (project / f"{prefix}_schedule.h").is_file() else "rate_fixed.h",
    }
    epochs = "OWN_EPOCHS" if has("EPOCHS") else "10"  # what finetune, or --epochs, says
    warm_up = "OWN_WARM_UP" if has("WARM_UP") else "0u"
    settings = f"#define SAMPLES {samples}u\n#define EPOCHS {epochs}\n#define WARM_UP {warm_up}\n"
    texts = {name: (HERE / "parts" / part).read_text(encoding="utf-8") for name, part in chosen.items()}
    texts |= {"main.c": (HERE / "main.c").read_text(encoding="utf-8"), "settings.h": settings}
    for name, text in texts.items():
        named = re.sub(r"\bown_", f"{prefix}_", re.sub(r"\bOWN_", f"{prefix.upper()}_", text))
        (work / name).write_text(named, encoding="utf-8")
    shutil.copyfile(HERE.parent / "firmware.h", work / "firmware.h")
    return work / "main.c"


def told(score: Mapping[str, float]) -> str:
    """A score for people."""
    accuracy = f"accuracy {100 * score['accuracy']:.1f} %   " if "accuracy" in score else ""
    return f"{accuracy}loss {score['loss']:.4g}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--data", type=Path, required=True, help="your samples, as finetune takes them")
    parser.add_argument("--project", type=Path, default=Path("out"), help="what tinytrain-compile wrote (default: out)")
    parser.add_argument("--calib", type=Path, help="the file that the project was calibrated with, if it was")
    parser.add_argument("--target", help="the target file of yours that the project was made for, if it was a file")
    parser.add_argument("--work", type=Path, default=Path("own"), help="folder for what is made (default: own)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of samples, and of a split as finetune's")
    parser.add_argument("--host", action="store_true", help="train on the host only, even where QEMU is installed")
    given = parser.parse_args()
    try:
        learn(given, given.work.resolve(), given.project.resolve())
    except tt.CompileError as problem:
        sys.exit(str(problem))


def learn(given: argparse.Namespace, work: Path, project: Path) -> None:
    """Build the program, train, judge."""
    arrays = own_arrays(given.data, given.seed)
    work.mkdir(parents=True, exist_ok=True)
    with twin_of(given.model, project, work / "update.toml", given.calib, given.target) as twin:
        report = json.loads((project / "report.json").read_text(encoding="utf-8"))
        kept = kept_samples(report, arrays)
        count = kept.in_epoch(len(arrays["x"]))
        if count < report["batch"]:
            sys.exit(f"a batch of {report['batch']} is more than the {len(arrays['x'])} samples to train on")
        program = own_program(project, work, count, kept.form)
        files = samples(twin, arrays, report["micro_batch"], given.seed, kept.old)
        result, host = train(Firmware(program, project, files), work, given.host, given.target or report["target"])
        folder = work / ("host" if host is None else "qemu")
        test = arrays["x_test"], arrays["y_test"]
        before = twin.evaluate(*test)
        shutil.copyfile(folder / "trained.bin", work / "trained.bin")
        twin.load(work / "trained.bin")
        outputs = twin.predict(arrays["x_test"])
        same = twin.instance.infer(twin.as_inputs(arrays["x_test"])).tobytes() == (folder / "outputs.bin").read_bytes()
        say(f"\nlearned    {len(outputs)} test samples: {told(before)} -> {told(twin.evaluate(*test))}")
        np.savez(work / "judged.npz", x=test[0], y=test[1], outputs=outputs)
    say("\n".join([*facts(result, host, report), f"wrote      {', '.join(show(work / n) for n in RESULTS)}"]))
    check_equal(result, host)
    if not same:
        sys.exit("the board's outputs are not the twin's: please report this")


RESULTS = ("main.c", "trained.bin", "judged.npz")

if __name__ == "__main__":
    main()
