"""A project has the runtime headers that it uses, and no other."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from testing.networks import models
from tests.e2e import chain
from tests.e2e.command import run
from tinytrain_compile.emit.project import FIRST, copied, directly_used, with_included
from tinytrain_compile.files.resources import data_dir, runtime_headers
from tinytrain_compile.ir.stages import SourceBundle

HEADERS = {
    FIRST: '#include "tt_config.h"\nstatic inline int tt_a(int x)\n{\n}\n',
    "tt_config.h": "#define TT_SWITCH 1\n",
    "tt_b.h": '#include "tt_runtime.h"\nTT_SHARED int tt_b(int x)\n{\n}\ntypedef struct {\n    int x;\n} tt_pair;\n',
    "tt_c.h": '#include "tt_b.h"\n#define TT_C(x) (x)\n',
}


def test_used_is_what_a_name_of_a_header_says() -> None:
    assert directly_used(["tt_a(1); TT_SWITCH"], HEADERS) == ()
    assert directly_used(["y = tt_b(x);"], HEADERS) == ("tt_b.h",)
    assert directly_used(["tt_pair x;", "TT_C(3)"], HEADERS) == ("tt_b.h", "tt_c.h")
    assert directly_used(["tt_bb(x); my_tt_b(x); /* as tt_b(x),\n * and TT_C */"], HEADERS) == ()


def test_copied_is_what_these_include_too() -> None:
    assert list(copied((), (), HEADERS)) == [FIRST, "tt_config.h"]
    assert list(copied(["tt_c.h"], (), HEADERS)) == list(HEADERS)
    assert list(copied((), ['#include "tt_b.h"\n#include "own.h"\n'], HEADERS)) == [FIRST, "tt_config.h", "tt_b.h"]


def test_headers_include_what_they_name() -> None:
    headers = runtime_headers()
    for name, text in headers.items():
        used = set(directly_used([text], headers)) - {name}
        assert used <= set(with_included([name], headers)), name


def bundle(target: str, **options: object) -> SourceBundle:
    return chain.project(chain.train_graph(models.mlp(), **options), target).bundle  # type: ignore[arg-type]


ALWAYS = {"tt_config.h", "tt_runtime.h", "tt_state.h"}


@pytest.mark.parametrize(
    ("make", "more"),
    [
        (lambda: bundle("cortex-m0plus"), set[str]()),
        (lambda: bundle("cortex-m7"), {"tt_float_pairs.h"}),
        (lambda: bundle("cortex-m55"), {"tt_mve_float.h", "tt_mve_count.h"}),
    ],
)
def test_a_float_project_has_no_integer_helpers(make: Callable[[], SourceBundle], more: set[str]) -> None:
    made = make()
    assert {name for name in made.files if name.startswith("tt_")} == ALWAYS | more
    included = set(re.findall(r'#include "(tt_\w+\.h)"', made.files["net_internal.h"]))
    assert included == (ALWAYS | more) - {"tt_config.h", "tt_mve_count.h"}, "those that others include are not named"


def test_the_switches_know_no_model() -> None:
    text = runtime_headers()["tt_config.h"]
    assert bundle("cortex-m0plus").files["tt_config.h"] == bundle("cortex-m55").files["tt_config.h"] == text
    switches = re.findall(r"^#define (TT_HAS_\w+) ", text, re.MULTILINE)
    listed = text.partition("*/\n/*")[2].partition("*/")[0]
    assert set(switches) == set(re.findall(r"TT_HAS_\w+", listed))
    others = "".join(other for name, other in runtime_headers().items() if name != "tt_config.h")
    assert re.findall(r"#define TT_HAS_\w+", others) == []


@pytest.mark.parametrize(("quant", "fused"), [("fp32", 1), ("int8", 0)])
def test_only_a_network_of_floats_fuses(quant: str, fused: int, tmp_path: Path) -> None:
    """Helpers of the runtime fuse where the header says so; an int8 network has the same bytes on every core."""
    model, data = (data_dir("runtime_c").parent / "examples" / "digits" / name for name in ("digits.onnx", "calib.npz"))
    options = ("--quant", quant, *(("--calib", data) if quant == "int8" else ()))
    run(model, *options, "--target", "cortex-m7", "--update", "last:1", "-o", tmp_path / "out").check_success()
    assert f"#define TT_HAS_FMA {fused}\n" in (tmp_path / "out" / "digits_internal.h").read_text()
