"""Power cuts: what `--runtime store` survives on an emulated flash. The long form, with every cut, is `make power-cuts`."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from testing.power import campaign
from testing.power.killed import kill
from testing.power.reader import states_in
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import needs_gcc
from tinytrain_compile.driver.pipeline import Project

pytestmark = needs_gcc
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ALL = range(campaign.GEOMETRIES)


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Project:
    return campaign.project(campaign.small_model(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def cuts(small: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The campaign on 64 bytes, under AddressSanitizer and UBSan."""
    assert small.bundle.interface.persistent_bytes == campaign.STATE_BYTES_OF_SMALL <= 64
    return campaign.build(small, tmp_path_factory.mktemp("small"), flags=SANITIZE)


@pytest.fixture(scope="module")
def digits() -> Project:
    return campaign.project(campaign.DIGITS)


@pytest.mark.parametrize("geometry", ALL)
@pytest.mark.parametrize(
    ("what", "number", "least"),
    [("single", 1, 48), ("double", 5, 48), ("failing", 1, 150), ("flips", 53, 38), ("soak", 200, 200)],
)
def test_nothing_is_lost(what: str, number: int, least: int, geometry: int, cuts: Path) -> None:
    row = campaign.run(cuts, what, geometry, number)
    assert row.cases >= least and row.losses == 0, row


def test_nothing_is_lost_of_a_larger_state(digits: Project, tmp_path: Path) -> None:
    program = campaign.build(digits, tmp_path)
    for geometry in (0, 3, 5):
        for what, number in (("single", 4001), ("random", 15), ("failing", 151)):
            row = campaign.run(program, what, geometry, number)
            assert row.cases >= 15 and row.losses == 0, row


def test_slots_wear_alike(cuts: Path) -> None:
    """Also where numbers go round: they begin 50 before the last."""
    for geometry in ALL:
        done = subprocess.run([str(cuts), "wear", str(geometry), "100"], check=True, capture_output=True, text=True)
        words = done.stdout.splitlines()[0].split()
        erased = [int(word) for word in words[1 : words.index("programmed")]]
        assert max(erased) - min(erased) <= 1
        assert sum(erased) in (0, int(words[-1])), "m_store_wear counts them"


BUGS = {
    "takes a record whose CRC is wrong": ("return stored == crc ? 0 : NET_STORE_UNREADABLE;", "return 0;"),
    "writes over the newest state": ("uint32_t slot = s->older;", "uint32_t slot = s->newest;"),
    "erases the slot of the newest state": (
        "if (*slot != s->newest && *slot != s->older)",
        "if (*slot != s->older)",
    ),
    "adds to what is not clean": ("|| !is_clean(s, at, record_size(s, bytes))", ""),
    "believes what a callback says": (
        "if (read_record(s, at, kind, head, &found) != 0 || found != crc) {",
        "if (false) {",
    ),
    "reads beyond a full slot": ("(kind == WHOLE ? at : at - 1u) / s->medium", "at / s->medium"),
    "writes one unit too many": ("return in_units(s, HEAD_BYTES + bytes) + in_units", "return in_units"),
    "loads the older state": ("follow(s, s->newest, &wear) == 0", "follow(s, s->older, &wear) == 0"),
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_loses_something(bug: str, small: Project, tmp_path: Path) -> None:
    right, wrong = BUGS[bug]

    def change(text: str) -> str:
        assert text.count(right) == 1
        return text.replace(right, wrong)

    program = campaign.build(small, tmp_path, change=change, flags=("-O0", "-Wno-unused"))
    assert any(_loses(program, what, number) for what, number in FINDING)


FINDING = (("single", 1), ("double", 3), ("flips", 31), ("failing", 1), ("soak", 300))


def _loses(program: Path, what: str, number: int) -> bool:
    for geometry in ALL:
        command = [str(program), what, str(geometry), str(number)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        if done.returncode != 0 or not done.stdout.endswith(" 0\n"):
            return True
    return False


@pytest.mark.parametrize("geometry", ALL)
def test_another_reader_finds_the_same(geometry: int, cuts: Path, small: Project, tmp_path: Path) -> None:
    done = subprocess.run([str(cuts), "images", str(geometry), str(tmp_path)], check=True, capture_output=True, text=True)
    layout = campaign.layout_of(small, done.stdout)
    states = [(tmp_path / f"{save}.state").read_bytes() for save in range(6)]
    assert len(set(states)) == 6
    for save in range(6):
        found = states_in((tmp_path / f"{save}.medium").read_bytes(), layout)
        assert [(one.sequence, states.index(one.checkpoint)) for one in found[:2]] == [
            (number, number) for number in (save, save - 1) if number > 0
        ]


@pytest.mark.qemu
@needs_qemu
def test_an_emulator_that_is_ended(digits: Project, tmp_path: Path) -> None:
    kills = kill(digits, tmp_path, times=4)
    assert kills.losses == () and kills.saves > 0
