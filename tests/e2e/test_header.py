"""What the public header says of a build, where only the command line knows it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tinytrain_compile import __version__


def macros(out: Path) -> dict[str, str]:
    """Every macro with a value: name -> text."""
    found = re.findall(r"^#define NET_(\w+) (.*?)(?: */\*.*)?$", (out / "net_train.h").read_text(), re.MULTILINE)
    return dict(found)


@pytest.mark.qemu
@needs_qemu
def test_the_stack_is_what_the_report_says(tmp_path: Path) -> None:
    path, out = write(models.mlp(), tmp_path), tmp_path / "out"
    run(path, "-o", out).check_success()
    report = json.loads((out / "report.json").read_text())
    assert macros(out)["STACK_BYTES"] == f"{report['memory']['stack_bytes']}u"
    assert macros(out)["VERSION"] == f'"{__version__}"'


def test_no_stack_is_claimed_that_nobody_computed(tmp_path: Path) -> None:
    path, out = write(models.mlp(), tmp_path), tmp_path / "out"
    run(path, "-o", out, "--verify", "none").check_success()
    assert "STACK_BYTES" not in macros(out)
    assert "NET_STACK_BYTES is not known" in (out / "net_train.h").read_text()


def test_a_new_build_of_the_same_model(tmp_path: Path) -> None:
    """Limits, rates, plan, target and code style are no part of the hash; what is trained and how is."""
    path = write(models.mlp(), tmp_path)

    def hash_of(*flags: str) -> str:
        out = tmp_path / "out"
        run(path, "-o", out, "--verify", "none", "--optimizer", "adam", *flags).check_success()
        return macros(out)["MODEL_HASH"]

    same = (
        *("--lr", "0.3", "--weight-decay", "0.1", "--batch", "4", "--arena", "64KB"),
        *("--remat", "auto", "--target", "cortex-m55", "--code", "size", "--seed", "3"),
    )
    assert hash_of() == hash_of(*same)
    assert len({hash_of(), hash_of("--update", "last:1"), hash_of("--loss", "mse"), hash_of("--classes", "3")}) == 4
