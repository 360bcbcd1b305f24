"""Conditions under which end-to-end tests run."""

from __future__ import annotations

import pytest

from testing.places import SHARED
from tinytrain_compile.verify import find_tools

needs_qemu = pytest.mark.skipif(bool(find_tools().missing_for_qemu()), reason=find_tools().missing_for_qemu())
needs_shared = pytest.mark.skipif(
    not (SHARED / "models").is_dir(), reason=f"{SHARED} with the real models is absent (set TINYTRAIN_SHARED)"
)
