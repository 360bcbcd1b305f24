"""Definitions of the integer operators. Importing the package imports all its modules, which fill the op table."""

from importlib import import_module
from pkgutil import iter_modules

for _module in iter_modules(__path__):
    import_module(f"{__name__}.{_module.name}")
