"""The journal of an output folder: there while a run moves files, and after one that was killed while it did.

Whoever reads a file of an output asks here first whether it belongs to half of one (docs/adr/0019-output.md).
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path

JOURNAL = ".tinytrain-journal"
"""Folder in the output folder, while files are moved."""
NEW, OLD, LIST = "new", "old", "manifest.json"
"""In it: files that are not in their place yet, those that had to go, and what the new output has."""
PATIENCE_S = 2.0
"""Moving takes milliseconds: a journal that stays so long was left by a run that was killed."""
_DEPTH = 4
"""Folders above a file that may be the output folder: no file of an output is deeper."""


def wait_for(journal: Path) -> bool:
    """Wait while another run moves files. Whether the journal stays: then nobody will take it away but the next run."""
    end = time.monotonic() + PATIENCE_S
    while journal.exists() and time.monotonic() < end:
        time.sleep(0.02)
    return journal.exists()


def unfinished(path: Path) -> str:
    """Say what is wrong with a file that a killed run was about to replace or to write; "" if nothing is."""
    for folder in path.absolute().parents[:_DEPTH]:
        journal = folder / JOURNAL
        if journal.is_dir() and path.absolute().relative_to(folder).as_posix() in _names(journal) and wait_for(journal):
            again = f"compile again with -o {folder.name}, which puts the earlier output back"
            return f"a run was killed while it wrote {folder.name}: {again}"
    return ""


def _names(journal: Path) -> set[str]:
    """Return the paths of all files that a run moves, out of their places or into them."""
    found = {LIST}
    with suppress(OSError, ValueError, KeyError, TypeError):
        found |= set(json.loads((journal / LIST).read_bytes())["sha256"])
    for part in (NEW, OLD):
        for place, _, files in os.walk(journal / part):
            found |= {(Path(place) / name).relative_to(journal / part).as_posix() for name in files}
    return found
