"""Whole training steps to int8 as text, attributes and factors included (`ir/text.py`, `testing/graph_lines.py`).

Numbers are derived by hand from the formats: an int8 number x is worth 0.1, a weight 0.01, so that a sum of a layer is
worth 0.1 * 0.01 = 0.001. `dy` counts in 1/0.001 of a layer's output, so that x times dy is a gradient in 1/0.01.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest

from testing.graph_lines import APPLY, Formats, Shapes, joined, lines, read, told
from tinytrain_compile.ir.stages import TrainGraph
from tinytrain_compile.ir.types import Array, Graph, Node, Value
from tinytrain_compile.ops.base import op_def
from tinytrain_compile.quantize import QuantOptions, quantise

IMAGE, ROWS = (1, 2, 2, 3), (1, 3)
SHAPES: Shapes = {
    **dict.fromkeys(("x", "dz"), IMAGE),
    **dict.fromkeys(("w", "v", "sum.w"), (3, 1, 1, 3)),
    **dict.fromkeys(("w.b", "v.b", "sum.b"), (3,)),
    **dict.fromkeys(("rate", "seed"), ()),
    "label": (1, 2, 2),
}
"""Of what no node makes."""
FORMATS: Formats = {"x": (0.1, 5), "z": (0.05, -128), "w": (0.01, 0)}
LAYER = """
    y = Conv(x; w; w.b) {'kernel': (1, 1), 'bias': True}
    z = Clip(y) {'low': 0.0}
"""
CLAMP = "dy = ClipGrad(dz; z) {'low': 0.0}"
"""An error dz from outside goes back through the clamp."""
Q_LAYER = """
    y.QConv = QConv(x; w; w.b; *0.02)
        {conv=(kernel=(1, 1), bias=True), x_zero=5, y_zero=-128, shifts_down=True, above=True}
"""
"""0.02 = 0.001 / 0.05. A ReLU's mask is read off z: what is above 0 is stored above 0 (`above`)."""
Q_OUT = "out.Dequantize = Dequantize(y.QConv) {scale=0.05, zero=-128}"
Q_ERROR = """
    dy.QuantizeError = QuantizeError(2^dy; dz)
    dy.ErrorScale = ErrorScale(2^dy.2; 2^dy; dy.QuantizeError; *0.001; y.QConv) {probe=-25, mask=value -128..128}
"""
"""From units of 1 to units of 1 / 0.001. 0.001 is 0.5.. to 1 times 2**-9, and errors are lifted by 16 bits: no shift is
to the left with exponents that are 25 apart."""


@dataclass(frozen=True)
class Case:
    """Float nodes, and the integer nodes that stand for them.

    updates, owned: state and its new content, before and after (owned: of parameters and their optimizer, if not
    empty). shapes, formats, constants, dtypes: besides those above. train: fields of the TrainGraph.
    """

    nodes: str
    after: str
    outputs: str = "z"
    updates: str = ""
    owned: str = ""
    shapes: Shapes = field(default_factory=dict[str, tuple[int, ...]])
    formats: Formats = field(default_factory=dict[str, tuple[float | tuple[float, ...], int]])
    constants: Mapping[str, Array] = field(default_factory=dict[str, Array])
    dtypes: Mapping[str, str] = field(default_factory=dict[str, str])
    train: Mapping[str, Any] = field(default_factory=dict[str, Any])
    options: QuantOptions = field(default_factory=QuantOptions)


def float_step(case: Case) -> TrainGraph:
    """Return the step in float32 that the nodes are."""
    shapes = {**SHAPES, **case.shapes}
    mentioned = {*re.findall(r"[\w.]+", f"{case.nodes} {case.updates} {case.outputs}"), "rate"}
    known = {name: shape for name, shape in shapes.items() if name in mentioned}
    zeros = {name: np.zeros(shape, np.float32) for name, shape in known.items() if name in ("v", "v.b")}
    given = {"rate": np.ones((), np.float32), **zeros, **case.constants}
    if "seed" in known:
        given.setdefault("seed", np.ones((), np.float32))
    formats = {**FORMATS, **case.formats}
    graph = read(known, case.nodes, case.outputs, case.updates, formats, given, case.dtypes)
    label = next((value for value in graph.inputs if value.name == "label"), Value("label", ()))
    loss = Value("loss", ()) if "loss" in mentioned else graph.outputs[-1]
    graph = replace(graph, label=label.name if "label" in known else "")
    return TrainGraph(graph, loss, label, graph.outputs[0], Value("rate", ()), **case.train)


def without_peaks(graph: Graph) -> Graph:
    """Leave out what every error has: its peak before and after, and how its exponent and the noise go on.

    `salt 9`: this weight's noise begins at the 9th number.
    """

    def plain(node: Node) -> Node:
        inputs = tuple(value for value in node.inputs if not re.fullmatch(r".*\.peak[\d.]*", value.name))
        named = (replace(v, name=f"salt {graph.constants[v.name]}") if v.name[:4] == "salt" else v for v in inputs)
        outputs = node.outputs[: None if op_def(node.op).error is None else 1]
        return replace(node, inputs=tuple(named), outputs=outputs)

    rest = (node for node in graph.nodes if node.op not in ("ExponentUpdate", "NoiseTick"))
    return replace(graph, nodes=tuple(map(plain, rest)))


def check(case: Case) -> TrainGraph:
    step = quantise(float_step(case), case.options)
    assert told(without_peaks(step.graph)) == lines(case.after)
    pairs = [(old.name, new.name) for old, new in step.graph.updates]
    beside = re.compile(r".*\.(exponent|peak)[\d.]*|noise")
    found = {f"{old}<-{new}" for old, new in pairs if not beside.fullmatch(old)}
    assert not case.owned or found == {*case.owned.split()}
    return step


# ---- losses ---------------------------------------------------------------------------------------------------------

LOGITS = "{'low': -6.4, 'high': 6.35}"
"""The whole range of int8 at a scale of 0.05 and a zero point of 0."""
DENSE: Shapes = {"x": (1, 4), "w": (3, 4), "label": (1,)}
HEAD = f"""
    y = Gemm(x; w; w.b) {{'bias': True}}
    z = Clip(y) {LOGITS}
"""
Q_HEAD = """
    y.Reshape = Reshape(x) {shape=(1, 1, 1, 4)}
    y.QConv = QConv(y.Reshape; w; w.b; *0.02) {conv=(kernel=(1, 1), bias=True), x_zero=5, y_zero=0, shifts_down=True,
        once=True}
    y.Reshape.2 = Reshape(y.QConv) {shape=(1, 3)}
"""
"""A dense layer is a 1x1 convolution whose pixels are the rows."""
CROSS_ENTROPY = """
    p = LogSoftmax(z) {'axis': 1}
    loss = NegativeLogLikelihood(p; label) {'axis': 1}
    dp = NegativeLogLikelihoodGrad(seed; label) {'nll': {'': 'NllAttrs', 'axis': 1}, 'shape': (1, 3)}
    dz = LogSoftmaxGrad(dp; p) {'axis': 1}
"""
STEP = f"""
    dy = ClipGrad(dz; z) {LOGITS}
    dw = GemmGradWeight(x; dy)
    w.new = SgdUpdate(w; dw; rate)
"""


