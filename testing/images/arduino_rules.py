"""Builds a sketch with a library as Arduino's and PlatformIO's builders do, for this machine or a Cortex-M."""

from __future__ import annotations

import subprocess
from pathlib import Path

from testing.places import ROOT

SKETCH = ROOT / "examples" / "boards" / "arduino" / "learn_digits" / "learn_digits.ino"
CORE = ROOT / "tests" / "examples" / "arduino_core"
"""An Arduino.h that is a stub."""
STRICT = ("-Wall", "-Wextra", "-Wconversion", "-Wshadow", "-pedantic", "-Werror")


def library_objects(library: Path, place: Path, compiler: str = "gcc", machine: tuple[str, ...] = ()) -> list[Path]:
    """src/ recursively, C as C, with -Os."""
    objects: list[Path] = []
    for source in sorted((library / "src").rglob("*.c")):
        objects.append(place / f"{source.stem}.o")
        _run(compiler, "-std=gnu11", "-Os", *machine, *STRICT, "-c", str(source), "-o", str(objects[-1]))
    return objects


def sketch_program(library: Path, place: Path, sketch: Path = SKETCH) -> Path:
    """A sketch, C++ behind Arduino.h, with the library, for this machine: setup and 400 times loop."""
    (place / "sketch.cpp").write_text(f"#include <Arduino.h>\n{sketch.read_text()}")
    (place / "main.cpp").write_text(
        "#include <Arduino.h>\nint main() { setup(); for (int i = 0; i < 400; i++) { loop(); } }\n"
    )
    objects = [str(path) for path in library_objects(library, place)]
    sources = [str(place / "sketch.cpp"), str(place / "main.cpp")]
    flags = ("-std=gnu++17", "-Os", *STRICT, f"-I{CORE}", f"-I{library / 'src'}", f"-I{sketch.parent}")
    _run("g++", *flags, *sources, *objects, "-o", str(place / "sketch"))
    return place / "sketch"


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}\n{done.stderr}")
