"""Choose which tests `make test` runs, from what they cost (tests/durations.json), and write tests/tiers.toml.

    make durations && python scripts/choose_tier.py              # within 800 CPU seconds of tests
    python scripts/choose_tier.py --seconds 700

Of each test as many cases stay as cost little, one if a case is cheap enough; the largest such allowance that keeps to
the seconds is taken. A test whose case is dear goes to `make test-more`. [hand] in tests/tiers.toml overrides that: it
lists what must stay because of the faults that it finds, or can go because other tests find the same ones.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from testing.tiers import TIERS, Costs, Kept, read_costs

SECONDS = 800.0  # of 950 for `make test`: checks take 50, collecting and starting processes the rest
ONE = 1.6  # CPU seconds that one case of every test may cost: each test looks at something of its own
MOST = 8.0  # CPU seconds for one test, however much there is room for


def chosen(costs: Costs, hand: dict[str, Kept], allowance: float) -> tuple[dict[str, Kept], float]:
    """Choose what stays if a test may cost so much; and the CPU seconds of all that stays."""
    stays: dict[str, Kept] = {}
    total = 0.0
    for file, tests in costs.items():
        for test, (cost, count) in tests.items():
            name, each = f"{file}::{test}", cost / max(count, 1)
            by_hand = hand.get(name, hand.get(file))
            if isinstance(by_hand, list):
                total += each * len(by_hand)
            elif by_hand is not None:
                total += each * min(by_hand, count)
            elif cost <= allowance:
                total += cost
            else:
                stays[name] = max(int(allowance / each), 1 if each <= ONE else 0)
                total += each * int(stays[name])
    return stays, total


def text_of(hand: dict[str, Kept], stays: dict[str, Kept]) -> str:
    """Write both tables, with the comment at the beginning of the file."""
    head = TIERS.read_text(encoding="utf-8").partition("\n[hand]\n")[0]

    def rows(table: dict[str, Kept]) -> str:
        return "".join(f'"{name}" = {str(kept).replace(chr(39), chr(34))}\n' for name, kept in sorted(table.items()))

    return f"{head}\n[hand]\n{rows(hand)}\n[chosen]\n{rows(stays)}"


def main() -> None:
    """Write the tiers; print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"of tests in `make test` (default: {SECONDS})")
    flags = parser.parse_args()
    costs, hand = read_costs(), dict(tomllib.loads(TIERS.read_text(encoding="utf-8"))["hand"])
    allowance = MOST
    while chosen(costs, hand, allowance)[1] > flags.seconds and allowance > 0.1:
        allowance *= 0.95
    stays, total = chosen(costs, hand, allowance)
    TIERS.write_text(text_of(hand, stays), encoding="utf-8")
    whole = sum(cost for tests in costs.values() for cost, _ in tests.values())
    print(f"{total:.0f} of {whole:.0f} CPU seconds stay; a test may cost {allowance:.1f}, {len(stays)} cost more")


if __name__ == "__main__":
    main()
