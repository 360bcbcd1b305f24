"""--micro-batch: how many samples a call takes is the user's choice, and the types of the generated API say it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.broken import write
from tests.e2e.command import Outcome, run
from tests.emit.test_generated_c import NUMERIC, SANITIZED, STRICT, build, call, needs_gcc
from tests.quantize import nets
from tinytrain_compile.driver.candidates.inference import NoRoomError, infer_one
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory

ISSUE = ("--batch", "8", "--arena", "256KB")
WARNED = ["gcc", "-std=c11", "-Wall", "-Wextra", "-pedantic", "-Werror", "-fsyntax-only"]
ONE_LABEL = """#include "net_train.h"
#include <stdlib.h>
int main(void)
{
    void *const mem[1] = {malloc(NET_ARENA_BYTES)};
    const size_t size[1] = {NET_ARENA_BYTES};
    int32_t *label = malloc(sizeof *label); /* exactly one: a sanitizer sees a second one being read */
    float loss;
    net_t *m;
    if (net_init_memories(&m, mem, size) != NET_OK) {
        return 1;
    }
    *label = 1;
    for (size_t i = 0; i < NET_INPUT_ELEMENTS; ++i) {
        net_input(m)->values[i] = 0.1f * (float)(i % 7u);
    }
    const int good = net_train_step(m, label, &loss) == NET_OK;
    free(label);
    free(mem[0]);
    return good ? 0 : 2;
}
"""
FOUR = """#include "net_train.h"
#include <stdlib.h>
#include <string.h>
static void fill(float *values, unsigned sample)
{
    for (unsigned i = 0; i < NET_INPUT_ELEMENTS / NET_MICRO_BATCH; ++i) {
        values[i] = 0.1f * (float)((i * 5u + sample * 3u) % 11u) - 0.5f;
    }
}
static void fill_all(net_t *m)
{
    for (unsigned sample = 0; sample < NET_MICRO_BATCH; ++sample) {
        fill(net_input(m)->values + sample * (NET_INPUT_ELEMENTS / NET_MICRO_BATCH), sample);
    }
}
static bool near(float a, float b)
{
    return a - b < 1e-5f && b - a < 1e-5f;
}
int main(void)
{
    void *arena = malloc(NET_ARENA_BYTES);
    void *const mem[1] = {arena};
    const size_t size[1] = {NET_ARENA_BYTES};
    net_label_t *label = (net_label_t *)malloc(sizeof *label);
    net_output_batch_t *all = (net_output_batch_t *)malloc(sizeof *all);
    net_output_t *one = (net_output_t *)malloc(sizeof *one);
    float loss = 0.0f;
    net_t *m;
    if (net_init_memories(&m, mem, size) != NET_OK || sizeof *one * 4u != sizeof *all) {
        return 1;
    }
    for (int step = 0; step < 3; ++step) {
        fill_all(m);
        if (net_infer_batch(m, all) != NET_OK) {
            return 2;
        }
        for (unsigned sample = 0; sample < NET_MICRO_BATCH; ++sample) {
            fill(net_input(m)->values, sample); /* only the first place of the slot */
            if (net_infer(m, one) != NET_OK) {
                return 3;
            }
            for (unsigned k = 0; k < NET_OUTPUT_ELEMENTS; ++k) {
                if (!near(one->values[k], all->samples[sample].values[k])) {
                    return 4;
                }
            }
        }
        fill_all(m);
        for (int i = 0; i < 4; ++i) {
            label->values[i] = i;
        }
        if (net_train_step(m, label, &loss) != NET_OK) {
            return 5;
        }
    }
    free(one);
    free(all);
    free(label);
    free(arena);
    return 0;
}
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("cnn")
    write(nets.cnn(), folder)
    x = nets.calibration(nets.cnn())
    np.savez(folder / "calib.npz", x=x)
    np.savez(folder / "labelled.npz", x=x, y=np.arange(len(x)) % 5)
    return folder


def compiled(place: Path, out: Path, *arguments: str | Path) -> Outcome:
    return run(place / "net.onnx", "--verify", "none", "-o", out, *arguments)


