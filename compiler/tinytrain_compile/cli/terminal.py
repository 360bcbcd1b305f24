"""Output on the terminal: progress on stderr while long stages run, and the report at the end on stdout."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from shlex import quote
from shutil import get_terminal_size
from typing import TYPE_CHECKING, Any

from rich.cells import cell_len
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from tinytrain_compile.driver.pipeline import Result
from tinytrain_compile.ir.learning import Finding
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.report.checks import verdict
from tinytrain_compile.report.layout import (
    KEY_WIDTH,
    LONG_LISTS,
    WIDTH,
    Row,
    block,
    blocks,
    command,
    figure,
    fitted,
    grouped,
    plural,
    printable,
    row,
    sentence,
    shorten,
    table,
)
from tinytrain_compile.report.text import headline, success_text

if TYPE_CHECKING:
    from tinytrain_compile.learn.audit import Audit, Evidence
    from tinytrain_compile.learn.contribution import Contribution, Gain
    from tinytrain_compile.learn.export import Exported
    from tinytrain_compile.learn.export_outputs import OnSamples


_AS_IT_IS: dict[str, Any] = {"markup": False, "emoji": False, "highlight": False}
"""For everything that prints: names and options may look like markup ("last:100: ...") and are printed unchanged."""


_BAR = 12
_BESIDE = _BAR + 2 + len("0:00:00") + 1
"""Columns of the bar, the time and the spaces beside what is being done."""


def _shown(what: str, room: int) -> str:
    """Cut what is being done to a line: counts give way, the last one first."""
    parts = what.split(", ")
    while len(parts) > 1 and cell_len(", ".join(parts)) > room:
        parts.pop()
    return shorten(", ".join(parts), room)


def terminal_width() -> int:
    """Return the columns of what is printed: those of the terminal (or COLUMNS), WIDTH at most and on a pipe."""
    return min(get_terminal_size((WIDTH, 24)).columns, WIDTH)


class Terminal:
    """Writes progress to stderr (a line that changes on a terminal, else a line per stage) and results to stdout."""

    def __init__(self, color: str, verbose: bool) -> None:
        force = {"always": True, "never": False}.get(color)
        self._out = Console(force_terminal=force, no_color=color == "never", soft_wrap=True, **_AS_IT_IS)
        self._verbose = verbose
        self._progress: Progress | None = None
        self._task = None
        self._stages = set[str]()
        self._width = terminal_width()

    def progress(self, what: str, share: float) -> None:
        """Show what is being done; `share` is the part done, from 0 to 1.

        The text up to the first comma names the stage; what follows it counts, and is shown on a terminal alone.
        """
        if not sys.stderr.isatty():
            self._stage(what.partition(",")[0], share)
            return
        shown = _shown(what, self._width - _BESIDE)
        if self._progress is None:
            columns = (BarColumn(_BAR), TextColumn("{task.description}", markup=False), TimeElapsedColumn())
            self._progress = Progress(*columns, console=Console(stderr=True, **_AS_IT_IS), transient=True)
            self._progress.start()
            self._task = self._progress.add_task(shown, total=1.0)
        assert self._task is not None
        self._progress.update(self._task, description=shown, completed=share)

    def _stage(self, stage: str, share: float) -> None:
        """Write a line for a stage when it begins for the first time."""
        if stage not in self._stages:
            self._stages.add(stage)
            with suppress(OSError, ValueError):  # nobody reads it
                print(f"[{share:4.0%}] {printable(stage)}", file=sys.stderr, flush=True)

    def _say(self, line: str) -> None:
        """Print a line as it is, in several lines if the terminal is narrower."""
        for piece in fitted(line, self._width):
            self._out.print(piece)

    def _row(self, key: str, text: str) -> None:
        """Print a key and running text below one another's columns."""
        for line in block([sentence(key, text, self._width)]):
            self._out.print(line)

    def _path(self, key: str, text: str) -> None:
        """Print a key and a path, which is never cut: it is for copying."""
        for line in block([Row(key, (text,))]):
            self._out.print(line)

    def clear(self) -> None:
        """Take the progress line away."""
        if self._progress is not None:
            self._progress.stop()

    def success(self, result: Result, options: CompileOptions) -> None:
        """Print the report and where the files are."""
        assert result.summary is not None
        ending = f"{verdict(result.summary.verify)}   {options.out}/ ({plural(len(result.files), 'file')})"
        if options.dry_run:
            ending = "nothing written (--dry-run)"
        if "text" not in options.report:
            self._lines(headline(result.summary, self._width, ending))
            return
        lines = success_text(result.summary, self._width, ending)
        self._lines(lines)
        if self._verbose:
            from tinytrain_compile.report.verbose import verbose_lines

            self._lines(["", *verbose_lines(result.summary, self._width)])
        if options.dry_run and any(f" more in {LONG_LISTS}" in line for line in lines):
            self._lines(["", f"{LONG_LISTS}, which has the lists whole, was not written either (--dry-run)"])
        if not options.dry_run:
            for line in blocks([next_rows(result, options, self._width)]):  # paths and a command, which are never cut
                self._out.print(line)

    def _lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._say(line)

    def gains(self, found: Contribution, out: Path) -> None:
        """Print what each part is worth, most first, and where the table is; groups of channels with -v alone."""
        for note in found.notes:
            self._row("note", printable(note))
        self._lines(gain_lines([gain for gain in found.gains if self._verbose or not gain.channels], self._width))
        self._path("wrote", str(out))

    def finding(self, finding: Finding, written: Sequence[Path], model: Path) -> None:
        """Print what training on own samples gave, where the files are, and the command that uses them."""
        from tinytrain_compile.report.learning import finding_lines

        self._lines(finding_lines(finding, self._width))
        what = ("the recommended options", "the curves", "the scheme: what is trained")[: len(written)]
        found = zip(map(str, written), what, strict=True)
        words = ("tinytrain-compile", quote(printable(str(model))), f"--config {quote(str(written[0]))}")
        for line in block([*_file_rows("wrote", found, self._width), command("next", words, self._width)]):
            self._out.print(line)

    def exported(self, done: Exported, out: Path) -> None:
        """Print what was learned, how the file was judged, and where it is."""
        changed = {name: count for name, count in done.tensors.items() if count}
        self._row("learned", f"{sum(changed.values()):,} numbers of {plural(len(changed), 'tensor')}")
        if self._verbose:
            for name, count in changed.items():
                self._row("", f"{printable(name)}: {count:,}")
        for note in done.notes:
            self._row("note", printable(note))
        found = done.agreement
        judged = f"outputs up to {found.largest:.3g} differ by up to {found.outputs or 0:.2g}"
        judged = "outputs not compared" if found.outputs is None else judged
        judged += "" if found.steps is None else f", stored tensors by {plural(round(found.steps), 'step')}"
        self._row("checked", f"file vs device's C: {judged}")
        if found.litert is not None:
            self._row("", f"LiteRT vs device's C: outputs differ by up to {found.litert:.2g}")
        if found.on_samples is not None:
            self._row("", on_samples_text(found.on_samples))
        self._path("wrote", f"{out} ({grouped(len(done.file.model))} B){' and its .data' if done.file.data else ''}")

    def audited(self, done: Audit, evidence: Evidence) -> None:
        """Print what an audit has repeated, and with what it agrees."""
        chain = "a key" if done.keyed else "no key: this shows damage, not forgery"
        self._row("repeated", f"{plural(done.updates, 'update')} of {printable(evidence.journal.name)}, with {chain}")
        same = f"twin vs {printable(evidence.checkpoint.name)}: {grouped(done.checkpoint_bytes)} identical bytes"
        self._row("checked", same)


