"""Stream the four wake words of PyPI pymicro-wakeword: rings, arena, instructions of m_hear, equal bytes.

    python -m benchmarks listening [--cores cortex-m4,cortex-m7] [--update all] [--write docs/listening.md]

And what a build for the first core needs that only hears, and trains a head on that or nothing. Exits 1 if a check
fails: the output of a stream differs from numpy, or from that of its window.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import tinytrain_compile as tt
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.parts.listening.part import kept_bytes, ring_bytes
from tinytrain_compile.report.data import report_json

NAMES = ("alexa", "hey_jarvis", "hey_mycroft", "okay_nabu")
CORES = "cortex-m4,cortex-m0plus,cortex-m7,cortex-m55"
HEAD = "|---|---:|---:|---:|---:|---:|"
HEAD_OF_CORES = "|---|---|---:|---:|---:|---:|---:|"
HEAD_OF_ONLY = "|---|---:|---:|---:|---:|---:|---:|---:|---:|"


def models() -> list[Path]:
    """Return the models of the installed package, which is part of the extra `dev`."""
    import pymicro_wakeword

    folder = Path(pymicro_wakeword.__file__).parent / "models"
    return [folder / f"{name}.tflite" for name in NAMES]


def measured(model: Path, core: str, update: str) -> Summary:
    """Return the summary of a build. Its check in QEMU compares every m_hear with numpy, and the last with m_infer."""
    return tt.compile(model, update=update, listen="on", target=core, count=True).project.summary


def row(name: str, summary: Summary) -> str:
    """Return a row of the table of windows."""
    listening = summary.plan.listening
    assert listening is not None
    kept, rings = kept_bytes(listening), ring_bytes(listening)
    return f"| {name} | {listening.window} | {listening.frames} | {listening.settle} | {kept:,} B | {rings:,} B |"


def row_of_core(name: str, core: str, summary: Summary) -> str:
    """Return a row of the table of cores."""
    counts = summary.verify.counts
    assert counts is not None and counts.hear is not None
    sizes = (summary.plan.arena_bytes, (summary.code_bytes or 0) + (summary.const_bytes or 0))
    calls = (sum(found.values()) for found in (counts.hear, counts.step, counts.infer))
    cells = [*(f"{size:,} B" for size in sizes), *(f"{call:,}" for call in calls)]
    return f"| {name} | {core.removeprefix('cortex-').replace('plus', '+').upper()} | {' | '.join(cells)} |"


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
    parser.add_argument("--cores", default=CORES)
    parser.add_argument("--update", default="all")
    parser.add_argument("--write", type=Path)
    asked = parser.parse_args()
    cores = asked.cores.split(",")
    found = {(model.stem, core): measured(model, core, asked.update) for model in models() for core in cores}
    only = [row_of_only(model, cores[0]) for model in models()]
    tables = {
        HEAD: [row(name, summary) for (name, core), summary in found.items() if core == cores[0]],
        HEAD_OF_CORES: [row_of_core(*key, summary) for key, summary in found.items()],
        HEAD_OF_ONLY: [text for text, _ in only],
    }
    print(*("\n".join(rows) for rows in tables.values()), sep="\n\n")
    if asked.write:
        page = asked.write.read_text(encoding="utf-8")
        for head, rows in tables.items():
            page = written(page, head, "\n".join(rows))
        asked.write.write_text(page, encoding="utf-8")
    passed = [*(summary.verify.result == "pass" for summary in found.values()), *(done for _, done in only)]
    return int(not all(passed))
