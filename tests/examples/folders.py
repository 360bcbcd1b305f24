"""Modules of the examples' folders, which are no packages: several have a recipe.py."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType


def modules_of(folder: Path, *names: str) -> list[ModuleType]:
    """These modules of a folder, and no trace of them in sys.modules, where another folder's may come next."""
    sys.path.insert(0, str(folder))
    before = {name: sys.modules.pop(name, None) for name in names}
    try:
        return [importlib.import_module(name) for name in names]
    finally:
        sys.path.remove(str(folder))
        for name, module in before.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module
