"""Writes what the documentation does not say by hand (`make docs`).

docs/ops.md and docs/errors.md come from the tables of the package; real output in README.md and other pages from the
commands that they quote (scripts/transcripts.py). --check changes nothing and fails if a page is out of date.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from transcripts import PAGES, refresh, sandbox

from tinytrain_compile.frontend import supported_operators
from tinytrain_compile.report import errors_markdown, ops_markdown

ROOT = Path(__file__).resolve().parent.parent


def reference_pages() -> dict[str, str]:
    """Path -> text of the pages that are wholly generated."""
    pages = {"docs/ops.md": ops_markdown(supported_operators()), "docs/errors.md": errors_markdown()}
    return {path: text.rstrip("\n") + "\n" for path, text in pages.items()}


def outdated() -> dict[str, str]:
    """Path -> new text of every page that is not what it should be."""
    pages = {
        path: text
        for path, text in reference_pages().items()
        if not (ROOT / path).is_file() or (ROOT / path).read_text(encoding="utf-8") != text
    }
    for path in PAGES:
        print(f"running the commands of {path}", flush=True)
        with sandbox() as folder:
            page = refresh(path, folder)
        if page.differences():
            print("\n".join(page.differences()))
            pages[path] = page.new
    return pages


def main() -> None:
    """Write or check all pages."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if a page is out of date")
    check = parser.parse_args().check
    pages = outdated()
    for path, text in pages.items():
        if not check:
            (ROOT / path).write_text(text, encoding="utf-8")
        print(f"{'out of date' if check else 'wrote'}: {path}")
    sys.exit(1 if check and pages else 0)


if __name__ == "__main__":
    main()
