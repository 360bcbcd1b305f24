"""Count where generated C deviates from MISRA C:2012, by rule, with cppcheck's addon (docs/misra.md; `make docs`).

    python scripts/misra.py                  # the table
    python scripts/misra.py --places 15.5    # the places of a rule

Either takes minutes. The script checks two outputs of examples/digits: float32 and int8. cppcheck reports a rule once
for each line. scripts/misra.toml has for each rule a few words of ours and a reason. A rule that it lacks ends the
script: a new deviation has to be judged.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import tomllib
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tinytrain_compile as tt
from testing.cppcheck import CPPCHECK, deviations, rule_order
from testing.places import ROOT

DIGITS = ROOT / "examples" / "digits"
RULES = Path(__file__).with_suffix(".toml")
OUTPUTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "int8": {"quant": "int8", "calib": DIGITS / "data.npz"},
}


def found_in(options: dict[str, Any], folder: Path) -> set[tuple[str, str]]:
    """Write an output and check all of its C files; return rule and place of each deviation, once."""
    tt.compile(DIGITS / "digits.onnx", verify="none", **options).save(folder)
    return deviations(folder, sorted(path.name for path in folder.glob("*.c")))


def table(found: dict[str, set[tuple[str, str]]]) -> str:
    """Return the deviations of each output as Markdown: a line for each rule, and their sums."""
    known = tomllib.loads(RULES.read_text(encoding="utf-8"))
    counts = {name: Counter(rule for rule, _ in each) for name, each in found.items()}
    rules = sorted({rule for each in counts.values() for rule in each}, key=rule_order)
    if unknown := [rule for rule in rules if rule not in known]:
        sys.exit(f"scripts/misra.toml has no reason for {', '.join(unknown)}")
    lines = [f"| rule | in our words | {' | '.join(counts)} | why |", f"|---|---|{'---:|' * len(counts)}---|"]
    for rule in rules:
        numbers = " | ".join(f"{each[rule]:,}" for each in counts.values())
        lines.append(f"| {rule} | {known[rule]['about']} | {numbers} | {known[rule]['why']} |")
    sums = " | ".join(f"{each.total():,}" for each in counts.values())
    return "\n".join([*lines, f"| all | | {sums} | |"])


def main() -> None:
    """Print the table, or the places of one rule."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--places", metavar="RULE", help="list the places of this rule instead")
    asked = parser.parse_args()
    if CPPCHECK is None:
        sys.exit("cppcheck is not installed: sh scripts/install_tools.sh")
    with tempfile.TemporaryDirectory() as place:
        found = {name: found_in(each, Path(place) / name) for name, each in OUTPUTS.items()}
    if asked.places:
        for name, each in found.items():
            print("\n".join(f"{name}: {where}" for rule, where in sorted(each) if rule == asked.places))
        return
    print(table(found))


if __name__ == "__main__":
    main()
