"""Stream the four wake words of PyPI pymicro-wakeword: rings, arena, instructions of m_hear, equal bytes.

    python -m benchmarks listening [--target cortex-m4] [--update all] [--write docs/listening.md]

Exits 1 if the output of a stream differs from that of its window.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tinytrain_compile as tt

NAMES = ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")
HEAD = "|---|---:|---:|---:|---:|---:|---:|---:|"


def models() -> list[Path]:
    """Return the models of the installed package, which is part of the extra `dev`."""
    import pymicro_wakeword

    folder = Path(pymicro_wakeword.__file__).parent / "models"
    return [folder / f"{name}.tflite" for name in NAMES]


def row(model: Path, target: str, update: str) -> tuple[str, bool]:
    """Return a row of the table, and whether the check in QEMU passed: it compares m_hear with m_infer."""
    made = tt.compile(model, update=update, listen="on", target=target, count=True)
    summary = made.project.summary
    listening, counts = summary.plan.listening, summary.verify.counts
    assert listening is not None and counts is not None and counts.hear is not None
    rings = sum(ring.size_bytes for ring in listening.graph.state)
    figures = (listening.window, listening.frames, listening.settle, rings, summary.plan.arena_bytes)
    calls = (sum(found.values()) for found in (counts.hear, counts.infer))
    cells = [*(f"{n:,}" for n in figures[:3]), *(f"{n:,} B" for n in figures[3:]), *(f"{n:,}" for n in calls)]
    return f"| {model.stem} | {' | '.join(cells)} |", summary.verify.result == "pass"


def main() -> int:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cortex-m4")
    parser.add_argument("--update", default="all")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    rows = [row(model, asked.target, asked.update) for model in models()]
    table = "\n".join(text for text, _ in rows)
    print(table)
    if asked.write:
        before, _, rest = asked.write.read_text(encoding="utf-8").partition(f"{HEAD}\n")
        after = rest[rest.index("\n\n") :]
        asked.write.write_text(f"{before}{HEAD}\n{table}{after}", encoding="utf-8")
    return int(not all(passed for _, passed in rows))
