"""A kernel that calls a function of the user (--kernels): one C function that passes operands and the layer."""

from __future__ import annotations

from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.external import ExternalForm, external_form

_TYPES = {"float32": "float", "int8": "int8_t", "int32": "int32_t"}


def external_kernel(node: Node, name: str, comment: str) -> Kernel:
    """Return the kernel of a node that has an external one."""
    form, external = external_form(node), node.external
    if form is None or external is None:
        raise ValueError(f"{node.op} ({node.name}) cannot have an external kernel")
    given = [
        f"const {_TYPES[value.dtype]} *{operand}"
        for operand, value in zip(form.operands, node.inputs, strict=not form.optional)
    ]
    scratch = ["int8_t *scratch"] if external.workspace_bytes else []
    head = f"void {name}({', '.join([*given, f'{_TYPES[node.outputs[0].dtype]} *y', *scratch])})"
    passed = [operand if i < len(node.inputs) else "NULL" for i, operand in enumerate(form.operands)]
    arguments = ", ".join([*passed, "y", "scratch" if scratch else "NULL", "&layer"])
    source = (
        f"{comment}{form.macro}({external.function});\n{head} {{\n"
        f"    static const {form.layer} layer = {_initialiser(form, node)};\n"
        f"    {external.function}({arguments});\n}}\n"
    )
    return Kernel(name, source, f"{head};", "int8" if scratch else "")


def external_names(node: Node) -> tuple[str, ...]:
    """Return C names of the operands of a node with an external kernel: its inputs, then its output."""
    form = external_form(node)
    return (*(form.operands[: len(node.inputs)] if form else ()), "y")


def _initialiser(form: ExternalForm, node: Node) -> str:
    numbers = [str(number) for number in form.values(node)]
    nested = [f"{{{', '.join(numbers[: form.nested])}}}"] if form.nested else []
    return f"{{{', '.join([*nested, *numbers[form.nested :]])}}}"
