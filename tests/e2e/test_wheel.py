"""The built wheel works in an environment of its own, away from the checkout."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from testing.networks import models
from testing.places import ROOT
from tests.e2e.broken import write
from tinytrain_compile import __version__


def _run(command: list[str | Path], folder: Path, timeout_s: float = 300) -> str:
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "VIRTUAL_ENV"))}
    finished = subprocess.run(
        [str(part) for part in command],
        cwd=folder,
        env=clean,
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    pytest.importorskip("hatchling", reason="hatchling is not installed, so no wheel can be built offline")
    _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder], ROOT)
    (path,) = folder.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """bin folder of a fresh environment with the wheel; libraries come from this one, the package does not."""
    folder = tmp_path_factory.mktemp("fresh")
    venv.create(folder / "env", with_pip=False)
    site = folder / "env" / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-deps"]
    _run([*pip, "--target", site, wheel], folder)
    # A line of a .pth file is only put on the path: the editable install's own .pth there is not read.
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "env" / "bin"


def test_wheel_holds_package_and_data(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    package = {name for name in names if name.startswith("tinytrain_compile/")}
    assert {name.split("/")[0] for name in names - package} == {f"tinytrain_compile-{__version__}.dist-info"}
    sources = ROOT / "compiler" / "tinytrain_compile"
    wanted = [p for p in sources.rglob("*") if p.is_file() and p.suffix in (".py", ".toml", ".j2", ".c", ".typed")]
    for path in wanted:
        assert f"tinytrain_compile/{path.relative_to(sources)}" in names
    assert "tinytrain_compile/py.typed" in names
    for data in ("targets", "runtime_c", "docs"):
        for path in (ROOT / data).rglob("*"):
            if path.is_file():
                assert f"tinytrain_compile/_data/{data}/{path.relative_to(ROOT / data)}" in names


def test_installed_wheel_compiles(installed: Path, tmp_path: Path) -> None:
    python = installed / "python"
    where = _run([python, "-c", "import tinytrain_compile; print(tinytrain_compile.__file__)"], tmp_path)
    assert str(installed.parent) in where
    model = write(models.mlp(), tmp_path)
    out = _run([python, "-m", "tinytrain_compile", model, "-o", "out", "--verify", "host"], tmp_path)
    assert "PASS" in out
    assert (tmp_path / "out" / "net_train.c").is_file()


def test_installed_wheel_lists_targets(installed: Path, tmp_path: Path) -> None:
    out = _run([installed / "python", "-m", "tinytrain_compile", "--list-targets"], tmp_path)
    names = [
        sorted(path.stem for path in place.glob("*.toml")) for place in (ROOT / "targets", ROOT / "targets" / "boards")
    ]
    assert [line.split()[0] for line in out.splitlines() if line] == [*names[0], "Boards:", *names[1]]


def test_installed_wheel_has_the_pages_that_messages_name(installed: Path, tmp_path: Path) -> None:
    out = _run([installed / "python", "-m", "tinytrain_compile", "--explain", "E0302"], tmp_path)
    found = re.search(r"\S+/docs/update-schemes\.md", out)
    assert found is not None, out
    assert Path(found[0]).read_text(encoding="utf-8") == (ROOT / "docs" / "update-schemes.md").read_text(
        encoding="utf-8"
    )


def _make(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["make", "release-check", *arguments], cwd=ROOT, capture_output=True, text=True, timeout=1200, check=False
    )


@pytest.mark.slow
def test_the_packages_can_be_published_but_for_what_is_listed(tmp_path: Path) -> None:
    """Needs PyPI: tools and all dependencies are downloaded."""
    done = _make(f"RELEASE={tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    said = done.stdout.splitlines()
    assert f"installed  tinytrain-compile, version {__version__}" in said
    assert any(line.strip().startswith("RAM ") for line in said)
    reasons = [line for line in said if line.startswith("not ready  ")]
    assert ("development version" in reasons[0]) == (".dev" in __version__)
    refused = _make(f"RELEASE={tmp_path}", "ARGS=--publish --no-install")
    assert refused.returncode != 0 and reasons == [line for line in refused.stdout.splitlines() if line in reasons]
