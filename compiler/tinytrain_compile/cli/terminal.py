"""What the terminal shows: a progress line while long stages run, and the report block at the end."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tinytrain_compile.driver.pipeline import Result
from tinytrain_compile.ir.learning import Finding
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.report.layout import LONG_LISTS, plural, printable, wrapped
from tinytrain_compile.report.text import success_text

if TYPE_CHECKING:
    from tinytrain_compile.learn.contribution import Contribution
    from tinytrain_compile.learn.export import Exported


_AS_IT_IS: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
"""For everything that prints: names and options may look like markup ("last:100: ...") and are printed unchanged."""


class Terminal:
    """Writes progress to stderr (only if it is a terminal) and results to stdout."""

    def __init__(self, color: str, verbose: bool) -> None:
        force = {"always": True, "never": False}.get(color)
        self._out = Console(force_terminal=force, no_color=color == "never", soft_wrap=True, **_AS_IT_IS)
        self._verbose = verbose
        self._progress: Progress | None = None
        self._task = None

    def progress(self, what: str, share: float) -> None:
        """Show what is being done; `share` is the part done, from 0 to 1."""
        if not sys.stderr.isatty():
            return
        if self._progress is None:
            columns = (BarColumn(24), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True, **_AS_IT_IS), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(what, total=1.0)
        assert self._task is not None
        self._progress.update(self._task, description=what, completed=share)

    def _say(self, line: str) -> None:
        """Print a line as it is."""
        self._out.print(line)

    def clear(self) -> None:
        """Take the progress line away."""
        if self._progress is not None:
            self._progress.stop()

    def success(self, result: Result, options: CompileOptions) -> None:
        """Print the report block and where the files are."""
        assert result.summary is not None
        short = False
        if "text" in options.report:
            for line in success_text(result.summary):
                self._say(line)
                short = short or f" more in {LONG_LISTS}" in line
        if self._verbose:
            from tinytrain_compile.report.verbose import verbose_lines

            for line in verbose_lines(result.summary):
                self._say(line)
        if options.dry_run:
            self._say("wrote      nothing (--dry-run)" + (f", so no {LONG_LISTS} either" if short else ""))
        else:
            count, digest = len(result.files), result.digest[:16]
            self._say(f"wrote      {options.out}/ ({count} files)  sha256 {digest}")

    def gains(self, found: Contribution, out: Path) -> None:
        """Print what each part was worth, most first, and where the table is; groups of channels with -v alone."""
        for note in found.notes:
            for line in wrapped("note       ", printable(note)):
                self._out.print(line, markup=False)
        for gain in sorted(found.gains, key=lambda gain: -gain.gain):
            if gain.channels and not self._verbose:
                continue
            right = "" if gain.accuracy is None else f"   accuracy {gain.accuracy:.1%}"
            some = f", {gain.axis} channels {gain.channels[0]} to {gain.channels[-1]}" if gain.channels else ""
            where = f"{printable(gain.layer)} {gain.part}{some}"
            self._say(f"{gain.gain:8.4f}  {where}   {gain.elements:,} parameters{right}")
        self._say(f"wrote      {out}")

    def finding(self, finding: Finding, written: Sequence[Path]) -> None:
        """Print what training on own samples gave, and where the files are."""
        from tinytrain_compile.report.learning import finding_lines

        for line in finding_lines(finding):
            self._say(line)
        self._say(f"{'wrote':<10} {', '.join(map(str, written))}")

    def exported(self, done: Exported, out: Path) -> None:
        """Print what was learned, how the file was judged, and where it is."""
        changed = {name: count for name, count in done.tensors.items() if count}
        self._say(f"learned    {sum(changed.values()):,} numbers of {plural(len(changed), 'tensor')}")
        if self._verbose:
            for name, count in changed.items():
                self._say(f"           {printable(name)}: {count:,}")
        for note in done.notes:
            for line in wrapped("note       ", printable(note)):
                self._say(line)
        found = done.agreement
        judged = "not compared" if found.outputs is None else f"largest difference of an output {found.outputs:.2g}"
        judged += "" if found.steps is None else f", of a stored tensor {plural(round(found.steps), 'step')}"
        self._say(f"checked    onnx.reference on the file, the device's C: {judged}")
        self._say(f"wrote      {out}{' and its .data' if done.file.data else ''}")
