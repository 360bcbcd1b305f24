"""Networks of other frameworks (../shared/zoo) train as there, and faults in what is trained are seen by that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from testing.networks.zoo import Network, networks, networks3, trained
from testing.networks.zoo_verdicts import NOT_ASKED, OTHERWISE, judge, judged
from testing.places import ROOT
from tests.e2e.marks import needs_shared
from tinytrain_compile.frontend import accounts, derived, importer
from tinytrain_compile.frontend.weights import known_constants, parameters
from tinytrain_compile.frontend.weights.parameters import Trainables
from tinytrain_compile.ir.graph import GraphBuilder
from tinytrain_compile.training import loss
from tinytrain_compile.training.loss import End

ZOO = {network.name: network for network in networks()}
TABLE = (ROOT / "docs" / "zoo.md").read_text()
Plant = Callable[[pytest.MonkeyPatch], dict[str, Any]]


@needs_shared
@pytest.mark.parametrize("name", ZOO)
def test_trains_as_in_its_framework(name: str) -> None:
    verdict, remark = judged(ZOO[name])
    assert f"| {name} | {verdict} |" in TABLE, "python -m benchmarks zoo --write docs/zoo.md"
    assert verdict in ("equal", "imports", "changed", "noted", "refused"), remark
    assert (verdict == "refused") or name not in NOT_ASKED


FORKS = ("g_aux_deep", "g_autoenc_sparse", "g_multitask")


@needs_shared
@pytest.mark.parametrize("name", [f"{name}.{exporter}" for name in FORKS for exporter in ("ts", "dyn")])
def test_a_loss_that_reads_several_tensors_trains_as_in_its_framework(name: str) -> None:
    verdict, remark = judged(next(networks3(name)))
    assert verdict == "equal", remark


def options(**more: Any) -> Plant:
    """A fault that options make as well."""

    def plant(_patch: pytest.MonkeyPatch) -> dict[str, Any]:
        return more

    return plant


def frozen(name: str) -> Plant:
    """One parameter is silently none."""

    def plant(patch: pytest.MonkeyPatch) -> dict[str, Any]:
        real = Trainables.trained

        def trained(self: Trainables, other: str) -> bool:
            return other != name and real(self, other)

        patch.setattr(Trainables, "trained", trained)
        return {}

    return plant


def without(rule: str) -> Plant:
    """A rule of known constants is missing."""

    def plant(patch: pytest.MonkeyPatch) -> dict[str, Any]:
        left = tuple(entry for entry in known_constants.RULES if entry[1].__name__ != rule)
        assert len(left) == len(known_constants.RULES) - 1
        patch.setattr(known_constants, "RULES", left)
        return {}

    return plant


def replaced(module: Any, name: str, by: Any) -> Plant:
    """A step of the import or of the loss does nothing."""

    def plant(patch: pytest.MonkeyPatch) -> dict[str, Any]:
        patch.setattr(module, name, by)
        return {}

    return plant


def always(result: Any) -> Callable[..., Any]:
    """A function that gives this, whatever it is asked."""

    def given(*_: Any) -> Any:
        return result

    return given


def unchanged(model: Any) -> Any:
    """A step that does nothing."""
    return model


def nothing_absorbed(_builder: GraphBuilder, end: End, *_: Any) -> Any:
    """A loss behind whatever the model ends in."""
    return end.output, ()


FAULTS: dict[str, tuple[str, Plant]] = {
    "a frozen class token": ("torch-ts/x_cat_param", frozen("p")),
    "a frozen class token of a transformer": ("torch-ts/vit_timm", frozen("cls")),
    "a frozen position table": ("torch-dynamo/dyn_vit_timm", frozen("pos")),
    "a frozen subtrahend": ("torch-ts/x_bias_neg", frozen("p")),
    "a frozen divisor": ("torch-ts/x_div_param", frozen("p")),
    "a frozen scalar": ("torch-ts/x_rezero", frozen("g")),
    "a frozen vector of one": ("torch-ts/x_rezero1", frozen("g")),
    "a frozen temperature inside an Exp": ("torch-ts/x_temp_param", frozen("g")),
    "a frozen query": ("torch-ts/x_query_pool", frozen("q")),
    "a frozen scale after an activation": ("torch-dynamo/film_scale", frozen("view")),
    "a trained table of waves": ("torch-ts/x_sincos_posenc", without("is_of_waves")),
    "a trained fixed scale": ("torch-ts/x_const_buffers", without("is_rescaling")),
    "trained preprocessing": ("torch-dynamo/seqnorm_input", without("is_preprocessing")),
    "a trained scale of a norm without": (
        "torch-ts/instancenorm",
        options(trainable=("/4/Constant_output_0", "/4/Constant_1_output_0")),
    ),
    "a split tie": ("torch-ts/tied_ae", replaced(accounts, "tied_weights", always(frozenset[str]()))),
    "equal values tied": ("torch-ts/x_fresh_norms", options(untie=False)),
    "a copy of a parameter": ("torch-dynamo/rnn_tanh", replaced(importer, "without_copies", unchanged)),
    "folded through a parameter": ("torch-ts/x_temp_param", replaced(derived, "is_trained_through", always(False))),
    "a second sigmoid": ("torch-ts/x_sigmoid_squeeze", replaced(loss, "absorb", nothing_absorbed)),
    "a second softmax": ("torch-ts/x_softmax_seq3d", replaced(loss, "absorb", nothing_absorbed)),
    "probabilities taken for scores": (
        "torch-ts/x_sigmoid_flatten5",
        replaced(loss, "is_probability", always(False)),
    ),
    "every constant trained": ("torch-dynamo/seqnorm_input", replaced(parameters, "purpose", always(""))),
}


@needs_shared
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_seen(fault: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, plant = FAULTS[fault]
    network: Network = ZOO[name]
    more = {**OTHERWISE.get(name, ({}, ""))[0], **plant(monkeypatch)}
    outcome = trained(network, **more)
    assert outcome.error is None, outcome.error
    verdict, remark = judge(network, outcome)
    assert verdict == "DIFFERENT", remark
