"""Kinds of cases that are damaged files beside a sound model: locks, schemes, samples, targets, kernels."""

from __future__ import annotations

import json
import os
import tempfile
from functools import cache
from pathlib import Path
from random import Random

import numpy as np

from testing.networks import models
from testing.places import ROOT
from tests.campaign.byte_mutants import byte_mutant, splice
from tests.campaign.cases import NEVER, Case, Kind
from tests.campaign.judge import OUT
from tests.campaign.model_kinds import NET
from tests.campaign.npz_mutants import npz_mutant
from tests.campaign.text_mutants import json_mutant, text_mutant
from tests.e2e.command import run
from tests.quantize import nets
from tinytrain_compile.target.loader import data_dir

PLAN = ("--dry-run",)
CODE = ("--verify", "none")


@cache
def _models() -> dict[str, bytes]:
    """Small models, one for each way in which a plan may be made."""
    made = {
        "mlp": models.mlp(),
        "tower": models.tower(8, 4),
        "paged": models.tower(8, 4),
        "remat": models.ds_cnn(channels=4, blocks=1, size=(12, 6)),
        "qdq": nets.quantised(),
    }
    return {name: model.SerializeToString() for name, model in made.items()}


LOCKED = {
    "mlp": ("--arena", "3KB", "--optimizer", "momentum"),
    "tower": ("--update", "last:2"),
    "remat": ("--update", "all", "--remat", "min"),
    "qdq": ("--quant", "int8", "--batch", "2"),
    "paged": ("--update", "last:1", "--arena", "3000", "--memory", "sram2=256KB", "--remat", "off"),
}


@cache
def _locks() -> dict[str, str]:
    """plan.json of each."""
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory() as name:
        net = Path(name) / NET
        for lock, options in LOCKED.items():
            net.write_bytes(_models()[lock])
            outcome = run(net, *options, *CODE, "-o", Path(name) / OUT)
            outcome.check_success()
            found[lock] = (Path(name) / OUT / "plan.json").read_text()
    return found


def _lock(source: Random, _folder: Path) -> Case:
    name = source.choice(sorted(LOCKED))
    text = _locks()[name]
    kind = source.randrange(8)
    if kind == 0:
        data = byte_mutant(text.encode(), source)
    elif kind == 1:
        data = text_mutant(text, source)
    elif kind == 2:
        data = splice(text.encode(), _locks()[source.choice(sorted(LOCKED))].encode(), source)
    else:
        data = json_mutant(json.loads(text), source)
    Path("plan.lock").write_bytes(data)
    Path(NET).write_bytes(_models()[name])
    depth = source.choices((PLAN, CODE, ("--verify", "host")), (80, 10, 10))[0]
    options = [word for word in LOCKED[name] if word not in ("--remat", "min", "off")]  # a lock leaves no choice
    return Case((NET, "-o", OUT, "--lock", "plan.lock", *options, *depth))


SCHEME = """# What is trained.
[[update]]
layer = "fc1/Gemm"
bias = true
weight = 3
axis = "in"

[[update]]
layer = "fc*/Gemm"
weight = [0, 2]

[[update]]
layer = "fc3/Gemm"
weight = "all"
bias = true
"""


def _changed(text: str, source: Random, words: tuple[str, ...] = ()) -> bytes:
    return text_mutant(text, source, words) if source.randrange(4) else byte_mutant(text.encode(), source)


def _scheme(source: Random, _folder: Path) -> Case:
    Path(NET).write_bytes(_models()["mlp"])
    Path("scheme.toml").write_bytes(_changed(SCHEME, source, ('"out"', '"fc2/Gemm"', '"**"', '"[a-"', "4")))
    return Case((NET, "-o", OUT, "--update", "scheme.toml", *source.choices((PLAN, CODE), (9, 1))[0]))


