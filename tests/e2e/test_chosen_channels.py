"""Channels chosen on the device: from there on every byte is that of a build for these channels."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from testing.networks import models
from testing.places import ROOT
from tests.e2e.marks import needs_qemu
from tinytrain_compile import CompileError
from tinytrain_compile.compilation import make_project
from tinytrain_compile.data.samples import in_slots, load_samples
from tinytrain_compile.driver.pipeline import Project, Result
from tinytrain_compile.emit.checkpoint import checkpoint_of
from tinytrain_compile.ir.choice import FIXED, OPEN, SCORED, SCORING, chosen_places
from tinytrain_compile.ir.stages import Samples
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.twin.instance import Instance
from tinytrain_compile.twin.parameters import FileParameters
from tinytrain_compile.verify.build import build_library
from tinytrain_compile.verify.tools import find_tools

DIGITS = ROOT / "examples/digits"
SCHEME = """[[update]]
layer = "{layer}"
bias = true
weight = {weight}
{chosen}
[[update]]
layer = "{other}"
bias = true
weight = "all"
"""
ON_DEVICE = 'chosen = "device"'
INT8 = {"quant": "int8", "calib": DIGITS / "calib.npz"}
VARIANTS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "float32": ("conv3", "classifier", {"quant": "fp32"}),
    "float32, momentum, batch": ("conv3", "classifier", {"quant": "fp32", "optimizer": "momentum", "batch": 4}),
    "int8, below it too": ("conv3", "conv2", INT8),
    "int8, batch": ("conv3", "classifier", {**INT8, "batch": 4}),
    "int8, fractions, dense": ("classifier", "conv3", {**INT8, "head": "int8", "weight_store": "q8.8"}),
}
SCORED_SAMPLES, STEPS = 12, 3


def project(folder: Path, scheme: str, model: Path = DIGITS / "digits.onnx", **more: Any) -> Project:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "update.toml").write_text(scheme)
    named: dict[str, Any] = {"update": str(folder / "update.toml"), "verify": "none", **more}
    options = CompileOptions(model, **named, given=frozenset(named))
    made = make_project(options)
    assert not isinstance(made, Result)
    return made


def instance(made: Project, folder: Path) -> Instance:
    return Instance(build_library(made.bundle, find_tools(), folder), made.bundle.interface)


def samples_of(made: Project) -> Samples:
    return load_samples(DIGITS / "data.npz", made.model, made.summary.train)


def batches(samples: Samples, size: int) -> Iterator[tuple[Any, Any]]:
    for step in range(STEPS):
        chosen = slice(SCORED_SAMPLES + step * size, SCORED_SAMPLES + (step + 1) * size)
        yield samples.x[chosen], samples.y[chosen]


@pytest.mark.parametrize("name", VARIANTS)
def test_all_bytes_are_those_of_a_build_for_these_channels(name: str, tmp_path: Path) -> None:
    layer, other, more = VARIANTS[name]
    made = project(tmp_path / "open", SCHEME.format(layer=layer, other=other, weight=4, chosen=ON_DEVICE), **more)
    device, found = instance(made, tmp_path / "open"), samples_of(made)
    slots = in_slots(made.bundle.interface, found)
    choice = made.summary.train.choice
    assert choice is not None
    (chosen,) = choice.layers
    device.score(slots.x[:SCORED_SAMPLES], slots.y[:SCORED_SAMPLES])
    saved = device.save()
    assert int(device.tensor(choice.flag.name)[0]) == SCORED
    with pytest.raises(CompileError, match="E0105"):
        device.train(slots.x[: made.summary.train.batch], slots.y[: made.summary.train.batch])
    device.reset()
    device.load(saved)
    device.rescore()
    channels = np.flatnonzero(device.tensor(chosen.place.name) >= 0)
    assert channels.tolist() != [0, 1, 2, 3]

    listed = SCHEME.format(layer=layer, other=other, weight=channels.tolist(), chosen="")
    fixed_made = project(tmp_path / "fixed", listed, **more)
    fixed = instance(fixed_made, tmp_path / "fixed")
    for x, y in batches(slots, made.summary.train.batch):
        assert device.train(x, y).tobytes() == fixed.train(x, y).tobytes()
    ours, theirs = device.state(), fixed.state()
    for tensor, expected in theirs.items():
        assert ours[tensor].tobytes() == expected.tobytes(), tensor
    for call in (device.rescore, lambda: device.score(slots.x[:4], slots.y[:4])):
        with pytest.raises(CompileError, match="E0105"):
            call()
    learned = [
        FileParameters(each.model, each.summary.train).of_state(state)
        for each, state in ((made, ours), (fixed_made, theirs))
    ]
    for tensor, expected in learned[1].items():
        np.testing.assert_array_equal(learned[0][tensor], expected)


@pytest.mark.parametrize("name", ["float32", "int8, below it too"])
def test_the_reference_scores_and_chooses_likewise(name: str, tmp_path: Path) -> None:
    layer, other, more = VARIANTS[name]
    made = project(tmp_path, SCHEME.format(layer=layer, other=other, weight=4, chosen=ON_DEVICE), **more)
    device, found, train = instance(made, tmp_path), samples_of(made), made.summary.train
    slots, trainer = in_slots(made.bundle.interface, found), Trainer(train)
    assert train.choice is not None
    (chosen,) = train.choice.layers
    for index in range(SCORED_SAMPLES):
        device.score(slots.x[index : index + 1], slots.y[index : index + 1])
        trainer.score(found.x[index : index + 1], found.y[index : index + 1])
    scores = device.tensor(chosen.scores.name)
    np.testing.assert_allclose(scores, trainer.state[chosen.scores.name], rtol=0 if train.integer else 1e-5)
    device.rescore()
    trainer.rescore()
    for value in (chosen.place, chosen.part, train.choice.flag):
        assert device.tensor(value.name).tobytes() == trainer.state[value.name].tobytes()
    best = np.sort(np.argsort(-scores, kind="stable")[:4])
    np.testing.assert_array_equal(np.flatnonzero(device.tensor(chosen.place.name) >= 0), best)


def test_a_sample_whose_label_is_ignored_scores_nothing(tmp_path: Path) -> None:
    """So training is open after it, until one is scored that counts."""
    onnx.save(models.with_loss(onnx.load(DIGITS / "digits.onnx"), ignore=3), tmp_path / "digits.onnx")
    scheme = SCHEME.format(layer="conv3", other="classifier", weight=4, chosen=ON_DEVICE)
    made = project(tmp_path, scheme, tmp_path / "digits.onnx", quant="fp32")
    device, choice, found = instance(made, tmp_path), made.summary.train.choice, samples_of(made)
    assert choice is not None
    ignored, counts = (int(np.flatnonzero((found.y.ravel() == 3) == wanted)[0]) for wanted in (True, False))
    slots = in_slots(made.bundle.interface, found)

    def score(sample: int) -> int:
        device.score(slots.x[sample : sample + 1], slots.y[sample : sample + 1])
        return int(device.tensor(choice.flag.name)[0])

    assert score(ignored) == OPEN
    with pytest.raises(CompileError, match="E0105"):
        device.rescore()
    assert score(counts) == SCORED == score(ignored)
    device.rescore()


def test_without_scores_the_first_channels_are_trained(tmp_path: Path) -> None:
    scheme = SCHEME.format(layer="conv3", other="classifier", weight=4, chosen=ON_DEVICE)
    made = project(tmp_path, scheme, quant="fp32")
    device, choice = instance(made, tmp_path), made.summary.train.choice
    slots = in_slots(made.bundle.interface, samples_of(made))
    assert choice is not None
    with pytest.raises(CompileError, match="E0105"):
        device.rescore()
    device.train(slots.x[:1], slots.y[:1])
    assert int(device.tensor(choice.flag.name)[0]) == FIXED
    assert np.flatnonzero(device.tensor(choice.layers[0].place.name) >= 0).tolist() == [0, 1, 2, 3]


def test_a_forged_checkpoint_is_refused(tmp_path: Path) -> None:
    """A good CRC over places or a flag that no training makes: E0105, and the first state is there."""
    made = project(tmp_path, SCHEME.format(layer="conv3", other="classifier", weight=4, chosen=ON_DEVICE))
    device, train = instance(made, tmp_path), made.summary.train
    assert train.choice is not None
    first, flag, place = device.save(), train.choice.flag.name, train.choice.layers[0].place.name
    good = device.state()
    places = good[place]
    assert checkpoint_of(train, good) == first
    last = int(np.flatnonzero(places == 3)[0])

    def with_places(**changed: int) -> dict[str, Any]:
        other = places.copy()
        for channel, to in changed.items():
            other[int(channel[1:])] = to
        return {**good, place: other}

    forged = {
        "a fourth flag": {**good, flag: np.asarray([SCORING], np.int32)},
        "no flag": {**good, flag: np.asarray([-1], np.int32)},
        "out of the part": with_places(**{f"c{last}": 4}),
        "far out of it": with_places(**{f"c{last}": 2**31 - 1}),
        "below -1": with_places(**{f"c{last}": -2}),
        "too few": with_places(**{f"c{last}": -1}),
        "too many": with_places(**{f"c{last + 1}": 4}),
        "twice": with_places(**{f"c{last}": 2}),
        "another order": with_places(c0=1, c1=0),
    }
    for what, state in forged.items():
        with pytest.raises(CompileError, match="E0105"):
            device.load(checkpoint_of(train, state))
        assert device.save() == first, what
    moved = np.full_like(places, -1)
    moved[[1, 3, 4, 9]] = range(4)
    device.load(checkpoint_of(train, {**good, place: moved, flag: np.asarray([FIXED], np.int32)}))
    assert device.tensor(place).tolist() == moved.tolist()


def test_ties_are_the_first_ones() -> None:
    scores = np.asarray([1.0, 3.0, 3.0, np.nan, 0.0, 3.0], np.float32)
    assert chosen_places(scores, 2).tolist() == [-1, 0, 1, -1, -1, -1]


@pytest.mark.parametrize(
    ("scheme", "more", "code"),
    [
        (SCHEME.format(layer="conv3", other="conv2", weight=4, chosen=ON_DEVICE), {"quant": "fp32"}, "E0302"),
        (SCHEME.format(layer="conv3", other="classifier", weight="[1, 2]", chosen=ON_DEVICE), {}, "E0302"),
        (SCHEME.format(layer="conv3", other="classifier", weight=4, chosen='chosen = "host"'), {}, "E0302"),
        (SCHEME.format(layer="conv3", other="classifier", weight=4, chosen=f'axis = "in"\n{ON_DEVICE}'), {}, "E0302"),
        (SCHEME.format(layer="conv3", other="classifier", weight=4, chosen=ON_DEVICE), {"slices": "on"}, "E0113"),
    ],
)
def test_what_cannot_be_is_refused(scheme: str, more: dict[str, Any], code: str, tmp_path: Path) -> None:
    with pytest.raises(CompileError, match=code):
        project(tmp_path, scheme, **more)


@needs_qemu
@pytest.mark.qemu
def test_a_board_scores_and_chooses_what_numpy_does(tmp_path: Path) -> None:
    """In its first step the check program scores, then chooses, and asks again, which must be refused."""
    scheme = SCHEME.format(layer="conv3", other="conv2", weight=4, chosen=ON_DEVICE)
    made = project(tmp_path, scheme, **INT8, verify="qemu", verify_steps=3)
    assert "reference == host == QEMU" in made.summary.verify.message
    assert "PASS" in made.summary.verify.message
