"""Finds the folders that are not Python, `targets/`, `runtime_c/` and `docs/`: in a checkout and in a wheel."""

from __future__ import annotations

import re
from pathlib import Path

_NAMES = """
config runtime float_pairs fixed exponents qloss dsp_sums dsp_direct dsp dsp_tiles dsp_rows depthwise dense
dense_update dense_momentum conv few large_tiles errors spread mve_count mve_sums mve mve_conv mve_windows mve_taps
mve_errors mve_gradients mve_lines mve_steps mve_weights mve_pool mve_float pool state state_int8 page external clip
sign clip_int8
"""
HEADERS = tuple(f"tt_{name}.h" for name in _NAMES.split())
"""Of runtime_c/: what may go beside generated C, where it needs that. tt_debug.h is for the tests."""
_PACKAGE = Path(__file__).resolve().parent.parent
ROOTS = (_PACKAGE / "_data", _PACKAGE.parent.parent)
"""A wheel carries the folders inside the package (pyproject: force-include); a checkout has them at its root."""
_PAGE = re.compile(r"\bdocs/[\w-]+\.md\b")


def with_pages(text: str) -> str:
    """Return a message with the full path of every page that it names. In a checkout the name is the path."""
    pages = ROOTS[0] / "docs"
    return _PAGE.sub(lambda found: str(pages.parent / found[0]), text) if pages.is_dir() else text


def data_dir(name: str) -> Path:
    """Find the folder `targets`, `runtime_c` or `docs`; FileNotFoundError if the installation is incomplete."""
    for root in ROOTS:
        if (root / name).is_dir():
            return root / name
    raise FileNotFoundError(f"data folder {name!r} is missing from the installation of tinytrain-compile")


def read_text(folder: str, path: str) -> str:
    """Read a text file of a data folder, for instance read_text("runtime_c", "tt_runtime.h")."""
    return (data_dir(folder) / path).read_text(encoding="utf-8")


def runtime_headers() -> dict[str, str]:
    """Read the headers that generated C includes: file name -> text."""
    return {name: read_text("runtime_c", name) for name in HEADERS}
