"""`tinytrain-compile audit`: the updates of a journal, made again by the generated C on this machine.

The project is compiled again as by `export`. Its twin makes every update that the journal of a device has, and must
then have the checkpoint of the device, to the byte.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from tinytrain_compile.data.samples import in_slots, load_samples
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.driver.progress import Progress
from tinytrain_compile.emit.checkpoint import model_hash
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.user_file import read_file
from tinytrain_compile.ir.runtime_parts import JOURNAL
from tinytrain_compile.learn.export import compiled_again, load_checkpoint
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.journal.audit import Journal, Named
from tinytrain_compile.parts.journal.part import head_name, noise_of, reads_label
from tinytrain_compile.parts.journal.twin import KEY_BYTES, Chain, Layout
from tinytrain_compile.twin import Instance, Twin
from tinytrain_compile.verify.build import build_library
from tinytrain_compile.verify.tools import find_tools, work_folder


@dataclass(frozen=True)
class Evidence:
    """Files of an audit. before: the checkpoint that the first record follows; None: the state after m_init."""

    journal: Path
    samples: Path
    checkpoint: Path
    before: Path | None = None
    key: Path | None = None


@dataclass(frozen=True)
class Audit:
    """An audit that has found nothing. checkpoint_bytes: that are equal; keyed: whether the chain has a key."""

    updates: int
    checkpoint_bytes: int
    keyed: bool


def audit(options: CompileOptions, scheme: str, evidence: Evidence, progress: Progress) -> Audit:
    """Make the updates of a journal again. E0608 for the first record that does not fit, or another checkpoint.

    options, scheme: of the project that runs on the device. Errors of files: E0105, E0305; E0113 without a journal.
    """
    if JOURNAL not in options.runtime.names:
        what = "the project has no journal"
        raise CompileError("E0113", "audit", what, "compile it with --runtime journal, which then writes one")
    with work_folder() as folder:
        path = folder / "scheme.toml"
        path.write_text(scheme, encoding="utf-8")
        project = compiled_again(options, path, progress)
        progress("building the device for this machine", 0.6)
        library = build_library(project.bundle, find_tools(), folder)
        with Twin(Instance(library, project.bundle.interface), project.model, project.summary.train) as twin:
            progress("making the updates again", 0.8)
            return compare(project, twin, evidence, options.calib is not None)


def compare(project: Project, twin: Twin, evidence: Evidence, calibrated: bool) -> Audit:
    """Compare a twin of a project with the files of a device. calibrated: whether --calib decided its scales."""
    data, key = _bytes(evidence.journal), _key(evidence.key)
    load_checkpoint(twin, evidence.checkpoint, False, calibrated)
    wanted = _bytes(evidence.checkpoint)[: len(twin.instance.save())]  # a copy of flash may have more behind it
    twin.reset()
    if evidence.before is not None:
        load_checkpoint(twin, evidence.before, False, calibrated)
    updates = repeat(project, twin, (evidence.journal.name, data, key), evidence.samples)
    found = twin.instance.save()
    if found != wanted:
        twin.load(evidence.checkpoint)
        other = _first_difference(found, twin)
        what = f"all records of {evidence.journal.name} fit, but they lead to another {other}"
        way = "give the checkpoint that was saved after the last record, before the rate or a weight was set"
        raise CompileError("E0608", evidence.checkpoint.name, what, way)
    return Audit(updates, len(wanted), key is not None)


def _first_difference(checkpoint: bytes, twin: Twin) -> str:
    """Return the first tensor of the state of a twin that differs from a checkpoint, which the twin then has."""
    before = twin.instance.state()
    twin.instance.load(checkpoint)
    now = twin.instance.state()
    return next((name for name in now if now[name].tobytes() != before[name].tobytes()), "state")


def repeat(project: Project, twin: Twin, given: tuple[str, bytes, bytes | None], samples: Path) -> int:
    """Make the updates of a journal on a twin and return how many. given: its name, its bytes and its key."""
    train, (where, data, key) = project.summary.train, given
    found = in_slots(twin.instance.interface, load_samples(samples, project.model, train))
    named = Named.of(found, reads_label(train))
    journal = Journal(
        where, data, Layout(train.batch), Chain(model_hash(train), key), head_name(train), noise_of(train)
    )
    return journal.repeat(twin.instance, named)


def _key(path: Path | None) -> bytes | None:
    """Read a key: its bytes, or their hexadecimal digits as text."""
    if path is None:
        return None
    data = _bytes(path)
    if re.fullmatch(rb"\s*[0-9A-Fa-f]{%d}\s*" % (2 * KEY_BYTES), data):
        return bytes.fromhex(data.decode())
    if len(data) != KEY_BYTES:
        what = f"a key has {KEY_BYTES} bytes, or {2 * KEY_BYTES} hexadecimal digits; this file has {len(data)} bytes"
        raise CompileError("E0105", str(path), what, "give the key of m_journal_init")
    return data


def _bytes(path: Path) -> bytes:
    try:
        return read_file(path)
    except OSError as problem:
        what = f"cannot be read ({problem.strerror or problem})"
        raise CompileError("E0105", str(path), what, "name a file that can be read") from problem