def of_pixels(weights: str, nll: str) -> str:
    """The same of labels of 2 x 2 pixels, with operands `weights` and attributes of the loss."""
    return f"""
        y = Conv(x; w; w.b) {{'kernel': (1, 1), 'bias': True}}
        z = Clip(y) {LOGITS}
        p = LogSoftmax(z) {{'axis': 3}}
        loss = NegativeLogLikelihood(p; label{weights}) {{'axis': 3{nll}}}
        dp = NegativeLogLikelihoodGrad(seed; label{weights}) {{'nll': {{'': 'NllAttrs', 'axis': 3{nll}}}, 'shape':
            {IMAGE}}}
        dz = LogSoftmaxGrad(dp; p) {{'axis': 3}}
        dy = ClipGrad(dz; z) {LOGITS}
        dw = ConvGradWeight(x; dy) {{'kernel': (1, 1)}}
        w.new = SgdUpdate(w; dw; rate)
    """


Q_PIXELS = "y.QConv = QConv(x; w; w.b; *0.02) {conv=(kernel=(1, 1), bias=True), x_zero=5, y_zero=0, shifts_down=True}"


def q_step(error: str, factor: str, mask: str = "y.Reshape.2", shift: int = -9) -> str:
    """An error of a dense layer in its unit, and the update by it: 10000 = 1 / 0.01**2."""
    return f"""
        dy.ErrorScale = ErrorScale(2^dy; 2^dz; {error}; *{factor}; {mask}) {{probe={shift - 16}, mask=value -128..127}}
        dw.Reshape = Reshape(x) {{shape=(1, 1, 1, 4)}}
        dw.Reshape.2 = Reshape(dy.ErrorScale) {{shape=(1, 1, 1, 3)}}
        w.new.QConvUpdate = QUpdate(w; dw.Reshape; dw.Reshape.2; *10000; rate.2; 2^dy; noise; salt 0)
            {{gradient=product, conv=(kernel=(1, 1)), x_zero=5}}
        w.new.Dequantize = Dequantize({mask}) {{scale=0.05, zero=0}}
    """


def q_pixel_step(factor: str, shift: int = -9) -> str:
    return f"""
        dy.ErrorScale = ErrorScale(2^dy; 2^dz; ERROR; *{factor}; y.QConv) {{probe={shift - 16}, mask=value -128..127}}
        w.new.QConvUpdate = QUpdate(w; x; dy.ErrorScale; *10000; rate.2; 2^dy; noise; salt 0) {{gradient=product,
            conv=(kernel=(1, 1)), x_zero=5}}
        w.new.Dequantize = Dequantize(y.QConv) {{scale=0.05, zero=0}}
    """


LABELS = {"label": "int32"}
LOGIT_FORMAT: Formats = {"z": (0.05, 0)}
LOSSES: dict[str, Case] = {
    # Three exponentials of at most 1 with 29 fraction bits fit an int32: 3 * 2**29 < 2**31. A term of the loss is at
    # most 255 * 0.05 + ln 3 + 1 = 14.9, which leaves room for more than the 24 bits of a logarithm. A distance of 1
    # between logits, lifted by 22 bits, is 0.05 * 2**(24 - 22) = 0.2 terms; 2**-24 = 5.96046e-08 brings them back.
    # An error of at most 1 has 29 bits: 1 - 29 is 21 below the exponent -7 at first.
    "cross entropy": Case(
        joined(HEAD, CROSS_ENTROPY, STEP),
        joined(
            Q_HEAD,
            """
            p.QSoftmaxSum; p.QSoftmaxSum.1 = QSoftmaxSum(y.Reshape.2; p.exponentials) {axis=1, bits=29}
            loss.QSoftmaxLoss = QSoftmaxLoss(y.Reshape.2; label; p.QSoftmaxSum; p.QSoftmaxSum.1) {axis=1, bits=29,
                loss_bits=24, distance=*0.2, total=*5.96046e-08}
            dz.QSoftmaxError = QSoftmaxError(2^dz; y.Reshape.2; label; p.QSoftmaxSum; p.QSoftmaxSum.1; p.exponentials)
                {axis=1, bits=29, probe=-21}
            """,
            q_step("dz.QSoftmaxError", "0.001"),
        ),
        updates="w<-w.new",
        shapes=DENSE,
        formats=LOGIT_FORMAT,
        dtypes=LABELS,
    ),
    # Somebody reads the probabilities: the softmax stays float32, and its error is rounded.
    "cross entropy whose probabilities are an output": Case(
        joined(HEAD, CROSS_ENTROPY, STEP),
        joined(
            Q_HEAD,
            """
            p.Dequantize = Dequantize(y.Reshape.2) {scale=0.05, zero=0}
            p = LogSoftmax(p.Dequantize) {axis=1}
            loss = NegativeLogLikelihood(p; label) {axis=1}
            dp = NegativeLogLikelihoodGrad(seed; label) {nll=(axis=1), shape=(1, 3)}
            dz = LogSoftmaxGrad(dp; p) {axis=1}
            dy.QuantizeError = QuantizeError(2^dy; dz)
            """,
            "\n".join(lines(q_step("dy.QuantizeError", "0.001"))[:-1])
            .replace("2^dy; 2^dz", "2^dy.2; 2^dy")
            .replace("rate.2; 2^dy;", "rate.2; 2^dy.2;"),
        ),
        outputs="p",
        updates="w<-w.new",
        shapes=DENSE,
        formats=LOGIT_FORMAT,
        dtypes=LABELS,
    ),
    # The mean of four pixels: errors count in quarters, 0.001 / 4, which is one bit pair less (2**-11 to 2**-12), and
    # the loss is a quarter of the terms' sum: 2**-26. Four terms leave 25 bits, so the loss keeps its 24.
    "cross entropy of pixels": Case(
        of_pixels("", ""),
        joined(
            Q_PIXELS,
            """
            p.QSoftmaxSum; p.QSoftmaxSum.1 = QSoftmaxSum(y.QConv; p.exponentials) {axis=3, bits=29}
            loss.QSoftmaxLoss = QSoftmaxLoss(y.QConv; label; p.QSoftmaxSum; p.QSoftmaxSum.1) {axis=3, bits=29,
                loss_bits=24, distance=*0.2, total=*1.49012e-08}
            dz.QSoftmaxError = QSoftmaxError(2^dz; y.QConv; label; p.QSoftmaxSum; p.QSoftmaxSum.1; p.exponentials)
                {axis=3, bits=29, probe=-21}
            """,
            q_pixel_step("0.00025", -11).replace("ERROR", "dz.QSoftmaxError"),
        ),
        updates="w<-w.new",
        formats=LOGIT_FORMAT,
        dtypes=LABELS,
    ),
    # Labels 1 do not count: what the mean divides by is known when the labels are, and goes into the error itself, so
    # that its unit is 1. One bit more of room for the weights: 2 - 29 is 20 below -7.
    "cross entropy with weights, a mean": Case(
        of_pixels("; w.c", ", 'ignore_index': 1"),
        joined(
            Q_PIXELS,
            """
            p.QSoftmaxSum; p.QSoftmaxSum.1 = QSoftmaxSum(y.QConv; p.exponentials) {axis=3, bits=29}
            loss.QLabelWeight; loss.QLabelWeight.1 = QLabelWeight(label; loss.weights) {ignore_index=1}
            loss.QWeightedSoftmaxLoss = QWeightedSoftmaxLoss(y.QConv; label; p.QSoftmaxSum; p.QSoftmaxSum.1;
                loss.QLabelWeight; loss.QLabelWeight.1) {axis=3, ignore_index=1, bits=29, loss_bits=24, distance=*0.2,
                total=*5.96046e-08}
            dz.QWeightedSoftmaxError = QWeightedSoftmaxError(2^dz; y.QConv; label; p.QSoftmaxSum; p.QSoftmaxSum.1;
                p.exponentials; loss.QLabelWeight; loss.QLabelWeight.1) {axis=3, ignore_index=1, bits=29, probe=-20}
            """,
            q_pixel_step("0.001").replace("ERROR", "dz.QWeightedSoftmaxError"),
        ),
        updates="w<-w.new",
        shapes={"w.c": (3,)},
        formats=LOGIT_FORMAT,
        constants={"w.c": np.asarray([1, 2, 4], np.float32)},
        dtypes=LABELS,
    ),
    # Of a sum, the largest weight, 4, is a factor of both: 0.004, and 4 * 2**-24. Weights are relative to it, with
    # 30 - 2 bits (four labels add up to 2**30 at most): 1 is 2**28.
    "cross entropy with weights, a sum": Case(
        of_pixels("; w.c", ", 'reduction': 'sum'"),
        joined(
            Q_PIXELS,
            """
            p.QSoftmaxSum; p.QSoftmaxSum.1 = QSoftmaxSum(y.QConv; p.exponentials) {axis=3, bits=29}
            loss.QLabelWeight; loss.QLabelWeight.1 = QLabelWeight(label; loss.weights) {divisor=268435456}
            loss.QWeightedSoftmaxLoss = QWeightedSoftmaxLoss(y.QConv; label; p.QSoftmaxSum; p.QSoftmaxSum.1;
                loss.QLabelWeight; loss.QLabelWeight.1) {axis=3, reduction=sum, bits=29, loss_bits=24, distance=*0.2,
                total=*2.38419e-07}
            dz.QWeightedSoftmaxError = QWeightedSoftmaxError(2^dz; y.QConv; label; p.QSoftmaxSum; p.QSoftmaxSum.1;
                p.exponentials; loss.QLabelWeight; loss.QLabelWeight.1) {axis=3, reduction=sum, bits=29, probe=-20}
            """,
            q_pixel_step("0.004", -7).replace("ERROR", "dz.QWeightedSoftmaxError"),
        ),
        updates="w<-w.new",
        shapes={"w.c": (3,)},
        formats=LOGIT_FORMAT,
        constants={"w.c": np.asarray([1, 2, 4], np.float32)},
        dtypes=LABELS,
    ),
    # Squares of three differences of 30 bits add up in 63; 13 of them are whole: 17 fraction bits, and a target of 1 is
    # 2**17 / 0.05 = 2621440 units. The loss: 0.05**2 / 3 * 2**-34 = 4.85e-14. A difference of 1 is an error of 2 * 0.05
    # / 3, so the factor is 0.001 / 30 = 3.33e-05 (2**-14). -17 is 10 below -7.
    "mean squared error": Case(
        joined(
            HEAD,
            "loss = MeanSquaredError(z; label)",
            "dz = MeanSquaredErrorGrad(seed; z; label)",
            STEP,
        ),
        joined(
            Q_HEAD,
            """
            loss.QMeanSquaredError = QMeanSquaredError(y.Reshape.2; label) {zero=0, bits=17, target=*2.62144e+06,
                limit=1073741823, total=*4.85064e-14}
            dz.QMeanSquaredErrorGrad = QMeanSquaredErrorGrad(2^dz; y.Reshape.2; label) {zero=0, bits=17,
                target=*2.62144e+06, limit=1073741823, probe=-10}
            """,
            q_step("dz.QMeanSquaredErrorGrad", "3.33333e-05", shift=-14),
        ),
        updates="w<-w.new",
        shapes={**DENSE, "label": ROWS},
        formats=LOGIT_FORMAT,
    ),
    # Probabilities have 28 bits (2**28 = 2.68e8, and -28 is 21 below -7); a term 24, as 2**31 / (5 * 255 * 0.05 + 1) is
    # 2**24.98; the loss is a third of their sum: 2**-24 / 3.
    "binary cross entropy": Case(
        joined(
            HEAD,
            "loss = SigmoidCrossEntropy(z; label)",
            "dz = SigmoidCrossEntropyGrad(seed; z; label)",
            STEP,
        ),
        joined(
            Q_HEAD,
            """
            loss.QSigmoidCrossEntropy = QSigmoidCrossEntropy(y.Reshape.2; label; sigmoids) {zero=0, bits=28,
                target=*2.68435e+08, total=*1.98682e-08, distance=*0.2, loss_bits=24}
            dz.QSigmoidCrossEntropyGrad = QSigmoidCrossEntropyGrad(2^dz; y.Reshape.2; label; sigmoids) {zero=0,
                bits=28, target=*2.68435e+08, probe=-21}
            """,
            q_step("dz.QSigmoidCrossEntropyGrad", "0.000333333", shift=-11),
        ),
        updates="w<-w.new",
        shapes={**DENSE, "label": ROWS},
        formats=LOGIT_FORMAT,
    ),
}


