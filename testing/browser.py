"""Pages in headless Chromium: several at once in frames of a chosen width, and what a script finds in them."""

from __future__ import annotations

import html
import json
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
"""The browser; scripts/install_tools.sh installs it. None: there is none."""
DARK = "@media (prefers-color-scheme: dark)"
"""Beginning of the part of a style that applies in dark mode."""
LOAD_MILLISECONDS = 20_000
"""Virtual time that pages may take; Chromium ends as soon as they are idle."""

_PAGE = """<!DOCTYPE html><meta charset="utf-8"><body>{frames}<pre id="found"></pre><script>
{script}
window.onload = function () {{
  var found = {{}};
  document.querySelectorAll("iframe").forEach(function (frame) {{
    try {{ found[frame.name] = probe(frame.contentWindow, frame.contentDocument, frame.name); }}
    catch (problem) {{ found[frame.name] = {{ problem: String(problem) + problem.stack }}; }}
  }});
  document.getElementById("found").textContent = JSON.stringify(found);
}};
</script></body>"""


@dataclass(frozen=True)
class Framed:
    """A page and the width in pixels of its frame: a window has at least 500, a frame has any."""

    text: str
    width: int = 1400


def dark(page: str) -> str:
    """Return a page as dark mode shows it, without its policy of hashes, which the changed style would not match."""
    assert DARK in page, "the page has no dark mode"
    head, _, rest = page.partition('<meta http-equiv="Content-Security-Policy"')
    return (head + rest.partition(">")[2]).replace(DARK, "@media all")


def look(pages: Mapping[str, Framed], script: str, folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Return what `function probe(window, document, name)` of the script finds in each page, and errors of scripts."""
    assert CHROMIUM is not None, "chromium is not installed: scripts/install_tools.sh installs it"
    frames = "".join(
        f'<iframe name="{name}" width="{page.width}" height="900" srcdoc="{html.escape(page.text)}"></iframe>'
        for name, page in pages.items()
    )
    path = folder / "frames.html"
    path.write_text(_PAGE.format(frames=frames, script=script), encoding="utf-8")
    command = [
        CHROMIUM,
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--enable-logging=stderr",
        "--dump-dom",
    ]
    command += [f"--user-data-dir={folder / 'profile'}", f"--virtual-time-budget={LOAD_MILLISECONDS}", path.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    text = done.stdout.partition('<pre id="found">')[2].partition("</pre>")[0]
    return json.loads(html.unescape(text)), [line for line in done.stderr.splitlines() if "CONSOLE" in line]
