"""The output folder: nothing in it that no run wrote is lost, and no output is half of one and half of another."""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.e2e.command import tree
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files import output_folder, user_file
from tinytrain_compile.files.output_folder import MANIFEST, STAGED, WRITTEN, check_place, read_manifest, write_output
from tinytrain_compile.files.user_file import JOURNAL, read_file

OLD = {
    "net_train.h": "old",
    "net.c": "old",
    "same.h": "same",
    "gone.h": "gone",
    "verify/main.c": "old",
    "deep/er/gone.c": "gone",
}
NEW = {
    "net_train.h": "new",
    "net.c": "new",
    "same.h": "same",
    "fresh.h": "fresh",
    "verify/main.c": "new",
    "other/in.c": "new",
}
WRITING = [(os, "rename"), (os, "mkdir"), (Path, "write_bytes")]
OPERATIONS = [*WRITING, (os, "rmdir"), (os, "unlink")]


def furnish(out: Path) -> dict[str, str]:
    """Things of the user's in the folder, and what they look like."""
    (out / ".git").mkdir(parents=True)
    (out / ".git" / "HEAD").write_text("ref")
    (out / "verify").mkdir(exist_ok=True)
    (out / "verify" / "notes.txt").write_text("mine")
    (out / "net.onnx").write_bytes(b"model")
    (out / "empty").mkdir()
    (out / "link").symlink_to("net.onnx")
    return foreign(out)


def foreign(out: Path) -> dict[str, str]:
    """What no run wrote."""
    ours = {*OLD, *NEW, MANIFEST, "other", "deep", "deep/er"}
    return {path: digest for path, digest in tree(out).items() if path not in ours}


def wanted(files: dict[str, str], folder: Path) -> dict[str, str]:
    """The tree of a folder that holds these files alone."""
    write_output(folder, files)
    return tree(folder)


def own(out: Path) -> dict[str, str]:
    mine = foreign(out)
    return {path: digest for path, digest in tree(out).items() if path not in mine or path == "verify"}


@pytest.fixture
def outputs(tmp_path: Path) -> tuple[dict[str, str], dict[str, str]]:
    return wanted(OLD, tmp_path / "first"), wanted(NEW, tmp_path / "second")


def test_the_manifest_lists_every_file_with_its_hash(tmp_path: Path) -> None:
    written = write_output(tmp_path / "a", OLD)
    manifest = json.loads((tmp_path / "a" / MANIFEST).read_text())["sha256"]
    found = {path: digest for path, digest in tree(tmp_path / "a").items() if digest}
    assert {path: digest for path, digest in found.items() if path != MANIFEST} == manifest
    assert set(written.paths) == set(found)
    assert wanted(OLD, tmp_path / "b") == tree(tmp_path / "a"), "the same bytes in any folder"


def test_what_no_run_wrote_stays(tmp_path: Path, outputs: tuple[dict[str, str], dict[str, str]]) -> None:
    out = tmp_path / "out"
    write_output(out, OLD)
    mine = furnish(out)
    write_output(out, NEW)
    assert foreign(out) == mine
    assert own(out) == outputs[1], "and nothing of the earlier output lingers"
    assert (out / "link").is_symlink()


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("name", ["fresh.h", "net.c", "verify/main.c", "gone.h", MANIFEST])
def test_what_would_be_lost_is_named(name: str, force: bool, tmp_path: Path) -> None:
    """A foreign file with a name of ours, and files of ours that were edited, one of them not written any more."""
    out = tmp_path / "out"
    write_output(out, OLD)
    (out / name).write_text("edited")
    before = tree(out)
    if force:
        check_place(out, NEW, force=True)
        write_output(out, NEW, force=True)
        kept = name in ("gone.h", MANIFEST)  # with no manifest, gone.h is nobody's
        assert (out / "gone.h").exists() == kept
        assert (out / "net.c").read_text() == "new"
        write_output(out, NEW)
        return
    for attempt in (lambda: write_output(out, NEW), lambda: check_place(out, NEW)):
        with pytest.raises(CompileError, match=f"{name}.*--force") as caught:
            attempt()
        assert caught.value.code == "E0104"
        assert tree(out) == before


