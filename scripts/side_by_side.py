"""Puts two runs of the digits example, float32 and int8, side by side: the page with their output is the input."""

from __future__ import annotations

import re
import sys

ROWS = {
    "arena": r"^memory     arena ([\d,]+ B),",
    "flash": r"^flash      ([\d,]+ B) \(code",
    "checkpoint": r"all ([\d,]+) bytes of the trained checkpoint",
    "held-back accuracy": r"^accuracy   ([\d.]+ % -> [\d.]+ %)",
}


def main() -> None:
    """Print a Markdown table of both runs; ends with an error if the page does not hold two of them."""
    page = sys.stdin.read()
    print("| | float32 | int8 |\n|---|---|---|")
    for name, pattern in ROWS.items():
        float32, int8 = re.findall(pattern, page, re.MULTILINE)
        unit = "" if float32.endswith(("B", "%")) else " B"
        print(f"| {name} | {float32}{unit} | {int8}{unit} |")


if __name__ == "__main__":
    main()
