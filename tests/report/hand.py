"""Summaries made by hand: a two-layer net whose every byte is worked out on paper, and a deep one for size."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.summary import Comparison, LayerUpdate, Summary, VerifyReport
from tinytrain_compile.ir.types import Graph, Value
from tinytrain_compile.ops import new_builder
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.linear import GemmAttrs
from tinytrain_compile.ops.loss import NllAttrs, NllGradAttrs
from tinytrain_compile.ops.normalise import AxisAttrs
from tinytrain_compile.ops.update import SgdAttrs
from tinytrain_compile.plan.options import PlanOptions
from tinytrain_compile.plan.planner import plan_memory

RELU = ClipAttrs(0.0, float("inf"))
NO_BIAS = GemmAttrs(bias=False)
NOT_VERIFIED = VerifyReport("none", 0, "skipped", "not verified")
VERIFIED = VerifyReport(
    "qemu",
    3,
    "pass",
    "host == reference   QEMU == host   PASS",
    (1.5, 1.25, 1.0),
    480,
    400,
    2048,
    512,
    1e-7,
    comparisons=(
        Comparison("C on this machine", "numpy reference", "max error 1.0e-07"),
        Comparison("C in QEMU mps2-an500", "this machine", "identical bytes"),
    ),
)


def two_layers() -> TrainGraph:
    """x[1,8] -> fc1 (trained) -> relu -> fc2 (frozen) -> cross-entropy; 11 steps."""
    builder = new_builder(("x", "label"))
    x, label = Value("x", (1, 8)), Value("label", (1,), "int32")
    w = builder.constant("fc1_w", np.ones((4, 8), np.float32), "fc1")
    v = builder.constant("fc2_w", np.ones((3, 4), np.float32), "fc2")
    rate = builder.constant("learning_rate", np.asarray(0.1, np.float32))
    one = builder.constant("one", np.asarray(1.0, np.float32))
    h = builder.emit("Gemm", (x, w), NO_BIAS, "fc1", "fc1")
    r = builder.emit("Clip", (h,), RELU, "relu", "relu")
    z = builder.emit("Gemm", (r, v), NO_BIAS, "fc2", "fc2")
    logp = builder.emit("LogSoftmax", (z,), AxisAttrs(1), "log_probabilities")
    loss = builder.emit("NegativeLogLikelihood", (logp, label), NllAttrs(1, "mean", None), "loss")
    d_logp = builder.emit(
        "NegativeLogLikelihoodGrad", (one, label), NllGradAttrs(NllAttrs(1, "mean", None), (1, 3)), "d_logp"
    )
    d_z = builder.emit("LogSoftmaxGrad", (d_logp, logp), AxisAttrs(1), "d_z")
    d_r = builder.emit("GemmGradInput", (d_z, v), NO_BIAS, "d_r", "fc2")
    d_h = builder.emit("ClipGrad", (d_r, r), RELU, "d_h", "relu")
    d_w = builder.emit("GemmGradWeight", (x, d_h), name="d_w", origin="fc1")
    new = builder.emit("SgdUpdate", (w, d_w, rate), SgdAttrs(), "fc1_w.update", "fc1")
    notes = ("loss: cross-entropy, the default for an output of shape (1, 3)",)
    whole = ("net", tuple(builder.nodes), (x, label), (z,), builder.constants, (w, v), (rate, w), (), ((w, new),))
    graph = Graph(*whole, notes, label=label.name)
    return TrainGraph(graph, loss, label, z, rate)


def two_layers_plan(train: TrainGraph) -> MemoryPlan:
    """Persistent 0..152; peak at step 9 (d_w): 152 + x 32 + loss 8 + d_h 16 + d_w 128 = 336; 32 bytes are lost."""
    rows: tuple[tuple[str, str, int, int, int, int, tuple[str, ...]], ...] = (
        ("header", "header", 16, 0, 0, 10, ()),
        ("learning_rate", "state", 8, 16, 0, 10, ("learning_rate",)),
        ("fc1_w", "state", 128, 24, 0, 10, ("fc1_w", "fc1_w.update")),
        ("x", "input", 32, 152, 0, 9, ("x",)),
        ("fc1", "tensor", 16, 184, 0, 8, ("fc1", "relu")),
        ("fc2", "tensor", 16, 200, 2, 3, ("fc2",)),
        ("log_probabilities", "tensor", 16, 216, 3, 6, ("log_probabilities",)),
        ("loss", "tensor", 8, 232, 4, 10, ("loss",)),
        ("d_logp", "tensor", 16, 200, 5, 7, ("d_logp", "d_z")),
        ("d_r", "tensor", 16, 216, 7, 9, ("d_r", "d_h")),
        ("d_w", "tensor", 128, 240, 9, 10, ("d_w",)),
    )
    buffers = tuple(Buffer(*row) for row in rows)  # type: ignore[arg-type]
    offsets = {name: buffer.offset for buffer in buffers for name in buffer.values}
    return MemoryPlan(train.graph.nodes, buffers, offsets, {}, 368, 132, 336, 9, True, False)


LAYERS = (
    LayerUpdate("fc1", False, True, None, None, 32, 32),
    LayerUpdate("fc2", False, False, None, None, 0, 12),
)


def two_layers_summary(**changes: object) -> Summary:
    """Everything about the two-layer net; `changes` replace fields."""
    train = two_layers()
    summary = Summary(
        model="net.onnx",
        target="cortex-m7",
        target_summary="FPU sp, DSP",
        quant="fp32",
        contract=1,
        optimizer="sgd",
        learning_rate=0.1,
        arena_limit_bytes=400,
        update_label="last:1",
        layers=LAYERS,
        train=train,
        plan=two_layers_plan(train),
        verify=NOT_VERIFIED,
        code_bytes=None,
        const_bytes=None,
    )
    return replace(summary, **changes)


def deep_summary(depth: int, stem: str = "layer") -> Summary:
    """`depth` square Gemm and Clip layers, all trained: 4 * depth buffers or so, planned quickly."""
    builder = new_builder(("x", "label"))
    x, label = Value("x", (1, 8)), Value("label", (1, 8))
    rate = builder.constant("learning_rate", np.asarray(0.1, np.float32))
    one = builder.constant("one", np.asarray(1.0, np.float32))
    y, tape, layers, updates = x, [], [], []
    for number in range(depth):
        name = f"{stem}{number}"
        w = builder.constant(f"{name}_w", np.ones((8, 8), np.float32), name)
        h = builder.emit("Gemm", (y, w), NO_BIAS, name, name)
        r = builder.emit("Clip", (h,), RELU, f"{name}_relu", f"{name}_relu")
        tape.append((name, y, w, r))
        layers.append(LayerUpdate(name, False, True, None, None, 64, 64))
        y = r
    loss = builder.emit("MeanSquaredError", (y, label), name="loss")
    gradient = builder.emit("MeanSquaredErrorGrad", (one, y, label), name="d_loss")
    state = [rate]
    for name, source, w, r in reversed(tape):
        gradient = builder.emit("ClipGrad", (gradient, r), RELU, f"{name}.ClipGrad", name)
        d_w = builder.emit("GemmGradWeight", (source, gradient), name=f"{name}.GemmGradWeight", origin=name)
        if source is not x:
            gradient = builder.emit("GemmGradInput", (gradient, w), NO_BIAS, f"{name}.GemmGradInput", name)
        updates.append((w, builder.emit("SgdUpdate", (w, d_w, rate), SgdAttrs(), f"{name}_w.update", name)))
        state.append(w)
    graph = Graph(
        "deep",
        tuple(builder.nodes),
        (x, label),
        (y,),
        builder.constants,
        tuple(state[1:]),
        tuple(state),
        (),
        tuple(updates),
        label=label.name,
    )
    train = TrainGraph(graph, loss, label, y, rate)
    plan = plan_memory(graph, PlanOptions(effort="quick", keep=("loss",)))
    return two_layers_summary(
        model="deep.onnx", train=train, plan=plan, layers=tuple(layers), arena_limit_bytes=None, verify=VERIFIED
    )
