"""Several memories end to end: where buffers lie changes no byte, and every memory has its checks and guards."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from testing.networks.chains import random_chain
from testing.places import ROOT
from testing.runs import run_steps
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.chain import Project
from tests.e2e.command import run
from tests.e2e.marks import needs_qemu
from tests.quantize import nets
from tinytrain_compile.data.samples import random_samples
from tinytrain_compile.ir.stages import SourceBundle, TrainGraph
from tinytrain_compile.target.loader import load_target
from tinytrain_compile.verify.run import RunResult

STEPS = 20
TRAINS: dict[str, Callable[[], TrainGraph]] = {
    "resnet8": lambda: chain.train_graph(models.resnet8(channels=4, size=16), learning_rate=0.01),
    "transformer": lambda: chain.train_graph(models.transformer(tokens=8, width=8, heads=2), learning_rate=0.01),
    "momentum, accumulated": lambda: chain.train_graph(
        models.ds_cnn(channels=8, blocks=3, size=(12, 6)), optimizer="momentum", learning_rate=0.01, batch=2
    ),
    "int8, accumulated": lambda: nets.int8_train(nets.cnn(size=16, channels=8), learning_rate=0.05, batch=2),
}


def pair(name: str) -> tuple[Project, Project]:
    """A project in one memory, and the same with a third of that arena and the board's second RAM."""
    alone = chain.project(TRAINS[name]())
    both = chain.moved(alone, alone.plan.arena_bytes // 3)
    assert len(both.bundle.interface.further_bytes) == 1
    assert {move.op for move in both.plan.paging} == {"PageOut", "PageIn"}
    assert {slot.memory for slot in both.bundle.interface.state} == {0, 1}, "the state lies in both"
    return alone, both


@needs_qemu
@pytest.mark.qemu
@pytest.mark.parametrize("name", TRAINS)
def test_twenty_steps_give_the_same_bytes_on_the_board(name: str, tmp_path: Path) -> None:
    alone, both = pair(name)
    chain.train_alike(alone, both, STEPS, tmp_path)


@needs_qemu
@pytest.mark.qemu
def test_the_second_memory_lies_in_the_second_ram_of_the_board(tmp_path: Path) -> None:
    _, both = pair("resnet8")
    chain.trained(both, "cortex-m7", STEPS, tmp_path)
    image = next(tmp_path.rglob("check.elf"))
    names = subprocess.run(["arm-none-eabi-nm", image], capture_output=True, text=True, check=True).stdout
    place = {line.split()[2]: int(line.split()[0], 16) for line in names.splitlines() if len(line.split()) == 3}
    assert 0x20000000 <= place["memory_0"] < 0x21000000
    assert place["memory_1"] == 0x60000000


def test_checkpoints_of_both_are_the_same() -> None:
    alone, both = pair("resnet8")
    assert chain.checkpoint_magic(alone) == chain.checkpoint_magic(both)
    assert [slot.name for slot in alone.bundle.interface.state] == [slot.name for slot in both.bundle.interface.state]


@pytest.mark.parametrize("fault", ["writes outside", ""])
def test_a_write_below_the_second_memory_is_seen(fault: str, tmp_path: Path) -> None:
    """Planted: the code for initial state also writes in front of memory 1; without the plant all is well."""
    _, both = pair("resnet8")
    files = dict(both.bundle.files)
    text = files["net_train.c"]
    line = next(line for line in text.splitlines() if "memcpy(memory_1(arena)" in line)
    if fault:
        files["net_train.c"] = text.replace(line, f"{line}\n    memory_1(arena)[-8] = 0;")
    planted = SourceBundle(files, both.bundle.interface)
    samples = random_samples(both.train, 1, 0)
    result = run_steps(planted, load_target("host"), samples, 1, None, 1, tmp_path, "host")
    assert result.status.startswith(fault or "ok")


INIT = """#include "net_train.h"
#include <stdint.h>
static _Alignas(16) unsigned char arena[NET_ARENA_BYTES], further[NET_MEMORY_1_BYTES + 16];
int main(void)
{
    net_t *m;
    _Static_assert(NET_MEMORIES == 2, "two memories");
    const size_t size[2] = {sizeof arena, NET_MEMORY_1_BYTES}, small[2] = {sizeof arena, NET_MEMORY_1_BYTES - 1u};
    if (net_init_memories(&m, (void *[]){arena, NULL}, size) != NET_ERR_ARGUMENT) { return 1; }
    if (net_init_memories(&m, (void *[]){arena, further}, small) != NET_ERR_SIZE) { return 2; }
    if (net_init_memories(&m, (void *[]){arena, further + 4}, size) != NET_ERR_ALIGNMENT) { return 3; }
    return net_init_memories(&m, (void *[]){arena, further}, size) != NET_OK ? 4 : 0;
}
"""


def test_init_checks_every_memory(tmp_path: Path) -> None:
    _, both = pair("resnet8")
    for name, text in {**both.bundle.files, "main.c": INIT}.items():
        (tmp_path / name).write_text(text)
    sources = [name for name in both.bundle.files if name.endswith(".c")]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    subprocess.run(["gcc", *flags, "main.c", *sources, "-o", "main"], cwd=tmp_path, check=True)
    assert subprocess.run([tmp_path / "main"], check=False).returncode == 0


# ---- the command line -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(write(models.resnet8(channels=8, size=16), tmp_path_factory.mktemp("memories")))


def test_report_has_a_region_for_every_memory(resnet: Path, tmp_path: Path) -> None:
    flags = ("--update", "all", "--arena", "64KB", "--remat", "off", "--verify", "none")
    done = run(resnet, *flags, "--memory", "sram2=256KB", "-o", tmp_path / "out").check_success()
    assert "memory     sram2" in done.out
    memory = json.loads((tmp_path / "out" / "report.json").read_text())["memory"]
    arena, further = memory["regions"]
    assert (arena["name"], arena["limit_bytes"]) == ("arena", 65536)
    assert (further["name"], further["limit_bytes"]) == ("sram2", 262144)
    assert arena["used_bytes"] == memory["arena_bytes"] <= 65536
    assert memory["persistent_bytes"] + memory["transient_bytes"] == arena["used_bytes"] + further["used_bytes"]
    assert further["extra_us"] > 0
    assert further["cheapest_proven"] is True
    plan = json.loads((tmp_path / "out" / "plan.json").read_text())
    ends = {
        name: max(b["offset"] + b["size_bytes"] for b in plan["buffers"] if b["memory"] == name)
        for name in ("arena", "sram2")
    }
    assert ends == {"arena": arena["used_bytes"], "sram2": further["used_bytes"]}


@needs_qemu
@pytest.mark.qemu
def test_covers_in_several_memories_on_the_board(tmp_path: Path) -> None:
    """An int8 step with streams, half of it beside the arena: the bytes of the reference."""
    model = random_chain(4)
    write(model, tmp_path)
    shape = [8, *(axis.dim_value for axis in model.graph.input[0].type.tensor_type.shape.dim[1:])]
    np.savez(tmp_path / "own.npz", x=np.random.default_rng(4).normal(size=shape).astype(np.float32))
    asked = (tmp_path / "net.onnx", "--quant", "int8", "--calib", tmp_path / "own.npz", "--update", "last:3")
    run(*asked, "--verify", "none", "--remat", "off", "-o", tmp_path / "one").check_success()
    one = json.loads((tmp_path / "one" / "plan.json").read_text())
    arena = sum(buffer["size_bytes"] for buffer in one["buffers"] if buffer["kind"] in ("header", "state")) + 400
    flags = ("--remat", "off", "--arena", str(arena), "--memory", "sram2=64KB", "-o", tmp_path / "two")
    done = run(*asked, *flags).check_success()
    assert "C in QEMU mps2-an500 vs this machine" in done.agreed and "PASS" in done.out
    two = json.loads((tmp_path / "two" / "plan.json").read_text())
    home = {buffer["name"]: buffer["memory"] for buffer in two["buffers"]}
    covers = [(buffer["memory"], home[buffer["over"]["name"]]) for buffer in two["buffers"] if "over" in buffer]
    assert covers and all(first == second for first, second in covers)
    assert set(home.values()) == {"arena", "sram2"}


def test_a_memory_that_is_not_needed_is_not_used(resnet: Path, tmp_path: Path) -> None:
    flags = ("--update", "head", "--arena", "256KB", "--verify", "none")
    run(resnet, *flags, "--memory", "sram2=256KB", "-o", tmp_path / "with").check_success()
    run(resnet, *flags, "-o", tmp_path / "without").check_success()
    files = sorted(path.name for path in (tmp_path / "with").glob("*.[ch]"))
    assert files
    for name in files:
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()


def test_the_way_out_through_a_second_memory_is_priced_and_works(resnet: Path, tmp_path: Path) -> None:
    flags = ("--update", "all", "--arena", "64KB", "--remat", "off", "--verify", "none", "-o", tmp_path / "out")
    failed = run(resnet, *flags).check_error("E0401", 3)
    line = next(line for line in failed.err.splitlines() if "--memory sram2=" in line and "->" in line)
    assert "ms a step (model)" in line
    run(resnet, *flags, *line.split("->")[0].split()).check_success()


def test_a_core_may_have_no_second_memory(tmp_path: Path) -> None:
    flags = ("--update", "all", "--arena", "4KB", "--verify", "none", "-o", tmp_path / "out")
    failed = run(ROOT / "examples" / "digits" / "digits.onnx", *flags).check_error("E0401", 3)
    assert re.search(
        r"; try --memory sram2=\d+, if your part has such a RAM, or --update head --arena \d+\n", failed.err
    )


def test_auto_updates_more_with_a_second_memory(resnet: Path, tmp_path: Path) -> None:
    flags = ("--arena", "64KB", "--remat", "off", "--verify", "none")
    run(resnet, *flags, "-o", tmp_path / "one").check_success()
    run(resnet, *flags, "--memory", "sram2=1MB", "-o", tmp_path / "two").check_success()
    labels = [json.loads((tmp_path / n / "report.json").read_text())["update_totals"]["label"] for n in ("one", "two")]
    assert labels[0] != "auto: last:10"
    assert labels[1] == "auto: last:10"


@pytest.mark.parametrize(
    ("flags", "error"),
    [
        (("--memory", "sram2=1MB"), "E0113"),
        (("--arena", "64KB", "--memory", "sram2"), "E0101"),
        (("--arena", "64KB", "--memory", "sram2=0"), "E0101"),
        (("--arena", "64KB", "--memory", "sram2=1MB", "--memory", "sram2=2MB"), "E0101"),
        (("--arena", "64KB", "--memory", "psram=1MB"), "E0107"),
        (("--arena", "64KB", "--memory", "sram=1MB"), "E0107"),
        (("--arena", "64KB", "--memory", "sram2=1GB"), "E0107"),
    ],
)
def test_wrong_memories_are_named(resnet: Path, flags: tuple[str, ...], error: str, tmp_path: Path) -> None:
    run(resnet, *flags, "-o", tmp_path / "out").check_error(error, 2)


def test_report_prices_page_moves(resnet: Path, tmp_path: Path) -> None:
    flags = ("--update", "all", "--arena", "32KB", "--remat", "off", "--verify", "none")
    done = run(resnet, *flags, "--memory", "sram2=256KB", "-o", tmp_path / "out").check_success()
    assert "paging     " in done.out
    paging = json.loads((tmp_path / "out" / "report.json").read_text())["plan"]["paging"]
    assert paging["moved_bytes"] == sum(move["size_bytes"] for move in paging["moves"])
    names = {node["name"]: node["op"] for node in json.loads((tmp_path / "out" / "plan.json").read_text())["order"]}
    assert all(names[move["name"]] == move["op"] for move in paging["moves"])
    seconds = sum(1e-6 + move["size_bytes"] * (1 / 80e6 + 1 / 800e6) for move in paging["moves"])
    assert paging["extra_us"] == pytest.approx(seconds * 1e6)
    (source,) = (tmp_path / "out").glob("*_train.c")
    outs = [line for line in source.read_text().splitlines() if "tt_page_out(" in line]
    assert len(set(outs)) == sum(move["op"] == "PageOut" for move in paging["moves"]) > 0
    assert (tmp_path / "out" / "tt_page.h").exists()


PORT = """#include <stddef.h>
#include <string.h>
/* DMA at its latest: nothing arrives before the wait, and until then the destination holds garbage. */
static struct { void *to; const void *from; size_t size; } moves[64];
static int count;
static inline void tt_page_out(void *further, const void *arena, size_t size) { memcpy(further, arena, size); }
static inline void tt_page_in(void *arena, const void *further, size_t size)
{
    memset(arena, 0xff, size);
    moves[count].to = arena;
    moves[count].from = further;
    moves[count++].size = size;
}
static inline void tt_page_wait(const void *arena)
{
    for (int i = 0; i < count; i++) {
        if (moves[i].to == arena) {
            memcpy(moves[i].to, moves[i].from, moves[i].size);
            moves[i] = moves[--count];
            return;
        }
    }
    __builtin_trap();
}
"""


def test_a_port_may_bring_pages_as_late_as_the_wait(tmp_path: Path) -> None:
    """TT_PAGE_PORT replaced by copies that happen in tt_page_wait only: the same bytes; without waits it shows."""
    alone, both = pair("transformer")
    first = chain.trained(alone, "host", STEPS, tmp_path / "alone")
    files = {**both.bundle.files, "late.h": PORT}
    files["tt_page.h"] = f'#define TT_PAGE_PORT "late.h"\n{files["tt_page.h"]}'
    samples = random_samples(both.train, 4, 0)

    def late(name: str, files: dict[str, str]) -> RunResult:
        bundle = SourceBundle(files, both.bundle.interface)
        return run_steps(bundle, load_target("host"), samples, STEPS, None, 1, tmp_path / name, "host")

    assert chain.same(first, late("late", files))
    source = files["net_train.c"]
    waits = [line for line in source.splitlines() if "tt_page_wait(" in line]
    assert waits
    text = PORT.replace("__builtin_trap();", "").replace("moves[count++].size = size;", "moves[count].size = size;")
    assert not chain.same(first, late("never", {**files, "late.h": text}))
