"""Conditions under which end-to-end tests run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tinytrain_compile.verify import find_tools

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("TINYTRAIN_SHARED", ROOT.parent / "shared"))
"""Real models and schemes, which are not part of the product."""

needs_qemu = pytest.mark.skipif(bool(find_tools().missing_for_qemu()), reason=find_tools().missing_for_qemu())
needs_shared = pytest.mark.skipif(
    not (SHARED / "models").is_dir(), reason=f"{SHARED} with the real models is absent (set TINYTRAIN_SHARED)"
)
