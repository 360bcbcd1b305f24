"""What is never trained has a row for each reason, counts in the share, and is named in report.json and report.html."""

from __future__ import annotations

from dataclasses import replace

from tests.report.hand import two_layers_summary
from tinytrain_compile.ir.summary import Fate, Summary
from tinytrain_compile.report.data import report_json
from tinytrain_compile.report.pages.html import report_html
from tinytrain_compile.report.text import success_text

STATISTICS = tuple(
    Fate(f"n{i}.{what}", "other", f"running statistics of n{i} (BatchNormalization)", 8)
    for i in range(9)
    for what in ("mean", "var")
)


def summary() -> Summary:
    own = (
        Fate("fc1.weight", "trained", "read by fc1 (Gemm)", 32, 32),
        Fate("gamma", "absorbed", "read by norm (BatchNormalization)", 4, into="fc1.weight"),
        Fate("fc2.weight", "update", "read by fc2 (Gemm)", 12),
        Fate("<b>", "other", "a buffer, as the exporter recorded", 1),
    )
    return replace(two_layers_summary(), fates=(*own, *STATISTICS))


def test_one_row_for_each_reason() -> None:
    lines = success_text(summary())
    start = next(index for index, line in enumerate(lines) if line.startswith("untrained"))
    text = " ".join(" ".join(line.split()) for line in lines[start : start + 3])
    assert text.startswith("untrained 144 numbers (running statistics): n0.mean 8, n0.var 8,")
    assert "more in report.json 1 number (a buffer, as the exporter recorded): <b> 1" in text
    assert any("32 of 189 numbers (16.9%)" in line for line in lines)


def test_no_row_without_such_numbers() -> None:
    lines = success_text(two_layers_summary())
    assert not any("untrained" in line for line in lines)
    assert any("32 of 44 parameters (72.7%)" in line for line in lines)


def test_all_names_are_in_the_files() -> None:
    content = report_json(summary())
    assert [entry["class"] for entry in content["parameters"]][:5] == [
        "trained",
        "absorbed",
        "update",
        "other",
        "other",
    ]
    assert content["parameters"][1]["into"] == "fc1.weight"
    assert (content["update_totals"]["untrained"], content["update_totals"]["total_parameters"]) == (145, 189)
    page = report_html(summary())
    assert all(fate.name in page for fate in STATISTICS)
    assert "&lt;b&gt; 1" in page and "<b> 1" not in page


def test_almost_all_is_not_all() -> None:
    one = replace(summary(), fates=(Fate("epsilon", "other", "it keeps a root or division finite (epsilon)", 1),))
    layers = tuple(replace(layer, elements=10**6, total_elements=10**6) for layer in one.layers)
    assert any("2,000,000 of 2,000,001 numbers (>99.9%)" in line for line in success_text(replace(one, layers=layers)))
