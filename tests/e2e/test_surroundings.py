"""Full disks, missing tools, special files, several runs at once: the output is complete or as it was."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import FILE, HERE, STAGE, run, run_process, tree
from tests.e2e.marks import needs_qemu


@pytest.fixture
def mlp(tmp_path: Path) -> str:
    return write(models.mlp(), tmp_path)


# ---- the disk -------------------------------------------------------------------------------------------------------


def test_disk_that_fills_up(mlp: str, tmp_path: Path) -> None:
    """Files may not grow beyond 4 KB: writing fails in the middle of the output."""
    run(mlp, "-o", tmp_path / "out", "--verify", "none", "--update", "head").check_success()
    before = tree(tmp_path)
    command = f'ulimit -f 4; exec "{sys.executable}" -m tinytrain_compile "$@"'
    for out in ("out", "new"):
        arguments = ["bash", "-c", command, "bash", mlp, "-o", str(tmp_path / out), "--verify", "none"]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=120, check=False)
        assert done.returncode == 2, done.stderr
        said = STAGE.sub("", done.stderr)
        assert said.startswith("error[E0104]: ") and len(said.splitlines()) == 1
        assert tree(tmp_path) == before


def test_failure_at_every_write(mlp: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let writing a file or renaming one fail (tests/files/test_output.py: at every N): the folder is as it was."""
    out = tmp_path / "out"
    run(mlp, "-o", out, "--verify", "none", "--update", "head").check_success()
    old = tree(tmp_path)
    places = [(os, "rename", at) for at in (1, 20, 40)] + [(Path, "write_bytes", at) for at in (1, 20)]
    for owner, name, limit in places:
        calls, real = iter(range(1, 1000)), getattr(owner, name)

        def failing(
            *arguments: object, calls: Iterator[int] = calls, limit: int = limit, real: Callable[..., object] = real
        ) -> object:
            if next(calls) == limit:
                raise OSError(28, "No space left on device")
            return real(*arguments)

        with monkeypatch.context() as patch:
            patch.setattr(owner, name, failing)
            run(mlp, "-o", out, "--verify", "none").check_error("E0104", 2)
        assert tree(tmp_path) == old, (name, limit)


def test_two_runs_into_one_folder(mlp: str, tmp_path: Path) -> None:
    """Whoever is last wins; each leaves a complete output and no debris."""
    command = [sys.executable, "-m", "tinytrain_compile", mlp, "-o", str(tmp_path / "out"), "--verify", "none"]
    runs = [subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) for _ in range(3)]
    codes = [(process.communicate(timeout=120)[1], process.returncode)[1] for process in runs]
    assert 0 in codes
    assert set(codes) <= {0, 2}
    reference = run(mlp, "-o", tmp_path / "alone", "--verify", "none").check_success()
    assert reference.exit_code == 0
    assert tree(tmp_path / "out") == tree(tmp_path / "alone")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["alone", "net.onnx", "out"]


# ---- special files --------------------------------------------------------------------------------------------------


def test_devices_end(tmp_path: Path) -> None:
    run("/dev/null", "-o", tmp_path / "out").check_error("E0213", 2)
    run("/dev/zero", "-o", tmp_path / "out").check_error("E0217", 2)


def test_data_from_a_device(mlp: str, tmp_path: Path) -> None:
    run(mlp, "-o", tmp_path / "out", "--data", "/dev/zero").check_error("E0105", 2)


def test_model_from_a_pipe(mlp: str, tmp_path: Path) -> None:
    """`tinytrain-compile <(make_model)`."""
    pipe = tmp_path / "pipe.onnx"
    os.mkfifo(pipe)
    with subprocess.Popen(["cp", mlp, str(pipe)]) as feeder:
        outcome = run_process(pipe, "-o", tmp_path / "out", "--verify", "none")
        feeder.wait(timeout=20)
    assert outcome.check_success().exit_code == 0
    assert (tmp_path / "out" / "pipe_train.c").is_file()


def test_reader_that_stops_early(mlp: str) -> None:
    program = f'"{sys.executable}" -m tinytrain_compile'
    command = f'{program} --help | head -1; {program} "{mlp}" --dry-run -v | true'
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=120, check=False)
    assert STAGE.sub("", done.stderr) == ""
    assert done.stdout.startswith("Usage: tinytrain-compile")


# ---- tools ----------------------------------------------------------------------------------------------------------


def path_with(folder: Path, *programs: str) -> dict[str, str]:
    """An environment whose PATH holds these programs only."""
    folder.mkdir()
    for program in programs:
        place = shutil.which(program)
        if place is None:
            pytest.skip(f"{program} is not installed")
        (folder / program).symlink_to(place)
    return {"PATH": str(folder)}


def test_without_any_compiler(mlp: str, tmp_path: Path) -> None:
    environment = path_with(tmp_path / "bin")
    outcome = run_process(mlp, "-o", tmp_path / "out", environment=environment).check_success()
    assert "not verified: no C compiler found (apt-get install gcc)" in " ".join(outcome.out.split())
    assert (tmp_path / "out" / "net_train.c").is_file()


def test_without_cross_tools(mlp: str, tmp_path: Path) -> None:
    """The host check still runs, and what was left out is said with the way to get it."""
    environment = path_with(tmp_path / "bin", "gcc", "as", "ld")
    outcome = run_process(mlp, "-o", tmp_path / "out", environment=environment).check_success()
    assert outcome.agreed[:2] == (FILE, HERE)
    skipped = "not verified on this core: arm-none-eabi-gcc and qemu-system-arm not found (apt-get install"
    assert skipped in " ".join(outcome.out.split())
    assert "qemu-system-arm)" in outcome.out
    asked = run_process(mlp, "-o", tmp_path / "out", "--verify", "host", environment=environment).check_success()
    assert asked.agreed[:2] == (FILE, HERE) and "not verified" not in asked.out


@needs_qemu
@pytest.mark.qemu
def test_without_emulator(mlp: str, tmp_path: Path) -> None:
    """With the cross compiler alone, sizes and the static stack bound are still known."""
    tools = ("gcc", "as", "ld", "arm-none-eabi-gcc", "arm-none-eabi-as", "arm-none-eabi-ld")
    environment = path_with(tmp_path / "bin", *tools)
    outcome = run_process(mlp, "-o", tmp_path / "out", environment=environment).check_success()
    assert "not verified on this core: qemu-system-arm not found" in outcome.out
    assert re.search(r"^stack +[\d,]+ B +worst case; not run on the board$", outcome.out, re.MULTILINE)


def test_host_target_needs_no_cross_tools(mlp: str, tmp_path: Path) -> None:
    environment = path_with(tmp_path / "bin", "gcc", "as", "ld")
    outcome = run_process(mlp, "-o", tmp_path / "out", "--target", "host", environment=environment).check_success()
    assert outcome.agreed[:2] == (FILE, HERE) and "skipped" not in outcome.out
