"""Targets: what the compiler knows about a core and about the board that checks it."""

from tinytrain_compile.target.loader import list_targets, load_target
from tinytrain_compile.target.model import Core, Features, MemoryBank, QemuBoard, Region, Target

__all__ = ["Core", "Features", "MemoryBank", "QemuBoard", "Region", "Target", "list_targets", "load_target"]
