"""Print what a training step takes on every core that QEMU runs, as Markdown: from cores.json, or measured anew.

    python scripts/cores.py                                     print the tables of cores.json
    python scripts/cores.py --agree                             print which cores compute equal bytes
    python scripts/cores.py --measure                           measure all rows and write cores.json (half an hour)
    python scripts/cores.py --measure --target riscv32-imac     one core's rows; --only mcunet one network's

Every row is a compilation with `--count`: QEMU makes two steps on samples of the network, and its bytes equal those of
the same C on this machine, or the compilation fails. Rows of a network and format have one letter if their cores
compute equal bytes: these two steps leave equal losses and equal checkpoints.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from string import ascii_lowercase
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tinytrain_compile as tt
from testing.cores import RISCV, RUN
from testing.places import ROOT, SHARED
from tinytrain_compile.target.loader import list_targets, load_target

RECORD = Path(__file__).with_suffix(".json")
CORES = tuple(target.name for target in (*RUN, *RISCV))
EXAMPLES, MODELS = ROOT / "examples", SHARED / "models"
SPEAKER = "nl+m1"
STEPS = 2
"""Steps whose bytes are compared; --count needs two."""
ARITHMETICS = {
    (True, False): "products fused",
    (True, True): "products fused, on vectors",
    (False, False): "products rounded",
}
"""Name of a float32 arithmetic by features of a target: fma, and mve_float (sums of four lanes, no denormals)."""
FORMATS = {"int8": "int8", "fp32": "float32"}
"""--quant -> name in the table."""


@dataclass(frozen=True)
class Network:
    """A row's model: its file in each format, the options of both, samples for int8's ranges, and to train on."""

    models: dict[str, Path]
    options: dict[str, Any]
    calib: Path | None
    data: Path


@dataclass(frozen=True)
class Row:
    """A network in one format on one core. digest: of the bytes that its steps leave."""

    network: str
    quant: str
    core: str
    instructions: int
    flash_bytes: int
    arena_bytes: int
    stack_bytes: int
    stack_measured_bytes: int
    digest: str

    @property
    def key(self) -> tuple[str, str, str]:
        """Return the key of a row."""
        return self.network, self.quant, self.core


def networks(folder: Path) -> dict[str, Network]:
    """Return the networks of the table; files that are made for them are in the folder."""
    digits, keywords = EXAMPLES / "digits", EXAMPLES / "keywords"
    own, calib, all_layers = folder / "own.npz", folder / "calib.npz", {"update": "all"}
    command = [sys.executable, str(keywords / "speakers.py"), "--speaker", SPEAKER, "-o", str(own)]
    subprocess.run([*command, "--calib", str(calib)], check=True, capture_output=True)
    found = {
        "digits": Network(_both(digits / "digits.onnx"), all_layers, digits / "calib.npz", digits / "data.npz"),
        "keywords": Network(_both(keywords / "keywords.onnx"), all_layers, calib, own),
    }
    if MODELS.is_dir():
        name = "mcunet-5fps-10c"
        files = {"fp32": MODELS / f"{name}.onnx", "int8": MODELS / f"{name}-qdq.onnx"}
        options = {"update": str(SHARED / "schemes" / "mcunet-5fps-49kb.toml"), "arena": "1MB"}
        x = np.random.default_rng(0).uniform(-1, 1, (STEPS, 3, 128, 128)).astype(np.float32)
        np.savez(folder / "mcunet.npz", x=x, y=np.arange(STEPS, dtype=np.int32))
        found["mcunet"] = Network(files, options, None, folder / "mcunet.npz")
    return found


def _both(model: Path) -> dict[str, Path]:
    return dict.fromkeys(FORMATS, model)


def measure(name: str, network: Network, quant: str, core: str) -> Row:
    """Compile, check and count in QEMU; then make the same steps by the C whose bytes QEMU computed, for a digest."""
    options = dict(network.options, quant=quant, verify="qemu", count=True, verify_steps=STEPS, data=network.data)
    if quant == "int8" and network.calib is not None:
        options["calib"] = network.calib
    compiled = tt.compile(network.models[quant], target=core, **options)
    report = compiled.report
    if report["verify"]["mode"] != "qemu":
        raise SystemExit(f"{core}: {report['verify']['message']}")
    digest = hashlib.sha256()
    with np.load(network.data) as data, compiled.twin() as twin, tempfile.TemporaryDirectory() as folder:
        for x, y in zip(data["x"][:STEPS], data["y"][:STEPS], strict=True):
            digest.update(np.asarray(twin.train_step(x[None], y[None]), np.float32).tobytes())
        twin.save(checkpoint := Path(folder) / "checkpoint.bin")
        digest.update(checkpoint.read_bytes())
    memory, flash = report["memory"], report["flash"]
    return Row(
        *(name, quant, core, report["work"]["train_step_instructions"]),
        *(flash["code_bytes"] + flash["const_bytes"], memory["arena_bytes"]),
        *(memory["stack_bytes"], memory["stack_measured_bytes"], digest.hexdigest()[:16]),
    )


def recorded() -> list[Row]:
    """Return the rows of cores.json."""
    return [Row(**row) for row in json.loads(RECORD.read_text(encoding="utf-8"))] if RECORD.is_file() else []


def record(row: Row) -> None:
    """Put a row into cores.json, in the order of networks, formats and cores."""
    rows = {one.key: one for one in recorded()} | {row.key: row}
    ordered = sorted(rows.values(), key=lambda one: (one.network, one.quant, CORES.index(one.core)))
    lines = ",\n".join(json.dumps(asdict(one)) for one in ordered)
    RECORD.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def tables(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table for each network: a line per core, both formats side by side. Letters are of equal digests."""
    for network in dict.fromkeys(row.network for row in rows):
        own = {(row.core, row.quant): row for row in rows if row.network == network}
        letters = {
            quant: list(dict.fromkeys(row.digest for row in own.values() if row.quant == quant)) for quant in FORMATS
        }
        head = " | ".join(f"{shown}: instructions | flash, B | stack, B | bytes" for shown in FORMATS.values())
        yield from ("", f"| {network} | {head} |", f"|---|{'---|' * 4 * len(FORMATS)}")
        for core in CORES:
            found = [own.get((core, quant)) for quant in FORMATS]
            if any(found):
                cells = (_cells(row, letters) for row in found)
                yield f"| `{core}` | {' | '.join(cells)} |"


