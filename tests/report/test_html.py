"""report.html: well-formed, self-contained, safe with any name, small enough, and with the figures in it."""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from tests.report.hand import VERIFIED, deep_summary, two_layers_summary
from tinytrain_compile.ir.buffers import Buffer
from tinytrain_compile.ir.summary import Suggestion, Summary
from tinytrain_compile.ir.types import Graph, Node, Value
from tinytrain_compile.report.analysis import analyse
from tinytrain_compile.report.pages.html import report_html
from tinytrain_compile.report.pages.picture import about_text, axis_text, build_picture, label_of

VOID = {"meta", "link", "br", "hr", "img", "input"}
EVIL = "\"><script>alert('x')</script>\x00\u202e{{ 7*7 }}&amp;"


class Page(HTMLParser):
    """Checks nesting; collects elements (tag, attributes) and the text inside each kind of tag."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert len({name for name, _ in attrs}) == len(attrs), f"<{tag}> has an attribute twice"
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
            self.texts.setdefault(tag, []).append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open:
            self.texts[self.open[-1]][-1] += data

    def all(self, tag: str, **wanted: str) -> list[dict[str, str | None]]:
        return [
            attrs
            for name, attrs in self.elements
            if name == tag and all((attrs.get(key.rstrip("_")) or "").split()[:1] == [v] for key, v in wanted.items())
        ]


@pytest.fixture(scope="module")
def text() -> str:
    return report_html(two_layers_summary(verify=VERIFIED))


def test_it_is_an_accessible_page(text: str) -> None:
    page = Page(text)
    assert page.all("html")[0]["lang"] == "en"
    assert page.texts["title"][0] == "net.onnx: training memory on cortex-m7"
    assert len(page.all("h1")) == 1
    assert len(page.all("th")) == len([a for a in page.all("th") if a.get("scope") in ("col", "row")])
    assert all("aria-label" in a or "aria-labelledby" in a for a in page.all("svg") if a.get("role") == "img")


def test_every_buffer_is_a_rectangle_with_its_bytes_and_its_story(text: str) -> None:
    page = Page(text)
    boxes = [a for a in page.all("g") if (a.get("class") or "").startswith("box")]
    assert [box["id"] for box in boxes] == [f"b{i}" for i in range(11)]
    stories = [t for t in page.texts["title"] if t.startswith("fc1\n")]
    assert stories == [
        "fc1\n16 B at offset 184 (to 200)\nactivations, steps 0 to 8\n"
        "written by fc1, last read by relu\nwritten by relu, last read by d_h"
    ]
    rects = [a for a in page.all("rect") if a.get("width") == "9" and a.get("height") == "16"]
    height = int(400 * 1.07)
    assert rects == [
        {"class": "c-activations", "x": "0", "y": str(height - 200), "width": "9", "height": "16"},
    ]


def test_peak_limit_and_arena_are_marked(text: str) -> None:
    page = Page(text)
    assert "peak 336 B at step 9" in page.texts["text"]
    assert "--arena 400 B" in page.texts["text"]
    assert "arena used 368 B" in page.texts["text"]
    assert "lower bound 336 B" in page.texts["text"]
    assert page.all("rect", class_="peak")[0]["x"] == "9"


def test_figures_are_in_a_table(text: str) -> None:
    page = Page(text)
    assert "fc1" in page.texts["span"]
    for expected in ("480 B", "400 B", "2,048 B", "512 B", "44 MAC", "11 steps", "132 B (what a checkpoint saves)"):
        assert expected in page.texts["td"], expected
    assert page.texts["td"].count("not measured") == 0
    unknown = Page(report_html(two_layers_summary()))
    assert unknown.texts["td"].count("not measured") == 4


def test_nothing_comes_from_outside(text: str) -> None:
    page = Page(text)
    assert re.findall(r"https?://", text) == []
    assert all("src" not in attrs for _, attrs in page.elements)
    assert {a["href"] for a in page.all("link")} == {"data:,"}
    assert "@import" not in text
    assert "url(" not in text
    assert all("style" not in attrs and not any(k.startswith("on") for k in attrs) for _, attrs in page.elements)


def test_only_our_own_script_and_style_may_run(text: str) -> None:
    page = Page(text)
    policy = next(a["content"] for a in page.all("meta") if "http-equiv" in a)
    for tag in ("script", "style"):
        (content,) = page.texts[tag]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}'" in str(policy)
    assert "default-src 'none'" in str(policy)


def test_it_follows_light_and_dark(text: str) -> None:
    assert "prefers-color-scheme: dark" in text
    assert "color-scheme: light dark" in text


def test_names_are_data() -> None:
    harmless = Page(report_html(two_layers_summary(verify=VERIFIED, suggestions=(Suggestion("a", 1, "b"),))))
    text = report_html(_with_names(two_layers_summary(verify=VERIFIED), EVIL))
    page = Page(text)
    assert len(page.all("script")) == len(harmless.all("script")) == 1
    assert [tag for tag, _ in page.elements].count("svg") == [tag for tag, _ in harmless.elements].count("svg")
    assert "\x00" not in text
    assert "\u202e" not in text
    assert "{{ 7*7 }}" in text
    shown = "\"><script>alert('x')</script>\\x00\\u202e{{ 7*7 }}&amp;"
    assert page.texts["h1"][0].strip().startswith(shown)
    assert any(story.startswith(f"fc1{shown}") for story in page.texts["title"])
    assert any((a.get("data-name") or "").startswith('fc1"><script>') for a in page.all("svg"))


def test_no_name_is_too_long() -> None:
    text = report_html(_with_names(two_layers_summary(), "n" * 100_000))
    assert len(text.encode()) < 100_000


def test_five_hundred_buffers_stay_below_two_megabytes() -> None:
    summary = deep_summary(125, "a_long_name_of_a_block_" * 12)
    assert len(summary.plan.buffers) >= 500
    text = report_html(summary)
    page = Page(text)
    assert len([a for a in page.all("g") if (a.get("class") or "").startswith("box")]) == len(summary.plan.buffers)
    assert len(text.encode()) < 2_000_000


def test_over_the_limit() -> None:
    text = report_html(
        two_layers_summary(arena_limit_bytes=300, suggestions=(Suggestion("--arena 368", 368, sets_arena=True),))
    )
    page = Page(text)
    assert "Over by 68 B." in text
    assert "no order and no placement of these steps can fit" in text
    assert len(page.all("rect", class_="over")) == 1
    assert "What would fit, each priced by planning it" in page.texts["h2"]


def test_same_summary_same_page(text: str) -> None:
    assert report_html(two_layers_summary(verify=VERIFIED)) == text


def test_nan_losses_draw_no_curve(text: str) -> None:
    assert Page(text).all("polyline") == [], "random samples"
    assert len(Page(report_html(two_layers_summary(verify=VERIFIED, own_samples=9))).all("polyline")) == 1
    broken = replace(VERIFIED, losses=(1.0, float("nan")), result="fail")
    assert Page(report_html(two_layers_summary(verify=broken, own_samples=9))).all("polyline") == []


def test_a_buffer_that_changes_its_kind_changes_its_colour() -> None:
    summary = two_layers_summary()
    rows = [b for b in summary.plan.buffers if b.name not in ("log_probabilities", "d_logp")]
    joined = Buffer("log_probabilities", "tensor", 16, 216, 3, 7, ("log_probabilities", "d_z"))
    alone = Buffer("d_logp", "tensor", 16, 200, 5, 6, ("d_logp",))
    plan = replace(summary.plan, buffers=(*rows, joined, alone))
    picture = build_picture(analyse(summary.train, plan), None)
    box = next(box for box in picture.boxes if box.holding.buffer is joined)
    assert [(p.first, p.count, p.category) for p in box.pieces] == [(3, 3, "activations"), (6, 2, "gradients")]


def test_stacked_areas_end_at_the_load() -> None:
    picture = build_picture(analyse(*_parts(two_layers_summary())), 400)
    assert picture.area_height == 336
    assert [(phase_bar.first, phase_bar.count, phase_bar.role) for phase_bar in picture.phase_bars] == [
        (0, 5, "forward"),
        (5, 5, "backward"),
        (10, 1, "update"),
    ]
    top = picture.areas[-1]
    assert top.category == "gradients"
    assert top.path.startswith(
        "M0 136L2 136L2 120L3 120L3 104L4 104L4 112L5 112L5 96L8 96L8 112L9 112L9 0L10 0L10 48L11 48"
    )


def test_a_far_limit_does_not_squash_the_picture() -> None:
    picture = build_picture(analyse(*_parts(two_layers_summary())), 4000)
    assert picture.height == int(368 * 1.07)
    assert [line.kind for line in picture.lines] == ["arena", "bound"]


def test_axis_words() -> None:
    assert [axis_text(n) for n in (0, 512, 1024, 98304, 1572864)] == ["0 B", "512 B", "1 KB", "96 KB", "1.5 MB"]
    assert [about_text(n) for n in (900, 1500, 1465408)] == ["900 B", "1.5 KB", "1.4 MB"]
    assert label_of("b14_pointwise1_conv/Conv", 8) == "b14_poi…"
    assert label_of("b14_pointwise1_conv/Conv.ConvGradWeight", 24) == "b14_pointwis…vGradWeight"


def _parts(summary: Summary):
    return summary.train, summary.plan


def _with_names(summary: Summary, tail: str) -> Summary:
    """The same summary with a tail on every name that comes from a model."""

    def value(v: Value) -> Value:
        return replace(v, name=v.name + tail, origin=v.origin + tail)

    def node(n: Node) -> Node:
        ins, outs = tuple(map(value, n.inputs)), tuple(map(value, n.outputs))
        return replace(n, name=n.name + tail, origin=n.origin + tail, inputs=ins, outputs=outs)

    old = summary.train.graph
    graph = Graph(
        old.name + tail,
        tuple(map(node, old.nodes)),
        tuple(map(value, old.inputs)),
        tuple(map(value, old.outputs)),
        {name + tail: data for name, data in old.constants.items()},
        state=tuple(map(value, old.state)),
        updates=tuple((value(a), value(b)) for a, b in old.updates),
        notes=(tail, tail),
    )
    train = summary.train
    train = replace(
        train,
        graph=graph,
        loss=value(train.loss),
        label=value(train.label),
        logits=value(train.logits),
        learning_rate=value(train.learning_rate),
    )
    buffers = tuple(
        replace(b, name=b.name + tail, values=tuple(v + tail for v in b.values)) for b in summary.plan.buffers
    )
    return replace(
        summary,
        model=tail,
        target=tail,
        target_summary=tail,
        update_label=tail,
        layers=tuple(replace(layer, name=layer.name + tail) for layer in summary.layers),
        train=train,
        plan=replace(summary.plan, order=graph.nodes, buffers=buffers),
        suggestions=(Suggestion(tail, 1, tail),),
        verify=replace(summary.verify, message=tail),
    )
