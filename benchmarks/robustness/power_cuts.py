"""Cut the power of a device that saves, everywhere, on six geometries of flash, and count what was lost (20 minutes).

Cases are runs of the generated C with `--runtime store` on an emulated flash (testing/power). A cut is in the middle of
programming one unit or of erasing one sector, and has one of four effects. Behind each the state has to be the one
before or the new one, to the byte, and the next step and save have to give what they would have given. Exits 1 if
anything was lost. ARGS=--short: a hundredth of it. ARGS='cut fails': the campaigns with one of these words in their
title. With a guard, m_guard_check saves, or restores what it accepted last. Campaigns on digits run in a program made
for this machine, with a CRC by a larger table, which it compares with the runtime's first: that CRC took nearly all of
their time.

usage: python -m benchmarks power-cuts [--short] [WORD ..]
"""

from __future__ import annotations

import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from testing.cores import missing_tools
from testing.power import campaign
from testing.power.killed import kill

KILLS, RANDOM_PAIRS = 200, 10_000
KILLED = "QEMU killed at a random time"


@dataclass(frozen=True)
class Campaign:
    """what: as cuts.c knows it. stride: every so many cases; short: with --short. count: cases in all, or 0."""

    title: str
    model: str
    what: str
    stride: int = 1
    short: int = 100
    count: int = 0

    def number(self, short: bool) -> int:
        """What the program takes, for one of the geometries."""
        if self.count:
            return -(-self.count // campaign.GEOMETRIES) // (100 if short else 1)
        return self.short if short else self.stride


CAMPAIGNS = (
    Campaign("one cut, every unit of five saves", "small", "single", short=1),
    Campaign("two cuts, every pair", "small", "double", short=7),
    Campaign("one bit flipped, every bit of all slots", "small", "flips", short=101),
    Campaign("every N-th call fails, in six ways", "small", "failing", short=1),
    Campaign("saves in a row on one medium, a cut in every second", "small", "soak", count=60_000),
    Campaign("guard: one cut, every unit of five saves", "guarded", "single", short=1),
    Campaign("guard: two cuts, every pair", "guarded", "double", short=7),
    Campaign("guard: every N-th call fails, in six ways", "guarded", "failing", short=1),
    Campaign("guard: a cut or a failure in every call of a restore", "guarded", "refused", short=1),
    Campaign("one cut, every unit of five saves", "digits", "single", short=997),
    Campaign("two cuts, random pairs", "digits", "random", count=RANDOM_PAIRS),
    Campaign("one bit flipped, every bit of all slots", "digits", "flips", short=9973),
    Campaign("every N-th call fails, in six ways", "digits", "failing", short=97),
    Campaign("saves in a row on one medium, a cut in every second", "digits", "soak", count=6_000),
)


def main() -> int:
    """Print the table; 1 if anything was lost."""
    short = "--short" in sys.argv[1:]
    words = [argument for argument in sys.argv[1:] if argument != "--short"] or [""]
    lost = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        model = campaign.small_model(folder)
        made = {
            "small": campaign.project(model),
            "guarded": campaign.project(model, golden=campaign.golden_of_small(folder)),
            "digits": campaign.project(campaign.DIGITS),
        }
        programs = {one: campaign.build(made[one], folder / one, fast=one == "digits") for one in made}
        sizes = {name: project.bundle.interface.persistent_bytes for name, project in made.items()}
        print(f"{'campaign':52} {'state':>9} {'cases':>9} {'geometries':>10} {'losses':>6}", flush=True)
        with ThreadPoolExecutor(2) as pool:
            for one in (each for each in CAMPAIGNS if any(word in each.title for word in words)):
                jobs = [
                    pool.submit(campaign.run, programs[one.model], one.what, geometry, one.number(short))
                    for geometry in range(campaign.GEOMETRIES)
                ]
                rows = [job.result() for job in jobs]
                cases, losses = sum(row.cases for row in rows), sum(row.losses for row in rows)
                print(f"{one.title:52} {sizes[one.model]:7} B {cases:9,} {len(rows):10} {losses:6}", flush=True)
                lost += losses
        if any(word in KILLED for word in words):
            lost += _killed(made["digits"], folder / "kills", KILLS // (20 if short else 1), sizes["digits"])
    return 1 if lost else 0


def _killed(made: campaign.Project, folder: Path, times: int, state_bytes: int) -> int:
    if missing_tools():
        print("QEMU is not installed: no kills")
        return 0
    kills = kill(made, folder, times)
    print(f"{KILLED:52} {state_bytes:7} B {kills.kills:9,} {1:10} {len(kills.losses):6}")
    print(f"    {kills.saves} saves had returned; {kills.inside} kills between a save's last byte and its return")
    print("\n".join(kills.losses), end="\n" if kills.losses else "")
    return len(kills.losses)
