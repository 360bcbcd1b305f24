"""All RAM of a board: what the build asks for beside the arena counts, what does not fit is refused with ways out."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from testing.networks import models
from testing.places import ROOT
from tests.e2e.broken import write
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tinytrain_compile.compilation import make_project
from tinytrain_compile.driver.pipeline import Project, Result
from tinytrain_compile.driver.search.board import most_samples
from tinytrain_compile.files.resources import data_dir
from tinytrain_compile.ir.buffers import PartRam, RuntimeBuffer, most_records, part_ram, placed, reserved
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target

DIGITS = ROOT / "examples" / "digits" / "digits.onnx"
NRF, F746 = ("--target", "nrf52840-dk"), ("--target", "nucleo-f746zg")
LINE = re.compile(r"^    (--.*?) +-> +([\d,]+) B  ", re.MULTILINE)
ROW = re.compile(r"^all RAM +([\d,]+) of ([\d,]+) B", re.MULTILINE)


def number(text: str) -> int:
    return int(text.replace(",", ""))


def summary_of(**options: object) -> Summary:
    made = make_project(CompileOptions(DIGITS, dry_run=True, **options))  # type: ignore[arg-type]
    assert isinstance(made, Result) and made.summary is not None
    return made.summary


# ---- what is refused ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "flags",
    [
        "--update all --runtime replay=760",
        "--runtime replay=1000,monitor,store",
        "--update all --runtime replay=640,monitor,store,delta",
        "--update all --arena 200KB --runtime replay=800,monitor",
        "--update last:2 --batch 4 --runtime replay=100000",
    ],
)
def test_buffers_that_no_linker_would_place_are_refused_and_every_way_out_fits(flags: str) -> None:
    """It said that 100 samples of 307,600 B fit into 256 KB. The figure of a line is the RAM of who follows it."""
    failed = run(DIGITS, *NRF, *flags.split(), "--dry-run").check_error("E0405", 3)
    ways = LINE.findall(failed.err)
    assert ways and "kept samples" in failed.err
    for options, size in ways:
        given = [*NRF, *flags.split(), "--dry-run", *options.split()]
        row = ROW.search(run(DIGITS, *given).check_success().out)
        assert row is not None and row[1] == size and number(row[1]) <= number(row[2]), options
    assert any("replay=" in options for options, _ in ways)
    assert any("--target" in options for options, _ in ways) or "100000" in flags, "no board has 26 MB"


def test_the_number_of_samples_that_is_offered_is_the_largest_beside_the_plan() -> None:
    flags = (*NRF, "--update", "all", "--remat", "off", "--stream", "off", "--dry-run")
    failed = run(DIGITS, *flags, "--runtime", "replay=760").check_error("E0405", 3)
    found = re.search(r"--runtime replay=(\d+) ", failed.err)
    assert found is not None
    run(DIGITS, *flags, "--runtime", f"replay={int(found[1]) + 1}").check_error("E0405", 3)
    known = summary_of(target="nrf52840-dk", update="all")
    target, parts = load_target("nrf52840-dk"), RuntimeParts(("replay",), 760)
    assert most_samples(target, known.plan, known.train, parts) == int(found[1])
    assert most_samples(load_target("cortex-m7"), known.plan, known.train, parts) is None


def test_a_board_is_no_larger_than_it_is(tmp_path: Path) -> None:
    """An --arena of all that is needed was offered for a part of 256 KB, and refused (E0107) when it was given."""
    path = write(models.mlp(inputs=150, hidden=300, classes=10), tmp_path)
    for arena in ((), ("--arena", "100KB")):
        failed = run(path, *NRF, *arena, "--update", "all", "--dry-run").check_error("E0401", 3)
        ways = re.findall(r"^    (--.*?) +-> +([\d,]+) B  ", failed.err[failed.err.index("would fit") :], re.MULTILINE)
        assert [options for options, _ in ways if options.startswith("--arena")] == [] and len(ways) > 1
        for options, size in ways:
            done = run(path, *NRF, *arena, "--update", "all", "--dry-run", *options.split()).check_success()
            assert f"\nRAM        {size} B" in done.out or "memory     " in done.out, options


def test_constants_that_are_more_than_the_flash_are_refused_before_there_is_code(tmp_path: Path) -> None:
    """A dry run called 7.2 MB of weights a plan for a part of 1 MB."""
    text = (data_dir("targets") / "boards" / "nucleo-f746zg.toml").read_text()
    (tmp_path / "board.toml").write_text(text.replace("size_bytes = 1048576", f"size_bytes = {65_536 + 24_559}"))
    failed = run(DIGITS, "--target", tmp_path / "board.toml", "--update", "all", "--dry-run").check_error("E0403", 3)
    assert "alone need 24560 B, models have 24559 B (over by 1 B)" in failed.err
    assert "esp32-s3" in failed.err and "--quant int8" in failed.err


# ---- what is shown --------------------------------------------------------------------------------------------------


def test_one_row_has_the_ram_of_the_part(tmp_path: Path) -> None:
    parts = "replay=20,monitor,store,delta,average"
    out = tmp_path / "out"
    said = run(DIGITS, *NRF, "--update", "all", "--runtime", parts, "--verify", "none", "-o", out).check_success().out
    report = json.loads((out / "report.json").read_text())
    ram = report["memory"]["ram"]
    assert {use["what"]: use["size_bytes"] for use in ram["uses"]} == {
        "arena": report["memory"]["arena_bytes"],
        "20 kept samples": 20 * 260,
        "best state (monitor)": int(_macro(out / "digits_train.h", "CHECKPOINT_BYTES")),
        "store": 648,
        "message (delta)": 12_312,
        "stack": 4096,
        "reserve": 32_768,
    }
    assert _macro(out / "digits_delta.h", "DELTA_BYTES") == "12312"
    assert ram["used_bytes"] == sum(use["size_bytes"] for use in ram["uses"]) and ram["size_bytes"] == 262_144
    row = ROW.search(said)
    assert row is not None and (number(row[1]), number(row[2])) == (ram["used_bytes"], 262_144)
    assert "average: in flash or RAM of yours" in " ".join(said.split())
    assert f"{row[1]} of 262,144 B" in (out / "report.html").read_text()


def _ram(summary: Summary) -> PartRam:
    ram = summary.fact(PartRam)
    assert ram is not None
    return ram


def _macro(header: Path, name: str) -> str:
    found = re.search(rf"#define DIGITS_{name} (\d+)u", header.read_text())
    assert found is not None
    return found[1]


def test_a_core_has_no_size_and_a_build_without_parts_no_row_there() -> None:
    assert "\nall RAM " not in run(DIGITS, "--dry-run").check_success().out
    said = " ".join(run(DIGITS, "--runtime", "replay=3", "--dry-run").check_success().out.split())
    assert "a core has no RAM size" in said and "3 kept samples 780" in said


def test_the_best_state_can_be_elsewhere() -> None:
    parts = (RuntimeParts(("monitor",), best_in_ram=kept) for kept in (True, False))
    kept, elsewhere = (_ram(summary_of(target="nrf52840-dk", runtime=one)) for one in parts)
    assert [one.part for one in kept.buffers] == ["monitor"] and elsewhere.buffers == ()
    text = RuntimeParts(("replay", "monitor", "average"), 5, 2, False).text
    assert text == "replay=5,monitor=flash,average=2"


# ---- room is left ---------------------------------------------------------------------------------------------------


def test_the_arena_is_planned_with_what_the_buffers_leave(tmp_path: Path) -> None:
    """Nobody asked for the arena, so that gives way: --update auto trains less, a plan lies in more memories."""
    path = write(models.mlp(inputs=100, hidden=150, classes=10), tmp_path)
    free = run(path, *NRF, "--dry-run").check_success().out
    assert "3 of 3 layers, 39,310 of 39,310" in free and "beside the buffers" not in free
    said = run(path, *NRF, "--runtime", "replay=200,monitor", "--dry-run").check_success().out
    assert "beside the buffers of --runtime: arena up to" in " ".join(said.split()) and "39,310 of 39,310" not in said
    row = ROW.search(said)
    assert row is not None and number(row[1]) <= 262_144
    two = run(DIGITS, *F746, "--update", "all", "--runtime", "replay=900,store", "--dry-run").check_success().out
    assert "900 kept samples 234,000 in sram1" in two and "buffers of the plan 31,0" in two


def test_buffers_are_placed_where_there_is_room_to_the_byte() -> None:
    board = load_target("nucleo-f746zg").board
    assert board is not None
    one, two = RuntimeBuffer("replay", "a", 45_056), RuntimeBuffer("store", "b", 16_382)
    full = {"sram1": 245_760}
    assert placed(board, full, [one, two]) == {"replay": "dtcm", "store": "sram2"}
    larger = replace(one, size_bytes=45_057)
    assert placed(board, full, [larger, two]) == {"store": "dtcm"}
    assert reserved(board, [one, two]) == {"sram1": 245_760, "dtcm": 0, "sram2": 0}
    assert reserved(board, [replace(one, size_bytes=300_000)]) is None
    assert most_records(board, full, [two], 100) == 450 and most_records(board, {}, [one], 1000) == 245


# ---- it links -------------------------------------------------------------------------------------------------------

PROGRAM = """#include "digits_train.h"
#include "digits_board.h"
#include "digits_replay.h"
#include "digits_monitor.h"
#include "digits_store.h"
#include "digits_delta.h"

