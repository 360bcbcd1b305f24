"""Where things are: this repository, and what is not part of it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SHARED = Path(os.environ.get("TINYTRAIN_SHARED") or ROOT.parent / "shared")
"""Real models, schemes and instances of benchmarks; whoever reads them does without where the folder is missing."""
