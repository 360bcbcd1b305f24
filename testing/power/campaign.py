"""Power cuts on the host: a model with `--runtime store` on an emulated flash (cuts.c, flash.c), and what was lost."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from testing.networks.models import Network
from testing.places import ROOT
from testing.power.reader import Layout
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.verify.build import write_files
from tinytrain_compile.verify.firmware import COMPILE_FLAGS, WARNING_FLAGS, model_sources

HERE = Path(__file__).resolve().parent
DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
GEOMETRIES = 6
STATE_BYTES_OF_SMALL = 44
_FAST = ("-DFAST_CRC", "-O3", "-march=native", "-ftree-vectorize")
_FLAGS = ("-O2", "-g", "-D_POSIX_C_SOURCE=200809L")


@dataclass(frozen=True)
class Row:
    """What a campaign on one geometry has found."""

    geometry: str
    cases: int
    losses: int


def small_model(folder: Path) -> Path:
    """A dense layer of 10 weights: with the learning rate 44 bytes of state, a checkpoint of 64."""
    net = Network("net", "float[1, 4] x", "float[1, 2] y")
    net.node("last", f"y = Identity ({net.dense('fc', 'x', 4, 2)})")
    (folder / "net.onnx").write_bytes(net.model().SerializeToString())
    return folder / "net.onnx"


def golden_of_small(folder: Path) -> Path:
    """Large golden samples of the small model, each with both labels.

    A model has half of them right whatever it learned, and none if its outputs overflow.
    """
    x = 1e4 * np.array([[1, 2, 3, 4], [4, 1, 1, 2]], np.float32)
    np.savez(folder / "golden.npz", x=np.concatenate([x, x]), y=np.array([0, 0, 1, 1]))
    return folder / "golden.npz"


def project(model: Path, target: str = "cortex-m7", golden: Path | None = None) -> Project:
    """All of the model trained, with a store; with golden samples a guard besides."""
    store = RuntimeParts(("store",))
    options = CompileOptions(
        model, update="all", verify="none", target=target, runtime=store, guard=golden, guard_drop=0.0
    )
    made = make_project(options)
    assert isinstance(made, Project)
    return made


def named(text: str, prefix: str) -> str:
    """A program of this folder for one model."""
    return re.sub(r"\bM_", f"{prefix.upper()}_", re.sub(r"\bm_", f"{prefix}_", text))


def build(
    made: Project,
    folder: Path,
    program: str = "cuts",
    change: Callable[[str], str] = lambda text: text,
    flags: tuple[str, ...] = (),
    fast: bool = False,
    part: str = "store",
) -> Path:
    """A program of this folder with the generated C; its path. change: of the C of a part, to plant a bug.

    fast: for this machine's processor, with the CRC of crc.h in place of the runtime's, which it compares first.
    """
    prefix = made.bundle.interface.prefix
    files = dict(made.bundle.files)
    store, changed = f"{prefix}_store.c", f"{prefix}_{part}.c"
    files[changed] = change(files[changed])
    for name in (store, f"{prefix}_train.c") if fast else ():
        files[name] = '#include "crc.h"\n' + files[name].replace("tt_crc32(", "fast_crc32(")
    for path in sorted(HERE.glob("*.[ch]")):
        files[path.name] = named(path.read_text(encoding="utf-8"), prefix)
    write_files(folder, files)
    sources = [*model_sources(made.bundle), "flash.c", f"{program}.c"]
    command = [
        "gcc",
        *COMPILE_FLAGS,
        *WARNING_FLAGS,
        *_FLAGS,
        *(_FAST if fast else ()),
        *(["-DGUARDED"] if f"{prefix}_guard.c" in files else ()),
        *flags,
        *sources,
        "-o",
        program,
    ]
    subprocess.run(command, cwd=folder, check=True, timeout=600)
    return folder / program


def run(program: Path, what: str, geometry: int, number: int) -> Row:
    """One campaign; its first losses go to stderr."""
    command = [str(program), what, str(geometry), str(number)]
    done = subprocess.run(command, check=True, timeout=24 * 3600, stdout=subprocess.PIPE, text=True)
    name, cases, losses = re.fullmatch(r"(?:erased.*\n)?(.+): (\d+) (\d+)\n", done.stdout).groups()  # type: ignore[union-attr]
    return Row(name, int(cases), int(losses))


def layout_of(made: Project, said: str) -> Layout:
    """Of the line that `cuts images` prints."""
    slots, slot_bytes, unit, _ = map(int, said.split())
    prefix = made.bundle.interface.prefix
    header = made.bundle.files[f"{prefix}_train.h"]
    found = re.search(rf"{prefix.upper()}_MODEL_HASH UINT64_C\((0x[0-9a-f]+)\)", header)
    assert found is not None
    return Layout(slots, slot_bytes, unit, int(found[1], 16))
