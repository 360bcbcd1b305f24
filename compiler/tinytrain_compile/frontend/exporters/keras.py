"""Parameters of Keras that tf2onnx leaves out of a file: told by the names that it gives to what is left.

It computes at once what follows from constants, and drops an Add of zeros. `model.export(format="onnx")` of Keras 3 is
tf2onnx too.
"""

from __future__ import annotations

import re

from tinytrain_compile.frontend.exporters.remarks import named
from tinytrain_compile.frontend.file.model import OnnxModel

_TABLE = re.compile(r".*/batchnorm/(mul|sub):0")
"""gamma / sqrt(variance + epsilon), and beta - mean * that."""


def lost_by_tf2onnx(model: OnnxModel) -> list[str]:
    """Return a note on tables that stand for parameters of BatchNormalizations, and one on layers without bias."""
    found: list[str] = []
    read = {name for node in model.nodes for name in node.inputs}
    tables = [name for name in model.constants if _TABLE.fullmatch(name) and name in read]
    if tables:
        what = f"tf2onnx computed {named(tables)} from gamma, beta, mean and variance of BatchNormalizations"
        found.append(f"{what}: these tables train in their place, and learn otherwise than gamma; --frozen keeps them")
    names = {node.name for node in model.nodes}
    scopes = {node.name.removesuffix("/MatMul"): node.input(1) for node in model.nodes if "/MatMul" in node.name}
    dense = [scope for scope, weight in scopes.items() if weight == f"{scope}/Cast/ReadVariableOp:0"]
    plain = [scope for scope in dense if names.isdisjoint((f"{scope}/BiasAdd", f"{scope}/Add"))]
    if plain:
        what = f"no bias in the file for {named(plain)}, and none is trained: tf2onnx leaves out a bias that is zero"
        found.append(f"{what}; if the layer has one, set it to small numbers before the export")
    return found
