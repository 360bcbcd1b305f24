"""A step that is cut where training begins (--features): steps on features give the bytes of steps on samples."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from testing.networks import models
from testing.networks.chains import random_chain
from testing.places import ROOT
from tests.e2e import chain
from tests.e2e.exact import DIFFERENT
from tests.e2e.marks import needs_qemu
from tests.emit.test_generated_c import NUMERIC, SANITIZED, STRICT, build, call, needs_gcc, sources
from tests.quantize import nets
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.parts.features.border import feature_cut
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory
from tinytrain_compile.plan.streams.rewrite import stream_node, with_readers_beside, with_streams
from tinytrain_compile.plan.streams.search import runs_of
from tinytrain_compile.training import fuse_updates
from tinytrain_compile.twin import Instance
from tinytrain_compile.verify.build import build_library, write_files
from tinytrain_compile.verify.tools import find_tools

pytestmark = needs_gcc
TRAINS: dict[str, Callable[[], TrainGraph]] = {
    "float32": lambda: chain.train_graph(models.ds_cnn(8, 1, (12, 6)), "last:2", learning_rate=0.05),
    "residual, adam": lambda: chain.train_graph(models.resnet8(4, 16), "last:4", optimizer="adam"),
    "several cross": lambda: chain.train_graph(models.resnet8(4, 16), "block1_b/Conv,fc/Gemm", optimizer="momentum"),
    "batch": lambda: chain.train_graph(models.ds_cnn(8, 1, (12, 6)), "last:2", batch=3, learning_rate=0.05),
    "in place": lambda: chain.train_graph(models.ds_cnn(8, 1, (12, 6)), "last:2", batch=3, accumulate="inplace"),
    "clipped": lambda: fuse_updates(chain.train_graph(models.ds_cnn(8, 1, (12, 6)), "last:3", clip_norm=0.5)),
    "int8": lambda: nets.int8_train(random_chain(4), "last:3", learning_rate=0.05),
    "int8, residual": lambda: nets.int8_train(nets.quantised(), "last:2", learning_rate=0.05, optimizer="momentum"),
    "int8 batch": lambda: nets.int8_train(random_chain(2), "last:3", learning_rate=0.05, batch=2),
}


@cache
def project(name: str, board: str = "cortex-m7") -> chain.Project:
    return chain.project(TRAINS[name](), board, features=True)


def instances(made: chain.Project, folder: Path) -> tuple[Instance, Instance]:
    library = build_library(made.bundle, find_tools(), folder)
    return Instance(library, made.bundle.interface), Instance(library, made.bundle.interface)


def assert_equal_training(made: chain.Project, folder: Path, epochs: int = 3) -> None:
    """The same samples, by one instance as they are and by the other as features that were taken once: all of the state
    and every loss after every update, the first included, in which int8 finds the exponents of errors."""
    whole, behind = instances(made, folder)
    batch = made.train.batch
    samples = in_slots(made.bundle.interface, random_samples(made.train, 4 * batch, 3))
    features = behind.features(samples.x)
    assert features.shape == (4 * batch, made.bundle.interface.feature_bytes)
    assert len({row.tobytes() for row in features}) > batch, "features tell samples apart"
    states = set[bytes]()
    for first in [*range(0, 4 * batch, batch)] * epochs:
        part = slice(first, first + batch)
        losses = whole.train(samples.x[part], samples.y[part])
        if first:
            behind.features(samples.x[:1])  # which changes nothing that counts, and is not needed for a step either
        assert behind.train_features(features[part], samples.y[part]).tobytes() == losses.tobytes()
        assert behind.save() == whole.save()
        states.add(whole.save())
    assert len(states) == 4 * epochs, "it trains"
    assert behind.infer_features(features).tobytes() == whole.infer(samples.x).tobytes()
    assert behind.save() == whole.save(), "an inference changes no state"
    assert behind.features(samples.x).tobytes() == features.tobytes(), "they never change"


@pytest.mark.parametrize("name", TRAINS)
def test_steps_on_features_are_steps(name: str, tmp_path: Path) -> None:
    assert_equal_training(project(name), tmp_path)


def test_with_second_runs_of_the_frozen_part(tmp_path: Path) -> None:
    """What is frozen and computed twice is put there twice, from the same features."""
    train = chain.train_graph(models.tower(), "last:2", learning_rate=0.05)
    made = chain.project(train, remat="min", features=True)
    assert_equal_training(made, tmp_path)


def test_with_a_stream_across_the_border(tmp_path: Path) -> None:
    """It counts as trained: features are what it reads."""
    train = TRAINS["int8"]()
    graph = with_readers_beside(train.graph)
    run = next(runs_of(graph))
    node = stream_node(graph, graph.nodes[run.start + 1 : run.stop], "across", (train.loss.name,))
    assert node is not None
    streamed = with_streams(graph, [node])
    plan = plan_memory(streamed, PlanOptions(effort="quick", keep=(train.loss.name,)))
    kernels = chain.kernels_of(replace(train, graph=streamed))
    made = chain.emitted(train, plan, kernels, 8, features=True)
    assert made.bundle.interface.feature_bytes != project("int8").bundle.interface.feature_bytes
    assert_equal_training(made, tmp_path)


def test_all_that_crosses_is_in_the_features() -> None:
    """A border inside a residual block: what the convolution reads, and the other branch."""
    made = project("several cross")
    cut = feature_cut(made.train, made.plan)
    assert cut is not None and len(cut.values) >= 2
    assert cut.size_bytes == made.bundle.interface.feature_bytes
    assert f"#define NET_FEATURE_BYTES {cut.size_bytes}u" in made.bundle.files["net_train.h"]


def test_there_are_none_where_the_first_layer_is_trained() -> None:
    made = chain.project(chain.train_graph(models.mlp()), features=True)
    header, plain = made.bundle.files["net_train.h"], chain.project(chain.train_graph(models.mlp())).bundle.files
    assert feature_cut(made.train, made.plan) is None and made.bundle.interface.feature_bytes == 0
    assert "#define NET_HAS_FEATURES 0" in header and "features(" not in header
    assert "HAS_FEATURES" not in plain["net_train.h"]
    assert made.bundle.files["net_train.c"] == plain["net_train.c"]


@pytest.mark.qemu
@needs_qemu
@pytest.mark.parametrize(
    ("name", "board"),
    [*(("residual, adam", board) for board in chain.BOARDS), *(("int8 batch", board) for board in DIFFERENT)],
)
def test_the_check_of_a_build_trains_by_both(name: str, board: str) -> None:
    """numpy, host and board, of six steps whose calls go by the sample and by its features in turn."""
    report = chain.check(project(name, board), board, steps=6)
    assert report.result == "pass"


PROGRAM = """#include "net_train.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define CHECK(x) do { if (!(x)) { printf("line %d: %s\\n", __LINE__, #x); return 1; } } while (0)
int main(void)
{
    net_t *m = NULL, *foreign = calloc(1, NET_ARENA_BYTES);
    unsigned char *features = malloc(NET_FEATURE_BYTES + 1u); /* of any alignment */
    net_label_t label = 1, wrong = 99;
    net_output_t out;
    float loss = 7.0f;
    CHECK(foreign != NULL && features != NULL);
    CHECK(net_init(&m, malloc(NET_ARENA_BYTES), NET_ARENA_BYTES) == NET_OK);
    CHECK(net_features(NULL, features) == NET_ERR_STATE && net_features(foreign, features) == NET_ERR_STATE);
    CHECK(net_train_features(foreign, features, &label, &loss) == NET_ERR_STATE);
    CHECK(net_features(m, NULL) == NET_ERR_ARGUMENT);
    for (size_t i = 0; i < NET_INPUT_ELEMENTS; ++i) {
        net_input(m)->values[i] = 0.5f;
    }
    CHECK(net_features(m, features + 1) == NET_OK);
    CHECK(net_train_features(m, NULL, &label, &loss) == NET_ERR_ARGUMENT);
    CHECK(net_train_features(m, features + 1, NULL, &loss) == NET_ERR_ARGUMENT);
    CHECK(net_train_features(m, features + 1, &label, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_train_features(m, features + 1, &wrong, &loss) == NET_ERR_ARGUMENT && loss == 7.0f);
    CHECK(net_train_features(m, features + 1, &label, &loss) == NET_OK && loss != 7.0f);
    CHECK(net_infer_features(foreign, features, &out) == NET_ERR_STATE);
    CHECK(net_infer_features(m, NULL, &out) == NET_ERR_ARGUMENT);
    CHECK(net_infer_features(m, features, NULL) == NET_ERR_ARGUMENT);
    CHECK(net_infer_features(m, features + 1, &out) == NET_OK);
    memset(features, 0xff, NET_FEATURE_BYTES); /* NaN */
    CHECK(net_infer_features(m, features, &out) == NET_ERR_NAN);
    return 0;
}
"""


def test_what_the_calls_refuse(tmp_path: Path) -> None:
    made = project("float32")
    write_files(tmp_path, {**made.bundle.files, "main.c": PROGRAM})
    build(["gcc", *STRICT, *NUMERIC, "-O0", *SANITIZED, "main.c", *sources(made.bundle), "-o", "main"], tmp_path)
    done = call([tmp_path / "main"], tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


LOOP = """#include "net_train.h"
#include <stdio.h>
#include <stdlib.h>
enum {{ SAMPLES = 4, EPOCHS = 3 }};
{kept}
static int at;
static void sense(float *x)
{{
    for (size_t i = 0; i < NET_INPUT_ELEMENTS; ++i) {{
        x[i] = (float)((i * 7u + (size_t)at * 5u) % 11u) / 11.0f;
    }}
}}
static net_t *start(void)
{{
    net_t *m = NULL;
    return net_init(&m, malloc(NET_ARENA_BYTES), NET_ARENA_BYTES) == NET_OK ? m : NULL;
}}
int main(void)
{{
    net_t *m = start(), *const whole = start();
    for (int i = at = 0; i < SAMPLES; at = ++i) {{
        {once}
    }}
    for (int n = 0; n < EPOCHS * SAMPLES; ++n) {{
        const int i = at = n % SAMPLES;
        const net_label_t label = i % 2;
        float loss, other;
        {every}
        sense(net_input(whole)->values);
        net_train_step(whole, &label, &other);
        printf("%a %a\\n", (double)loss, (double)other);
    }}
    return 0;
}}
"""


def test_the_loop_of_the_page_learns_what_whole_steps_learn(tmp_path: Path) -> None:
    """The lines of docs/training-loop.md, compiled: the losses of both ways are the same floats."""
    page = (ROOT / "docs" / "training-loop.md").read_text(encoding="utf-8")
    lines = page.partition("```c\nstatic unsigned char kept")[2].partition("```")[0]
    kept, *calls = [line for line in f"static unsigned char kept{lines}".splitlines() if line]
    named = [re.sub(r"\bM_", "NET_", re.sub(r"\bm_", "net_", line)) for line in (kept, *calls)]
    made = project("float32")
    program = LOOP.format(kept=named[0], once="\n        ".join(named[1:-1]), every=named[-1])
    write_files(tmp_path, {**made.bundle.files, "main.c": program})
    flags = [*STRICT, *NUMERIC, "-Wno-unused-result", "-O0", *SANITIZED]
    build(["gcc", *flags, "main.c", *sources(made.bundle), "-o", "main"], tmp_path)
    done = call([tmp_path / "main"], tmp_path)
    losses = [line.split() for line in done.stdout.splitlines()]
    assert (done.returncode, len(losses)) == (0, 12), done.stderr
    assert all(one == other for one, other in losses)
    assert losses[0] != losses[4], "it learns"


def test_a_step_that_is_not_finite_changes_nothing(tmp_path: Path) -> None:
    made = project("float32")
    whole, _ = instances(made, tmp_path)
    before = whole.save()
    features = np.full(made.bundle.interface.feature_bytes // 4, np.nan, np.float32)
    label = np.zeros(1, np.int32)
    with pytest.raises(CompileError, match="NaN"):
        whole.train_features(features.view(np.uint8)[None], label)
    assert whole.save() == before
