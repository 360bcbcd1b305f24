"""Long-running search for crashes and disagreements: `python -m tests.e2e.fuzz mutants|options FIRST_SEED COUNT`.

Prints a line per seed; a failure prints what is needed to see it again, and ends with exit code 1.
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import onnx

from tests.e2e import models
from tests.e2e.command import run
from tests.e2e.mutation import byte_mutant, field_mutant, originals
from tinytrain_compile.errors import ERRORS
from tinytrain_compile.target import list_targets

SMALL: dict[str, Callable[[], onnx.ModelProto]] = {
    "mlp": models.mlp,
    "mlp_softmax": lambda: models.mlp(tail="Softmax"),
    "mlp_sigmoid": lambda: models.mlp(inputs=7, hidden=13, classes=1, tail="Sigmoid"),
    "own_loss": lambda: models.with_loss(models.mlp(), [1.0, 0.5, 2.0, 1.5], "sum", ignore=2),
    "ds_cnn": lambda: models.ds_cnn(channels=6, blocks=1, size=(11, 5)),
    "resnet8": lambda: models.resnet8(channels=3, size=10),
    "transformer": lambda: models.transformer(tokens=3, width=6, heads=3),
    "segmenter": lambda: models.segmenter(size=6),
    "zoo": models.zoo,
}


def check_mutants(folder: Path, count: int, seconds: float, seed: int, *options: str) -> dict[str, int]:
    """Compile mutants of small models; every one ends in success or one documented error line.

    Returns how often each error id came up ("" is success).
    """
    sound = originals()
    data = [model.SerializeToString() for model in sound]
    source = random.Random(seed)
    seen: dict[str, int] = {}
    end = time.monotonic() + seconds
    for index in range(count):
        if time.monotonic() > end:
            break
        which = source.randrange(len(sound))
        deep = source.randrange(4) > 0
        path = folder / "mutant.onnx"
        path.write_bytes(field_mutant(sound[which], source) if deep else byte_mutant(data[which], source))
        outcome = run(path, "--update", "last:3", "-o", folder / "out", *options)
        where = f"mutant {index} of seed {seed} in {path}: {outcome.err}"
        assert outcome.error_id not in ("E0601", "E0602", "E0901"), where
        assert (outcome.exit_code == 0) == (outcome.error_id == ""), where
        if outcome.error_id:
            outcome.check_error(outcome.error_id, ERRORS[outcome.error_id].exit_code)
        seen[outcome.error_id] = seen.get(outcome.error_id, 0) + 1
    return seen


def random_command(seed: int) -> tuple[str, list[str]]:
    """A model and options that belong together in some way."""
    source = random.Random(seed)
    name = source.choice(list(SMALL))
    options = ["--target", source.choice(list_targets()), "--seed", str(seed)]
    options += ["--optimizer", source.choice(("sgd", "momentum", "adam", "adamw"))]
    options += ["--lr", source.choice(("0.001", "0.01", "0.1")), "--weight-decay", source.choice(("0", "0", "0.01"))]
    options += ["--batch", source.choice(("1", "1", "2", "3")), "--verify-steps", source.choice(("1", "2", "4"))]
    options += ["--update", source.choice(("auto", "all", "bias", "head", "last:1", "last:2", "last:4", "*"))]
    if name == "segmenter":
        options += ["--loss", source.choice(("cross-entropy", "mse", "bce"))]
    elif name == "mlp_sigmoid":
        options += ["--loss", source.choice(("mse", "bce"))]
    elif name != "own_loss" and source.randrange(3) == 0:
        options += ["--loss", source.choice(("cross-entropy", "mse", "bce"))]
    if source.randrange(3) == 0:
        options += ["--input-layout", "chw"]
    if source.randrange(2):
        options += ["--arena", source.choice(("600", "1500", "3000", "6000", "20KB", "100KB"))]
    return name, options


def check_options(folder: Path, seed: int, *more: str) -> str:
    """Compile and verify one random command; returns the error id: "" or E0401 (the arena was drawn too small)."""
    name, options = random_command(seed)
    path = folder / f"{name}.onnx"
    path.write_bytes(SMALL[name]().SerializeToString())
    outcome = run(path, "-o", folder / "out", *options, *more)
    assert outcome.error_id in ("", "E0401"), f"seed {seed}: {name} {' '.join(options)}: {outcome.err}"
    return outcome.error_id


def main() -> int:
    """Run seeds until one fails."""
    kind, first, count, *options = sys.argv[1:]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in range(int(first), int(first) + int(count)):
            try:
                if kind == "mutants":
                    print(seed, check_mutants(folder, 300, 600, seed, *options), flush=True)
                else:
                    print(seed, *random_command(seed)[1], check_options(folder, seed, *options) or "pass", flush=True)
            except AssertionError as failure:
                print(f"FAILED {failure}", flush=True)
                return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
