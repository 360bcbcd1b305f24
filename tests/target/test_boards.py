"""Boards: their files against the manuals, what they leave to a model, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tinytrain_compile.driver.search.board import check_flash, with_board
from tinytrain_compile.errors import CompileError
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import list_boards, list_targets, load_target, parse_target

KB = 1024
FILE = (data_dir("targets") / "boards" / "nucleo-f746zg.toml").read_text()
DIGITS = str(data_dir("targets").parent / "examples" / "digits" / "digits.onnx")

FACTS = {
    "apollo510-evb": ("cortex-m55", 0x410000, 0x3F0000, {0x20080000: 3072 * KB, 0x20000000: 496 * KB}),
    "ch32v307": ("riscv32-imafc", 0x08000000, 256 * KB, {0x20000000: 64 * KB}),
    "ek-ra8m1": ("cortex-m55", 0x02000000, 0x1F8000, {0x22000000: 896 * KB, 0x20000000: 64 * KB}),
    "esp32-c3": ("riscv32-imac", 0x42000020, 4096 * KB - 0x20, {0x3FC80000: 320 * KB}),
    "esp32-c6": ("riscv32-imac", 0x42000020, 8192 * KB - 0x20, {0x40800000: 0x6E610}),
    "esp32-p4": ("riscv32-imafc", 0x40000020, 16384 * KB - 0x20, {0x4FF40000: 384 * KB}),
    "esp32-s3": ("host", 0x42000020, 8192 * KB - 0x20, {0x3FC88000: 0x53700}),
    "gd32vf103": ("riscv32-imac", 0x08000000, 128 * KB, {0x20000000: 32 * KB}),
    "nrf52840-dk": ("cortex-m4", 0, 1024 * KB, {0x20000000: 256 * KB}),
    "nucleo-f746zg": (
        *("cortex-m7", 0x08000000, 1024 * KB),
        {0x20010000: 240 * KB, 0x20000000: 64 * KB, 0x2004C000: 16 * KB},
    ),
    "nucleo-h743zi": (
        *("cortex-m7", 0x08000000, 2048 * KB),
        {
            0x24000000: 512 * KB,
            0x20000000: 128 * KB,
            0x30000000: 128 * KB,
            0x30020000: 128 * KB,
            0x30040000: 32 * KB,
            0x38000000: 64 * KB,
        },
    ),
    "nucleo-l4r5zi": (
        *("cortex-m4", 0x08000000, 2048 * KB),
        {0x20040000: 384 * KB, 0x20000000: 192 * KB, 0x10000000: 64 * KB},
    ),
    "nucleo-u575zi": (
        *("cortex-m33", 0x08000000, 2048 * KB),
        {0x20040000: 512 * KB, 0x20000000: 192 * KB, 0x20030000: 64 * KB, 0x28000000: 16 * KB},
    ),
    "rpi-pico": (
        *("cortex-m0plus", 0x10000100, 2048 * KB - 256),
        {0x20000000: 256 * KB, 0x20040000: 4 * KB, 0x20041000: 4 * KB},
    ),
    "rpi-pico2": (
        *("cortex-m33", 0x10000000, 4096 * KB),
        {0x20000000: 512 * KB, 0x20080000: 4 * KB, 0x20081000: 4 * KB},
    ),
    "rpi-pico2-riscv": (
        *("riscv32-imac", 0x10000000, 4096 * KB),
        {0x20000000: 512 * KB, 0x20080000: 4 * KB, 0x20081000: 4 * KB},
    ),
}
"""Typed a second time: core, flash of an application, RAM by origin. Files say of which sources they were read."""


def test_boards_have_the_memories_that_were_looked_up() -> None:
    assert list_boards() == tuple(sorted(FACTS))
    for name, (core, origin, size, memories) in FACTS.items():
        target = load_target(name)
        assert target.board is not None
        assert (target.name, target.core_name, target.qemu) == (name, core, load_target(core).qemu)
        assert (target.board.flash.origin, target.board.flash.size_bytes) == (origin, size)
        assert {m.region.origin: m.region.size_bytes for m in target.board.memories} == memories
        assert target.board.sources and target.core.pj_source


def test_every_energy_of_a_cycle_has_its_source_or_none() -> None:
    """Means of MLPerf Tiny v1.2's power over clock, in uW and MHz, from its result files; else the file says who."""
    measured = {
        "cortex-m4": ((41_951, 42_192, 43_821), 120),
        "cortex-m7": ((125_154, 121_864, 124_800), 280),
        "cortex-m33": ((23_362, 22_719, 22_965), 160),
    }
    for name, (powers, clock) in measured.items():
        core = load_target(name).core
        assert "MLPerf Tiny v1.2" in core.pj_source
        assert abs(core.pj_per_cycle - sum(powers) / len(powers) / clock) < 1
    for name in (*list_targets(), *list_boards()):
        source = load_target(name).core.pj_source
        assert source and (load_target(name).core.pj_per_cycle % 100 or "round figure" in source)
    pico = load_target("rpi-pico").core
    assert "no number is published" in pico.pj_source and "MSPM0G3507" in pico.pj_source
    assert pico.pj_per_cycle == load_target("cortex-m0plus").core.pj_per_cycle


