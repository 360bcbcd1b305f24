"""A project as a library of a build system: its sources in src/, and beside it the system's own files.

The layouts follow the systems' documentation: Arduino's library specification (1.5), PlatformIO's library.json, modules
of Zephyr, components of ESP-IDF.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from tinytrain_compile import __version__
from tinytrain_compile.emit.board import LINK_SCRIPT, has_script
from tinytrain_compile.emit.c_text import comment_text
from tinytrain_compile.emit.render import environment
from tinytrain_compile.ir.stages import SourceBundle
from tinytrain_compile.target.model import BoardNames, Target

Package = Literal["cmake", "platformio", "arduino", "zephyr", "esp-idf", "makefile"]

SOURCES = "src/"
"""Folder with only the sources of a package: systems that compile by glob find no check program there."""
FLAGS = ("-O2", "-ffp-contract=off", "-fno-fast-math", "-fno-math-errno", "-fno-tree-vectorize")

_TEMPLATES: Mapping[Package, Mapping[str, str]] = {
    "cmake": {"CMakeLists.txt": "cmake.txt", "toolchain.cmake": "toolchain.cmake"},
    "platformio": {},
    "arduino": {"library.properties": "library.properties"},
    "zephyr": {"zephyr/module.yml": "module.yml", "zephyr/Kconfig": "Kconfig", "zephyr/CMakeLists.txt": "zephyr.txt"},
    "esp-idf": {"CMakeLists.txt": "idf.txt", "idf_component.yml": "idf_component.yml"},
    "makefile": {"Makefile": "Makefile"},
}
"""Path in the package -> template."""


@dataclass(frozen=True)
class PackageFacts:
    """Facts about a package. title: of the model; target: of the sources."""

    title: str
    target: Target


def package_files(kind: Package, bundle: SourceBundle, facts: PackageFacts) -> dict[str, str]:
    """Write the whole package without its check program: path -> text."""
    values = _values(bundle, facts)
    files = {_place(path): text for path, text in bundle.files.items() if path != "CMakeLists.txt"}
    for path, template in _TEMPLATES[kind].items():
        if path != "toolchain.cmake" or facts.target.toolchain is not None:
            files[path] = environment().get_template(f"packages/{template}.j2").render(values)
    files |= bundle.example(kind, values["names"])
    return files | {path: write(values) for path, write in _JSON.get(kind, {}).items()}


def _place(path: str) -> str:
    return path if "/" in path else f"{SOURCES}{path}"


def _values(bundle: SourceBundle, facts: PackageFacts) -> dict[str, Any]:
    """Return the values of the templates."""
    prefix, target = bundle.interface.prefix, facts.target
    sources = sorted(path for path in bundle.files if path.endswith(".c") and "/" not in path)
    return {
        "p": prefix,
        "P": prefix.upper(),
        "i": bundle.interface,
        "does": "Trains and runs" if bundle.interface.trains else "Runs",
        "title": comment_text(facts.title).replace('"', "'"),
        "semver": __version__.replace(".dev", "-dev"),  # a state of the sources before that release
        "sources": [f"{SOURCES}{name}" for name in sources],
        "small_sources": [f"{SOURCES}{name}" for name in bundle.small],
        "flags": " ".join(FLAGS),
        "target": target,
        "names": BoardNames() if target.board is None else target.board.names,
        "machine": " ".join(target.gcc_flags),
        "tool": "..." if target.toolchain is None else target.toolchain.prefix,
        "link_script": LINK_SCRIPT if has_script(target) else "",
    }


def _library_json(values: Mapping[str, Any]) -> str:
    """Write PlatformIO's manifest. It accepts only licences of the SPDX list, which has none for a model's owner."""
    manifest = {
        "name": values["p"],
        "version": values["semver"],
        "description": f"{values['does']} {values['title']} on the device.",
        "frameworks": "*",
        "platforms": values["names"].platform or "*",
        "headers": f"{values['p']}_train.h",
        "build": {"srcDir": "src", "includeDir": "src", "flags": list(FLAGS)},
        "export": {"exclude": ["verify", "report.html"]},
    }
    return json.dumps(manifest, indent=2) + "\n"


_JSON: Mapping[Package, Mapping[str, Callable[[Mapping[str, Any]], str]]] = {
    "platformio": {"library.json": _library_json},
}
