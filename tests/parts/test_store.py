"""Power cuts: what `--runtime store` survives on an emulated flash. The long form is `make bench NAME=power-cuts`."""

from __future__ import annotations

import re
import struct
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from testing.places import ROOT
from testing.power import campaign
from testing.power.killed import kill
from testing.power.reader import states_in
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import needs_gcc
from tinytrain_compile.driver.pipeline import Project
from tinytrain_compile.verify.build import write_files
from tinytrain_compile.verify.firmware import COMPILE_FLAGS, WARNING_FLAGS, model_sources

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
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Project:
    folder = tmp_path_factory.mktemp("guarded")
    return campaign.project(campaign.small_model(folder), golden=campaign.golden_of_small(folder))


@pytest.fixture(scope="module")
def guarded_cuts(guarded: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, where a guard accepts what is saved, or refuses it and restores."""
    return campaign.build(guarded, tmp_path_factory.mktemp("guarded_cuts"), flags=SANITIZE)


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


@pytest.mark.parametrize("geometry", ALL)
@pytest.mark.parametrize(
    ("what", "number", "least"), [("single", 1, 48), ("double", 11, 48), ("failing", 3, 50), ("refused", 1, 60)]
)
def test_a_guard_loses_nothing(what: str, number: int, least: int, geometry: int, guarded_cuts: Path) -> None:
    """A cut while it saves an accepted state, or restores the last one in place of a refused one."""
    test_nothing_is_lost(what, number, least, geometry, guarded_cuts)


GUARD_BUGS = {
    "saves what it refuses": (
        "verdict == NET_GUARD_ACCEPTED ? net_store_save(place, m) : net_store_load",
        "verdict == NET_GUARD_ACCEPTED ? net_store_save(place, m) : net_store_save",
    ),
    "restores nothing": ("net_store_load(place, m)", "NET_OK"),
    "accepts whatever comes": ("return guard->right >= NET_GUARD_LEAST;", "return guard != NULL;"),
}


@pytest.mark.parametrize("bug", GUARD_BUGS)
def test_a_planted_bug_of_the_guard_loses_something(bug: str, guarded: Project, tmp_path: Path) -> None:
    program = campaign.build(
        guarded, tmp_path, change=_planting(*GUARD_BUGS[bug]), flags=("-O0", "-Wno-unused"), part="guard"
    )
    assert _loses(program, "refused", 1)


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
    program = campaign.build(small, tmp_path, change=_planting(*BUGS[bug]), flags=("-O0", "-Wno-unused"))
    assert any(_loses(program, what, number) for what, number in FINDING)


def _planting(right: str, wrong: str) -> Callable[[str], str]:
    def change(text: str) -> str:
        assert text.count(right) == 1
        return text.replace(right, wrong)

    return change


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
    done = subprocess.run(
        [str(cuts), "images", str(geometry), str(tmp_path)], check=True, capture_output=True, text=True
    )
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


PAGE = (ROOT / "docs" / "power-cuts.md").read_text(encoding="utf-8")
MAIN = """
int main(void)
{
    static _Alignas(16) unsigned char arena[M_ARENA_BYTES];
    static m_slot_store_t store;
    static const unsigned char zeros[4 * M_STORE_SLOT_BYTES(1)];
    FILE *file = fopen("states.bin", "w+b");
    m_t *m;
    const m_medium_t medium = medium_of(file);
    if (file_write(file, 0, zeros, sizeof zeros) != 0 || m_init(&m, arena, sizeof arena) != M_OK) {
        return 1;
    }
    if (m_store_open(&store, &medium) != M_OK || m_store_load(&store, m) != M_ERR_FORMAT) {
        return 2;
    }
    for (int i = 0; i < 40; ++i) {
        if (m_set_lr(m, (float)i) != M_OK || m_store_save(&store, m) != M_OK) {
            return 3;
        }
    }
    if (m_store_open(&store, &medium) != M_OK || m_store_load(&store, m) != M_OK) {
        return 4;
    }
    return m_store_sequence(&store) == 40u && fclose(file) == 0 ? 0 : 5;
}
"""


def test_the_c_of_the_page(digits: Project, tmp_path: Path) -> None:
    """Its first block compiles; with the second, states are saved in a file and found there by the page's table.

    Only the learning rate changes, in the first block of a checkpoint, and the checkpoint's CRC, in its last: a record
    of changes has these two blocks with their numbers, 72 bytes of 24,576.
    """
    blocks = re.findall(r"```c\n(.*?)```", PAGE, re.DOTALL)
    assert len(blocks) == 2
    files = {"start.c": campaign.named(blocks[0], "digits"), "main.c": campaign.named(blocks[1] + MAIN, "digits")}
    write_files(tmp_path, {**digits.bundle.files, **files})
    flags = ("gcc", *COMPILE_FLAGS, *WARNING_FLAGS)
    subprocess.run([*flags, "-c", "start.c"], cwd=tmp_path, check=True, timeout=60)
    sources = [*model_sources(digits.bundle), "main.c"]
    subprocess.run([*flags, *sources, "-o", "main"], cwd=tmp_path, check=True, timeout=60)
    assert subprocess.run(["./main"], cwd=tmp_path, check=False, timeout=60).returncode == 0
    medium = (tmp_path / "states.bin").read_bytes()
    layout = campaign.layout_of(digits, f"2 {len(medium) // 2} 1 0")
    saved = states_in(medium, layout)
    assert [one.sequence for one in saved] == [40, 39]
    assert [struct.unpack_from("<f", one.checkpoint, 16)[0] for one in saved] == [39.0, 38.0]
    size = len(saved[0].checkpoint)
    changed = {struct.unpack_from("<I", medium, at.start() + 8)[0] for at in re.finditer(b"TTC1", medium)}
    assert size == 768 * 32 and changed == {2 * (4 + 32)}