def _cells(row: Row | None, letters: dict[str, list[str]]) -> str:
    if row is None:
        return " | ".join(["not measured"] * 4)
    letter = ascii_lowercase[letters[row.quant].index(row.digest)]
    stack = f"{row.stack_bytes:,} / {row.stack_measured_bytes:,}"
    return f"{row.instructions:,} | {row.flash_bytes:,} | {stack} | {letter}"


def agreement(rows: Sequence[Row]) -> Iterator[str]:
    """Yield a table of the arithmetics by the features of target files. SystemExit if a row contradicts it."""
    groups: dict[str, list[str]] = {name: [] for name in ARITHMETICS.values()}
    for name in list_targets():
        features = load_target(name).features
        groups[ARITHMETICS[features.fma, features.mve_float]].append(name)
    yield from ("| arithmetic | cores with equal bytes |", "|---|---|", "| int8 | all |")
    yield from (f"| float32, {arithmetic} | `{'`, `'.join(names)}` |" for arithmetic, names in groups.items())
    for network, quant in dict.fromkeys((row.network, row.quant) for row in rows):
        for names in [list(CORES)] if quant == "int8" else groups.values():
            own = [row for row in rows if (row.network, row.quant) == (network, quant) and row.core in names]
            if len({row.digest for row in own}) > 1:
                raise SystemExit(f"{network}, {quant}: bytes differ among {', '.join(row.core for row in own)}")


def main() -> None:
    """Print the stored tables; with --measure, make their rows anew first."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="compile, run in QEMU, and write cores.json")
    parser.add_argument("--target", choices=CORES, help="only this core")
    parser.add_argument("--only", choices=("digits", "keywords", "mcunet"), help="only this network")
    parser.add_argument("--quant", choices=tuple(FORMATS), help="only this format")
    parser.add_argument("--agree", action="store_true", help="print which cores agree instead")
    asked = parser.parse_args()
    if asked.measure:
        with tempfile.TemporaryDirectory() as folder:
            for core in (asked.target,) if asked.target else CORES:
                for name, network in networks(Path(folder)).items():
                    for quant in FORMATS:
                        if asked.only in (None, name) and asked.quant in (None, quant):
                            record(measure(name, network, quant, core))
                            print(f"{core}, {name}, {quant}", file=sys.stderr, flush=True)
    print("\n".join((agreement if asked.agree else tables)(recorded())).lstrip())


if __name__ == "__main__":
    main()
