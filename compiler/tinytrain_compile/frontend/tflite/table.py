"""Operators of .tflite files that are translated, by purpose."""

from __future__ import annotations

from tinytrain_compile.frontend.tflite import elementwise, layers, shapes

FAMILIES = {
    "layers": layers.HANDLERS,
    "element by element": elementwise.HANDLERS,
    "shapes and parts": shapes.HANDLERS,
}
"""Purpose -> operator -> what translates it."""
HANDLERS = {op: handler for family in FAMILIES.values() for op, handler in family.items()}
