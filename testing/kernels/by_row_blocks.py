"""Calls a kernel of a few rows for all rows of a map: one C function with the parameters of the whole map's kernel."""

from __future__ import annotations

from collections.abc import Sequence

from tinytrain_compile.ir.kernels import Kernel
from tinytrain_compile.ir.types import ELEMENT_BYTES, Node
from tinytrain_compile.lower.kernels import KernelContext
from tinytrain_compile.lower.kernels.row_blocks import Windows
from tinytrain_compile.lower.streams.functions import TABLE, CFunction, RowKernel, lower_rows
from tinytrain_compile.ops.base import alias_of, row_form

KINDS = {"int8": "int8_t", "float32": "float"}


def by_row_blocks(node: Node, name: str, context: KernelContext, step: int, ring: bool = False) -> tuple[Kernel, int]:
    """(the kernel, bytes of scratch that a stream has for it) with `step` rows a call, the last of what is left.
    Errors: NoRowsError.

    ring: windows see nothing but copies of the rows that a call needs, which lie as in a ring buffer.
    """
    rows = lower_rows(node, f"{name}_rows", context)
    spec, count, alias = rows.spec, len(node.inputs), dict(alias_of(node))
    values, images = [*node.inputs, *node.outputs], node.outputs[0].shape[0]
    units = {n: ELEMENT_BYTES.get(v.dtype, 1) for n, v in zip(rows.names, values, strict=True)}
    image_size = {rows.names[i]: values[i].size_bytes // units[rows.names[i]] // images for i in (*spec.maps, count)}
    kinds = {n: KINDS.get(v.dtype, "uint8_t") for n, v in zip(rows.names, values, strict=True)}
    place = {n: n for n in rows.names}
    for map_name, size in image_size.items():
        place[map_name] = f"{map_name} + image * {size} + first * {size // spec.rows}"
    table, windows = "", ""
    if spec.windows is not None:
        read = rows.names[spec.maps[0]]
        pitch = image_size[read] // values[spec.maps[0]].shape[1]
        image = place[read] = f"{read} + image * {image_size[read]}"
        table, place[TABLE] = _table(f"{name}_at", spec.windows, pitch), f"{name}_at + first * {spec.windows.step}"
        if ring:
            windows = _ring(image, place[TABLE], spec.windows, step, pitch, kinds[read])
            place[read], place[TABLE] = "ring", TABLE
    own = [n for i, n in enumerate(rows.names) if i < count or i - count not in alias]
    declared = [f"{kinds[n] if n in image_size else 'void'} *{n}" for n in own]
    head = f"void {name}({', '.join([*declared, *(['void *scratch'] if rows.scratch_dtype else [])])})"
    prepared = "" if rows.prepare is None else f"    {_call(rows, rows.prepare, place, [])}\n"
    loops = (
        f"    for (int32_t image = 0; image < {images}; image++) {{\n"
        f"        for (int32_t first = 0; first < {spec.rows}; first += {step}) {{\n"
        f"            const int32_t count = {spec.rows} - first < {step} ? {spec.rows} - first : {step};\n{windows}"
        f"            {_call(rows, rows.rows, place, ['count'])}\n        }}\n    }}\n"
    )
    functions = [part for part in (rows.prepare, rows.rows) if part is not None]
    source = "".join(part.source for part in functions) + f"{table}{head} {{\n{prepared}{loops}}}\n"
    declaration = "".join(f"{part.declaration}\n" for part in functions) + f"{head};"
    form = row_form(node)  # what a stream gives: TVM knows nothing of what a helper does with its scratch
    scratch_bytes = rows.scratch_bytes if form is None else form.scratch_bytes
    return Kernel(name, source, declaration, rows.scratch_dtype), scratch_bytes


def _call(rows: RowKernel, function: CFunction, place: dict[str, str], more: Sequence[str]) -> str:
    scratch = ["scratch"] if rows.scratch_dtype else []
    return f"{function.name}({', '.join([*(place[n] for n in function.parameters), *more, *scratch])});"


def _table(name: str, windows: Windows, pitch: int) -> str:
    """Where the rows of the table of the whole map begin."""
    return f"static const int32_t {name}[] = {{{', '.join(str(max(-1, row * pitch)) for row in windows.sources)}}};\n"


def _ring(image: str, table: str, windows: Windows, step: int, pitch: int, kind: str) -> str:
    """What a call needs in a ring buffer, which has no more slots than that."""
    most = (step - 1) * windows.step + windows.reach
    starts = range(0, len(windows.sources) - windows.reach + 1, windows.step)
    needed = [[row for row in windows.sources[at : at + most] if row >= 0] for at in starts]
    slots = max(max(rows) - min(rows) + 1 for rows in needed if rows)
    return f"""            static {kind} ring[{slots * pitch}];
            int32_t {TABLE}[{most}];
            for (int32_t i = 0; i < (count - 1) * {windows.step} + {windows.reach}; i++) {{
                const int32_t from = ({table})[i];
                {TABLE}[i] = from < 0 ? -1 : from / {pitch} % {slots} * {pitch};
                if (from >= 0) {{
                    memcpy(ring + {TABLE}[i], {image} + from, {pitch} * sizeof *ring);
                }}
            }}
"""