def test_what_is_left_to_models() -> None:
    f746 = load_target("nucleo-f746zg")
    assert {bank.name: bank.size_bytes for bank in f746.memories} == {
        "sram1": 240 * KB,
        "dtcm": 64 * KB - 4 * KB - 16 * KB,
        "sram2": 16 * KB,
    }
    assert {bank.name: bank.size_bytes for bank in load_target("nrf52840-dk").memories} == {"ram": (256 - 4 - 32) * KB}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            'core_target = "cortex-m7"',
            'core_target = "cortex-m8"',
            "key 'core_target' names the unknown core 'cortex-m8': did you mean cortex-m85",
        ),
        ('stack = "dtcm"', 'stack = "ccm"', "key 'ram.stack' names no memory of the board"),
        ("reserve_bytes = 16384", "reserve_bytes = 65536", "key 'ram' leaves less than nothing of dtcm"),
        ("origin = 0x2004c000", "origin = 0x20000000", "key 'memories' overlap at 0x20000000"),
        ('name = "sram2"', 'name = "dtcm"', "key 'memories' names one memory twice"),
        ("dma = true", "dma = 1", r"key 'memories\[0\].dma' must be true or false"),
        ("size_bytes = 245760", 'size_bytes = "240 KB"', r"0\].size_bytes' must be an integer: write 245760"),
        ("size_bytes = 245760", "size = 245760", r"0\].size_bytes' is missing \('size' is there: a slip"),
        ("size_bytes = 245760", "size_bytes = 240", r"0\].size_bytes' must be an integer from 1024"),
        ("origin = 0x20010000", 'origin = "0x20010000"', "must be an integer: write 0x20010000, without quotes"),
        ("clock_mhz = 216", "clock_mhz = 216000000", "'core.clock_mhz' must be an integer from 1 to 10000"),
        ("[[memories]]", "[memories]", r"is not TOML .*; write \[\[memories\]\] in double brackets"),
        ("clock_mhz = 216", "clock_mhz = 216.0", "key 'core.clock_mhz' must be an integer: write 216"),
        ("retained = false", "", r"key 'memories\[0\].retained' is missing"),
        ("reserve_bytes = 65536", "reserve_bytes = 1048576", "key 'flash.reserve_bytes' and boot_bytes leave nothing"),
        ('part = "STM32F746ZG"', "", "key 'part' is missing"),
        ('name = "nucleo-f746zg"', 'name = "My Board"', "key 'name' must be lower-case"),
        ("[flash]", 'colour = "red"\n[flash]', "key 'core.colour' is not known"),
    ],
)
def test_wrong_keys_are_named(old: str, new: str, message: str) -> None:
    assert old in FILE
    with pytest.raises(CompileError, match=message) as caught:
        parse_target(FILE.replace(old, new, 1), "board.toml")
    assert caught.value.code == "E0103"


def test_the_board_limits_a_compilation_that_names_no_memory() -> None:
    options, _, said = with_board(CompileOptions(Path("m.onnx")), load_target("nucleo-f746zg"))
    assert options.arena_bytes == 240 * KB
    assert dict(options.memories) == {"dtcm": 44 * KB, "sram2": 16 * KB}
    assert "arena up to 245,760 B of sram1, then dtcm 45,056 B" in said[0]
    asked = CompileOptions(Path("m.onnx"), arena_bytes=KB, memories={"sram2": KB})
    assert with_board(asked, load_target("nucleo-f746zg"))[0] == asked
    assert with_board(CompileOptions(Path("m.onnx")), load_target("cortex-m7"))[0].arena_bytes is None