@pytest.mark.parametrize("case", LOSSES)
def test_losses_of_int8_outputs(case: str) -> None:
    check(LOSSES[case])


# ---- updates --------------------------------------------------------------------------------------------------------

WEIGHT = "dw = ConvGradWeight(x; dy) {'kernel': (1, 1)}"
BIAS = """
    rows = Reduce(dy) {'axes': (0, 1, 2)}
    db = Reshape(rows) {'shape': (3,)}
"""
PRODUCT = "conv=(kernel=(1, 1)), x_zero=5"
UPDATES: dict[str, Case] = {
    # 10000 = 1 / 0.01**2, 1e6 = 1 / 0.001**2: a step is divided by the unit of the gradient and that of the parameter.
    # Noise rounds the velocity as well as the weight, from numbers of its own: the 9 of the weight come first.
    "momentum": Case(
        joined(
            LAYER,
            CLAMP,
            WEIGHT,
            BIAS,
            "w.new; v.new = MomentumUpdate(w; v; dw; rate) {'momentum': 0.9}",
            "w.b.new; v.b.new = MomentumUpdate(w.b; v.b; db; rate) {'momentum': 0.9}",
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"""
            w.new.QConvMomentum; w.new.QConvMomentum.1; w.new.QConvMomentum.2 = QUpdate(w; x; dy.ErrorScale; *10000;
                rate.2; 2^dy.2; v; 2^v; noise; salt 0; salt 9) {{gradient=product, momentum=sum, {PRODUCT}}}
            w.b.new.QBiasGradient = QSum(dy.ErrorScale) {{of=errors, running=False}}
            w.b.new.QMomentum; w.b.new.QMomentum.1; w.b.new.QMomentum.2 = QMomentum(w.b.new.QBiasGradient; v.b;
                shift 20; rate.2; 2^dy.2; 2^v.b; noise; salt 18)
            w.b.new.QBiasApply = QBiasUpdate(w.b; w.b.new.QMomentum; *1e+06; rate.2; 2^dy.2) {{summed=True}}
            """,
            Q_OUT.replace("out", "w.b.new"),
        ),
        updates="w<-w.new w.b<-w.b.new v<-v.new v.b<-v.b.new",
        owned="w<-w.new.QConvMomentum v<-w.new.QConvMomentum.1 w.b<-w.b.new.QBiasApply v.b<-w.b.new.QMomentum.1",
    ),
    # The step of a sign is divided by the parameter's unit alone: 100 = 1 / 0.01, 1000 = 1 / 0.001; no exponent
    # scales it, so a stored one is stepped with an exponent of 0.
    "lion": Case(
        joined(
            LAYER,
            CLAMP,
            WEIGHT,
            BIAS,
            "w.new; v.new = LionUpdate(w; v; dw; rate)",
            "w.b.new; v.b.new = LionUpdate(w.b; v.b; db; rate)",
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"""
            w.new.QConvSignMomentum; w.new.QConvSignMomentum.1; w.new.QConvSignMomentum.2 = QUpdate(w; x;
                dy.ErrorScale; *100; rate.2; 2^dy.2; v; 2^v; noise; salt 0; salt 9) {{gradient=product, momentum=sign,
                {PRODUCT}}}
            w.b.new.QBiasGradient = QSum(dy.ErrorScale) {{of=errors, running=False}}
            w.b.new.QSignMomentum; w.b.new.QSignMomentum.1; w.b.new.QSignMomentum.2 = QMomentum(w.b.new.QBiasGradient;
                v.b; shift 10; rate.2; 2^dy.2; 2^v.b; noise; salt 18) {{signed=True}}
            w.b.new.QBiasApply = QBiasUpdate(w.b; w.b.new.QSignMomentum; *1000; rate.2; of_signs) {{summed=True}}
            """,
            Q_OUT.replace("out", "w.b.new"),
        ),
        updates="w<-w.new w.b<-w.b.new v<-v.new v.b<-v.b.new",
        owned="w<-w.new.QConvSignMomentum v<-w.new.QConvSignMomentum.1 "
        "w.b<-w.b.new.QBiasApply v.b<-w.b.new.QSignMomentum.1",
    ),
    # The norm of the update before scales this one: a rate times the factor. The weight adds up the squares of its
    # gradient (two words for each of 3 channels) while it steps; those of a stored one are a node of their own.
    "clipping in a step": Case(
        joined(
            LAYER,
            CLAMP,
            WEIGHT,
            BIAS,
            """
            squares = Add(sq.w; sq.b)
            clip = ClipFactor(squares) {'norm': 0.5}
            w.new = SgdUpdate(w; dw; rate; clip) {'scaled': True}
            w.b.new = SgdUpdate(w.b; db; rate; clip) {'scaled': True}
            rows.w = RowSquares(dw)
            sq.w.new = SquareTotal(sq.w; rows.w) {'fresh': True}
            rows.b = RowSquares(db)
            sq.b.new = SquareTotal(sq.b; rows.b) {'fresh': True}
            """,
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"""
            squares = Add(sq.w; sq.b)
            clip = ClipFactor(squares) {{norm=0.5}}
            w.new.QClipRate = QClipRate(rate.2; clip)
            w.new.Expand = Expand(no_squares) {{shape=(3, 2)}}
            w.new.QConvUpdateSquared; w.new.QConvUpdateSquared.1 = QUpdate(w; x; dy.ErrorScale; *10000;
                w.new.QClipRate; 2^dy.2; noise; salt 0; w.new.Expand) {{gradient=product, squares=True, {PRODUCT}}}
            w.b.new.QBiasGradient = QSum(dy.ErrorScale) {{of=errors, running=False}}
            w.b.new.QBiasApply = QBiasUpdate(w.b; w.b.new.QBiasGradient; *1e+06; w.new.QClipRate; 2^dy.2)
                {{summed=True}}
            sq.w.new.QSquareTotal = QSquareTotal(sq.w; w.new.QConvUpdateSquared.1; *10000; 2^dy.2) {{fresh=True}}
            rows.b.QRowSquares = QRowSquares(w.b.new.QBiasGradient)
            sq.b.new.QSquareTotal = QSquareTotal(sq.b; rows.b.QRowSquares; *1e+06; 2^dy.2) {{fresh=True}}
            """,
            Q_OUT.replace("out", "sq.b.new"),
        ),
        updates="w<-w.new w.b<-w.b.new sq.w<-sq.w.new sq.b<-sq.b.new",
        owned="w<-w.new.QConvUpdateSquared w.b<-w.b.new.QBiasApply "
        "sq.w<-sq.w.new.QSquareTotal sq.b<-sq.b.new.QSquareTotal",
        shapes={"sq.w": (), "sq.b": ()},
        constants={"sq.w": np.zeros((), np.float32), "sq.b": np.zeros((), np.float32)},
        train={"clip": {"w": Value("clip", ()), "w.b": Value("clip", ())}},
    ),
    # Sums are added up over the steps of a batch; its update then steps by them and sets them to 0.
    "sums of a batch": Case(
        joined(
            LAYER,
            CLAMP,
            WEIGHT,
            BIAS,
            """
            sums = Accumulate(sum.w; dw)
            sums.b = Accumulate(sum.b; db)
            ---
            w.new = SgdUpdate(w; sums; rate; inverse) {'scaled': True}
            cleared = Clear(sums)
            w.b.new = SgdUpdate(w.b; sums.b; rate; inverse) {'scaled': True}
            cleared.b = Clear(sums.b)
            """,
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"""
            sums.QConvSum = QSum(sum.w; x; dy.ErrorScale) {{of=product, {PRODUCT}}}
            sums.b.QBiasSum = QSum(sum.b; dy.ErrorScale) {{of=errors}}
            """,
            Q_OUT.replace("out", "cleared.b"),
            """
            ---
            w.new.QWeightApply = QUpdate(w; sums.QConvSum; *10000; rate.2; 2^dy.2; noise; salt 0) {gradient=sum}
            cleared.Clear = Clear(sums.QConvSum)
            w.b.new.QBiasApply = QBiasUpdate(w.b; sums.b.QBiasSum; *1e+06; rate.2; 2^dy.2) {summed=True}
            cleared.b.Clear = Clear(sums.b.QBiasSum)
            """,
        ),
        updates="w<-w.new sum.w<-cleared w.b<-w.b.new sum.b<-cleared.b",
        owned="w<-w.new.QWeightApply sum.w<-cleared.Clear w.b<-w.b.new.QBiasApply sum.b<-cleared.b.Clear",
        shapes={"inverse": ()},
        train={"batch": 4, "inverse_count": Value("inverse", ())},
    ),
    # The squares of the sums themselves scale the update that uses them, and what divides a batch is in the rate.
    "clipping of a batch": Case(
        joined(
            LAYER,
            CLAMP,
            WEIGHT,
            """
            sums = Accumulate(sum.w; dw)
            ---
            rows.w = RowSquares(sums)
            sq = SquareTotal(sum.sq; rows.w) {'fresh': True}
            clip = ClipFactor(sq; inverse) {'norm': 0.5, 'scaled': True}
            gain = Mul(clip; inverse)
            w.new = SgdUpdate(w; sums; rate; gain) {'scaled': True}
            cleared = Clear(sums)
            """,
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"sums.QConvSum = QSum(sum.w; x; dy.ErrorScale) {{of=product, {PRODUCT}}}",
            Q_OUT.replace("out", "cleared"),
            """
            ---
            rows.w.QRowSquares = QRowSquares(sums.QConvSum)
            sq.QSquareTotal = QSquareTotal(sum.sq; rows.w.QRowSquares; *10000; 2^dy.2) {fresh=True}
            clip = ClipFactor(sq.QSquareTotal; inverse) {norm=0.5, scaled=True}
            w.new.QClipRate = QClipRate(rate.2; clip)
            w.new.QWeightApply = QUpdate(w; sums.QConvSum; *10000; w.new.QClipRate; 2^dy.2; noise; salt 0)
                {gradient=sum}
            cleared.Clear = Clear(sums.QConvSum)
            """,
        ),
        updates="w<-w.new sum.w<-cleared sum.sq<-sq",
        owned="w<-w.new.QWeightApply sum.w<-cleared.Clear sum.sq<-sq.QSquareTotal",
        shapes={"inverse": (), "sum.sq": ()},
        train={"batch": 4, "inverse_count": Value("inverse", ()), "clip": {"w": Value("clip", ())}},
    ),
    # With 8 fraction bits nothing is rounded by noise: the fraction is state instead.
    "a store with fraction bits": Case(
        joined(LAYER, CLAMP, WEIGHT, "w.new = SgdUpdate(w; dw; rate)"),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"""
            w.new.QConvUpdateFine; w.new.QConvUpdateFine.1 = QUpdate(w; x; dy.ErrorScale; *10000; rate.2; 2^dy.2;
                w.fraction) {{gradient=product, fine=True, {PRODUCT}}}
            """,
            Q_OUT.replace("out", "w.new"),
        ),
        updates="w<-w.new",
        owned="w<-w.new.QConvUpdateFine w.fraction<-w.new.QConvUpdateFine.1",
        options=QuantOptions(weight_store="q8.8"),
    ),
    # One weight and one bias of two layers, whose units are 0.001 and 0.05 * 0.01 = 0.0005. Gradients of a weight are
    # in
    # its own unit in both, so they are added as they are. A bias is stored 256 times as finely as the first layer
    # counts, 0.001 / 256: the layers read 1/256 and 1/128 of it, its gradients come back by the same factors, with 8
    # fraction bits, and its step is divided by (0.001 / 256)**2 = 1 / 6.5536e10. 0.02 = 1 / 0.05 * 0.001: an error in
    # 1 / (0.05 * 0.01), times a weight, is the error of z in 1 / 0.05, and the layer before wants it in 1 / 0.001.
    "one weight and bias of two layers": Case(
        joined(
            LAYER,
            """
            u = Conv(z; w; w.b) {'kernel': (1, 1), 'bias': True}
            a = Clip(u) {'low': 0.0}
            du = ClipGrad(dz; a) {'low': 0.0}
            dw2 = ConvGradWeight(z; du) {'kernel': (1, 1)}
            rows2 = Reduce(du) {'axes': (0, 1, 2)}
            db2 = Reshape(rows2) {'shape': (3,)}
            dx = ConvGradInput(du; w) {'conv': {'': 'ConvAttrs', 'kernel': (1, 1)}, 'input_hw': (2, 2)}
            dy = ClipGrad(dx; z) {'low': 0.0}
            """,
            WEIGHT,
            BIAS,
            """
            w.sum = Add(dw2; dw)
            b.sum = Add(db2; db)
            w.new = SgdUpdate(w; w.sum; rate)
            w.b.new = SgdUpdate(w.b; b.sum; rate)
            """,
        ),
        joined(
            """
            y.QSharedBias = QSharedBias(w.b; *0.00390625)
            y.QConv = QConv(x; w; y.QSharedBias; *0.02) {conv=(kernel=(1, 1), bias=True), x_zero=5, y_zero=-128,
                shifts_down=True, above=True}
            u.QSharedBias = QSharedBias(w.b; *0.0078125)
            u.QConv = QConv(y.QConv; w; u.QSharedBias; *0.01) {conv=(kernel=(1, 1), bias=True), x_zero=-128,
                y_zero=-128, shifts_down=True, above=True}
            du.QuantizeError = QuantizeError(2^du; dz)
            du.ErrorScale = ErrorScale(2^du.2; 2^du; du.QuantizeError; *0.0005; u.QConv) {probe=-26,
                mask=value -128..128}
            dx.QConvGradInput = QConvGradInput(2^dx; 2^du.2; du.ErrorScale; *0.02; w; y.QConv) {conv=(kernel=(1, 1)),
                input_hw=(2, 2), probe=-5, mask=value -128..128}
            w.new.Expand = Expand(zero) {shape=(3, 1, 1, 3)}
            w.new.QConvSum = QSum(w.new.Expand; y.QConv; du.ErrorScale) {of=product, conv=(kernel=(1, 1)), x_zero=-128}
            w.new.Expand.2 = Expand(zero) {shape=(3, 1, 1, 3)}
            w.new.QConvSum.2 = QSum(w.new.Expand.2; x; dx.QConvGradInput) {of=product, conv=(kernel=(1, 1)), x_zero=5}
            w.new.QGradientAdd; w.new.QGradientAdd.1 = QGradientAdd(w.new.QConvSum; w.new.QConvSum.2; 2^du.2; 2^dx; *1;
                *1)
            w.new.QWeightApply = QUpdate(w; w.new.QGradientAdd; *10000; rate.2; w.new.QGradientAdd.1; noise; salt 0)
                {gradient=sum}
            w.b.new.QBiasGradient = QSum(du.ErrorScale) {of=errors, running=False}
            w.b.new.QBiasGradient.2 = QSum(dx.QConvGradInput) {of=errors, running=False}
            w.b.new.QGradientAdd; w.b.new.QGradientAdd.1 = QGradientAdd(w.b.new.QBiasGradient; w.b.new.QBiasGradient.2;
                2^du.2; 2^dx; *0.0078125; *0.00390625) {lift=8}
            w.b.new.QBiasApply = QBiasUpdate(w.b; w.b.new.QGradientAdd; *6.5536e+10; rate.2; w.b.new.QGradientAdd.1)
                {summed=True}
            w.b.new.Dequantize = Dequantize(u.QConv) {scale=0.05, zero=-128}
            """,
        ),
        owned="w<-w.new.QWeightApply w.b<-w.b.new.QBiasApply",
        outputs="a",
        updates="w<-w.new w.b<-w.b.new",
        formats={"a": (0.05, -128)},
    ),
    # A channel that is full gets another scale: its shifts change, in tables of its own. 0.02 = 0.64 * 2**-5, 0.001 =
    # 0.512 * 2**-9, 10000 = 0.61 * 2**14, 1e6 = 0.95 * 2**20. Shifts grow, so the kernel may not rely on their sign.
    "channels that change scales": Case(
        joined(LAYER, CLAMP, WEIGHT, BIAS, "w.new = SgdUpdate(w; dw; rate)", "w.b.new = SgdUpdate(w.b; db; rate)"),
        joined(
            Q_LAYER.replace(", shifts_down=True", ""),
            Q_ERROR,
            f"""
            w.new.QConvUpdate = QUpdate(w; x; dy.ErrorScale; *10000; rate.2; 2^dy.2; noise; salt 0) {{gradient=product,
                {PRODUCT}}}
            w.b.new.QBiasUpdate = QBiasUpdate(w.b; dy.ErrorScale; *1e+06; rate.2; 2^dy.2)
            w.rescale; w.rescale.1; w.rescale.2; w.rescale.3; w.rescale.4; w.rescale.5 =
                ChannelRescale(w.new.QConvUpdate; shift -5; shift -9; shift 14; w.b.new.QBiasUpdate; shift 20)
                {{bias=True, fine=False}}
            """,
            Q_OUT.replace("out", "w.b.new"),
        ),
        updates="w<-w.new w.b<-w.b.new",
        owned="w<-w.rescale w.forward_shift<-w.rescale.1 w.error_shift<-w.rescale.2 w.weight_shift<-w.rescale.3 "
        "w.b<-w.rescale.4 w.bias_shift<-w.rescale.5",
        options=QuantOptions(rescale=True),
    ),
    # The sum of a float32 gradient depends on its order: one term for each of the two samples of a step.
    "two samples of a step, in float32": Case(
        """
        y = Gemm(x; w; w.b) {'bias': True}
        dw = GemmGradWeight(x; dz)
        sums = Accumulate(sum.w; dw)
        ---
        w.new = SgdUpdate(w; sums; rate; inverse) {'scaled': True}
        cleared = Clear(sums)
        """,
        """
        y.Dequantize = Dequantize(x) {scale=0.1, zero=5}
        y = Gemm(y.Dequantize; w; w.b) {bias=True}
        sums.Slice = Slice(y.Dequantize) {starts=(0, 0), steps=(1, 1), sizes=(1, 4)}
        sums.Slice.2 = Slice(dz) {starts=(0, 0), steps=(1, 1), sizes=(1, 3)}
        sums.GemmGradWeight = GemmGradWeight(sums.Slice; sums.Slice.2)
        sums.Accumulate = Accumulate(sum.w; sums.GemmGradWeight)
        sums.Slice.3 = Slice(y.Dequantize) {starts=(1, 0), steps=(1, 1), sizes=(1, 4)}
        sums.Slice.4 = Slice(dz) {starts=(1, 0), steps=(1, 1), sizes=(1, 3)}
        sums.GemmGradWeight.2 = GemmGradWeight(sums.Slice.3; sums.Slice.4)
        sums.Accumulate.2 = Accumulate(sums.Accumulate; sums.GemmGradWeight.2)
        ---
        w.new = SgdUpdate(w; sums.Accumulate.2; rate; inverse) {scaled=True}
        cleared = Clear(sums.Accumulate.2)
        """,
        outputs="y",
        updates="w<-w.new sum.w<-cleared",
        owned="w<-w.new sum.w<-cleared",
        shapes={"x": (2, 4), "w": (3, 4), "sum.w": (3, 4), "dz": (2, 3), "inverse": ()},
        train={"batch": 4, "micro_batch": 2, "inverse_count": Value("inverse", ())},
    ),
}


