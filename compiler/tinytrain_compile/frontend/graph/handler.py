"""The type of the functions that import one ONNX operator each."""

from __future__ import annotations

from collections.abc import Callable

from tinytrain_compile.frontend.file.model import OnnxNode
from tinytrain_compile.frontend.graph.context import ImportContext

Handler = Callable[[ImportContext, OnnxNode], None]
"""Reads the entries of a node's inputs, emits IR nodes, defines the entries of its outputs.

Raises Unsupported for a form that has no IR, ValueError for shapes and attributes that make no sense.
"""
