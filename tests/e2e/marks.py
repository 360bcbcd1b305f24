"""Conditions under which end-to-end tests run."""

from __future__ import annotations

import pytest

from testing.cores import missing_tools
from testing.places import SHARED

needs_qemu = pytest.mark.skipif(bool(missing_tools()), reason=missing_tools())
needs_shared = pytest.mark.skipif(
    not (SHARED / "models").is_dir(), reason=f"{SHARED} with the real models is absent (set TINYTRAIN_SHARED)"
)
