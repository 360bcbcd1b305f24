"""Workers that stay alive from case to case; one that crashes, hangs or takes too long is ended and replaced."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from multiprocessing import get_context
from multiprocessing.context import SpawnProcess
from pathlib import Path

from tests.campaign.cases import Kind, Result
from tests.campaign.worker import serve

CPU_S = 60.0
"""The most that a case may take, with all programs that it starts."""
IDLE_S = 15.0
"""A case that has not computed for so long waits for something that will not come."""
CASES = 1000
"""Of one worker: then another begins, without what the first has gathered."""
_TICKS = os.sysconf("SC_CLK_TCK")


class Worker:
    """One process, made when it is needed."""

    def __init__(self, kinds: Mapping[str, Kind], folder: Path, cpu_s: float = CPU_S, idle_s: float = IDLE_S) -> None:
        self._kinds, self._folder, self._cpu_s, self._idle_s = kinds, folder, cpu_s, idle_s
        self._process: SpawnProcess | None = None
        self._done = 0

    def attempt(self, kind: str, seed: int, index: int) -> Result:
        """One case; a problem if the process does not survive it."""
        if self._done == CASES:
            self.end()
        process = self._process or self._begin()
        pid = process.pid or 0
        self._connection.send((kind, seed, index))
        start = moved = _cpu_s(pid)
        since = time.monotonic()
        while not self._connection.poll(1.0):
            used = _cpu_s(pid)
            if used > moved + 0.05 or not process.is_alive():
                moved, since = used, time.monotonic()
            wrong = ""
            if used - start > self._cpu_s:
                wrong = f"took more than {self._cpu_s:.0f} CPU s"
            elif time.monotonic() - since > self._idle_s:
                wrong = f"waited for more than {self._idle_s:.0f} s"
            if wrong:
                self.end()
                return Result(kind, index, "none", used - start, problem=wrong)
        self._done += 1
        try:
            return self._connection.recv()
        except (EOFError, OSError):
            process.join()
            code = process.exitcode or 0
            ended = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
            self.end()
            return Result(kind, index, "none", problem=f"the process ended with {ended}")

    def end(self) -> None:
        """End the process and all that it started."""
        process, self._process = self._process, None
        if process is None:
            return
        self._connection.close()
        for pid in (*_family(process.pid or 0), process.pid or 0):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.join()

    def _begin(self) -> SpawnProcess:
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        context = get_context("spawn")
        self._connection, other = context.Pipe()
        process = context.Process(target=serve, args=(other, self._kinds, self._folder))
        process.start()
        other.close()
        self._process, self._done = process, 0
        self._connection.recv()
        return process


def run_cases(
    kinds: Mapping[str, Kind],
    wanted: Iterable[tuple[str, int]],
    seed: int,
    jobs: int,
    report: Callable[[Result], None],
    cpu_s: float = CPU_S,
    idle_s: float = IDLE_S,
) -> None:
    """Run cases (kind, number) on some workers; report: is called with each result, from one thread at a time."""
    lock = threading.Lock()
    left: Iterator[tuple[str, int]] = iter(wanted)

    def work(worker: Worker) -> None:
        while True:
            with lock:
                case = next(left, None)
            if case is None:
                return
            name, index = case
            result = worker.attempt(name, seed, index)
            with lock:
                report(result)

    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        workers = [Worker(kinds, Path(name) / str(job), cpu_s, idle_s) for job in range(jobs)]
        threads = [threading.Thread(target=work, args=(worker,), daemon=True) for worker in workers]
        for thread in threads:
            thread.start()
        try:
            for thread in threads:
                thread.join()
        finally:
            left = iter(())
            for worker in workers:
                worker.end()


def _stat(pid: str | int) -> list[str]:
    """Fields of /proc/PID/stat behind the name; empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _family(pid: int) -> list[int]:
    """All processes below one."""
    parents = {int(place.name): _stat(place.name) for place in Path("/proc").iterdir() if place.name.isdigit()}
    found = [pid]
    for parent in found:
        found += [child for child, stat in parents.items() if stat and int(stat[1]) == parent]
    return found[1:]


def _cpu_s(pid: int) -> float:
    """What a process, those below it, and those that they have waited for have computed."""
    whole = (_stat(member) for member in (pid, *_family(pid)))
    return sum(sum(map(int, stat[11:15])) for stat in whole if stat) / _TICKS
