"""--activations as a command asks for it: a lock names the copies of its plan; `auto`, removed in 0.3.0, is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.e2e.broken import write
from tests.e2e.command import run
from tests.training.low_rank_nets import few_patterns, kinds
from tinytrain_compile.driver.candidates.low_rank import micro_batches

EIGHT = ("--batch", "8", "--micro-batch", "8")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a model and samples of few patterns."""
    write(kinds(), tmp_path, "kinds.onnx")
    few_patterns(tmp_path / "own.npz")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def planned(*flags: str) -> dict[str, Any]:
    """The plan.json of a run that writes nothing; whether an order is proven to be best a lock does not say."""
    found = run("kinds.onnx", *flags, *EIGHT, "--dump-after", "plan").check_success()
    return {**json.loads(found.out), "order_proven": None}


def test_a_lock_has_the_copies_of_its_plan(place: Path) -> None:
    """The same plan, though what was chosen on samples is not asked for again; what no layer can keep is one line."""
    asked, again = ("--activations", "subspace", "--data", "own.npz"), ("--data", "own.npz")
    first = planned("--update", "last:2", *asked, "--remat", "off", "--stream", "off")
    (place / "own.lock").write_text(json.dumps(first))
    assert first["copies"] and planned(*again, "--lock", "own.lock") == {**first, "arena_limit_bytes": None}
    damages: tuple[dict[str, object], ...] = ({"layer": "nowhere"}, {"kind": "exact"}, {"ranks": []}, {"ranks": [0]})
    for damage in damages:
        (place / "own.lock").write_text(json.dumps({**first, "copies": [{**first["copies"][0], **damage}]}))
        run("kinds.onnx", *again, "--lock", "own.lock", *EIGHT, "--dry-run").check_error("E0106", 2)


def test_domains_are_judged_by_each_other(place: Path) -> None:
    """Named domains silence the note that asks for names; a wrong array is one line."""
    asked = (
        "kinds.onnx",
        "--update",
        "last:2",
        "--activations",
        "subspace",
        "--rank-error",
        "0.9",
        *EIGHT,
        "--dry-run",
    )
    data = dict(np.load("own.npz"))
    pattern = np.argmin([np.square(data["x"] - data["x"][first]).sum(axis=(1, 2, 3)) for first in (0, 1, 2)], axis=0)
    np.savez("domains.npz", **data, domain=pattern)
    without, named = (run(*asked, "--data", f"{name}.npz").check_success().out for name in ("own", "domains"))
    assert "name the domains" in " ".join(without.split()) and "name the domains" not in " ".join(named.split())
    np.savez("wrong.npz", **data, domain=pattern[1:])
    run(*asked, "--data", "wrong.npz").check_error("E0105", 2)


def test_work_does_not_grow_with_the_number_of_domains() -> None:
    """A few domains have micro-batches of their own; 1000 domains take no more steps than 500."""
    places = np.arange(1000)
    assert micro_batches(places * 0, 1, 12)[1] == [], "one domain is none"
    batches, own = micro_batches(places % 3, 1, 12)
    assert [set(batch % 3) for batch in batches] == [{kind} for kind in own] and set(own) == {0, 1, 2}
    assert len(batches) == 12
    few, many = (micro_batches(places % domains, 1, 12) for domains in (500, 1000))
    assert len(few[0]) == len(many[0]) < 100
    assert len(many[0]) == len(many[1]) == 2 * len(set(many[1]))


def test_auto_names_the_kinds_that_there_are(place: Path) -> None:
    asked = ("--activations", "auto", "--data", "own.npz", "--arena", "40KB", *EIGHT, "--dry-run")
    assert (
        "unknown value 'auto'; choose one of exact, asi, subspace"
        in run("kinds.onnx", *asked).check_error("E0101", 2).err
    )
    assert not (place / "out").exists()
