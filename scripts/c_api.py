"""Print the C API as Markdown, from the doc comments of generated headers (docs/c-api.md; `make docs`).

Builds examples/digits once for each option that adds functions, and prints the declarations that the options before it
do not have. `m` stands in for the model's name.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import tinytrain_compile as tt
from testing.places import ROOT

MODEL = ROOT / "examples" / "digits" / "digits.onnx"
_ITEM = re.compile(r"(?P<comment>/\*\*.*?\*/)\n(?P<code>.*?)(?=\n\n|\n/\*|\n#(?!define)|\Z)", re.DOTALL)
_NAME = re.compile(
    r"\(\*(?P<callback>m_\w+)\)|#define (?P<macro>M_\w+)|\b(?P<function>m_\w+)\(|(?P<type>\bm_\w+)(?:\[\w+\])?;"
)
"""A callback's type is looked for first: it looks like a function too."""


@dataclass(frozen=True)
class Build:
    """A heading of the page, the sentence below it, and the options whose functions it lists."""

    title: str
    text: str
    options: Mapping[str, object]
    headers: tuple[str, ...] = ("digits_train.h",)


BUILDS = (
    Build("Functions of every build", "The order is that of the header `m_train.h`.", {}),
    Build("`--batch N`", "A batch that takes several calls ([training-loop.md](training-loop.md)).", {"batch": 4}),
    Build(
        "`--features on`",
        "Train on stored results of the frozen part"
        " ([training-loop.md](training-loop.md#features-epochs-for-the-work-of-the-trained-part)).",
        {"batch": 4, "features": "on"},
    ),
    Build("`--slices on`", "A step in short parts ([slices.md](slices.md)).", {"slices": "on"}),
    Build("`--slices infer`", "And an inference between them, in memory of its own.", {"slices": "infer"}),
    Build(
        "`--input-lines`",
        "An image that arrives row by row ([streams.md](streams.md#an-image-that-comes-line-by-line)). The functions"
        " replace `m_input`, `m_infer`, `m_train_step` and `m_accumulate`.",
        {"batch": 4, "input_lines": True},
    ),
    Build(
        "`--plans`, `--micro-batch auto`",
        "Several plans in one image ([plans.md](plans.md)). With `--micro-batch auto` beside it, types hold one sample"
        " and calls take the number of samples.",
        {"plans": ["24KB", "48KB"], "batch": 4, "micro_batch": "auto"},
    ),
    Build(
        "`--runtime replay`, `schedule`, `average`, `monitor`",
        "Parts of the loop around the step ([training-loop.md](training-loop.md)), each with a header of its own.",
        {"runtime": "replay=100,schedule,average,monitor"},
        ("digits_replay.h", "digits_schedule.h", "digits_average.h", "digits_monitor.h"),
    ),
    Build(
        "`--runtime store`, `delta`",
        "Saving through power cuts ([power-cuts.md](power-cuts.md)), and messages of a fleet ([fleet.md](fleet.md)).",
        {"runtime": "store,delta"},
        ("digits_store.h", "digits_delta.h"),
    ),
)


def headers(build: Build, folder: Path) -> str:
    """Compile the example with these options; return its headers with `m` in the place of the model's name."""
    options: dict[str, Any] = {"update": "head", "verify": "none", **build.options}
    files = tt.compile(MODEL, **options).files
    text = "\n".join(str(files[name]) for name in build.headers)
    return text.replace("DIGITS_", "M_").replace("digits", "m")


def items(header: str) -> Iterator[tuple[str, str]]:
    """Yield everything that a header documents: a key, and comment and declaration.

    The key of a function is its declaration, since some options change that; of anything else it is the name.
    """
    for found in _ITEM.finditer(header):
        code = re.sub(r"^static inline (.*)\n\{.*\Z", r"\1;", found["code"], flags=re.DOTALL)
        name = _NAME.search(code)
        if name is not None and "@file" not in found["comment"]:
            function = name.lastgroup == "function"
            yield code if function else name[name.lastgroup or 0], f"{found['comment']}\n{code}"


def summary(item: str) -> tuple[str, str] | None:
    """Return (name, first sentence of the comment) of a function; None for anything else."""
    comment, _, code = item.partition("*/\n")
    name = _NAME.search(code)
    if name is None or name.lastgroup != "function":
        return None
    text = " ".join(re.sub(r"^[/ ]*\*+ ?", "", line) for line in comment.splitlines()).strip()
    first = re.split(r"[.;] |\.$| @", text)[0].rstrip(".:")
    return name["function"], first


def index_of(sections: Sequence[tuple[Build, Sequence[str]]]) -> Iterator[str]:
    """Yield a table of all functions: name, what it does, and the options that add it."""
    yield "| function | in short | exists with |\n|---|---|---|"
    for number, (build, found) in enumerate(sections):
        for name, text in dict(filter(None, map(summary, found))).items():
            yield f"| `{name}` | {text} | {build.title if number else 'every build'} |"


def main() -> None:
    """Print a table of all functions, then a section for each build."""
    known: set[str] = set()
    sections = list[tuple[Build, Sequence[str]]]()
    with tempfile.TemporaryDirectory() as place:
        for build in BUILDS:
            new = {key: text for key, text in items(headers(build, Path(place))) if key not in known}
            known |= set(new)
            sections.append((build, list(new.values())))
    print("## All functions\n\n" + "\n".join(index_of(sections)) + "\n")
    for index, (build, new) in enumerate(sections):
        macros = [text for text in new if "\n#define" in text]
        others = [text for text in new if "\n#define" not in text]
        if index == 1:
            print("## Functions of some options\n")
        print(f"{'##' if index == 0 else '###'} {build.title}\n\n{build.text}\n")
        print("```c\n" + "\n".join(macros if index else []) + ("\n\n" if index and macros and others else ""), end="")
        print("\n\n".join(others) + "\n```\n")
        if index == 0:
            print("### Macros\n\nValues are those of the digits example.\n\n```c\n" + "\n".join(macros) + "\n```\n")


if __name__ == "__main__":
    main()
