"""Kernels of the float32 operators; the same file names as in ops/. Importing it imports all of its modules."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
