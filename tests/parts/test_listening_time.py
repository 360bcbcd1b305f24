"""Which axis is time: signals, an axis that the user names, and what is refused by the layer's name."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx
import pytest

import tinytrain_compile as tt
from testing.networks.models import Network
from tests.emit.test_generated_c import needs_gcc

MOMENTS, CHANNELS = 45, 3


def _conv(net: Network, name: str, x: str, shape: tuple[int, ...], attributes: str = "group = 1") -> str:
    """A layer, with a bias if it has several inputs."""
    operands = [x, net.weight(f"{name}_weight", *shape)]
    operands += [net.near(f"{name}_bias", 0.0, 0.1, shape[0])] if shape[1] > 1 else []
    return net.node(f"{name}/Conv", f"{name} = Conv <{attributes}> ({', '.join(operands)})")


def signal(body: str, channels: int = CHANNELS) -> onnx.ModelProto:
    """Strides, dilation and a depthwise layer along a signal (NCW), and one more thing."""
    net = Network("ear", f"float[1, {channels}, {MOMENTS}] x", "float[1, 4] y")
    x, left, width = "x", MOMENTS, 8
    if body == "scaled":
        for name, number in (("mean", 0.3), ("scale", 0.7)):
            net.table(name, np.asarray(number), np.float32)
        x = net.node("scaled", f"scaled = Mul ({net.node('centred', 'centred = Sub (x, mean)')}, scale)")
    x = net.relu(_conv(net, "first", x, (8, channels, 5), "strides = [2]"))
    left = (left - 5) // 2 + 1
    if body == "pool":
        x, left = net.node("pool", f"pool = MaxPool <kernel_shape = [3], strides = [2]> ({x})"), (left - 3) // 2 + 1
    if body == "tanh":
        x = net.node("tanh", f"tanh = Tanh ({x})")
    x, left = net.relu(_conv(net, "deep", x, (8, 1, 3), "group = 8, dilations = [2]")), left - 4
    if body == "branches":
        net.table("from", [2]), net.table("to", [1000]), net.table("axis", [2])
        long = net.relu(_conv(net, "long", x, (6, 8, 3)))
        short = net.relu(_conv(net, "short", net.node("late", f"late = Slice ({x}, from, to, axis)"), (4, 8, 1)))
        x, left, width = net.node("both", f"both = Concat <axis = 1> ({long}, {short})"), left - 2, 10
    if body == "mean":
        x, left = net.node("mean", f"mean = GlobalAveragePool ({x})"), 1
    net.dense("y", net.node("flat", f"flat = Flatten ({x})"), width * left, 4)
    return net.model()


@needs_gcc
@pytest.mark.parametrize(
    ("body", "channels", "quant"),
    [("pool", 1, "fp32"), ("branches", 3, "fp32"), ("scaled", 4, "fp32"), ("tanh", 3, "int8"), ("branches", 3, "int8")],
)
def test_signals_stream_to_the_byte(body: str, channels: int, quant: str) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(16, channels, MOMENTS)).astype(np.float32)
    y = random.integers(0, 4, 16)
    calib = {"calib": {"x": x, "y": y}} if quant == "int8" else {}
    options = {"listen": 2 if channels > 1 else "on", "update": "all", "quant": quant, "verify": "none", **calib}
    made = tt.compile(signal(body, channels), input_layout="lc" if channels > 1 else "cl", **options)
    listening = made.project.summary.plan.listening
    assert listening is not None
    hop, first = listening.frames, -(-MOMENTS // listening.frames)
    assert (hop, listening.window) == (4 if body == "pool" else 2, MOMENTS)
    twin = made.twin()
    stream = random.normal(size=(30 * hop, channels)).astype(np.float32)
    whole = np.zeros((-(-len(stream) // MOMENTS) * MOMENTS, channels), np.float32)
    whole[: len(stream)] = stream
    given = twin.as_inputs(whole.reshape(-1, MOMENTS, channels).transpose(0, 2, 1))
    rows = np.asarray(given).reshape(whole.shape)[: len(stream)]

    def windows(of: np.ndarray, ends: range) -> np.ndarray:
        return twin.instance.infer(twin.as_inputs(np.stack([of[end - MOMENTS : end].T for end in ends])))

    heard = twin.instance.hear(rows)
    assert np.array_equal(heard[first - 1 :], windows(stream, range(first * hop, len(stream) + 1, hop)))
    for sample, label in zip(x, y, strict=True):
        twin.train_step(sample[None], np.asarray([label]), lr=0.1)
    late, twice = twin.instance.hear(rows), np.concatenate([stream, stream])
    now = windows(twice, range(len(stream) + hop, len(twice) + 1, hop))
    settled = listening.settle - 1
    assert 0 < settled < len(late) - 5
    assert np.array_equal(late[settled:], now[settled:])
    if quant == "fp32" and body != "pool":  # a maximum may hide the last old number
        assert not np.array_equal(late[settled - 1], now[settled - 1]), "no call earlier"


# ---- what is refused -------------------------------------------------------------------------------------------------

ROWS, COLUMNS = 20, 6


def image(layers: Callable[[Network], tuple[str, int]], shape: str = f"1, 1, {ROWS}, {COLUMNS}") -> onnx.ModelProto:
    """A network of these layers: their output and its numbers."""
    net = Network("ear", f"float[{shape}] x", "float[1, 4] y")
    x, numbers = layers(net)
    net.dense("y", net.node("flat", f"flat = Flatten ({x})"), numbers, 4)
    return net.model()


def padded(net: Network) -> tuple[str, int]:
    x = net.relu(_conv(net, "first", "x", (4, 1, 3, 3), "pads = [0, 1, 0, 1]"))
    return _conv(net, "late", x, (4, 4, 3, 3), "pads = [1, 1, 1, 1]"), 4 * (ROWS - 2) * COLUMNS


def pad(net: Network) -> tuple[str, int]:
    net.table("border", [0, 0, 2, 0, 0, 0, 0, 0])
    return _conv(net, "first", net.node("wider", "wider = Pad (x, border)"), (4, 1, 3, 1)), 4 * ROWS * COLUMNS


def pooled(net: Network) -> tuple[str, int]:
    x = net.node("pool", "pool = AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (x)")
    return _conv(net, "first", x, (4, 1, 3, 1)), 4 * (ROWS - 2) * COLUMNS


def normalised(net: Network) -> tuple[str, int]:
    gamma, beta = net.near("gamma", 1.0, 0.1, 1), net.near("beta", 0.0, 0.1, 1)
    x = net.node("norm", f"norm = InstanceNormalization (x, {gamma}, {beta})")
    return _conv(net, "first", x, (4, 1, 3, 1)), 4 * (ROWS - 2) * COLUMNS


def softmax(net: Network) -> tuple[str, int]:
    x = net.node("soft", "soft = Softmax <axis = 2> (x)")
    return _conv(net, "first", x, (4, 1, 3, 1)), 4 * (ROWS - 2) * COLUMNS


def summed(net: Network) -> tuple[str, int]:
    x = net.node("sum", "sum = ReduceMean <axes = [2]> (x)")
    return _conv(net, "first", x, (4, 1, 1, 1)), 4 * COLUMNS


def attention(net: Network) -> tuple[str, int]:
    turned = net.node("turned", "turned = Transpose <perm = [0, 2, 1]> (x)")
    scores = net.node("soft", f"soft = Softmax ({net.node('scores', f'scores = MatMul (x, {turned})')})")
    return net.node("seen", f"seen = MatMul ({scores}, x)"), ROWS * COLUMNS


def recurrent(net: Network) -> tuple[str, int]:
    turned = net.node("turned", "turned = Transpose <perm = [1, 0, 2]> (x)")
    weights = ", ".join((net.weight("w", 1, 20, COLUMNS), net.weight("r", 1, 20, 5)))
    net.node("cell", f"steps, last = LSTM <hidden_size = 5> ({turned}, {weights})")
    return "last", 5


def strided(net: Network) -> tuple[str, int]:
    return _conv(net, "first", "x", (4, 1, 3, COLUMNS), "strides = [2, 1]"), 4 * 9


def dense(net: Network) -> tuple[str, int]:
    net.table("scale", np.asarray(0.7), np.float32)
    return net.node("scaled", "scaled = Mul (x, scale)"), ROWS * COLUMNS


def tokens(net: Network) -> tuple[str, int]:
    return net.matmul("each", "x", COLUMNS, COLUMNS), ROWS * COLUMNS


SEQUENCE = f"1, {ROWS}, {COLUMNS}"
REFUSED: dict[str, tuple[onnx.ModelProto, dict[str, object], str]] = {
    "padding": (image(padded), {}, r"late/Conv has padding in time \(axis 2 of x\).*; set its padding in time to 0"),
    "pad": (image(pad), {}, r"wider has padding in time \(axis 2 of x\)"),
    "pool": (image(pooled), {}, r"pool has padding in time \(axis 2 of x\)"),
    "normalisation": (image(normalised), {}, r"norm normalises over time \(axis 2 of x\); put a convolution"),
    "softmax": (image(softmax), {}, r"soft normalises over time \(axis 2 of x\); put a convolution"),
    "mean": (image(summed), {}, r"sum takes a sum over time \(axis 2 of x\); put a convolution"),
    "attention": (image(attention, SEQUENCE), {}, r"scores multiplies each moment by all others \(attention\); put"),
    "recurrent": (image(recurrent, SEQUENCE), {}, r"cell is recurrent, and begins each window with a state of zeros"),
    "strides": (image(strided), {}, r"first/Conv leaves out the last 1 rows of its input; choose window and strides"),
    "dense": (image(dense), {}, r"y/Gemm reads the whole window at once: it has no rows along axis 2 of x"),
    "tokens": (
        image(tokens, SEQUENCE),
        {},
        r"each/MatMul is a dense layer of each moment.*; write it as a convolution",
    ),
    "signal": (signal("mean"), {}, r"--listen on: .*first/Conv needs all channels of a moment.*; --input-layout lc"),
    "signal by axis": (
        signal("mean"),
        {"listen": 2},
        r"--listen 2: axis 2 of x .* inside of axis 1.*--input-layout lc, or export",
    ),
    "columns": (
        image(strided),
        {"listen": 3},
        r"--listen 3: axis 3 .* inside of axis 2.*leave it out, or export the model with time as",
    ),
    "no axis": (image(strided), {"listen": 4}, r"E0101.*--listen 4: x has axes 0 to 3"),
    "no number": (image(strided), {"listen": "time"}, r"E0101.*--listen: 'time' is no axis"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_does_not_stream_is_named(name: str) -> None:
    model, options, said = REFUSED[name]
    with pytest.raises(tt.CompileError, match=said) as found:
        tt.compile(model, **{"listen": "on", "update": "all", "verify": "none", **options})
    assert "\n" not in str(found.value)


@needs_gcc
@pytest.mark.parametrize("cell", ["LSTM", "Softmax"])
def test_what_is_behind_a_layer_of_rows_reads_a_ring(cell: str) -> None:
    """It is computed anew for the whole window, and exact."""

    def layers(net: Network) -> tuple[str, int]:
        x = net.relu(_conv(net, "first", "x", (8, CHANNELS, 5)))
        if cell == "Softmax":
            return net.node("soft", f"soft = Softmax <axis = 2> ({x})"), 8 * (ROWS - 4)
        turned = net.node("turned", f"turned = Transpose <perm = [2, 0, 1]> ({x})")
        weights = ", ".join((net.weight("w", 1, 16, 8), net.weight("r", 1, 16, 4)))
        net.node("cell", f"steps, last = LSTM <hidden_size = 4> ({turned}, {weights})")
        return "last", 4

    model = image(layers, f"1, {CHANNELS}, {ROWS}")
    twin = tt.compile(model, listen="on", update="all", verify="none", input_layout="lc").twin()
    stream = np.random.default_rng(2).normal(size=(ROWS + 9, CHANNELS)).astype(np.float32)
    heard = twin.instance.hear(stream)[ROWS - 1 :]
    windows = np.stack([stream[at : at + ROWS].T for at in range(10)])
    assert np.array_equal(heard, twin.instance.infer(twin.as_inputs(windows)))
