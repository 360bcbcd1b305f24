"""Hooks of mkdocs (mkdocs.yml): pages that are kept elsewhere in the repository, and links that leave the site.

A link from a page to a file that is no page, such as a test or a module, becomes the path of that file in the
repository: the site has no copy of the sources.
"""

from __future__ import annotations

import logging
import os
import re
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
ELSEWHERE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"} | {
    str(path.relative_to(ROOT)): f"examples/{path.parent.name}.md" for path in (ROOT / "examples").glob("*/README.md")
}
"""Pages by their path in the repository, and in the site."""
_LINK = re.compile(r"(?P<bang>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)\s#]*)(?P<anchor>#[^)\s]*)?\)")
_BLOCK = re.compile(r"(^```.*?^```|^    .*?$)", re.MULTILINE | re.DOTALL)


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are kept elsewhere."""
    kinds: Any = import_module("mkdocs.structure.files")  # mkdocs has an environment of its own: no types here
    found: list[Any] = list(files)
    for source, name in ELSEWHERE.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        found.append(kinds.File.generated(config, name, content=_moved(text, source, name)))
    return kinds.Files(found)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Correct the links of a page in docs/."""
    name = page.file.src_uri
    return markdown if name in ELSEWHERE.values() else _moved(markdown, f"docs/{name}", name)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Warn of a block of code that was not recognised: with --strict the build fails."""
    if "```" in html:
        logging.getLogger("mkdocs.hooks").warning("%s: a block of code is shown as text", page.file.src_uri)
    return html


def _moved(text: str, source: str, name: str) -> str:
    """Rewrite the links of a page that is `source` in the repository and `name` in the site."""

    def link(found: re.Match[str]) -> str:
        target, anchor = found["target"], found["anchor"] or ""
        if not target or "://" in target or target.startswith("mailto:"):
            return found[0]
        path = os.path.normpath(os.path.join(os.path.dirname(source), target))
        page = _page(path)
        if page is None:
            return f"{found['text']} (`{path}`)" if found["text"].strip("`") != path else f"`{path}`"
        relative = os.path.relpath(page, os.path.dirname(name) or ".")
        return f"{found['bang']}[{found['text']}]({relative}{anchor})"

    text = text.replace("```python no-run\n", "```python\n")  # the mark is for the tests, no site knows it
    parts = _BLOCK.split(text)
    return "".join(part if index % 2 else _LINK.sub(link, part) for index, part in enumerate(parts))


def _page(path: str) -> str | None:
    """Return the path in the site of a file or folder of the repository."""
    if path in ELSEWHERE or f"{path}/README.md" in ELSEWHERE:
        return ELSEWHERE.get(path) or ELSEWHERE[f"{path}/README.md"]
    inside = path.removeprefix("docs/")
    return inside if path.startswith("docs/") and (ROOT / path).is_file() else None