DIGITS_IN_ARENA static unsigned char arena[DIGITS_ARENA_BYTES];
DIGITS_IN_REPLAY static unsigned char past[DIGITS_REPLAY_BYTES];
DIGITS_IN_MONITOR static unsigned char best[DIGITS_MONITOR_BYTES];
DIGITS_IN_STORE static digits_slot_store_t store;
DIGITS_IN_DELTA static unsigned char message[DIGITS_DELTA_BYTES];
_Static_assert(DIGITS_STORE_BYTES == 648, "what the report counts");

int main(void)
{
    digits_t *model;
    digits_replay_t replay;
    digits_ram_t ram = {best, 0};
    const digits_medium_t medium = {0};
    const digits_store_t kept = digits_ram_store(&ram);
    digits_stop_t stop = {0};
    digits_verdict verdict;
    (void)digits_init(&model, arena, sizeof arena);
    (void)digits_replay_init(&replay, past, sizeof past, 1);
    (void)digits_stop_keep(&stop, model, 1.0f, &kept, &verdict);
    (void)digits_store_open(&store, &medium);
    return (int)digits_delta_get(model, message);
}
"""


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize("board", ["nrf52840-dk", "nucleo-f746zg"])
def test_the_generated_link_script_links_all_buffers(board: str, tmp_path: Path) -> None:
    """As many samples as fit, to the record: every buffer has a macro and a section of its own. One more is refused."""
    parts = RuntimeParts(("replay", "monitor", "store", "delta"), 1)
    known = summary_of(target=board, update="head", runtime=parts)
    most = most_samples(load_target(board), known.plan, known.train, parts)
    assert most is not None and most > 100
    asked = CompileOptions(
        DIGITS,
        target=board,
        update="head",
        verify="none",
        runtime=replace(parts, replay_samples=most),
    )
    made = make_project(asked)
    assert isinstance(made, Project) and _ram(made.summary).fits
    for path, content in {**made.files, "main.c": PROGRAM}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_bytes(content if isinstance(content, bytes) else content.encode())
    sources = [*map(str, sorted(tmp_path.glob("*.c"))), str(ROOT / "examples" / "boards" / "startup.c")]
    flags = (*load_target(board).gcc_flags, "-O1", f"-I{tmp_path}", "-nostartfiles", "-T", f"{tmp_path}/board/link.ld")
    command = ["arm-none-eabi-gcc", *flags, *sources, "-o", f"{tmp_path}/image", f"-Wl,-Map={tmp_path}/map"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    linked = (tmp_path / "map").read_text()
    uses = {use.what: use for use in _ram(made.summary).uses}
    for part, what in (("replay", f"{most:,} kept samples"), ("store", "store"), ("delta", "message (delta)")):
        found = re.search(rf"^ \.tt_(\w+)\.digits_{part}\s+0x\w+\s+0x(\w+)", linked, re.MULTILINE)
        assert found is not None and (found[1], int(found[2], 16)) == (uses[what].memory, uses[what].size_bytes), part
    assert len(re.findall(r"^ \.tt_\w+\.digits_monitor", linked, re.MULTILINE)) >= 1
    ram = part_ram(load_target(board).board, made.summary.plan, _ram(made.summary).buffers)
    assert ram == _ram(made.summary)
