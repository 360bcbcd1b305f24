"""Kernels of the integer operators, in files named as in ops/int8/. Importing the package imports all its modules."""

from importlib import import_module
from pkgutil import walk_packages

for _module in walk_packages(__path__, f"{__name__}."):
    import_module(_module.name)