def test_an_output_without_a_manifest_is_the_users(tmp_path: Path) -> None:
    """Versions before the manifest knew their outputs by three files."""
    out = tmp_path / "out"
    out.mkdir()
    for name in ("report.json", "plan.json", "tt_runtime.h", "net.c"):
        (out / name).write_text("{}")
    with pytest.raises(CompileError, match=r"net\.c.*without manifest\.json.*--force"):
        write_output(out, NEW)
    write_output(out, NEW, force=True)
    assert (out / "report.json").read_text() == "{}", "overwritten is only what has our name"
    assert (out / "net.c").read_text() == "new"


@pytest.mark.parametrize("force", [False, True])
def test_folders_in_the_way_are_never_removed(force: bool, tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere"
    (out / "net.c").mkdir(parents=True)
    with pytest.raises(CompileError, match="a folder net"):
        write_output(out, NEW, force=force)
    (out / "net.c").rmdir()
    elsewhere.mkdir()
    (out / "verify").symlink_to(elsewhere)
    with pytest.raises(CompileError, match="verify, which is no folder"):
        write_output(out, NEW, force=force)
    assert list(elsewhere.iterdir()) == []


def test_a_link_in_the_place_of_a_file_is_not_followed(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_output(out, OLD)
    (out / "net.c").rename(tmp_path / "kept.c")
    (out / "net.c").symlink_to(tmp_path / "kept.c")
    with pytest.raises(CompileError, match=r"net\.c, which was changed"):
        write_output(out, NEW)
    write_output(out, NEW, force=True)
    assert (tmp_path / "kept.c").read_text() == "old"
    assert not (out / "net.c").is_symlink()


def test_input_files_stay_even_if_they_are_ours(tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_output(out, OLD)
    write_output(out, NEW, inputs=(out / "gone.h", out / "net.c"))
    assert (out / "gone.h").read_text() == "gone"
    write_output(out, NEW)
    assert (out / "gone.h").read_text() == "gone", "from then on it is the user's"


@pytest.mark.parametrize("path", ["../kept", "/kept", "a/../../kept", "verify/../../kept", "C:/kept", "", ".", "./a"])
def test_a_manifest_cannot_name_what_lies_elsewhere(path: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    write_output(out, OLD)
    (tmp_path / "kept").write_text("gone")
    manifest = json.loads((out / MANIFEST).read_text())
    manifest["sha256"][path] = manifest["sha256"]["gone.h"]
    (out / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(CompileError, match="that no run has written"):
        write_output(out, NEW)
    write_output(out, NEW, force=True)
    assert (tmp_path / "kept").read_text() == "gone"


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"sha256": []}', '{"sha256": {"a": 1}}', "[" * 9999, "\xff"])
def test_a_manifest_that_is_none(text: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / MANIFEST).write_text(text, encoding="latin-1")
    with pytest.raises(CompileError, match="that no run has written"):
        check_place(out)


# ---- interrupts -----------------------------------------------------------------------------------------------------


class Interrupter:
    """Lets the N-th file operation fail, before or after it has happened; None kills the process there."""

    def __init__(self, patch: pytest.MonkeyPatch, problem: BaseException | None, after: bool) -> None:
        self.calls = self.limit = 0
        for owner, name in WRITING if isinstance(problem, OSError) else OPERATIONS:  # full disks can be emptied
            patch.setattr(owner, name, self._wrapped(getattr(owner, name), problem, after))

    def _wrapped(
        self, function: Callable[..., object], problem: BaseException | None, after: bool
    ) -> Callable[..., object]:
        def wrapper(*arguments: object, **options: object) -> object:
            self.calls += 1
            if self.calls != self.limit:
                return function(*arguments, **options)
            if after:
                function(*arguments, **options)
            if problem is None:
                os.kill(os.getpid(), signal.SIGKILL)
            assert problem is not None
            raise type(problem)(*problem.args)

        return wrapper

    def attempts(self) -> Iterator[int]:
        """1, 2, ...; whoever takes them stops at the first that nothing happens to."""
        for self.limit in range(1, 400):
            self.calls = 0
            yield self.limit
        raise AssertionError("no end")


PROBLEMS = {"ctrl-c": KeyboardInterrupt(), "disk": OSError(28, "No space left on device")}


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_interrupt_at_every_step(
    problem: str,
    after: bool,
    tmp_path: Path,
    outputs: tuple[dict[str, str], dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The folder holds the old output or the new one, all of it, everything of the user's, and nothing else."""
    out, seen = tmp_path / "out", set[bool]()
    write_output(out, OLD)
    mine = furnish(out)
    shutil.copytree(out, tmp_path / "kept", symlinks=True)
    with monkeypatch.context() as patch:
        interrupter = Interrupter(patch, PROBLEMS[problem], after)
        for attempt in interrupter.attempts():
            said = None
            try:
                write_output(out, NEW)
            except (KeyboardInterrupt, CompileError) as error:
                said = str(error)
            hit, interrupter.limit = interrupter.calls >= attempt, 0
            assert foreign(out) == mine, attempt
            is_new = own(out) == outputs[1]
            assert is_new or own(out) == outputs[0], f"operation {attempt}"
            assert is_new == (said in (WRITTEN, None)), "what is said is true"
            seen.add(is_new)
            if not hit:
                break
            shutil.rmtree(out)
            shutil.copytree(tmp_path / "kept", out, symlinks=True)
    assert seen == {False, True}
    assert attempt > 25


@pytest.mark.parametrize("problem", PROBLEMS)
def test_an_interrupt_of_a_first_output(problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the folders above the output stay."""
    whole = wanted(NEW, tmp_path / "whole")
    with monkeypatch.context() as patch:
        interrupter = Interrupter(patch, PROBLEMS[problem], after=False)
        for attempt in interrupter.attempts():
            with suppress(KeyboardInterrupt, CompileError):
                write_output(tmp_path / "a" / "b" / "out", NEW)
            hit, interrupter.limit = interrupter.calls >= attempt, 0
            if (tmp_path / "a").exists():
                assert tree(tmp_path / "a" / "b" / "out") == whole
                shutil.rmtree(tmp_path / "a")
            if not hit:
                break


def _killed(out: Path, limit: int) -> None:
    """Write, and die before the N-th file operation: nobody cleans up."""

    interrupter = Interrupter(pytest.MonkeyPatch(), None, after=False)
    interrupter.limit = limit
    write_output(out, NEW)
    os._exit(0)


def check_half(out: Path, mine: dict[str, str], outputs: tuple[dict[str, str], ...]) -> bool:
    """Nothing can be made of a folder between two outputs, and nothing of the user's is touched; whether it is one."""
    visible = {path: digest for path, digest in tree(out).items() if not path.startswith(".tinytrain")}
    assert {path: digest for path, digest in visible.items() if path in mine} == mine
    between = (out / JOURNAL).exists()
    listed = read_manifest(out / MANIFEST)
    assert (listed is None) <= between, "where there is no manifest there is a journal"
    assert {path: visible.get(path) for path in listed or {}} == (listed or {}), "who has one has all that it lists"
    files = {path: digest for path, digest in visible.items() if digest and path not in mine and path != MANIFEST}
    whole = [{path: digest for path, digest in each.items() if digest and path != MANIFEST} for each in outputs]
    assert "net_train.h" not in files or files in whole, "the header is there only if all the rest is"
    for path in ("net.c", "net_train.h", "verify/main.c", MANIFEST) if between else ():
        with pytest.raises(OSError, match="a run was killed while it wrote out: compile again with -o out"):
            read_file(out / path)
    return between


def killed(out: Path, limit: int) -> int:
    """What a process ends with that writes NEW and is killed at a file operation; 0 if it got to the end."""
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(out, limit))
    child.start()
    child.join(60)
    assert child.exitcode is not None
    return child.exitcode


def test_a_run_that_is_killed_is_undone_by_the_next(
    tmp_path: Path, outputs: tuple[dict[str, str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at every step: as README and ADR 19 say, and a look at the folder puts the rest back."""
    monkeypatch.setattr(user_file, "PATIENCE_S", 0.0)
    monkeypatch.setattr(output_folder, "STALE_S", 0.0)
    out, seen = tmp_path / "out", set[str]()
    write_output(out, OLD)
    mine = furnish(out)
    shutil.copytree(out, tmp_path / "kept", symlinks=True)
    for limit in range(1, 200):
        ended = killed(out, limit)
        between = check_half(out, mine, outputs)
        check_place(out, NEW)
        visible = {path: digest for path, digest in tree(out).items() if not path.startswith(".tinytrain")}
        now = {path: digest for path, digest in visible.items() if path not in mine or path == "verify"}
        assert now in outputs, limit
        seen.add(f"{between} {now == outputs[1]}")
        write_output(out, NEW)
        assert own(out) == outputs[1] and foreign(out) == mine, "nothing is left behind"
        if ended == 0:
            break
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "kept", out, symlinks=True)
    assert seen == {"False False", "True False", "False True"}


def _repaired(out: Path, limit: int) -> None:
    """Put back what a killed run has moved, and die before the N-th file operation."""
    interrupter = Interrupter(pytest.MonkeyPatch(), None, after=False)
    interrupter.limit = limit
    check_place(out)
    os._exit(0)


def test_a_repair_that_is_killed_is_no_worse(
    tmp_path: Path, outputs: tuple[dict[str, str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Killed at every step of putting back, from the middle of a run: the same holds, and the next run ends it."""
    monkeypatch.setattr(user_file, "PATIENCE_S", 0.0)
    monkeypatch.setattr(output_folder, "STALE_S", 0.0)
    out = tmp_path / "out"
    write_output(out, OLD)
    mine = furnish(out)
    assert killed(out, 36) < 0 and (out / JOURNAL).exists()
    shutil.copytree(out, tmp_path / "kept", symlinks=True)
    steps = 0
    for limit in range(1, 200):
        child = multiprocessing.get_context("fork").Process(target=_repaired, args=(out, limit))
        child.start()
        child.join(60)
        check_half(out, mine, outputs)
        write_output(out, NEW)
        assert own(out) == outputs[1] and foreign(out) == mine
        if child.exitcode == 0:
            break
        shutil.rmtree(out)
        shutil.copytree(tmp_path / "kept", out, symlinks=True)
        steps += 1
    assert steps > 10


def test_a_file_that_another_run_is_moving_is_waited_for(tmp_path: Path) -> None:
    """A consumer reads the file when it is in its place; and what no run moves is read at once."""
    out = tmp_path / "out"
    write_output(out, OLD)
    furnish(out)
    (out / JOURNAL / "new").mkdir(parents=True)
    (out / "net.c").rename(out / JOURNAL / "new" / "net.c")
    assert read_file(out / "net.onnx") == b"model"

    def end() -> None:
        (out / JOURNAL / "new" / "net.c").rename(out / "net.c")
        (out / JOURNAL / "new").rmdir()
        (out / JOURNAL).rmdir()

    timer = threading.Timer(0.3, end)
    timer.start()
    assert read_file(out / "net.c") == b"old"
    timer.join()


def test_putting_back_overwrites_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that the user made where a killed run had moved one away."""
    monkeypatch.setattr(user_file, "PATIENCE_S", 0.0)
    out = tmp_path / "out"
    write_output(out, OLD)
    child = multiprocessing.get_context("fork").Process(target=_killed, args=(out, 30))
    child.start()
    child.join(60)
    assert (out / JOURNAL).exists()
    (out / "gone.h").write_text("mine")
    with pytest.raises(CompileError, match=r"gone\.h came up meanwhile"):
        write_output(out, NEW)
    assert (out / "gone.h").read_text() == "mine"
    (out / "gone.h").unlink()
    write_output(out, NEW)
    assert not list(out.glob(f"{STAGED}*")) or os.name == "nt"


def test_a_failure_that_stays_leaves_what_the_next_run_puts_back(
    tmp_path: Path, outputs: tuple[dict[str, str], dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that is gone in the middle of it: nothing can be undone then, and the line says so."""
    monkeypatch.setattr(user_file, "PATIENCE_S", 0.0)
    out, real, calls = tmp_path / "out", os.rename, 0
    write_output(out, OLD)
    mine = furnish(out)

    def gone(*arguments: str) -> None:
        nonlocal calls
        calls += 1
        if calls > 8:
            raise OSError(5, "Input/output error")
        real(*arguments)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", gone)
        with pytest.raises(CompileError, match=r"between two outputs.*compile again"):
            write_output(out, NEW)
    assert (out / JOURNAL).exists()
    check_place(out)
    assert own(out) == outputs[0]
    assert foreign(out) == mine
