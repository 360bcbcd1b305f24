"""How much accuracy a smaller arena costs: runs run.py with several limits and prints a Markdown table.

Training runs on the host; run.py shows that QEMU computes the same bytes.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
CHOICES = (
    ("--arena", "256KB"),
    ("--arena", "30KB"),
    ("--arena", "24KB"),
    ("--arena", "20KB", "--update", str(HERE / "scheme.toml")),
    ("--arena", "16KB"),
)


def row(flags: tuple[str, ...]) -> str:
    """Trains with these flags; one line of the table."""
    with tempfile.TemporaryDirectory() as work:
        command = [sys.executable, str(HERE / "run.py"), "--host", "--work", work, *flags]
        text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        report = json.loads((Path(work) / "generated" / "report.json").read_text(encoding="utf-8"))
    totals, memory = report["update_totals"], report["memory"]
    label = totals["label"].removeprefix("auto: ").split(" of ")[0]
    before, after = text.partition("\naccuracy   ")[2].partition("  (")[0].split(" -> ")
    asked = " ".join(flag.replace(f"{HERE}/", "") for flag in flags)
    return (
        f"| `{asked}` | {label}: {totals['parameters']:,} of {totals['total_parameters']:,} parameters "
        f"| {memory['arena_bytes']:,} B | {before} -> {after} |"
    )


def main() -> None:
    print("| flags | trained | arena | held-back accuracy |\n|---|---|---|---|")
    for flags in CHOICES:
        print(row(flags), flush=True)


if __name__ == "__main__":
    main()
