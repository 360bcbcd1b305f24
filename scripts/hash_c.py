"""Compare every generated file of about 80 builds with those of another tree (`make hash-c`).

    python scripts/hash_c.py --write before.json        # on the tree before
    python scripts/hash_c.py --compare before.json      # on the tree after: exit code 1 if a file differs
    python scripts/hash_c.py --only adam,mcunet --compare before.json

scripts/hash_builds.toml lists the builds: one per optimizer, part of the runtime, mode of the planner, number format
and package, and networks in both formats on three cores. All files of the output folder count, except manifest.json,
which repeats their hashes; the version of the compiler is left out. Nothing is verified, so no C compiler runs.
A difference is reported with the file and the first line that differs.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import shlex
import sys
import tempfile
import time
import tomllib
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

import tinytrain_compile as tt
from testing.networks import models
from testing.places import ROOT, SHARED

BUILDS = ROOT / "scripts" / "hash_builds.toml"
CORES = ("cortex-m0plus", "cortex-m7", "cortex-m55")
DIGITS = ROOT / "examples" / "digits"
TEXTS = 300_000  # characters: a longer file is a table of weights, of which the record keeps the hash alone


def builds(made: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the name and the arguments of every build."""
    places = {"digits": DIGITS, "examples": ROOT / "examples", "shared": SHARED, "made": made}
    words = {name: str(place) for name, place in places.items()}
    words["int8"] = f"--quant int8 --calib {DIGITS / 'data.npz'}"
    words["int8inverted"] = f"--quant int8 --calib {made / 'inverted.npz'}"
    for group, lines in tomllib.loads(BUILDS.read_text(encoding="utf-8")).items():
        for name, line in lines.items():
            arguments = shlex.split(line.format(**words))
            if group != "cores":
                yield name, arguments
            for core in CORES if group == "cores" else ():
                yield f"{name} {core}", [*arguments, "--target", core]


def make_inputs(folder: Path) -> None:
    """Write the networks and the files that builds name by {made}."""
    networks = {
        "inverted": models.inverted(),
        "resnet8": models.resnet8(channels=4, size=16),
        "ds_cnn": models.ds_cnn(channels=8, blocks=1, size=(16, 10)),
        "zoo": models.zoo(),
        "transformer": models.transformer(tokens=4, width=8, heads=2),
        "segmenter": models.segmenter(),
        "loss": models.with_loss(models.mlp(), weights=[1.0, 2.0, 0.5, 1.0]),
    }
    for name, network in networks.items():
        (folder / f"{name}.onnx").write_bytes(network.SerializeToString())
    images = np.random.default_rng(0).standard_normal((16, 3, 16, 16)).astype(np.float32)
    np.savez(folder / "inverted.npz", x=images)


def options(arguments: list[str]) -> dict[str, str | bool]:
    """Return flags of the command line as keywords of `tinytrain_compile.compile`."""
    found: dict[str, str | bool] = {}
    name = ""
    for word in arguments:
        if word.startswith("--"):
            name = word[2:].replace("-", "_")
            found[name] = True
        else:
            found[name] = word
    return found


def compiled(arguments: list[str]) -> dict[str, str | bytes]:
    """Compile; return the files of the output folder, without the version of the compiler."""
    model, *flags = arguments
    files = tt.compile(model, **{"verify": "none", **options(flags)}).files  # type: ignore[arg-type]
    return {
        name: text.replace(tt.__version__, "VERSION") if isinstance(text, str) else text
        for name, text in files.items()
        if name != "manifest.json"
    }


def digest(text: str | bytes) -> str:
    """Return the SHA-256 of a file."""
    return hashlib.sha256(text.encode() if isinstance(text, str) else text).hexdigest()


def first_difference(before: str | None, after: str | bytes | None) -> str:
    """Say where two versions of a file first differ; before: None if the record does not have its text."""
    if before is None or not isinstance(after, str):
        return "the record has only its hash"
    old, new = before.split("\n"), after.split("\n")
    at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
    lines = [(text[at] if at < len(text) else "(end of file)").strip()[:150] for text in (old, new)]
    return f"line {at + 1}\n    - {lines[0]}\n    + {lines[1]}"


class Record:
    """Hashes of every build's files, and texts by hash."""

    def __init__(self, data: Mapping[str, dict[str, dict[str, str]] | dict[str, str]]) -> None:
        self.builds: dict[str, dict[str, str]] = dict(data.get("builds", {}))  # type: ignore[arg-type]
        self.texts: dict[str, str] = dict(data.get("texts", {}))  # type: ignore[arg-type]

    def add(self, name: str, files: Mapping[str, str | bytes]) -> None:
        """Remember the files of a build."""
        self.builds[name] = {file: digest(text) for file, text in sorted(files.items())}
        for file, text in files.items():
            if isinstance(text, str) and len(text) <= TEXTS:
                packed = base64.b64encode(zlib.compress(text.encode()))
                self.texts[self.builds[name][file]] = packed.decode()

    def text(self, name: str, file: str) -> str | None:
        """Return the text of a file of a build, if it was kept."""
        packed = self.texts.get(self.builds[name].get(file, ""))
        return None if packed is None else zlib.decompress(base64.b64decode(packed)).decode()

    def differences(self, name: str, files: Mapping[str, str | bytes]) -> list[str]:
        """Name every file that is not as recorded, and the first line that differs."""
        before, after = self.builds.get(name), {file: digest(text) for file, text in files.items()}
        if before is None:
            return ["the record does not have this build"]
        return [
            f"{file}: new" if file not in before
            else f"{file}: gone" if file not in after
            else f"{file}: {first_difference(self.text(name, file), files[file])}"
            for file in sorted({*before, *after})
            if before.get(file) != after.get(file)
        ]  # fmt: skip


def main() -> None:
    """Print a line per build; write or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="builds whose name and core contain one of these words, joined by commas")
    parser.add_argument("--write", type=Path, help="file for the record of this tree")
    parser.add_argument("--compare", type=Path, help="record of the tree before")
    flags = parser.parse_args()
    words = flags.only.split(",") if flags.only else [""]
    before = Record(json.loads(flags.compare.read_text(encoding="utf-8")) if flags.compare else {})
    now, different = Record({}), 0
    with tempfile.TemporaryDirectory() as folder:
        make_inputs(Path(folder))
        for name, arguments in builds(Path(folder)):
            if not any(word in name for word in words):
                continue
            start = time.process_time()
            files = compiled(arguments)
            now.add(name, files)
            found = before.differences(name, files) if flags.compare else []
            said = "" if not flags.compare else "DIFFERS" if found else "equal"
            different += bool(found)
            whole = hashlib.sha256(json.dumps(now.builds[name]).encode()).hexdigest()[:16]
            seconds = time.process_time() - start
            print(f"{name:32} {len(files):3} files  {whole}  {seconds:5.1f} s  {said}", flush=True)
            for line in found:
                print(f"  {line}", flush=True)
    print(f"{len(now.builds)} builds, {time.process_time():.0f} CPU seconds, {different} differ")
    if flags.write:
        flags.write.write_text(json.dumps({"builds": now.builds, "texts": now.texts}) + "\n", encoding="utf-8")
    sys.exit(1 if different else 0)


if __name__ == "__main__":
    main()