@pytest.mark.parametrize("case", UPDATES)
def test_updates_of_integers(case: str) -> None:
    check(UPDATES[case])


# ---- pools, means, sums and joins -----------------------------------------------------------------------------------

POOL = "'kernel': (2, 2), 'strides': (2, 2), 'pads': (0, 0, 0, 0), 'output_hw': (1, 1)"
WIDE = "'kernel': (2, 2), 'strides': (1, 1), 'pads': (0, 0, 0, 0), 'output_hw': (1, 2)"
POOLS: dict[str, Case] = {
    # The mean of four numbers worth 0.05 is a convolution with ones: 0.05 / 4 / 0.025 = 0.5, which is no shift down.
    # Its
    # gradient goes back through the same ones, masked by the ReLU before it, in the 1 / 0.001 that the layer there
    # wants: 0.001 / 4 = 0.512 * 2**-11. 1 = 0.5 * 2**1 is a shift to the left, so that the room is 1 - 16.
    "an average pool": Case(
        joined(
            LAYER,
            f"""
            p = AveragePool(z) {{{POOL}}}
            q = Clip(p) {{'low': 0.0}}
            dq = ClipGrad(dp; q) {{'low': 0.0}}
            dz = AveragePoolGrad(dq) {{'pool': {{'': 'PoolAttrs', {POOL}}}, 'input_hw': (2, 2)}}
            """,
            CLAMP,
            WEIGHT,
            "w.new = SgdUpdate(w; dw; rate)",
        ),
        """
        y.QConv = QConv(x; w; w.b; *0.02) {conv=(kernel=(1, 1), bias=True), x_zero=5, y_zero=-128, shifts_down=True,
            above=True}
        p.QConv = QConv(y.QConv; ones; no_bias; *0.5) {conv=(kernel=(2, 2), strides=(2, 2), groups=3, bias=True),
            x_zero=-128, y_zero=-128, above=True}
        dq.QuantizeError = QuantizeError(2^dq; dp)
        dq.ErrorScale = ErrorScale(2^dq.2; 2^dq; dq.QuantizeError; *1; p.QConv) {probe=-15, mask=value -128..128}
        dz.QConvGradInput = QConvGradInput(2^dz; 2^dq.2; dq.ErrorScale; *0.00025; ones; y.QConv) {conv=(kernel=(2, 2),
            strides=(2, 2), groups=3), input_hw=(2, 2), probe=-11, mask=value -128..128}
        w.new.QConvUpdate = QUpdate(w; x; dz.QConvGradInput; *10000; rate.2; 2^dz; noise; salt 0) {gradient=product,
            conv=(kernel=(1, 1)), x_zero=5}
        w.new.Dequantize = Dequantize(p.QConv) {scale=0.025, zero=-128}
        """,
        outputs="q",
        updates="w<-w.new",
        shapes={"dp": (1, 1, 1, 3)},
        formats={"q": (0.025, -128)},
    ),
    # The sum of four numbers, lifted by 20 bits (4 * 255 * 2**20 < 2**31): 0.25 * 0.05 / 0.025 * 2**-20 = 4.77e-07. The
    # error is spread as it is, and counts in quarters from there on: 0.001 / 4 = 0.512 * 2**-11. 1 = 0.5 * 2**1.
    "a mean": Case(
        joined(
            LAYER,
            """
            p = Reduce(z) {'axes': (1, 2), 'scale': 0.25}
            q = Clip(p) {'low': 0.0}
            dq = ClipGrad(dp; q) {'low': 0.0}
            dz = Expand(dq) {'shape': (1, 2, 2, 3), 'scale': 0.25}
            """,
            CLAMP,
            WEIGHT,
            "w.new = SgdUpdate(w; dw; rate)",
        ),
        """
        y.QConv = QConv(x; w; w.b; *0.02) {conv=(kernel=(1, 1), bias=True), x_zero=5, y_zero=-128, shifts_down=True,
            above=True}
        p.QRescale = QRescale(y.QConv) {axes=(1, 2), x_zero=-128, y_zero=-128, factor=*4.76837e-07, lift=20, above=True}
        dq.QuantizeError = QuantizeError(2^dq; dp)
        dq.ErrorScale = ErrorScale(2^dq.2; 2^dq; dq.QuantizeError; *1; p.QRescale) {probe=-15, mask=value -128..128}
        dz.Expand = Expand(dq.ErrorScale) {shape=(1, 2, 2, 3)}
        dy.ErrorScale = ErrorScale(2^dy; 2^dq.2; dz.Expand; *0.00025; y.QConv) {probe=-27, mask=value -128..128}
        w.new.QConvUpdate = QUpdate(w; x; dy.ErrorScale; *10000; rate.2; 2^dy; noise; salt 0) {gradient=product,
            conv=(kernel=(1, 1)), x_zero=5}
        w.new.Dequantize = Dequantize(p.QRescale) {scale=0.025, zero=-128}
        """,
        outputs="q",
        updates="w<-w.new",
        shapes={"dp": (1, 1, 1, 3)},
        formats={"q": (0.025, -128)},
    ),
    # A maximum keeps the format of z. Its gradient goes to the winners as it is, with the exponent that it has (dp.2).
    "a maximum": Case(
        joined(
            LAYER,
            f"""
            p = MaxPool(z) {{{POOL}}}
            q = Clip(p) {{'low': 0.0}}
            dp = ClipGrad(dq; q) {{'low': 0.0}}
            index = MaxPoolIndex(z) {{{POOL}}}
            dz = MaxPoolGrad(dp; index) {{'pool': {{'': 'PoolAttrs', {POOL}}}, 'input_hw': (2, 2)}}
            """,
            CLAMP,
            WEIGHT,
            "w.new = SgdUpdate(w; dw; rate)",
        ),
        """
        y.QConv = QConv(x; w; w.b; *0.02) {conv=(kernel=(1, 1), bias=True), x_zero=5, y_zero=-128, shifts_down=True,
            above=True}
        p.MaxPool = MaxPool(y.QConv) {kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0)}
        q.QRescale = QRescale(p.MaxPool) {axes=(), x_zero=-128, y_zero=-128, factor=*9.53674e-07, lift=20, above=True}
        dp.QuantizeError = QuantizeError(2^dp; dq)
        dp.ErrorScale = ErrorScale(2^dp.2; 2^dp; dp.QuantizeError; *1; q.QRescale) {probe=-15, mask=value -128..128}
        index.MaxPoolIndex = MaxPoolIndex(y.QConv) {kernel=(2, 2), strides=(2, 2), pads=(0, 0, 0, 0)}
        dz.MaxPoolGrad = MaxPoolGrad(dp.ErrorScale; index.MaxPoolIndex) {pool=(kernel=(2, 2), strides=(2, 2), pads=(0,
            0, 0, 0)), input_hw=(2, 2)}
        dy.ErrorScale = ErrorScale(2^dy; 2^dp.2; dz.MaxPoolGrad; *0.001; y.QConv) {probe=-25, mask=value -128..128}
        w.new.QConvUpdate = QUpdate(w; x; dy.ErrorScale; *10000; rate.2; 2^dy; noise; salt 0) {gradient=product,
            conv=(kernel=(1, 1)), x_zero=5}
        w.new.Dequantize = Dequantize(q.QRescale) {scale=0.05, zero=-128}
        """,
        outputs="q",
        updates="w<-w.new",
        shapes={"dq": (1, 1, 1, 3)},
        formats={"q": (0.05, -128)},
    ),
    # A number may win twice: errors are added up, which takes an exponent of its own (dz).
    "a maximum of windows that overlap": Case(
        joined(
            LAYER,
            f"""
            p = MaxPool(z) {{{WIDE}}}
            q = Clip(p) {{'low': 0.0}}
            dp = ClipGrad(dq; q) {{'low': 0.0}}
            index = MaxPoolIndex(z) {{{WIDE}}}
            dz = MaxPoolGrad(dp; index) {{'pool': {{'': 'PoolAttrs', {WIDE}}}, 'input_hw': (2, 3)}}
            """,
            CLAMP,
            WEIGHT,
            "w.new = SgdUpdate(w; dw; rate)",
        ),
        """
        y.QConv = QConv(x; w; w.b; *0.02) {conv=(kernel=(1, 1), bias=True), x_zero=5, y_zero=-128, shifts_down=True,
            above=True}
        p.MaxPool = MaxPool(y.QConv) {kernel=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0), output_hw=(1, 2)}
        q.QRescale = QRescale(p.MaxPool) {axes=(), x_zero=-128, y_zero=-128, factor=*9.53674e-07, lift=20, above=True}
        dp.QuantizeError = QuantizeError(2^dp; dq)
        dp.ErrorScale = ErrorScale(2^dp.2; 2^dp; dp.QuantizeError; *1; q.QRescale) {probe=-15, mask=value -128..128}
        index.MaxPoolIndex = MaxPoolIndex(y.QConv) {kernel=(2, 2), strides=(1, 1), pads=(0, 0, 0, 0), output_hw=(1, 2)}
        dz.QMaxPoolGrad = QMaxPoolGrad(2^dz; 2^dp.2; dp.ErrorScale; index.MaxPoolIndex) {pool=(kernel=(2, 2),
            strides=(1, 1), pads=(0, 0, 0, 0), output_hw=(1, 2)), input_hw=(2, 3), probe=-12}
        dy.ErrorScale = ErrorScale(2^dy; 2^dz; dz.QMaxPoolGrad; *0.001; y.QConv) {probe=-25, mask=value -128..128}
        w.new.QConvUpdate = QUpdate(w; x; dy.ErrorScale; *10000; rate.2; 2^dy; noise; salt 0) {gradient=product,
            conv=(kernel=(1, 1)), x_zero=5}
        w.new.Dequantize = Dequantize(q.QRescale) {scale=0.05, zero=-128}
        """,
        outputs="q",
        updates="w<-w.new",
        shapes={"dq": (1, 1, 2, 3), "x": (1, 2, 3, 3)},
        formats={"q": (0.05, -128)},
    ),
    # Operands are lifted by 20 bits, of which the sum keeps 8: 0.1 / 0.05 * 2**-12 and 0.2 / 0.05 * 2**-12.
    "a sum of two scales": Case(
        """
        y = Add(x; e)
        z = Clip(y) {'low': 0.0}
        """,
        """
        y.QAdd = QAdd(x; e) {a_zero=5, b_zero=-3, y_zero=-128, a_factor=*0.000488281, b_factor=*0.000976562}
        z.Dequantize = Dequantize(y.QAdd) {scale=0.05, zero=-128}
        """,
        shapes={"e": IMAGE},
        formats={"e": (0.2, -3)},
    ),
    # Each part is brought to the scale of the clamp behind the join: 0.1 / 0.05 and 0.2 / 0.05, lifted by 20 bits.
    "a join of two scales": Case(
        """
        y = Concat(x; e) {'axis': 3}
        z = Clip(y) {'low': 0.0}
        """,
        """
        y.QRescale = QRescale(x) {axes=(), x_zero=5, y_zero=-128, factor=*1.90735e-06, lift=20}
        y.QRescale.2 = QRescale(e) {axes=(), x_zero=-3, y_zero=-128, factor=*3.8147e-06, lift=20}
        y.Concat = Concat(y.QRescale; y.QRescale.2) {axis=3}
        z.Dequantize = Dequantize(y.Concat) {scale=0.05, zero=-128}
        """,
        shapes={"e": IMAGE},
        formats={"e": (0.2, -3)},
    ),
}