def _samples(source: Random, _folder: Path) -> Case:
    """--data (which only a run that makes C reads), and --calib of a float model."""
    random = np.random.default_rng(source.randrange(1 << 30))
    calibrated = source.randrange(4) > 0
    model = nets.cnn(6, 2, 3) if calibrated else models.mlp()
    shape, classes = ((6, 3, 6, 6), 3) if calibrated else ((6, 12), 4)
    x, y = random.standard_normal(shape).astype(np.float32), random.integers(0, classes, 6)
    Path(NET).write_bytes(model.SerializeToString())
    Path("data.npz").write_bytes(npz_mutant(x, y, source))
    verify = source.choice((CODE, CODE, ("--verify", "host")))
    if not calibrated:
        return Case((NET, "-o", OUT, "--data", "data.npz", *verify))
    options = ("--quant", "int8", "--calib", "data.npz", "--calib-range", source.choice(("minmax", "percentile")))
    depth = source.choices((PLAN, verify), (3, 1))[0]
    return Case((NET, "-o", OUT, *options, "--update", source.choice(("last:1", "all")), *depth))


def _target(source: Random, _folder: Path) -> Case:
    paths = sorted(data_dir("targets").glob("*.toml"))
    words = ('"-mcpu=cortex-m4"', '"-fplugin=x"', '"-include"', '"@file"', '"llvm-mca:x"', '"host"', "8", "16")
    Path("board.toml").write_bytes(_changed(source.choice(paths).read_text(), source, words))
    Path(NET).write_bytes(_models()[source.choice(("mlp", "mlp", "tower"))])
    more = source.choice(((), ("--optimise", "time"), ("--arena", "20KB", "--memory", "sram2=1MB")))
    depth = source.choices((PLAN, CODE, ("--verify", "qemu")), (90, 8, 2))[0]
    return Case((NET, "-o", OUT, "--target", "board.toml", *more, *depth), never=NEVER - {"E0601", "E0602"})


def _kernels(source: Random, folder: Path) -> Case:
    example = ROOT / "examples" / "external"
    for name in ("plain_conv.c", "plain_dense.c"):
        (folder / name).write_bytes((example / name).read_bytes())
    words = ('"Conv"', '"ConvGradInput"', '"GemmGradWeight"', "out_c", "kernel_h", "1 << 40", "2 ** 99", "// 0", "% 0")
    words += ('"fc*"', '"' + "(" * 3000 + '"', '"out_c + ' * 50 + '1"', '"in_c // (in_c - in_c)"', '"max(1)"')
    (folder / "kernels.toml").write_bytes(_changed((example / "kernels.toml").read_text(), source, words))
    name = source.choice(("mlp", "qdq"))
    Path(NET).write_bytes(_models()[name])
    quant = ("--quant", "int8") if name == "qdq" else ()
    depth = source.choices((PLAN, CODE, ("--verify", "host")), (85, 10, 5))[0]
    arguments = (NET, "-o", OUT, "--kernels", "kernels.toml", *quant, *depth)
    return Case(arguments, never=NEVER - {"E0604"})


OPTIONS = ("--lock", "--update", "--data", "--calib", "--target", "--kernels", "model")
PLACES = ("pipe", "folder", "nowhere", "/dev/zero", "/dev/null", "loop", "empty", "/proc/self/mem", "\1", "n" * 300, "")


def _special(source: Random, folder: Path) -> Case:
    """Options that name a pipe, a device, a folder or nothing where a file should be."""
    os.mkfifo(folder / "pipe.toml")
    (folder / "folder.toml").mkdir()
    (folder / "loop.toml").symlink_to("loop.toml")
    (folder / "empty.toml").touch()
    Path(NET).write_bytes(_models()["mlp"])
    option, place = source.choice(OPTIONS), source.choice(PLACES)
    if option == "model" and place == "pipe":
        place = "nowhere"  # a model may come from a pipe, and then somebody is expected to write it
    if not place.startswith("/dev") and place not in ("", "/proc/self/mem"):
        place += ".toml"
    depth = source.choice((PLAN, CODE))
    if option == "model":
        return Case((place, "-o", OUT, *depth))
    quant = ("--quant", "int8") if option == "--calib" else ()
    return Case((NET, "-o", OUT, option, place, *quant, *depth))


FILE_KINDS = (
    Kind("locks", 4_000, _lock),
    Kind("schemes", 3_000, _scheme),
    Kind("samples", 3_000, _samples),
    Kind("targets", 3_000, _target),
    Kind("kernels", 3_000, _kernels),
    Kind("special files", 300, _special),
)