def report_of(out: Path) -> dict[str, Any]:
    return json.loads((out / "report.json").read_text(encoding="utf-8"))


def run_program(out: Path, text: str) -> int:
    (out / "main.c").write_text(text)
    build(
        ["gcc", *STRICT, *NUMERIC, "-O0", *SANITIZED, "main.c", *sorted(out.glob("net_*.c")), "-lm", "-o", "main"], out
    )
    done = call([out / "main"], out)
    assert done.stderr == ""
    return done.returncode


@needs_gcc
def test_a_call_takes_one_label_whatever_the_arena(place: Path, tmp_path: Path) -> None:
    """--arena decided, and train_step(&label) read seven labels that were not there."""
    compiled(place, tmp_path / "out", *ISSUE).check_success()
    assert report_of(tmp_path / "out")["micro_batch"] == 1
    assert run_program(tmp_path / "out", ONE_LABEL) == 0


@pytest.fixture(scope="module")
def four(place: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("four") / "out"
    compiled(place, out, *ISSUE, "--micro-batch", "4").check_success()
    return out


@needs_gcc
@pytest.mark.parametrize("language", ["c", "c++"])
def test_a_wrong_count_does_not_compile(four: Path, language: str, tmp_path: Path) -> None:
    calls = {
        "int32_t label = 1; net_train_step(m, &label, &loss);": False,
        "int32_t label[4] = {0}; net_train_step(m, label, &loss);": False,
        "net_output_t out; net_infer_batch(m, &out);": False,
        "net_output_batch_t out; net_infer(m, &out);": False,
        "net_label_t label = {{0, 1, 2, 3}}; net_accumulate(m, &label, &loss);": True,
        "net_output_t out; net_infer(m, &out);": True,
        "net_output_batch_t out; net_infer_batch(m, &out);": True,
    }
    for text, good in calls.items():
        name = tmp_path / ("caller.c" if language == "c" else "caller.cpp")
        head = "void caller(net_t *m, float loss)"
        name.write_text(f'#include "net_train.h"\n{head};\n{head}\n{{\n    {text}\n    (void)loss;\n}}\n')
        command = WARNED if language == "c" else ["g++", "-std=c++17", *WARNED[2:]]
        if shutil.which(command[0]) is None:
            pytest.skip(f"{command[0]} is not installed")
        assert (call([*command, f"-I{four}", name], tmp_path).returncode == 0) is good, text


@needs_gcc
def test_one_sample_is_inferred_like_each_of_several(four: Path) -> None:
    """m_infer takes the first sample of the slot; no label or output is read or written that a type does not hold."""
    report = report_of(four)
    assert (report["micro_batch"], report["batch"]) == (4, 8)
    text = (four / "net_train.h").read_text(encoding="utf-8")
    for line in ("#define NET_MICRO_BATCH 4", "#define NET_OUTPUT_ELEMENTS 5u", "#define NET_LABEL_ELEMENTS 4u"):
        assert line in text
    assert run_program(four, "#include <stdbool.h>\n" + FOUR) == 0


def test_a_call_of_one_sample_has_no_second_inference(place: Path, tmp_path: Path) -> None:
    compiled(place, tmp_path / "out", "--batch", "4").check_success()
    text = "".join(path.read_text(encoding="utf-8") for path in (tmp_path / "out").glob("net_*"))
    assert "infer_batch" not in text and "memmove" not in text


ARENAS = {
    "recomputed": ("--remat", "min"),
    "objective": ("--optimise", "memory"),
    "small code": ("--code", "size"),
    "int8": ("--quant", "int8", "--calib", "labelled.npz"),
    "int8, rescaled, all int8": ("--quant", "int8", "--calib", "labelled.npz", "--rescale", "on", "--head", "int8"),
}


@pytest.mark.parametrize("name", ARENAS)
def test_what_was_asked_for_holds_with_all_else(name: str, place: Path, tmp_path: Path) -> None:
    """Verified on the host: m_infer and m_infer_batch, before and after training, are compared with numpy."""
    flags = [str(place / flag) if flag.endswith(".npz") else flag for flag in ARENAS[name]]
    out = tmp_path / "out"
    run(place / "net.onnx", "-o", out, "--batch", "4", "--micro-batch", "2", "--verify", "host", *flags).check_success()
    report = report_of(out)
    assert (report["micro_batch"], report["verify"]["result"]) == (2, "pass")
    again = tmp_path / "again"
    locked = ("--lock", out / "plan.json", "--batch", "4", "--verify", "none")
    flags = [] if name in ("recomputed", "objective") else flags  # a lock leaves nothing to choose
    run(place / "net.onnx", "-o", again, *locked, *flags).check_success()
    for path in (*out.glob("*.c"), *out.glob("net_*.h")):
        assert (again / path.name).read_bytes() == path.read_bytes()


def test_a_second_memory_holds_what_several_samples_need(place: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    compiled(place, tmp_path / "plain", "--batch", "4", "--micro-batch", "4", "--update", "all").check_success()
    size = report_of(tmp_path / "plain")["memory"]["arena_bytes"]
    flags = ("--update", "all", "--remat", "off", "--memory", "sram2=1MB", "--arena", str(size * 3 // 4))
    run(place / "net.onnx", "-o", out, "--batch", "4", "--micro-batch", "4", "--verify", "host", *flags).check_success()
    assert report_of(out)["memory"]["arena_bytes"] <= size * 3 // 4


def test_what_cannot_be_is_an_error_that_names_why(place: Path, tmp_path: Path) -> None:
    def refused(*flags: str | Path, code: str = "E0101") -> str:
        return compiled(place, tmp_path / "no", *flags).check_error(code, 2).err

    assert "'3' does not divide --batch 8; use 1, 2, 4, 8 or auto" in refused("--batch", "8", "--micro-batch", "3")
    assert "'2' does not divide --batch 1" in refused("--micro-batch", "2")
    for text in ("0", "-1", "many", "1e9", "99999999999"):
        assert "--micro-batch" in refused("--batch", "8", "--micro-batch", text)
    assert "a step of its own" in refused("--batch", "8", "--micro-batch", "2", "--accumulate", "inplace", code="E0113")
    unknown = ("--quant", "int8", "--calib", place / "calib.npz")
    assert "give --calib with x and y" in refused("--batch", "8", "--micro-batch", "2", *unknown, code="E0113")
    assert not (tmp_path / "no").exists()


def test_a_model_that_mixes_samples_says_so(tmp_path: Path) -> None:
    net = models.Network("mixed", "float[1, 4] x", "float[1, 3] y", seed=3)
    x = net.node("mix", "mixed = Softmax <axis = 0> (x)")
    net.node("logits", f"y = Identity ({net.dense('fc', x, 4, 3)})")
    write(net.model(), tmp_path)
    for update in ("auto", "all"):
        flags = ("--batch", "4", "--micro-batch", "2", "--arena", "64KB", "--update", update)
        failed = compiled(tmp_path, tmp_path / "no", *flags).check_error("E0113", 2)
        assert "--micro-batch 2: mix (Softmax): it works along the axis of the samples" in failed.err


def test_a_lock_has_its_own_number(four: Path, place: Path, tmp_path: Path) -> None:
    lock = ("--lock", four / "plan.json", "--batch", "8")
    compiled(place, tmp_path / "out", *lock).check_success()
    assert report_of(tmp_path / "out")["micro_batch"] == 4
    compiled(place, tmp_path / "out", *lock, "--micro-batch", "4").check_success()
    for size in ("2", "auto"):
        failed = compiled(place, tmp_path / "no", *lock, "--micro-batch", size).check_error("E0106", 2)
        assert "has 4 samples in a step" in failed.err


def test_an_inference_that_does_not_fit_is_refused() -> None:
    one, two = (chain.train_graph(nets.cnn(), batch=4, micro_batch=size) for size in (1, 2))
    plan = plan_memory(two.graph, PlanOptions(keep=(two.loss.name,), effort="quick"))
    found = infer_one(one, two, plan, PlanOptions())
    assert found.plan.arena_bytes < plan.arena_bytes
    with pytest.raises(NoRoomError, match="inference of one sample needs"):
        infer_one(one, two, chain.replace(plan, arena_bytes=found.plan.arena_bytes - 8), PlanOptions())
