"""Finds the folders that are not Python, `targets/`, `runtime_c/` and `docs/`: in a checkout and in a wheel."""

from __future__ import annotations

import re
from pathlib import Path

HEADERS = (
    *("tt_config.h", "tt_runtime.h", "tt_float_pairs.h", "tt_fixed.h", "tt_exponents.h", "tt_qloss.h"),
    *(
        "tt_dsp_sums.h",
        "tt_dsp_direct.h",
        "tt_dsp.h",
        "tt_dsp_tiles.h",
        "tt_dsp_rows.h",
        "tt_dense.h",
        "tt_dense_update.h",
        "tt_mve_sums.h",
        "tt_mve.h",
        "tt_mve_windows.h",
        "tt_mve_errors.h",
        "tt_mve_pool.h",
        "tt_mve_float.h",
        "tt_state.h",
        "tt_state_int8.h",
        "tt_page.h",
        "tt_external.h",
        "tt_chosen.h",
        "tt_clip.h",
        "tt_sign.h",
        "tt_clip_int8.h",
    ),
)
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
