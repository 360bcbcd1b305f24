"""Stream the four wake words of PyPI pymicro-wakeword: rings, arena, instructions of m_hear, equal bytes.

    python -m benchmarks listening [--target cortex-m4] [--update all] [--write docs/listening.md]

And what a build needs that only hears, and trains a head on that or nothing. Exits 1 if the output of a stream differs
from that of its window.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tinytrain_compile as tt
from tinytrain_compile.report.data import report_json

NAMES = ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")
HEAD = "|---|---:|---:|---:|---:|---:|---:|---:|"
HEAD_OF_ONLY = "|---|---:|---:|---:|---:|---:|---:|---:|---:|"


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


def row_of_only(model: Path, target: str) -> tuple[str, bool]:
    """Return a row of the table of builds that only hear, and whether their checks passed."""
    both, only = (
        tt.compile(model, update="head", head="int8", target=target, **options).project.summary
        for options in ({"listen": "on", "features": "on"}, {"listen": "only"})
    )
    infers = tt.compile(
        model, update="head", head="int8", target=target, listen="only", inference_only=True
    ).project.summary
    keeper = report_json(only)["listening"]["keeper_bytes"]
    arenas = (summary.plan.arena_bytes for summary in (both, only, infers))
    flash = (sum(part or 0 for part in (one.code_bytes, one.const_bytes)) for one in (both, only, infers))
    features = only.train.data[0].size_bytes
    figures = (*arenas, *flash, features, keeper)
    text = " | ".join([*(f"{n:,} B" for n in figures)])
    passed = all(summary.verify.result == "pass" for summary in (both, only, infers))
    return f"| {model.stem} | {text} |", passed


def written(page: str, head: str, table: str) -> str:
    """Return the page with these rows below the head of a table."""
    before, _, rest = page.partition(f"{head}\n")
    return f"{before}{head}\n{table}{rest[rest.index(chr(10) * 2) :]}"


def main() -> int:
    """Print the table, or write it into a page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cortex-m4")
    parser.add_argument("--update", default="all")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    found = {
        HEAD: [row(model, asked.target, asked.update) for model in models()],
        HEAD_OF_ONLY: [row_of_only(model, asked.target) for model in models()],
    }
    tables = {head: "\n".join(text for text, _ in rows) for head, rows in found.items()}
    print(*tables.values(), sep="\n\n")
    if asked.write:
        page = asked.write.read_text(encoding="utf-8")
        for head, table in tables.items():
            page = written(page, head, table)
        asked.write.write_text(page, encoding="utf-8")
    return int(not all(passed for rows in found.values() for _, passed in rows))
