"""Count what makes the README and the pages hard to read, page by page.

    python scripts/prose.py                   # words, sentences, long ones, "what" clauses and conditional "where"
    python scripts/prose.py docs/fitting.md   # the places themselves, to mend them
    python scripts/prose.py --check           # exit code 1 if a limit below is passed

Only prose counts: paragraphs, list items and headings, each of which ends a sentence. Code inside of a line is one
word. Cells of tables are searched for clauses, but are not sentences. The rules: CONTRIBUTING.md, "Plain English".
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parent.parent
LONG = 25
"""Words of a sentence, at most."""
MOST = {"what": 40, "where": 40}
"""Clauses in all pages together, at most."""
LONG_SHARE = 0.05
"""Share of the sentences that may be longer than LONG."""
_END = re.compile(r"(?<=[.!?])[\"')*]*\s+(?=[\"'(*`]*[A-Z0-9`])")
_WORD = re.compile(r"[\w`][\w`'/.,+%-]*")
_WHAT = re.compile(r"\bwhat\b(?! (?:if|about)\b)", re.IGNORECASE)
_WHERE = re.compile(r"\bwhere\b", re.IGNORECASE)
_PLACE = re.compile(
    r"\b(?:\w*places?|lines?|files?|folders?|pages?|points?|positions?|know|say|said|see|show|tell|find|ask|from|to|of)s?"
    r",? where\b",
    re.IGNORECASE,
)
"""A `where` of a place: after its noun, or after a verb of finding it."""


@dataclass(frozen=True)
class Sentence:
    """A sentence and the line that its paragraph begins at."""

    line: int
    text: str
    in_table: bool

    @property
    def words(self) -> int:
        """Return how many words it has."""
        return len(_WORD.findall(self.text))

    @property
    def long(self) -> bool:
        """Tell whether it has more words than a reader takes in at once."""
        return self.words > LONG and not self.in_table

    @property
    def what(self) -> int:
        """Return how many clauses with `what` it has; a question is none."""
        return 0 if self.text.rstrip("*_) ").endswith("?") else len(_WHAT.findall(self.text))

    @property
    def where(self) -> int:
        """Return how many times `where` means a condition."""
        if self.text.rstrip("*_) ").endswith("?"):
            return 0
        return len(_WHERE.findall(self.text)) - len(_PLACE.findall(self.text))


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that count: the README and those of docs/, without the decision records."""
    docs = sorted((root / "docs").rglob("*.md"))
    return [root / "README.md", *(page for page in docs if "adr" not in page.relative_to(root).parts)]


def sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences of a page in Markdown."""
    in_table = False
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        in_table = token.type in ("td_open", "th_open") or (in_table and token.type == "inline")
        if token.type == "inline" and token.children:
            line = (token.map or [0])[0] + 1
            for part in _END.split(_prose(token.children)):
                if _WORD.search(part):
                    yield Sentence(line, " ".join(part.split()), in_table)


def _prose(children: Sequence[Token]) -> str:
    shown = {"code_inline": "`code`", "softbreak": " "}
    return "".join(child.content if child.type == "text" else shown.get(child.type, "") for child in children)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pages", nargs="*", type=Path, help="list the places of these pages")
    parser.add_argument("--check", action="store_true", help="exit code 1 if there are more than the limits allow")
    given = parser.parse_args(arguments)
    if given.pages:
        for page in given.pages:
            _list(page)
        return 0
    found = {page: list(sentences(page.read_text(encoding="utf-8"))) for page in pages()}
    words, number, long, what, where = _counts([one for each in found.values() for one in each])
    within = what <= MOST["what"] and where <= MOST["where"] and long <= LONG_SHARE * number
    if not (given.check and within):
        row = "{:36s} {:>7} {:>9} {:>6} {:>6} {:>6}"
        print(row.format("page", "words", "sentences", f">{LONG}", "what", "where"))
        for page, each in found.items():
            print(row.format(str(page.relative_to(ROOT)), *_counts(each)))
        print(row.format("all", words, number, long, what, where))
    print(f"{len(found)} pages: {long / number:.1%} long sentences, {what} what, {where} where", end="; ")
    print(f"at most {LONG_SHARE:.0%}, {MOST['what']}, {MOST['where']}")
    return int(given.check and not within)


def _counts(each: Sequence[Sentence]) -> tuple[int, int, int, int, int]:
    return (
        sum(one.words for one in each),
        sum(not one.in_table for one in each),
        sum(one.long for one in each),
        sum(one.what for one in each),
        sum(one.where for one in each),
    )


def _list(page: Path) -> None:
    for one in sentences(page.read_text(encoding="utf-8")):
        kinds = [f"{one.words} words"] * one.long + ["what"] * one.what + ["where"] * one.where
        if kinds:
            print(f"{page}:{one.line}: {', '.join(kinds)}: {one.text}")


if __name__ == "__main__":
    sys.exit(main())
