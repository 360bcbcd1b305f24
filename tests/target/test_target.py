"""The built-in targets and the strict loader."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.target.loader import list_targets, load_target, parse_target
from tinytrain_compile.target.model import Region

NAMES = (
    *("cortex-m0plus", "cortex-m23", "cortex-m3", "cortex-m33", "cortex-m4", "cortex-m55", "cortex-m7", "cortex-m85"),
    *("host", "riscv32-imac", "riscv32-imafc"),
)
M7 = (data_dir("targets") / "cortex-m7.toml").read_text()


def test_all_targets_load_under_their_own_name() -> None:
    assert list_targets() == NAMES
    assert tuple(load_target(name).name for name in NAMES) == NAMES


def test_boards_are_those_of_the_contract() -> None:
    machines = {name: load_target(name).qemu for name in NAMES}
    assert machines["host"] is None and machines["cortex-m85"] is None
    assert {name: board.machine for name, board in machines.items() if board} == {
        "cortex-m0plus": "mps2-an385",
        "cortex-m23": "mps2-an505",
        "cortex-m3": "mps2-an385",
        "cortex-m4": "mps2-an386",
        "cortex-m7": "mps2-an500",
        "cortex-m33": "mps2-an505",
        "cortex-m55": "mps3-an547",
        "riscv32-imac": "virt",
        "riscv32-imafc": "virt",
    }
    m33 = machines["cortex-m33"]
    assert m33 is not None
    assert (m33.code, m33.data) == (Region(0x10000000, 4 << 20), Region(0x38000000, 4 << 20))
    m55 = machines["cortex-m55"]
    assert m55 is not None
    assert m55.vectors == Region(0, 512 << 10)
    assert m55.data.end == 0x31400000


def test_features_and_alignment() -> None:
    fma = {name for name in NAMES if load_target(name).features.fma}
    assert fma == {"cortex-m4", "cortex-m7", "cortex-m33", "cortex-m55", "cortex-m85", "riscv32-imafc"}
    vectors = ("cortex-m55", "cortex-m85")
    assert {load_target(name).alignment_bytes for name in vectors} == {16}
    assert {load_target(name).alignment_bytes for name in NAMES if name not in vectors} == {8}
    assert load_target("cortex-m0plus").features.gpr == 8
    assert load_target("cortex-m55").features.mve_float


def test_a_file_is_loaded_by_path(tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(M7.replace("cortex-m7", "my-board", 1))
    assert load_target(str(path)).name == "my-board"


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("cortex-m07", "did you mean cortex-m7?"),
        ("avr", "host makes plain C for any machine"),
        ("cortex-a53", "host makes plain C for any machine"),
        ("riscv64", "host makes plain C for any machine"),
        ("riscv32", "did you mean riscv32-imac?"),
        ("rv32imc", "did you mean riscv32-imac?"),
        ("stm", "name the core of your part (cortex-m0plus, "),
        ("stm32f746", "choose a board with such a part (nucleo-f746zg), "),
        ("STM32F746ZGT6", "choose a board with such a part (nucleo-f746zg), "),
        ("STM32", "(nucleo-f746zg, nucleo-h743zi, nucleo-l4r5zi, nucleo-u575zi), "),
        ("RP2040", "choose a board with such a part (rpi-pico), "),
    ],
)
def test_an_unknown_name_gets_the_nearest(name: str, way: str) -> None:
    with pytest.raises(CompileError, match=re.escape(way)) as caught:
        load_target(name)
    assert caught.value.code == "E0102"


@pytest.mark.parametrize("name", ["missing.toml", "."])
def test_unreadable_file(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(CompileError) as caught:
        load_target(str(tmp_path / ("folder.toml" if name == "." else name)))
    assert caught.value.code == "E0102"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("dsp = true", "dsp = 1", "key 'features.dsp' must be true or false"),
        ("dsp = true", "", "key 'features.dsp' is missing"),
        ("dsp = true", "dsp = true\nneon = true", "key 'features.neon' is not known"),
        ("alignment_bytes = 8", "alignment_bytes = true", "key 'alignment_bytes' must be an integer"),
        ("alignment_bytes = 8", "alignment_bytes = 7", "key 'alignment_bytes' must be 4, 8, 16 or 32"),
        ("stack_budget_bytes = 4096", "stack_budget_bytes = -1", "key 'stack_budget_bytes' must be an integer from 1"),
        ('name = "sram2"', 'name = "sram"', "key 'memories' names one memory twice"),
        ('name = "sram2"', 'name = "SRAM 2"', r"key 'memories\[1\].name' must be lower-case"),
        ("bytes_per_us = 800", "bytes_per_us = 0", r"key 'memories\[0\].bytes_per_us' must be an integer from 1"),
        ("setup_ns = 1000", "", r"key .memories\[1\].setup_ns. is missing"),
        ("pj_per_byte = 250", "", r"key 'memories\[1\].pj_per_byte' is missing"),
        ("writable = true", "writable = false", "key 'memories' must begin with the memory of the arena"),
        ("clock_mhz = 216", "clock_mhz = 0", "key 'core.clock_mhz' must be an integer from 1"),
        ("[core]", "[cores]", "key 'core' is missing"),
        ('"-mthumb"', "3", "key 'gcc_flags' must be a list of strings"),
        ('"-mthumb"', '"-o/etc/passwd"', "key 'gcc_flags' may hold machine flags"),
        ('machine = "mps2-an500"', 'machine = "a,b=c"', "key 'qemu.machine' is not a QEMU machine name"),
        ("[qemu.data]", "[qemu.dada]", "key 'qemu.data' is missing"),
        ("[features]", "[features", "not TOML"),
    ],
)
def test_wrong_keys_are_named(old: str, new: str, message: str) -> None:
    assert old in M7
    with pytest.raises(CompileError, match=message) as caught:
        parse_target(M7.replace(old, new, 1), "board.toml")
    assert caught.value.code == "E0103"


def test_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(b"name = '\xff'")
    with pytest.raises(CompileError, match="UTF-8"):
        load_target(str(path))