def on_samples_text(found: OnSamples) -> str:
    """Tell how far file and device agree on the user's samples."""
    scores = [
        f"{name} {form.format(found.device[name])} on the device, {form.format(found.file[name])} by the file"
        for name, form in (("accuracy", "{:.1%}"), ("loss", "{:.4g}"))
        if name in found.device
    ]
    return f"{found.what}: {'; '.join((*scores, f'outputs differ by up to {found.outputs:.2g}'))}"


def next_rows(result: Result, options: CompileOptions, width: int) -> Iterator[Row]:
    """Yield what to look at and to call next, and the digest of all files."""
    headers = [name for name in result.files if name.endswith("_train.h")]
    shown = [*((name, "the C API") for name in headers[:1]), ("example/main.c", "a program to start from")]
    shown += [("report.html", "memory over time, layers, all figures")]
    found = [(f"{options.out}/{name}", what) for name, what in shown if name in result.files]
    yield from _file_rows("next", found, width)
    model, data, out = (
        quote(printable(str(path))) for path in (options.model, options.data or "FILE.npz", options.out)
    )
    if "epochs" in options.given:  # finetune has recommended these: what follows is the way back
        again = (("--calib", options.calib), ("--weights", options.weights))
        files = [f"{flag} {quote(printable(str(path)))}" for flag, path in again if path is not None]
        words = ("tinytrain-compile export", model, f"--project {out}", *files, "--checkpoint FILE")
        yield command("later", words, width)
    elif not options.inference_only:
        yield command("try", ("tinytrain-compile finetune", model, f"--data {data}"), width)
    yield row("digest", [f"sha256 {result.digest[:16]}"], width)


def _file_rows(key: str, files: Iterable[tuple[str, str]], width: int) -> Iterator[Row]:
    """Yield paths, which are never cut, and what each file is."""
    for index, (path, what) in enumerate(files):
        first = "" if index else key
        fits = KEY_WIDTH + cell_len(path) <= width
        yield figure(first, path, what, width) if fits else Row(first, (path, f"  {what}"))


GAIN_HEADS = ("loss saved", "parameters", "accuracy", "layer")


def gain_lines(gains: Sequence[Gain], width: int) -> list[str]:
    """Lay out a table with a heading, the most gain first: layers' names are last, since they may be long."""
    rows = [
        (
            f"{gain.gain:.4f}",
            grouped(gain.elements),
            "-" if gain.accuracy is None else f"{gain.accuracy:.1%}",
            f"{printable(gain.layer)} {gain.part}" + _channels(gain),
        )
        for gain in sorted(gains, key=lambda gain: -gain.gain)
    ]
    heads = GAIN_HEADS
    if all(gain.accuracy is None for gain in gains):  # labels are values
        heads, rows = (*heads[:2], heads[3]), [(*cells[:2], cells[3]) for cells in rows]
    return table([heads, *rows], width)


def _channels(gain: Gain) -> str:
    return f", {gain.axis} channels {gain.channels[0]} to {gain.channels[-1]}" if gain.channels else ""
