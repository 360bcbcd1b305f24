"""The nearest of known names, for errors."""

from __future__ import annotations

import pytest

from tinytrain_compile.near import hint, nearest
from tinytrain_compile.target.loader import list_boards, list_targets

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "adagrad", "rmsprop", "lion")


@pytest.mark.parametrize(
    ("name", "known", "wanted"),
    [
        ("mometum", OPTIMIZERS, "momentum"),
        ("Adam", OPTIMIZERS, "adam"),
        ("RMS-Prop", OPTIMIZERS, "rmsprop"),
        ("crossentropy", ("cross-entropy", "mse", "bce"), "cross-entropy"),
        ("esp32", list_boards(), "esp32-c3"),
        ("nucleo-f446", (*list_targets(), *list_boards()), "nucleo-f746zg"),
        ("cortex_m4", list_targets(), "cortex-m4"),
        ("nadam", ("sgd", "lion"), ""),
        ("", OPTIMIZERS, ""),
        ("x", (), ""),
    ],
)
def test_the_name_that_was_meant(name: str, known: tuple[str, ...], wanted: str) -> None:
    assert nearest(name, known) == wanted


def test_a_hint_lists_what_fits_into_a_line() -> None:
    assert hint("mse2", ("cross-entropy", "mse")) == "did you mean mse? (known: cross-entropy, mse)"
    assert hint("zzz", ("a", "b")) == "choose one of a, b"
    assert hint("zzz", ("a",)) == "the only one is a"
    assert hint("zzz", ()) == "there are none"
    many = [f"layer{i}" for i in range(40)]
    assert hint("zzz", many, "-v lists them") == f"choose one of {', '.join(many[:10])}, ... (-v lists them)"
    assert hint("layr7", many) == "did you mean layer7?"
