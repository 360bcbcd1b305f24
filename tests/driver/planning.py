"""What tests of planners share."""

from __future__ import annotations

from pathlib import Path

from tinytrain_compile.driver.candidates.external_kernels import Externals
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.target.loader import load_target


def planner(path: Path, **options: object) -> Planner:
    """Of a model as it is, for a Cortex-M7."""
    asked = CompileOptions(model=path, **options)  # type: ignore[arg-type]
    return Planner(load_model(path, FrontendOptions()), asked, load_target("cortex-m7"), Externals())
