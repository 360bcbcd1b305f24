"""What a cache has kept is what would be made, and nothing that another rule or node gave; it is the caller's."""

from __future__ import annotations

from dataclasses import replace

import pytest

from testing.ops.cases import cases_of, forms_where
from tinytrain_compile.ir.kernels import Kernel, KernelCache
from tinytrain_compile.ir.types import Node
from tinytrain_compile.lower import LowerOptions, lower, lower_nodes
from tinytrain_compile.lower.kernels import KERNELS, SIZE, InstructionSet, KernelContext
from tinytrain_compile.lower.lower import lower_node

COMPUTED = forms_where(lambda op: not (op.view or op.page))


@pytest.fixture
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the kernels that were really lowered, from nothing kept."""
    names: list[str] = []
    real = lower.lower_node

    def counted(*arguments: object) -> object:
        names.append(str(arguments[1]))
        return real(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(lower, "lower_node", counted)
    return names


def _lowered(node: Node, options: LowerOptions, cache: KernelCache | None) -> Kernel:
    return lower_nodes([node], options, cache=cache).kernels[0]


def test_what_is_kept_is_what_would_be_made() -> None:
    """Under another name than that of the first."""
    for op in COMPUTED:
        node = cases_of(op)[0].node()
        cache = KernelCache()
        _lowered(node, LowerOptions("earlier"), cache)
        kept = _lowered(node, LowerOptions("now"), cache)
        assert kept == lower_node(node, kept.name, KernelContext()), op
        assert "earlier_" not in kept.source + kept.declaration, op


def test_the_same_node_is_lowered_once(lowered: list[str]) -> None:
    nodes = [case.node() for case in cases_of("Conv")[:2]]
    cache = KernelCache()
    first, again = (lower_nodes(nodes, LowerOptions("p"), cache=cache) for _ in range(2))
    assert len(lowered) == 2
    assert (first.kernels, first.calls) == (again.kernels, again.calls)


def test_nothing_is_kept_without_a_cache(lowered: list[str]) -> None:
    node = cases_of("Tanh")[0].node()
    assert _lowered(node, LowerOptions("p"), None) == _lowered(node, LowerOptions("p"), None)
    assert len(lowered) == 2


def test_a_full_cache_forgets_what_was_asked_for_longest_ago(lowered: list[str]) -> None:
    tanh, sigmoid, relu = (cases_of(op)[0].node() for op in ("Tanh", "Sigmoid", "Clip"))
    cache = KernelCache(limit=2)
    for node in (tanh, sigmoid, tanh, relu, tanh):
        _lowered(node, LowerOptions("p"), cache)
    assert len(lowered) == 3
    _lowered(sigmoid, LowerOptions("p"), cache)
    assert len(lowered) == 4


def test_what_decides_the_code_is_told_apart(lowered: list[str]) -> None:
    node = cases_of("Gemm")[0].node()
    options, cache = LowerOptions("p"), KernelCache()
    for other in (
        options,
        replace(options, context=KernelContext(InstructionSet(fpu=False))),
        replace(options, context=KernelContext(style=SIZE)),
    ):
        _lowered(node, other, cache)
    assert len(lowered) == 3


def test_zeros_of_both_signs_are_told_apart(lowered: list[str]) -> None:
    """They are equal, but not as numbers of a kernel."""
    clip = next(case.node() for case in cases_of("Clip"))
    cache = KernelCache()
    texts = {
        _lowered(replace(clip, attrs=replace(clip.attrs, low=low)), LowerOptions("p"), cache).source
        for low in (0.0, -0.0)
    }
    assert (len(texts), len(lowered)) == (2, 2)


def test_a_rule_that_a_test_replaces_is_used(lowered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    node = cases_of("Tanh")[0].node()
    cache = KernelCache()
    sound = _lowered(node, LowerOptions("p"), cache).source
    with monkeypatch.context() as patch:
        patch.setitem(KERNELS, "Tanh", KERNELS["Sigmoid"])
        assert _lowered(node, LowerOptions("p"), cache).source != sound
    assert _lowered(node, LowerOptions("p"), cache).source == sound
    assert len(lowered) == 2
