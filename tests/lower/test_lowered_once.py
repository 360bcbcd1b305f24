"""A process lowers a node once: what it has kept is what it would make, and nothing that another rule or node gave."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testing.ops.cases import cases_of
from tinytrain_compile.lower import LowerOptions, lower, lower_nodes
from tinytrain_compile.lower.kernels import KERNELS, SIZE, Features
from tinytrain_compile.lower.lower import lower_node
from tinytrain_compile.ops import OPS

COMPUTED = sorted(name for name, op in OPS.items() if not (op.view or op.page))


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were really lowered, from nothing kept."""
    names: list[str] = []
    real = lower.lower_node

    def counted(*arguments: object) -> object:
        names.append(str(arguments[1]))
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(lower, "_lowered_before", {})
    monkeypatch.setattr(lower, "lower_node", counted)
    return names


@pytest.mark.parametrize("op", COMPUTED)
def test_what_is_kept_is_what_would_be_made(op: str) -> None:
    """Under another name than that of the first."""
    node = cases_of(op)[0].node()
    lower_nodes([node], LowerOptions("before"))
    (kept,) = lower_nodes([node], LowerOptions("now")).kernels
    assert kept == lower_node(node, kept.name, Features())
    assert "before_" not in kept.source + kept.declaration


def test_the_same_node_is_lowered_once(lowered: list[str]) -> None:
    nodes = [case.node() for case in cases_of("Conv")[:2]]
    first, again = (lower_nodes(nodes, LowerOptions("p")) for _ in range(2))
    assert len(lowered) == 2
    assert (first.kernels, first.calls) == (again.kernels, again.calls)


def test_what_decides_the_code_is_told_apart(lowered: list[str]) -> None:
    node = cases_of("Gemm")[0].node()
    options = LowerOptions("p")
    for other in (
        options,
        replace(options, features=replace(options.features, fpu=False)),
        replace(options, features=replace(options.features, style=SIZE)),
        replace(options, fuse_multiply_add=False),
    ):
        lower_nodes([node], other)
    assert len(lowered) == 4


def test_zeros_of_both_signs_are_told_apart(lowered: list[str]) -> None:
    """They are equal, but not as numbers of a kernel."""
    clip = next(case.node() for case in cases_of("Clip"))
    texts = {
        lower_nodes([replace(clip, attrs=replace(clip.attrs, low=low))], LowerOptions("p")).kernels[0].source
        for low in (0.0, -0.0)
    }
    assert (len(texts), len(lowered)) == (2, 2)


def test_a_rule_that_a_test_replaces_is_used(lowered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    node = cases_of("Tanh")[0].node()
    sound = lower_nodes([node], LowerOptions("p")).kernels[0].source
    with monkeypatch.context() as patch:
        patch.setitem(KERNELS, "Tanh", KERNELS["Sigmoid"])
        assert lower_nodes([node], LowerOptions("p")).kernels[0].source != sound
    assert lower_nodes([node], LowerOptions("p")).kernels[0].source == sound
    assert len(lowered) == 2
