"""Writes what the documentation does not say by hand (`make docs`).

docs/ops.md and docs/errors.md come from the tables of the package; real output in README.md and other pages from the
commands that they quote (scripts/transcripts.py). --check changes nothing and fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence

from transcripts import PAGES, ROOT, refresh, sandbox

from tinytrain_compile.frontend import operators_by_purpose
from tinytrain_compile.report.reference import errors_markdown, ops_markdown


def reference_pages() -> dict[str, str]:
    """Path -> text of the pages that are wholly generated."""
    pages = {"docs/ops.md": ops_markdown(operators_by_purpose()), "docs/errors.md": errors_markdown()}
    return {path: text.rstrip("\n") + "\n" for path, text in pages.items()}


def outdated(chosen: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Path and new text of every page (of these, or of all) that is not what it should be, as soon as it is known."""
    for path, text in reference_pages().items():
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text:
            yield path, text
    for path in chosen or PAGES:
        print(f"running the commands of {path}", flush=True)
        with sandbox() as folder:
            page = refresh(path, folder)
        if page.differences():
            print("\n".join(page.differences()))
            yield path, page.new


def main() -> None:
    """Write or check all pages, or those that are named."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page is out of date")
    parser.add_argument("pages", nargs="*", help="pages whose output is made anew; all without any")
    options = parser.parse_args()
    found = 0
    for path, text in outdated(options.pages):
        found += 1
        if not options.check:
            (ROOT / path).write_text(text, encoding="utf-8")
        print(f"{'out of date' if options.check else 'wrote'}: {path}", flush=True)
    sys.exit(1 if options.check and found else 0)


if __name__ == "__main__":
    main()
