"""A number of the input that is NaN or infinite is an error and leaves the state alone, whatever hides it.

Without a check of the inputs, pools and clips let 252 of 889 such steps return OK with weights that were no numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.emit.device import ERR_NAN, OK, Device
from tests.emit.test_generated_c import NUMERIC, SANITIZED, STRICT, build, call, needs_gcc, sources
from tests.parts.test_features import instances
from tests.parts.test_slices import Sliced
from tests.quantize import lines, nets
from tinytrain_compile.data.samples import in_slots, random_samples
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.reference.instance import ReferenceInstance
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.verify.build import write_files

pytestmark = needs_gcc
NONE = (np.nan, np.inf, -np.inf)


def hiding(first: str) -> onnx.ModelProto:
    """Two layers between which a clip, a pool or both let no infinity pass, or no NaN."""
    net = models.Network("hiding", "float[1, 1, 6, 6] x", "float[1, 3] y", seed=4)
    x = net.conv("stem", "x", (3, 1, 3, 3), "pads = [1, 1, 1, 1]")
    if "clip" in first:
        low, high = net.table("low", 0.0, np.float32), net.table("high", 6.0, np.float32)
        x = net.node("clip", f"clipped = Clip ({x}, {low}, {high})")
    if "pool" in first:
        x = net.node("pool", f"pooled = MaxPool <kernel_shape = [2, 2], strides = [2, 2]> ({x})")
    flat = net.node("flat", f"flat = Flatten <axis = 1> ({x})")
    net.node("logits", f"y = Identity ({net.dense('fc', flat, 27 if 'pool' in first else 108, 3)})")
    return net.model()


TRAINS: dict[str, Callable[[], TrainGraph]] = {
    "clip": lambda: chain.train_graph(hiding("clip")),
    "clip and pool": lambda: chain.train_graph(hiding("clip and pool"), optimizer="adam"),
    "pool": lambda: chain.train_graph(hiding("pool"), optimizer="momentum"),
    "two samples in a call": lambda: chain.train_graph(models.mlp(), batch=2, micro_batch=2, optimizer="rmsprop"),
}


def project(train: TrainGraph) -> chain.Project:
    """With an inference of one sample, where a step takes several."""
    return chain.project(train, one=chain.train_graph(models.mlp()))


def broken(x: np.ndarray) -> list[np.ndarray]:
    """The samples with each of their numbers replaced by each of what is none."""
    found: list[np.ndarray] = []
    for place in range(x.size):
        for number in NONE:
            changed = x.copy()
            changed.flat[place] = number
            found.append(changed)
    return found


@pytest.mark.parametrize("name", TRAINS)
def test_one_number_that_is_none_changes_no_byte(name: str, tmp_path: Path) -> None:
    train = TRAINS[name]()
    device, samples = Device(project(train), tmp_path), random_samples(train, 4 * train.batch, 1)
    x, y = samples.x[: train.micro_batch], samples.y[: train.micro_batch]
    device.train(x, y)
    before = device.save()
    for changed in broken(x):
        status, loss = device.try_train(changed, y)
        assert status == ERR_NAN and np.isnan(loss)
        assert device.save() == before
    assert len(broken(x)) == 3 * x.size >= 72
    device.train(x, y)
    assert device.save() != before


def test_inference_refuses_it_in_the_sample_that_it_takes(tmp_path: Path) -> None:
    train = TRAINS["two samples in a call"]()
    device, samples = Device(project(train), tmp_path), random_samples(train, 2, 1)
    status, out = device.try_infer(samples.x)
    one = samples.x[0].size
    assert status == OK
    for place, changed in enumerate(broken(samples.x)):
        status, found = device.try_infer(changed)
        assert status == (ERR_NAN if place < 3 * one else OK)
        assert place < 3 * one or found.tobytes() == out.tobytes()


def test_what_was_summed_before_stays(tmp_path: Path) -> None:
    train = chain.train_graph(models.mlp(), batch=2, optimizer="adam")
    samples = random_samples(train, 4, 1)
    bad = samples.x[:1].copy()
    bad.flat[3] = np.inf
    devices = [Device(chain.project(train), tmp_path / name) for name in ("one", "other")]
    for index, device in enumerate(devices):
        assert device.try_train(samples.x[:1], samples.y[:1], "accumulate")[0] == OK
        if index:
            assert device.try_train(bad, samples.y[:1], "accumulate")[0] == ERR_NAN
        assert device.try_train(samples.x[1:2], samples.y[1:2], "accumulate")[0] == OK
        assert device.apply() == OK
    assert devices[0].save() == devices[1].save()


def test_slices_do_not_begin_with_it(tmp_path: Path) -> None:
    train = TRAINS["clip and pool"]()
    device, samples = Sliced(chain.project(train, slices=True), tmp_path), random_samples(train, 2, 1)
    before = device.save()
    bad = samples.x[:1].copy()
    bad.flat[5] = np.nan
    device.put(bad)
    assert device.begin() == ERR_NAN
    assert device.save() == before  # which a step that has begun would not allow
    device.sliced_step(samples.x[:1], samples.y[:1], 2**32 - 1)
    assert device.save() != before


def test_a_target_that_is_none_is_one_too(tmp_path: Path) -> None:
    train = chain.train_graph(models.mlp(), loss="mse")
    samples = random_samples(train, 1, 1)
    for slices in (False, True):
        device = Sliced(chain.project(train, slices=slices), tmp_path / str(slices))
        before = device.save()
        for y in broken(samples.y):
            status, loss = device.try_train(samples.x, y)
            assert status == ERR_NAN and np.isnan(loss)
            if slices:
                device.put(samples.x)
                assert device.begin() == OK
                status, loss, done = device.slice(np.ascontiguousarray(y, np.float32), 1)
                assert (status, done) == (ERR_NAN, 1) and np.isnan(loss)
            assert device.save() == before


def test_features_of_it_are_refused_and_none_are_taken(tmp_path: Path) -> None:
    train = chain.train_graph(models.ds_cnn(8, 1, (12, 6)), "last:2")
    made = chain.project(train, features=True)
    one, _ = instances(made, tmp_path)
    samples = in_slots(made.bundle.interface, random_samples(train, 1, 3))
    bad = samples.x.copy()
    bad.flat[7] = np.inf
    features, before = one.features(samples.x), one.save()
    with pytest.raises(CompileError, match="E0603"):
        one.features(bad)
    for place in range(0, features.shape[1], 4):
        changed = features.copy()
        changed[0, place : place + 4] = np.frombuffer(np.float32(np.nan).tobytes(), np.uint8)
        with pytest.raises(CompileError, match="E0603"):
            one.train_features(changed, samples.y)
        assert one.save() == before
    one.train_features(features, samples.y)
    assert one.save() != before


def test_the_reference_does_the_same() -> None:
    train = TRAINS["clip and pool"]()
    trainer, samples = Trainer(train), random_samples(train, 1, 1)
    trainer.step(samples.x, samples.y)
    before = {name: array.tobytes() for name, array in trainer.state.items()}
    for changed in broken(samples.x)[::7]:
        assert np.isnan(trainer.step(changed, samples.y)).all()
        assert {name: array.tobytes() for name, array in trainer.state.items()} == before
    made = chain.project(train)
    twin = ReferenceInstance(train, made.bundle.interface)
    for refused in (lambda: twin.train(changed, samples.y), lambda: twin.infer(changed)):
        with pytest.raises(CompileError, match=r"E0603.*number of the input"):
            refused()


ROWS = """#include "net_train.h"
#include <stdlib.h>
#include <string.h>
static net_row_t image[NET_INPUT_ROWS];
static int calls, refused;
static net_t *model;
static int row_of(void *context, size_t row, void *dst)
{
    (void)context;
    calls += 1;
    refused += net_push_rows(model, image, 1) == NET_ERR_STATE && net_begin(model, NET_TRAIN) == NET_ERR_STATE;
    memcpy(dst, &image[row], sizeof image[row]);
    return 0;
}
static unsigned char states[2][NET_CHECKPOINT_BYTES];
static int keep(void *context, const void *data, size_t size)
{
    unsigned char **to = context;
    memcpy(*to, data, size);
    *to += size;
    return 0;
}
static void save(int which)
{
    unsigned char *to = states[which];
    (void)net_save(model, keep, &to);
}
int main(void)
{
    const net_label_t label = 1;
    const uint32_t none[3] = {0x7fc00000u, 0x7f800000u, 0xff800000u};
    net_output_t out;
    float loss = 0.0f;
    int wrong = net_init(&model, malloc(NET_ARENA_BYTES), NET_ARENA_BYTES) != NET_OK;
    save(0);
    for (size_t row = 0; row < NET_INPUT_ROWS; ++row) {
        for (size_t i = 0; i < NET_ROW_ELEMENTS; ++i) {
            memcpy(&image[row].values[i], &none[i % 3], sizeof(float));
            wrong += net_train_step_rows(model, row_of, NULL, &label, &loss) != NET_ERR_NAN || loss - loss == 0.0f;
            wrong += net_infer_rows(model, row_of, NULL, &out) != NET_ERR_NAN;
            wrong += net_begin(model, NET_TRAIN) != NET_OK || net_push_rows(model, image, row) != NET_OK;
            wrong += net_push_rows(model, image + row, NET_INPUT_ROWS - row) != NET_ERR_NAN;
            image[row].values[i] = 0.5f; /* none of these was taken: they come again */
            wrong += net_push_rows(model, image + row, NET_INPUT_ROWS - row) != NET_OK;
            wrong += net_infer_end(model, &out) != NET_ERR_STATE || net_init(&model, model, NET_ARENA_BYTES) != NET_OK;
            save(1);
            wrong += memcmp(states[0], states[1], sizeof states[0]) != 0;
        }
    }
    wrong += net_train_step_rows(model, row_of, NULL, &label, &loss) != NET_OK || loss - loss != 0.0f;
    save(1);
    wrong += memcmp(states[0], states[1], sizeof states[0]) == 0 || calls == 0 || refused != calls;
    return wrong == 0 ? 0 : 1;
}
"""


def test_rows_with_it_are_not_taken(tmp_path: Path) -> None:
    train = lines.float_train(4)
    made = lines.project(train, lines.longest(train, 4))
    write_files(tmp_path, {**made.bundle.files, "rows.c": ROWS})
    build(["gcc", *STRICT, *NUMERIC, "-O0", *SANITIZED, "rows.c", *sources(made.bundle), "-o", "rows"], tmp_path)
    done = call([tmp_path / "rows"], tmp_path)
    assert (done.returncode, done.stderr) == (0, "")


def test_integers_are_not_looked_at() -> None:
    text = chain.project(nets.int8_train(nets.cnn(4, 2))).bundle.files["net_train.c"]
    assert text.count("tt_holds_finite(") + text.count("tt_are_finite(") == text.count("sound = tt_holds_finite(")
