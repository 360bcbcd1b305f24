"""Deviations from MISRA C:2012 in generated C, by cppcheck's addon: a count by rule that only falls.

Needs the version of cppcheck that made the counts, which Debian 12 has (scripts/install_tools.sh). With --update-golden
it records them anew.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from testing.cppcheck import CPPCHECK, deviations, rule_order, version
from testing.networks import models
from tests.e2e import chain
from tinytrain_compile.ir.runtime_parts import PARTS, RuntimeParts
from tinytrain_compile.verify.build import write_files

RECORD = Path(__file__).parent / "misra.json"


def worse(found: Mapping[str, int], recorded: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Return the rules with more deviations than recorded: (now, recorded)."""
    return {rule: (n, recorded.get(rule, 0)) for rule, n in found.items() if n > recorded.get(rule, 0)}


def test_only_more_is_worse() -> None:
    assert worse({"8.7": 2, "11.5": 3}, {"8.7": 2, "11.5": 4}) == {}
    assert worse({"8.7": 3, "2.1": 1}, {"8.7": 2}) == {"8.7": (3, 2), "2.1": (1, 0)}


SOURCES = {"rules": ("train", "kernels", "weights"), "parts": PARTS}
"""Key of the record -> C files."""


@pytest.mark.parametrize("key", SOURCES)
def test_complaints_do_not_grow(key: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if CPPCHECK is None:
        pytest.skip("cppcheck is not installed")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    if version() != record["cppcheck"]:
        pytest.skip(f"cppcheck {version()}; the counts are of {record['cppcheck']}")
    made = chain.project(chain.train_graph(models.mlp()), "cortex-m0plus", name="net", parts=RuntimeParts(PARTS))
    write_files(tmp_path, made.bundle.files)
    rules = Counter(rule for rule, _ in deviations(tmp_path, [f"net_{name}.c" for name in SOURCES[key]]))
    found = {rule: rules[rule] for rule in sorted(rules, key=rule_order)}
    assert found
    if pytestconfig.getoption("--update-golden"):
        RECORD.write_text(json.dumps({**record, key: found}, indent=1) + "\n")
        return
    assert worse(found, record[key]) == {}