@pytest.mark.parametrize("case", POOLS)
def test_pools_and_joins(case: str) -> None:
    check(POOLS[case])


# ---- low-rank copies ------------------------------------------------------------------------------------------------

FLOAT_STEP = "w.new.QRoundedUpdate = QUpdate(w; GRADIENT; *10000; rate.2; 2^dy.2; noise; salt 0) {gradient=float}"
COPIES: dict[str, Case] = {
    # A copy counts in steps of x, its zero point taken off, and comes back in the format of x: so the update is that of
    # x itself.
    "expanded to int8": Case(
        joined(
            LAYER,
            CLAMP,
            """
            core = ModeProduct(x; w.u) {'axis': 3}
            wide = ModeProduct(core; w.u) {'axis': 3, 'expand': True}
            dw = ConvGradWeight(wide; dy) {'kernel': (1, 1)}
            w.new = SgdUpdate(w; dw; rate)
            """,
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"""
            core.QModeProduct = QModeProduct(x; w.u) {{axis=3, zero=5}}
            wide.QModeExpand = QModeExpand(core.QModeProduct; w.u) {{axis=3, expand=True, zero=5}}
            w.new.QConvUpdate = QUpdate(w; wide.QModeExpand; dy.ErrorScale; *10000; rate.2; 2^dy.2; noise; salt 0)
                {{gradient=product, {PRODUCT}}}
            """,
            Q_OUT.replace("out", "w.new"),
        ),
        updates="w<-w.new",
        shapes={"w.u": (2, 3)},
    ),
    # The gradient of rows in a subspace: errors go there in their own steps (no zero point), and so the product is in
    # the unit of int32 sums: the factor of the update stays 10000.
    "errors in the subspace": Case(
        joined(
            LAYER,
            CLAMP,
            """
            core = ModeProduct(x; w.u) {'axis': 1}
            low = ModeProduct(dy; w.u) {'axis': 1}
            dw = ConvGradWeight(core; low) {'kernel': (1, 1)}
            w.new = SgdUpdate(w; dw; rate)
            """,
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            """
            core.QModeProduct = QModeProduct(x; w.u) {axis=1, zero=5}
            low.QModeProduct = QModeProduct(dy.ErrorScale; w.u) {axis=1}
            dw.ConvGradWeight = ConvGradWeight(core.QModeProduct; low.QModeProduct) {kernel=(1, 1)}
            """,
            FLOAT_STEP.replace("GRADIENT", "dw.ConvGradWeight"),
            Q_OUT.replace("out", "w.new"),
        ),
        updates="w<-w.new",
        shapes={"w.u": (1, 2)},
    ),
    # Channels in a subspace: the error is read in steps of 1, and what comes out is expanded to the weight's channels.
    "channels in the subspace": Case(
        joined(
            LAYER,
            CLAMP,
            """
            core = ModeProduct(x; w.u) {'axis': 3}
            dc = ConvGradWeight(core; dy) {'kernel': (1, 1)}
            dw = SubspaceGradWeight(dc; w.u)
            w.new = SgdUpdate(w; dw; rate)
            """,
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            """
            core.QModeProduct = QModeProduct(x; w.u) {axis=3, zero=5}
            dc.Dequantize = Dequantize(dy.ErrorScale) {scale=1.0, zero=0}
            dc.ConvGradWeight = ConvGradWeight(core.QModeProduct; dc.Dequantize) {kernel=(1, 1)}
            dw.SubspaceGradWeight = SubspaceGradWeight(dc.ConvGradWeight; w.u)
            """,
            FLOAT_STEP.replace("GRADIENT", "dw.SubspaceGradWeight"),
            Q_OUT.replace("out", "w.new"),
        ),
        updates="w<-w.new",
        shapes={"w.u": (2, 3)},
    ),
    # The subspace follows the integers of x. Where the layer is float32 the copy becomes real: times 0.1.
    "a layer that stays float32": Case(
        """
        y = Conv(x; w; w.b) {'kernel': (1, 1), 'bias': True}
        power = SubspacePower(x; w.u) {'axis': 3}
        after = Orthonormalize(power)
        core = ModeProduct(x; after) {'axis': 3}
        dc = ConvGradWeight(core; dz) {'kernel': (1, 1)}
        dw = SubspaceGradWeight(dc; after)
        w.new = SgdUpdate(w; dw; rate)
        w.u.new = KeepSubspace(w.u; after)
        """,
        """
        y.Dequantize = Dequantize(x) {scale=0.1, zero=5}
        y = Conv(y.Dequantize; w; w.b) {kernel=(1, 1), bias=True}
        power.QSubspacePower = QSubspacePower(x; w.u) {axis=3, zero=5}
        after = Orthonormalize(power.QSubspacePower)
        core.QModeProduct = QModeProduct(x; after) {axis=3, zero=5}
        dc.Expand = Expand(core.QModeProduct) {shape=(1, 2, 2, 2), scale=0.1}
        dc = ConvGradWeight(dc.Expand; dz) {kernel=(1, 1)}
        dw = SubspaceGradWeight(dc; after)
        w.new = SgdUpdate(w; dw; rate)
        w.u.new = KeepSubspace(w.u; after)
        """,
        outputs="y",
        updates="w<-w.new w.u<-w.u.new",
        owned="w<-w.new w.u<-w.u.new",
        shapes={"w.u": (2, 3)},
    ),
    # Rows (0.6, 0.8, 0) and (0, 0, 1) of a subspace: int8 numbers of 0.8 / 127 and 1 / 127. In: times 0.1 / 0.2 and
    # 0.1 / 0.1. Back: rows 0.6 * 0.2, 0.8 * 0.2 and 1 * 0.1, each 127 / 127, in steps of 0.1: 0.12 / 12.7 ...
    "a fixed subspace of channels": Case(
        joined(
            LAYER,
            CLAMP,
            """
            core = ModeProduct(x; w.u) {'axis': 3, 'steps': (0.2, 0.1)}
            wide = ModeProduct(core; w.u) {'axis': 3, 'expand': True}
            dw = ConvGradWeight(wide; dy) {'kernel': (1, 1)}
            w.new = SgdUpdate(w; dw; rate)
            """,
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"""
            core.QConv = QConv(x; core.matrix; no_bias; *(0.00314961, 0.00787402)) {{conv=(kernel=(1, 1), bias=True),
                x_zero=5, y_zero=0, low=-127, shifts_down=True}}
            wide.QConv = QConv(core.QConv; wide.matrix; no_bias.2; *(0.00944882, 0.0125984, 0.00787402))
                {{conv=(kernel=(1, 1), bias=True), x_zero=0, y_zero=5, shifts_down=True}}
            w.new.QConvUpdate = QUpdate(w; wide.QConv; dy.ErrorScale; *10000; rate.2; 2^dy.2; noise; salt 0)
                {{gradient=product, {PRODUCT}}}
            """,
            Q_OUT.replace("out", "w.new"),
        ),
        updates="w<-w.new",
        shapes={"w.u": (2, 3)},
        constants={"w.u": np.asarray([[0.6, 0.8, 0], [0, 0, 1]], np.float32)},
    ),
    # The same of rows, (0.6, 0.8): which has an operator of its own.
    "a fixed subspace of rows": Case(
        joined(
            LAYER,
            CLAMP,
            """
            core = ModeProduct(x; w.u) {'axis': 1, 'steps': (0.2,)}
            wide = ModeProduct(core; w.u) {'axis': 1, 'expand': True}
            dw = ConvGradWeight(wide; dy) {'kernel': (1, 1)}
            w.new = SgdUpdate(w; dw; rate)
            """,
        ),
        joined(
            Q_LAYER,
            Q_ERROR,
            f"""
            core.QModeProductInt8 = QModeProductInt8(x; core.matrix; *0.00314961) {{axis=1, x_zero=5, y_zero=0,
                low=-127}}
            wide.QModeProductInt8 = QModeProductInt8(core.QModeProductInt8; wide.matrix; *(0.00944882, 0.0125984))
                {{axis=1, x_zero=0, y_zero=5}}
            w.new.QConvUpdate = QUpdate(w; wide.QModeProductInt8; dy.ErrorScale; *10000; rate.2; 2^dy.2; noise;
                salt 0) {{gradient=product, {PRODUCT}}}
            """,
            Q_OUT.replace("out", "w.new"),
        ),
        updates="w<-w.new",
        shapes={"w.u": (1, 2)},
        constants={"w.u": np.asarray([[0.6, 0.8]], np.float32)},
    ),
}


