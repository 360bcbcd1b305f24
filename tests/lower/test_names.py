"""Names in generated C: kernels by what differs between them, loops by what they count, operands in the comment."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from tvm import tirx

from testing.ops import case_quantised as quantised
from testing.ops.cases import Case, cases_of, make
from tinytrain_compile.lower import LowerOptions, lower_nodes
from tinytrain_compile.lower.tir_walk import ByNode
from tinytrain_compile.ops.activation import ClipAttrs
from tinytrain_compile.ops.conv import ConvAttrs
from tinytrain_compile.ops.int8.error import NO_CLAMP
from tinytrain_compile.ops.int8.exponents import ExponentAttrs
from tinytrain_compile.ops.shape import ConcatAttrs


def test_variables_are_told_by_which_they_are() -> None:
    """TVM gives a new Python object for each reading of a node; two variables may have one name and type."""
    first, second = (tirx.Var("i", "int32") for _ in range(2))
    total, known = first + second, ByNode[str]()
    known[first] = "first"
    assert second not in known and hash(first) != hash(second)
    known[second] = "second"
    assert total.a is not first and [known[total.a], known[total.b]] == ["first", "second"]
    known[total.a] = "again"
    assert known[first] == "again"


def images(*shapes: tuple[int, ...]) -> tuple[np.ndarray, ...]:
    rng = np.random.default_rng(5)
    return tuple(rng.standard_normal(shape) for shape in shapes)


def conv(image: tuple[int, ...], channels: int, kernel: int = 3, stride: int = 1) -> Case:
    attrs = ConvAttrs((kernel, kernel), (stride, stride), (kernel // 2,) * 4)
    return make("Conv", images(image, (channels, kernel, kernel, image[3])), attrs)


def names(*cases: Case) -> list[str]:
    nodes = [replace(case.node(), name=f"n{i}") for i, case in enumerate(cases)]
    found = lower_nodes(nodes, LowerOptions("p"))
    assert [found.calls[node.name] for node in nodes] == [kernel.name for kernel in found.kernels]
    assert all(f"void {kernel.name}(" in kernel.declaration for kernel in found.kernels)
    return [kernel.name for kernel in found.kernels]


def source(case: Case) -> str:
    return lower_nodes([case.node()], LowerOptions("p")).kernels[0].source


def test_a_kernel_is_named_by_operator_and_size() -> None:
    assert names(conv((1, 8, 8, 4), 6)) == ["p_conv_8x8x6"]
    assert names(conv((1, 8, 8, 4), 6), conv((1, 4, 4, 4), 6)) == ["p_conv_8x8x6", "p_conv_4x4x6"]


def test_kernels_of_one_size_are_named_by_what_differs() -> None:
    three, five = conv((1, 8, 8, 4), 6), conv((1, 8, 8, 4), 6, kernel=5)
    assert names(three, five) == ["p_conv_8x8x6_kernel_3x3", "p_conv_8x8x6_kernel_5x5"]
    wide = conv((1, 8, 8, 2), 6)
    assert names(three, wide) == ["p_conv_8x8x6_from_1x8x8x4", "p_conv_8x8x6_from_1x8x8x2"]
    strided = conv((1, 16, 16, 4), 6, stride=2)
    assert names(three, strided) == ["p_conv_8x8x6_strides_1x1", "p_conv_8x8x6_strides_2x2"]


def test_as_many_differences_as_it_takes() -> None:
    kernels = [(3, 4), (5, 4), (3, 2)]
    found = names(*(conv((1, 8, 8, channels), 6, kernel=kernel) for kernel, channels in kernels))
    assert found == [f"p_conv_8x8x6_kernel_{k}x{k}_from_1x8x8x{c}" for k, c in kernels]


def test_what_is_switched_on_is_named() -> None:
    state = (np.zeros(2, np.int32), np.zeros((), np.int32))
    cases = [make("ExponentUpdate", state, ExponentAttrs(float_peak=on)) for on in (True, False)]
    assert names(*cases) == ["p_exponent_update_2_float_peak", "p_exponent_update_2"]


def test_comments_have_geometry_and_the_names_of_parameters() -> None:
    """Every name in front of a shape is a parameter of the C function."""
    for op in ("Gemm", "Conv", "ConvGradInput", "SgdUpdate", "Clip", "MaxPoolGrad", "QConv", "ConvGradWeightSgdUpdate"):
        text = source(cases_of(op)[0])
        comment, _, code = text.partition("*/")
        operands, _, results = comment.partition("Shapes: ")[2].rstrip(". ").partition(" -> ")
        names = re.findall(r"(\w+) (?:[\dx]+|scalar)(?=, |$)", f"{operands}, {results}")
        assert names and set(names) <= set(re.findall(r"\*(?:restrict )?(\w+)[,)]", code.partition("{")[0])), text[:600]
    assert source(conv((1, 8, 8, 1), 8)).startswith(
        "/* Conv: 3x3, stride 1, pad 1, 1 -> 8 channels, 8x8. Padding: the first window begins 9 elements before x. "
        "Shapes: x 1x8x8x1, w 8x3x3x1 -> y 1x8x8x8. */\n"
    )
    relu = make("Clip", images((1, 4)), ClipAttrs(low=0.0))
    assert source(relu).startswith("/* Clip: y = max(x, 0). Shapes: x 1x4 -> y 1x4. */\n")


def test_loops_say_what_they_count() -> None:
    depthwise = make("Conv", images((1, 8, 8, 8), (8, 3, 3, 1)), ConvAttrs((3, 3), (1, 1), (1, 1, 1, 1), groups=8))
    assert loops(depthwise) == ["row", "column", "channel_tile", "tap_row", "tap_column"]
    assert loops(cases_of("Tanh")[0]) == ["i"]


def loops(case: Case) -> list[str]:
    return re.findall(r"for \(int32_t (\w+) = ", source(case))


@pytest.mark.parametrize("op", ["QConv", "QConvGradInput", "QConvUpdate"])
def test_loops_of_integer_kernels_have_words(op: str) -> None:
    outputs = 10 if op == "QConvGradInput" else 16  # of which the kernel is no call
    geometry = ((1, 8, 8, 8), outputs, ConvAttrs((3, 3), (1, 1), (1, 1, 1, 1)))
    rng = np.random.default_rng(2)
    cases = {
        "QConv": lambda: quantised.qconv(rng, geometry, 0),  # type: ignore[arg-type]
        "QConvGradInput": lambda: quantised.qconv_grad_input(rng, geometry, 0, NO_CLAMP),  # type: ignore[arg-type]
        "QConvUpdate": lambda: quantised.qconv_update(rng, geometry, 0),  # type: ignore[arg-type]
    }
    found = loops(cases[op]())
    assert len(found) >= 7
    assert [name for name in found if re.fullmatch(r"(i|ax\d+)(_\d+)?", name)] == []


def test_a_concat_of_many_inputs() -> None:
    """One loop for each. TVM took minutes to cut a loop over 255 inputs, in the cube of their number."""
    made = source(make("Concat", images(*[(2, 1 + i % 5) for i in range(255)]), ConcatAttrs(1)))
    loops = re.findall(r"\bfor \(.* (\w+?)(?:_\d+)? < (\d+);", made)
    assert loops == [("row", "2"), *(("column", str(1 + i % 5)) for i in range(255) if i % 5)]
    assert "?" not in made and "if (" not in made
