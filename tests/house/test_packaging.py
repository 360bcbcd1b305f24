"""What surrounds the code: dependencies and their lock file, versions, licences, hooks, pages that messages name."""

from __future__ import annotations

import re
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from testing.places import ROOT
from tinytrain_compile import __version__
from tinytrain_compile.files import resources

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXACT = {"apache-tvm", "apache-tvm-ffi", "onnx", "ortools"}
RUNTIME_LICENCE = "SPDX-License-Identifier: Apache-2.0 WITH LLVM-exception"


def locked() -> dict[str, str]:
    """Package -> version, of requirements.lock."""
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(name): version for name, version in pairs}


def declared() -> list[Requirement]:
    """What pyproject.toml asks for, development included."""
    return [Requirement(text) for text in (*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["dev"])]


def needed(names: list[str]) -> set[str]:
    """These packages and all that they need, of those that are installed; pip is the environment's own."""
    found: set[str] = set()
    while names:
        name = canonicalize_name(names.pop())
        if name in found or name == "pip":
            continue
        found.add(name)
        try:
            texts = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue
        more = [Requirement(text) for text in texts]
        names += [need.name for need in more if need.marker is None or need.marker.evaluate({"extra": ""})]
    return found


def is_installed(name: str) -> bool:
    try:
        return bool(metadata.version(name))
    except metadata.PackageNotFoundError:
        return False


def test_lock_is_complete_and_within_the_ranges() -> None:
    lock = locked()
    for need in declared():
        assert need.specifier.contains(lock[canonicalize_name(need.name)]), str(need)
    missing = [need.name for need in declared() if not is_installed(need.name)]
    assert not missing, "make setup installs them"
    assert set(lock) == needed([need.name for need in declared()])


@pytest.mark.parametrize("name", sorted(locked()))
def test_what_is_installed_is_what_the_lock_says(name: str) -> None:
    try:
        installed = metadata.version(name)
    except metadata.PackageNotFoundError:
        pytest.skip(f"{name} is not installed: make setup installs it")
    assert installed == locked()[name], "make setup installs the versions of requirements.lock"


def test_only_what_decides_about_results_is_pinned() -> None:
    wants = {need.name: str(need.specifier) for need in map(Requirement, PROJECT["dependencies"])}
    assert {name for name, want in wants.items() if want.startswith("==")} == EXACT
    assert all(re.fullmatch(r"<\d+,>=[\d.]+", want) for name, want in wants.items() if name not in EXACT), wants


def untrue_version(version: str, changelog: str) -> str:
    """Why generated code must not be stamped with this version; "" if it may be.

    Sources with changes that no release has are a development version of a later release. (Generated code, M_VERSION,
    packages and manifests hold the stamp; a user has to be able to tell what made them.)
    """
    headings = re.findall(r"^## (.*)$", changelog, re.MULTILINE)
    if headings[0] != "Unreleased" or not re.fullmatch(r"\d+\.\d+\.\d+, \d{4}-\d\d-\d\d", headings[1]):
        return f"headings {headings[:2]}"
    released = headings[1].partition(",")[0]
    changes = changelog.partition("## Unreleased\n")[2].partition("\n## ")[0].strip()
    if not changes:
        return "" if version == released else f"nothing is unreleased, so this is {released}"
    later = Version(version) > Version(released) and re.fullmatch(r"\d+\.\d+\.\d+\.dev\d+", version)
    return "" if later else f"changes after {released} are unreleased, so this is a .dev of the next release"


def test_one_version_everywhere() -> None:
    assert PROJECT["version"] == __version__
    assert untrue_version(__version__, (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")) == ""


@pytest.mark.parametrize(
    ("version", "changes", "why"),
    [
        ("0.1.0", "", ""),
        ("0.2.0.dev0", "* Something.\n\n", ""),
        ("0.1.0", "* Something.\n\n", "changes after 0.1.0 are unreleased"),
        ("0.1.0.dev3", "* Something.\n\n", "changes after 0.1.0 are unreleased"),
        ("0.2.0", "* Something.\n\n", "changes after 0.1.0 are unreleased"),
        ("0.2.0.dev0", "", "nothing is unreleased"),
    ],
)
def test_a_released_version_is_that_of_its_sources(version: str, changes: str, why: str) -> None:
    found = untrue_version(version, f"# Changelog\n\n## Unreleased\n\n{changes}## 0.1.0, 2026-11-22\n\n* First.\n")
    assert found.startswith(why) and bool(found) == bool(why)


def test_every_runtime_file_says_its_licence() -> None:
    main = ROOT / "compiler" / "tinytrain_compile" / "verify" / "templates" / "main.c.j2"
    files = [path for path in (ROOT / "runtime_c").rglob("*") if path.is_file() and path.name != "LICENSE"]
    assert len(files) >= 17
    for path in (*files, main):
        assert path.read_text(encoding="utf-8").splitlines()[0] == f"/* {RUNTIME_LICENCE} */", path


def test_hooks_are_what_make_check_runs() -> None:
    hooks = re.findall(r"entry: (.*)", (ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    recipe = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert recipe is not None
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe[1].splitlines()]
    assert len(commands) == 7
    for command in commands:
        plain = command.split(" ", 1)[1] if command.startswith("PATH=") else command
        assert any(plain in hook for hook in hooks), command


def test_pages_that_messages_name_are_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "compiler").rglob("*.py")]
    pages = {page for text in texts for page in re.findall(r"\bdocs/[\w-]+\.md\b", text)}
    assert len(pages) >= 6
    assert [page for page in sorted(pages) if not (ROOT / page).is_file()] == []
    message = "see docs/update-schemes.md for the format"
    assert resources.with_pages(message) == message
    (tmp_path / "docs").mkdir()
    monkeypatch.setattr(resources, "ROOTS", (tmp_path, ROOT))
    assert resources.with_pages(message) == f"see {tmp_path}/docs/update-schemes.md for the format"