def test_a_board_gives_no_memory_that_would_be_refused() -> None:
    """A smaller plan lay in the second memory, all of it; --features was refused for a --memory that nobody gave."""
    plans = "--plans 58KB,120KB --batch 4 --micro-batch auto --update all"
    for flags in (plans, "--features on --update last:1"):
        options = ("--target", "nucleo-f746zg", *flags.split(), "--dry-run")
        assert "dtcm 45,056" not in run(DIGITS, *options).check_success().out
    options = ("--target", "nucleo-f746zg", "--features", "on", "--update", "last:1", "--arena", "6KB", "--dry-run")
    assert "--memory" not in run(DIGITS, *options).check_error("E0401", 3).err


def test_the_reserve_can_be_another() -> None:
    options = CompileOptions(Path("m.onnx"), reserve_bytes=64 * KB)
    chosen, target, _ = with_board(options, load_target("nrf52840-dk"))
    assert chosen.arena_bytes == target.memories[0].size_bytes == (256 - 4 - 64) * KB


@pytest.mark.parametrize(
    ("flags", "code", "message"),
    [
        ("--target nucleo-f746zg --arena 256KB", "E0107", "nucleo-f746zg has 245760 B in sram1"),
        (
            "--target nucleo-f746zg --update all --plans 30KB,256KB",
            "E0107",
            "--plans: 262144 B are asked for, nucleo-f746zg has 245760 B in sram1",
        ),
        ("--target nucleo-f746zg --memory ccm=1KB", "E0107", "has no such memory"),
        ("--target nucleo-f746zg --reserve 61KB", "E0101", "dtcm of nucleo-f746zg has 61440 B beside the stack"),
        ("--target cortex-m7 --reserve 1KB", "E0113", "cortex-m7 is a core"),
        ("--target nrf52840-dk --reserve 252KB", "E0101", "ram of nrf52840-dk has 258048 B beside the stack"),
        ("--target nucleo-f746", "E0102", "nucleo-f746zg"),
    ],
)
def test_what_a_board_has_not_is_refused(flags: str, code: str, message: str) -> None:
    assert message in run(DIGITS, *flags.split(), "--dry-run").check_error(code, 2).err


def test_flash_fits_to_the_byte() -> None:
    target = load_target("nucleo-f746zg")
    check_flash(target, 983_040, 0)
    check_flash(target, None, None)
    with pytest.raises(CompileError, match=r"need 983041 B, models have 983040 B \(over by 1 B\)") as caught:
        check_flash(target, 983_000, 41)
    assert caught.value.code == "E0403"


@needs_qemu
@pytest.mark.qemu
def test_a_stack_that_a_model_exceeds_is_one_line_and_no_output(tmp_path: Path) -> None:
    (tmp_path / "board.toml").write_text(FILE.replace("stack_bytes = 4096", "stack_bytes = 64"))
    options = (*("--target", str(tmp_path / "board.toml")), *("--update", "last:1"), *("-o", tmp_path / "out"))
    error = run(DIGITS, *options).check_error("E0404", 3).err
    assert re.search(r"stack in dtcm: calls need \d+ B, nucleo-f746zg has 64 B \(over by \d+ B; digits_\w+", error)
    assert not (tmp_path / "out").exists()
    said = " ".join(run(DIGITS, *options[2:], "--target", "nucleo-f746zg").check_success().out.split())
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    bound, flash = report["memory"]["stack_bytes"], report["board"]["flash"]["used_bytes"]
    assert report["board"]["stack"] == {"memory": "dtcm", "size_bytes": 4096, "used_bytes": bound}
    page = (tmp_path / "out" / "report.html").read_text()
    for fits in (f"stack {bound} of 4,096 B in dtcm: fits", f"flash {flash:,} of 983,040 B (3.2%): fits"):
        assert fits in said and fits in page


def test_ways_out_on_a_board_whose_stack_has_a_memory_to_itself() -> None:
    found = run(DIGITS, "--target", "rpi-pico", "--update", "all", "--arena", "12KB", "--dry-run")
    assert "what would fit" in found.check_error("E0401", 3).err
