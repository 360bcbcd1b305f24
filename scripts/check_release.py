"""Build the packages as they would be published, and check them (`make release-check`; docs/releasing.md).

    python scripts/check_release.py --folder build/release              # on any commit
    python scripts/check_release.py --folder build/release --publish    # before an upload: a placeholder is an error

The packages are made from the files that git tracks: `python -m build`, `twine check --strict`. The wheel is installed
in a fresh environment, with the versions of requirements.lock, and compiles a model there, away from the sources. The
environment of this script needs `build` and `twine` (the extra `release`).
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLE = ROOT / "examples" / "digits" / "digits.onnx"
IN_WHEEL = ("py.typed", "_data/targets/cortex-m7.toml", "_data/runtime_c/tt_runtime.h", "_data/docs/errors.md")
"""Files that the wheel cannot do without, below the package."""


def run(command: Sequence[str | Path], folder: Path) -> str:
    """Run a command without this environment's Python variables; return its output. Exit with it if it fails."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    words = [str(word) for word in command]
    done = subprocess.run(words, cwd=folder, env=clean, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def tracked_sources(place: Path) -> Path:
    """Copy the files that git tracks, as they are now, to a folder without anything else."""
    names = run(["git", "ls-files", "-z"], ROOT).split("\0")
    for name in filter(None, names):
        if (ROOT / name).is_file():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, place / name)
    return place


def build(sources: Path, dist: Path) -> tuple[Path, Path]:
    """Build the source archive, and the wheel from it; return both."""
    run([sys.executable, "-m", "build", "--outdir", dist, sources], sources)
    (archive,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return archive, wheel


def faults(archive: Path, wheel: Path) -> Iterator[str]:
    """Yield how the packages differ from pyproject.toml and from what they must contain."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    held = set(zipfile.ZipFile(wheel).namelist())
    yield from (f"the wheel lacks {name}" for name in IN_WHEEL if f"tinytrain_compile/{name}" not in held)
    stray = {name.split("/")[0] for name in held} - {"tinytrain_compile", f"{wheel.name.split('-py3')[0]}.dist-info"}
    yield from (f"the wheel holds {name}" for name in sorted(stray))
    metadata = _metadata(wheel)
    if metadata["Version"] != project["version"]:
        yield f"the wheel is {metadata['Version']}, pyproject.toml says {project['version']}"
    needs = [need for need in metadata.get_all("Requires-Dist", []) if "extra ==" not in need]
    if len(needs) != len(project["dependencies"]):
        yield f"the wheel needs {len(needs)} packages, pyproject.toml lists {len(project['dependencies'])}"
    if missing := set(project["license-files"]) - set(metadata.get_all("License-File", [])):
        yield f"the wheel lacks the licences {sorted(missing)}"
    with tarfile.open(archive) as content:
        top = archive.name.removesuffix(".tar.gz")
        names = set(content.getnames())
    yield from (f"the archive lacks {name}" for name in ("LICENSE", "README.md") if f"{top}/{name}" not in names)


def unready(wheel: Path) -> Iterator[str]:
    """Yield why these packages should not be uploaded, though they are sound."""
    metadata = _metadata(wheel)
    if re.search(r"\.dev\d+$", metadata["Version"] or ""):
        yield f"{metadata['Version']} is a development version"
    for url in metadata.get_all("Project-URL", []):
        if ".invalid" in url:
            yield f"the address is a placeholder: {url} ([project.urls] in pyproject.toml)"
    links = re.findall(r"\]\((?!https?://|#)([^)]+)\)", (ROOT / "README.md").read_text(encoding="utf-8"))
    if links:
        yield f"{len(links)} links of the README are relative: they lead nowhere on PyPI ({links[0]} ...)"


def install_and_compile(wheel: Path, folder: Path) -> list[str]:
    """Install the wheel in a fresh environment, and return what its commands print."""
    venv.create(folder / "fresh", with_pip=True)
    programs = folder / "fresh" / "bin"
    lock = ROOT / "requirements.lock"
    run([programs / "pip", "install", "--quiet", "--disable-pip-version-check", "-c", lock, wheel], folder)
    command = programs / "tinytrain-compile"
    version = run([command, "--version"], folder)
    plan = run([command, EXAMPLE, "--arena", "24KB", "--dry-run"], folder)
    if wheel.name.split("-")[1] not in version or "\nRAM " not in plan:
        sys.exit(f"the installed command prints something else:\n{version}{plan}")
    return [version.strip(), next(line for line in plan.splitlines() if line.startswith("RAM "))]


def _metadata(wheel: Path) -> Message:
    with zipfile.ZipFile(wheel) as content:
        (name,) = (one for one in content.namelist() if one.endswith(".dist-info/METADATA"))
        return Parser().parsestr(content.read(name).decode())


def main() -> None:
    """Make and check everything; exit code 1 if something is wrong."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--folder", type=Path, required=True, help="for the packages (dist/) and the environment")
    parser.add_argument("--publish", action="store_true", help="exit code 1 if the packages should not be uploaded")
    parser.add_argument("--no-install", action="store_true", help="leave out the fresh environment")
    options = parser.parse_args()
    folder = options.folder.resolve()
    for made in ("dist", "sources", "fresh"):
        shutil.rmtree(folder / made, ignore_errors=True)
    archive, wheel = build(tracked_sources(folder / "sources"), folder / "dist")
    print(
        f"built      {archive.name}, {archive.stat().st_size:,} B\n           {wheel.name}, {wheel.stat().st_size:,} B"
    )
    run([sys.executable, "-m", "twine", "check", "--strict", archive, wheel], folder)
    if found := list(faults(archive, wheel)):
        sys.exit("\n".join(found))
    print("checked    metadata, README, contents, licences")
    if not options.no_install:
        print("installed  " + "\n           ".join(install_and_compile(wheel, folder)))
    why = list(unready(wheel))
    print("\n".join([f"not ready  {one}" for one in why] or ["ready      for an upload"]))
    sys.exit(1 if why and options.publish else 0)


if __name__ == "__main__":
    main()
