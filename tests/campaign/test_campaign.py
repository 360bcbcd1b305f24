"""The short form of `make campaign`, and proof that a campaign notices what it is there for."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.campaign.__main__ import main
from tests.campaign.byte_mutants import read_fields, write_fields
from tests.campaign.cases import Result
from tests.campaign.corpus import corpus
from tests.campaign.graph_kinds import KNOWN
from tests.campaign.kinds import KINDS
from tests.campaign.option_draws import NOT_DRAWN
from tests.campaign.planted import FAULTS, NAMES
from tests.campaign.planted import KINDS as PLANTED
from tests.campaign.pool import run_cases
from tests.campaign.tally import Tally

SHORT = {
    "models: bytes": range(60),
    "models: splices": range(40),
    "models: fields": range(80),
    "models: external data": range(24),
    "models: tflite": range(80),
    "graphs: float": (0, 2, 4),
    "graphs: int8 calibrated": range(2),
    "graphs: int8 QDQ": range(2),
    "graphs: inputs and losses": range(2),
    "chains: float": range(2),
    "chains: int8": range(2),
    "streams: float": range(2),
    "streams: int8": range(2),
    "checkpoints": (1,),
    "export: float": (4,),
    "export: int8 calibrated": (1,),
    "export: int8 QDQ": (0,),
    "locks": range(40),
    "schemes": range(40),
    "samples": range(20),
    "targets": range(30),
    "kernels": range(30),
    "special files": range(20),
}


def test_every_planted_fault_is_noticed() -> None:
    found: dict[str, Result] = {}

    def report(result: Result) -> None:
        found[NAMES[result.index]] = result

    cases = [("planted", index) for index in range(len(NAMES))]
    run_cases(PLANTED, cases, 0, 1, report, cpu_s=8.0, idle_s=3.0)  # type: ignore[arg-type]
    assert found.keys() == set(NAMES)
    for name, (_, wanted) in FAULTS.items():
        assert wanted in found[name].problem, f"{name}: {found[name]}"
    assert [found[name].problem for name in ("refused", "invalid")] == ["", ""]
    assert found["invalid"].error_id == "E0212"
    tally = Tally(PLANTED)  # type: ignore[arg-type]
    for result in found.values():
        tally.add(result)
    assert tally.problems() == [f"planted: {len(FAULTS)} of {len(NAMES)} cases failed"]
    assert "planted: E0101 1, E0212 1" in tally.lines()


def test_short_campaign() -> None:
    assert SHORT.keys() == KINDS.keys()
    tally = Tally(KINDS)
    cases = [(name, index) for name, indices in SHORT.items() for index in indices]
    run_cases(KINDS, cases, 0, 1, tally.add)
    failures = [failure for row in tally.rows.values() for failure in row.failures]
    assert not failures, failures
    accepted = {name for name, row in tally.rows.items() if row.accepted}
    assert accepted >= KINDS.keys() - {"special files"}, "something of every other kind is accepted"
    assert sum(len(row.refused) for row in tally.rows.values()) > 50, "refused for many reasons"
    assert all(row.checked for name, row in tally.rows.items() if name == "checkpoints")


def test_every_option_is_drawn_or_said_not_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new option that no random network is asked for goes together with others untried."""
    monkeypatch.chdir(tmp_path)
    cases = [KINDS[f"graphs: {kind}"].case(0, i, tmp_path) for kind in ("float", "int8 calibrated") for i in range(120)]
    drawn = {word for case in cases for word in case.arguments if word.startswith("--")}
    assert not drawn & NOT_DRAWN.keys() and drawn | NOT_DRAWN.keys() == KNOWN - {"model"}


def test_a_campaign_of_refusals_fails() -> None:
    tally = Tally(KINDS)
    for index in range(10):
        tally.add(Result("graphs: float", index, "E0401" if index > 5 else ""))
    assert tally.problems() == ["graphs: float: only 6 of 10 were accepted, 70% should be"]


def test_cases_are_the_same_in_every_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and commands of a number never change: what a failure prints can be done again."""
    for name in (
        "models: fields",
        "models: external data",
        "models: tflite",
        "graphs: float",
        "graphs: int8 QDQ",
        "samples",
        "kernels",
    ):
        made: list[object] = []
        for again in ("one", "two"):
            folder = tmp_path / name.replace(":", "") / again
            folder.mkdir(parents=True)
            monkeypatch.chdir(folder)
            case = KINDS[name].case(3, 5, folder)
            files = {
                path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".npz"
            }
            made.append((case.arguments, files))
        assert made[0] == made[1], name


def test_the_wire_format_is_read_and_written() -> None:
    for data, _ in corpus().values():
        assert write_fields(read_fields(data)) == data


def test_command(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What `make campaign KIND=.. COUNT=..` prints."""
    arguments = ["campaign", "--kind", "schemes", "--count", "5", "--first", "7", "--keep", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    assert main() == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["kind", "cases", "accepted"]
    assert lines[1].split()[:2] == ["schemes", "5"]
    assert lines[-1] == "0 failures"
    assert not list(tmp_path.iterdir())
