"""Tiers of tests: which run in `make test` and which in `make test-more`, and what each test costs.

tests/tiers.toml says which cases of a test stay in `make test`; a test that it does not name is there wholly.
scripts/choose_tier.py writes it from what tests cost.
tests/durations.json holds CPU seconds and the number of cases by file and test, as `make durations` measures them.
"""

from __future__ import annotations

import json
import os
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from testing.places import ROOT

TIERS, DURATIONS = ROOT / "tests" / "tiers.toml", ROOT / "tests" / "durations.json"
Kept = int | list[str]
"""How many cases of a test stay in `make test`, or words that the names of those contain; 0: none does."""
Costs = dict[str, dict[str, tuple[float, int]]]
"""File -> test -> CPU seconds of all its cases, number of cases."""
TURNED = 40
"""Files of `make test` whose order is turned round: else one worker waits half a minute for the other's last test."""
SLOW_SECONDS, SLOWER = 6.0, 2.0
"""A test of `make test` is reported if it needs more than so many CPU seconds, and so many times what is recorded."""


def cpu_seconds() -> float:
    """CPU time of this process and of all its children that have ended."""
    now = os.times()
    return now.user + now.system + now.children_user + now.children_system


def read_tiers(path: Path = TIERS) -> dict[str, Kept]:
    """Read `file` or `file::test` -> what stays in `make test`."""
    tables = tomllib.loads(path.read_text(encoding="utf-8"))
    return {**tables["chosen"], **tables["hand"]}


def read_costs(path: Path = DURATIONS) -> Costs:
    """Read what tests cost."""
    data = json.loads(path.read_text(encoding="utf-8"))
    return {file: {test: (cost[0], cost[1]) for test, cost in tests.items()} for file, tests in data.items()}


def write_costs(costs: Costs, path: Path = DURATIONS) -> None:
    """Write them, a line per test."""
    lines: list[str] = []
    for file, tests in sorted(costs.items()):
        each = [f"  {json.dumps(test)}: [{round(cost, 2)}, {count}]" for test, (cost, count) in sorted(tests.items())]
        lines.append(f" {json.dumps(file)}: {{" + ("\n" + ",\n".join(each) + "\n }" if each else "}"))
    path.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def split_name(node_id: str) -> tuple[str, str, str]:
    """Split a node id of pytest into file (below tests/), test and case."""
    file, _, rest = node_id.partition("::")
    test, _, case = rest.partition("[")
    return file.removeprefix("tests/"), test, case.removesuffix("]")


def later_ones(node_ids: Sequence[str], tiers: Mapping[str, Kept]) -> set[str]:
    """Find the tests that only `make test-more` runs."""
    several: dict[str, list[str]] = {}
    for node_id in node_ids:
        file, test, _ = split_name(node_id)
        several.setdefault(f"{file}::{test}", []).append(node_id)
    found: set[str] = set()
    for name, cases in several.items():
        kept = tiers.get(name, tiers.get(name.partition("::")[0]))
        if isinstance(kept, int):
            found.update(set(cases) - set(_spread(cases, kept)))
        elif kept is not None:
            found.update(case for case in cases if not any(word in split_name(case)[2] for word in kept))
    return found


def _spread(cases: Sequence[str], count: int) -> list[str]:
    """Take so many cases, the first and the last among them: neighbours are often of one kind."""
    if count >= len(cases):
        return list(cases)
    return [cases[round(i * (len(cases) - 1) / max(count - 1, 1))] for i in range(count)]


def in_order(
    node_ids: Iterable[str],
    costs: Costs,
    first: Sequence[str] = (),
    dear_first: bool = False,
    turned: int = 0,
) -> list[int]:
    """Order tests so that files with cheap cases come first: positions in `node_ids`. Unknown files come last.

    first: folders below tests/ that go before all others, in this order. dear_first: the other way round.
    turned: of so many files at the end the dear ones come first, so that workers end at the same time.
    """
    price: dict[str, float] = {}
    for file, tests in costs.items():
        cases = sum(count for _, count in tests.values())
        price[file] = sum(cost for cost, _ in tests.values()) / cases if cases else 0.0
    sign = -1.0 if dear_first else 1.0
    files = [split_name(node_id)[0] for node_id in node_ids]
    folders = [first.index(folder) if (folder := file.split("/")[0]) in first else len(first) for file in files]
    keys = [(folders[i], sign * price.get(file, float("inf")), file, i) for i, file in enumerate(files)]
    order = sorted(range(len(files)), key=keys.__getitem__)
    last = list(dict.fromkeys(files[i] for i in reversed(order)))[:turned]
    ending = [i for file in last for i in order if files[i] == file]
    return [*(i for i in order if files[i] not in last), *ending]


def measured(seconds: Mapping[str, float]) -> Costs:
    """Sum up CPU seconds by node id as costs by file and test."""
    costs: Costs = {}
    for node_id, cost in seconds.items():
        file, test, _ = split_name(node_id)
        before, count = costs.setdefault(file, {}).get(test, (0.0, 0))
        costs[file][test] = before + cost, count + 1
    return costs


def remarks(seconds: Mapping[str, float], costs: Costs) -> list[str]:
    """Say which tests are not recorded, and which have become slow."""
    said: list[str] = []
    for file, tests in sorted(measured(seconds).items()):
        if file not in costs:
            said.append(f"{file}: its cost is not recorded; `make durations` records it")
            continue
        for test, (cost, count) in sorted(tests.items()):
            known, cases = costs[file].get(test, (0.0, 0))
            share = known * count / cases if cases else 0.0
            if cost > SLOW_SECONDS and cost > SLOWER * share:
                said.append(f"{file}::{test}: {cost:.1f} CPU seconds, recorded are {share:.1f}: see tests/tiers.toml")
    return said
