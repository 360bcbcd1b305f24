"""Compute the limit of --guard, by the numpy reference, and the features of the golden samples, by the generated C."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tinytrain_compile.data.samples import check_finite, class_count, ignored_labels, in_slots, load_samples
from tinytrain_compile.emit.interface import interface_of
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.golden import Golden
from tinytrain_compile.reference.trainer import Trainer

if TYPE_CHECKING:
    from tinytrain_compile.ir.imported import ImportedModel
    from tinytrain_compile.ir.stages import MemoryPlan, SourceBundle, TrainGraph
    from tinytrain_compile.options.compile_options import CompileOptions

MOST_SAMPLES = 65535
"""Most golden samples of a guard. More than a device has flash for, and few enough for 32-bit counts."""
ROUNDING = 1e-5
"""Relative difference between the outputs of the C and of the reference that the limit of an error allows for."""
_EPSILON = 2.0**-24
"""Relative error of a float32 sum, for each number that is added."""


def with_golden(options: CompileOptions, model: ImportedModel, train: TrainGraph, plan: MemoryPlan) -> CompileOptions:
    """Return the options with the samples of --guard and their limit. Errors: E0105, E0113, E0305."""
    assert options.guard is not None
    where, samples = options.guard.name, load_samples(options.guard, model, train)
    if len(samples.x) > MOST_SAMPLES:
        raise CompileError("E0105", where, f"{len(samples.x)} golden samples", f"give at most {MOST_SAMPLES}")
    if not len(samples.x):
        raise CompileError("E0105", where, "has no golden samples", "give at least one")
    for label in ignored_labels(train):
        for index in np.flatnonzero(samples.y.reshape(len(samples.y), -1)[:, 0] == label)[:1]:
            what = f"golden sample {index} has label {label}, which does not count"
            raise CompileError("E0105", where, what, "give samples with a class")
    trainer, together = Trainer(train), train.micro_batch
    slots = (np.repeat(samples.x[i : i + 1], together, axis=0) for i in range(len(samples.x)))
    outputs = np.stack([np.asarray(trainer.infer(slot))[:1].ravel() for slot in slots])
    check_finite(where, "the model's output", outputs)
    held = in_slots(interface_of(train, plan, "m", 8), samples)
    if class_count(train) and held.y[:1].size == 1:
        right = int((outputs.argmax(axis=1) == held.y.ravel()).sum())
        lost = int(round(options.guard_drop * len(outputs), 6))  # 29% of 100 are 28.999999999999996
        return replace(options, golden=Golden(held, right, right - lost))
    if outputs[:1].size != held.y[:1].size or class_count(train):
        what = "judges one class a sample, or a value for each output, and this model has other labels"
        raise CompileError("E0113", "--guard", what, "leave it out")
    off = outputs.astype(np.float32) - held.y.reshape(outputs.shape)
    error = float((off.astype(np.float64) ** 2).sum())
    rounding = ROUNDING + (len(outputs) + outputs.shape[1]) * _EPSILON  # the C adds by samples
    return replace(options, golden=Golden(held, error=error, most=error * (1 + options.guard_drop + rounding)))


def with_golden_features(bundle: SourceBundle, options: CompileOptions) -> SourceBundle:
    """Return the project with the features of the golden samples in flash, if it has features. Errors: E0114, E0602.

    The generated C computes them on this machine, because numpy has the device's bytes only of int8 networks.
    """
    from tinytrain_compile.parts.guard.part import with_features
    from tinytrain_compile.twin.instance import Instance
    from tinytrain_compile.verify.build import build_library
    from tinytrain_compile.verify.tools import find_tools, work_folder

    if not bundle.interface.feature_bytes:
        return bundle
    assert isinstance(options.golden, Golden)
    tools = find_tools()
    if tools.host_cc is None:
        what = "features of golden samples need a C compiler on this machine"
        raise CompileError("E0114", "--guard", what, "install gcc, or leave out --features")
    with work_folder() as folder:
        instance = Instance(build_library(bundle, tools, folder), bundle.interface)
        features = instance.features(options.golden.samples.x)
        instance.close()
    return with_features(bundle, features)
