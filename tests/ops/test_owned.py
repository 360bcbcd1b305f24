"""No operator that overwrites something is without a declaration (OpDef.owned); other stages decide by it alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from testing.networks import models
from tests.e2e import chain
from tests.quantize import nets
from tinytrain_compile.emit.checkpoint import contents
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ops import OPS
from tinytrain_compile.ops.base import OpDef, register, steps_floats
from tinytrain_compile.ops.owned import IntegerStep, Owned
from tinytrain_compile.ops.update import OPTIMIZERS, AdaptiveAttrs, SgdAttrs
from tinytrain_compile.training import fuse_updates

REFUSED = ("AdamUpdate", "AdagradUpdate", "RmsPropUpdate", "RmsPropMomentumUpdate", "RmsPropCenteredUpdate")
IN_INT8 = ("SgdUpdate", "MomentumUpdate", "LionUpdate")
SGD = IntegerStep(SgdAttrs, lambda _attrs: None)


def planted(owned: Owned | None) -> OpDef:
    """An optimizer that somebody adds: RMSprop under another name."""
    return replace(OPS["RmsPropUpdate"], name="Planted", owned=owned)


@pytest.mark.parametrize(
    ("owned", "said"),
    [
        (None, r"op Planted overwrites \['s', 'w'\], but says of \[\] what they hold"),
        (Owned({"w": "PARAMETER"}, "refused"), r"says of \['w'\]"),
        (Owned({"w": "PARAMETER", "s": "FINITE", "v": "FINITE"}, "refused"), r"says of \['s', 'v', 'w'\]"),
        (Owned({"w": "PARAMETER", "s": "FINITE"}, "float"), "steps a parameter: declare its int8 form"),
        (Owned({"w": "PARAMETER", "s": "FINITE"}, SGD), r"declares the int8 form of SgdAttrs and ''"),
        (Owned({"w": "PARAMETER", "s": "FINITE"}, replace(SGD, attrs=AdaptiveAttrs)), r"\['s'\], but declares"),
    ],
)
def test_an_optimizer_without_a_declaration_is_no_operator(owned: Owned | None, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        register(planted(owned))
    assert "Planted" not in OPS


def test_every_form_of_an_operator_is_declared() -> None:
    overwriting = [definition for definition in OPS.values() if definition.overwritten and not definition.error]
    owners = {definition.name: definition.owned for definition in overwriting}
    assert len(owners) > 20
    assert [name for name, owned in owners.items() if owned is None] == []
    steps = [name for name in OPS if steps_floats(name)]
    assert sorted(steps) == sorted((*IN_INT8, *REFUSED))
    able = {name for name in steps if (owned := OPS[name].owned) and isinstance(owned.int8, IntegerStep)}
    assert able == set(IN_INT8)


def test_int8_refuses_what_declares_that_it_must(monkeypatch: pytest.MonkeyPatch) -> None:
    nets.int8_train(nets.cnn())
    monkeypatch.setitem(OPS, "SgdUpdate", replace(OPS["SgdUpdate"], owned=Owned({"w": "PARAMETER"}, "refused")))
    with pytest.raises(CompileError, match="E0113"):
        nets.int8_train(nets.cnn())


@pytest.mark.parametrize("optimizer", [name for name in OPTIMIZERS if name not in ("sgd", "momentum", "lion")])
def test_int8_refuses_every_optimizer_without_an_integer_form(optimizer: str) -> None:
    with pytest.raises(CompileError, match=r"E0113.*--optimizer: .* train with sgd, momentum or lion"):
        nets.int8_train(nets.cnn(), optimizer=optimizer)


@pytest.mark.parametrize(("optimizer", "ends"), [("adam", ("moment2",)), ("rmsprop", ("squares",))])
def test_a_checkpoint_s_squares_are_not_negative_whatever_is_fused(optimizer: str, ends: tuple[str, ...]) -> None:
    train = fuse_updates(chain.train_graph(models.mlp(), optimizer=optimizer))  # type: ignore[arg-type]
    assert any(node.op == "FusedUpdate" for node in train.graph.nodes)
    kinds = contents(train)
    squares = {name for name in kinds if name.endswith(ends)}
    assert len(squares) == 6
    assert {kinds[name] for name in squares} == {"NOT_NEGATIVE"}
    assert all(np.min(train.graph.constants[name]) >= 0 for name in squares)