@pytest.mark.parametrize("case", COPIES)
def test_low_rank_copies(case: str) -> None:
    check(COPIES[case])


# ---- what ends a step -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 4])
def test_exponents_follow_their_peaks_and_noise_goes_on(batch: int) -> None:
    """Once for each update: at the end of the step, or with the nodes that apply a batch. An error that was float32 has
    a peak of float32."""
    step = check(UPDATES["sums of a batch" if batch > 1 else "a store with fraction bits"])
    found = told(step.graph)
    ends = [line for line in found if re.search("ExponentUpdate|NoiseTick", line)]
    noise = ["noise.tick = NoiseTick(noise)"] if batch > 1 else []  # fraction bits need none
    assert ends == [
        "dy.exponent.update; dy.exponent.update.1 = ExponentUpdate(2^dy; dy.QuantizeError.1) {float_peak=True}",
        "dy.exponent.2.update; dy.exponent.2.update.1 = ExponentUpdate(2^dy.2; dy.ErrorScale.1)",
        *noise,
    ]
    assert (APPLY in found) == (batch > 1) and (batch == 1 or found.index(APPLY) < found.index(ends[0]))
    pairs = {f"{old.name}<-{new.name}" for old, new in step.graph.updates}
    for exponent in ("dy.exponent", "dy.exponent.2"):
        peak = exponent.replace("exponent", "peak")
        assert pairs >= {f"{exponent}<-{exponent}.update", f"{peak}<-{exponent}.update.1"}
    assert ("noise<-noise.tick" in pairs) == (batch > 1)
