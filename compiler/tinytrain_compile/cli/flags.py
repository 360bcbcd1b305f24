"""From the flags of the command line to CompileOptions, checked."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal

import click
from click.core import ParameterSource

from tinytrain_compile.compile.combinations import check_flags
from tinytrain_compile.compile.number_format import check_int8_flags
from tinytrain_compile.compile.options import CompileOptions, parse_memories, parse_shapes, parse_size, parse_time
from tinytrain_compile.errors import CompileError


def _given() -> frozenset[str]:
    """Names of the parameters that the command line sets."""
    context = click.get_current_context()
    return frozenset(
        name for name in context.params if context.get_parameter_source(name) is ParameterSource.COMMANDLINE
    )


def _int8_flags() -> tuple[str, ...]:
    """The flags given that only int8 has a meaning for, but for those that ask for what float32 does anyway."""
    context = click.get_current_context()
    names = ("calib", "calib_range", "head", "weight_store", "rescale")
    given = (flag for flag in names if context.get_parameter_source(flag) is ParameterSource.COMMANDLINE)
    return tuple("--" + flag.replace("_", "-") for flag in given if context.params[flag] not in ("fp32", "off"))


def options_of(flags: dict[str, Any]) -> CompileOptions:
    """The options that these flags ask for; CompileError E0101 for values and combinations that cannot be."""
    int8_flags = _int8_flags()
    check_int8_flags(flags["quant"], int8_flags)
    arena = _size(flags["arena"], "--arena")
    reports = tuple(part.strip() for part in flags["report"].split(",") if part.strip())
    unknown = sorted(set(reports) - {"text", "json", "html"})
    if unknown:
        raise CompileError("E0101", "--report", f"unknown kind {unknown[0]!r}", "use text, json, html")
    for name, low, high in (("lr", 0.0, 1e6), ("momentum", 0.0, 1.0), ("weight_decay", 0.0, 1e6)):
        if not low <= flags[name] <= high:
            flag = name.replace("_", "-")
            raise CompileError("E0101", f"--{flag}", f"{flags[name]} is out of range", f"use {low:g} to {high:g}")
    if not 1 <= flags["batch"] <= 1 << 20:
        raise CompileError("E0101", "--batch", f"{flags['batch']} is out of range", "use 1 or more")
    given = _given()
    check_flags(flags, given)
    micro_batch = _micro_batch(flags)
    useful = arena is not None or flags["optimise"] == "memory" or flags["lock"] is not None
    converted: dict[str, Any] = {
        "arena_bytes": arena,
        "memories": _memories(flags["memory"], useful),
        "learning_rate": flags["lr"],
        "micro_batch": micro_batch,
        "int8_flags": int8_flags,
        "given": given,
        "rescale": flags["rescale"] == "on",
        "input_shapes": parse_shapes(flags["input_shape"]),
        "dump_after": flags["dump_after"] or "",
        "flash_budget_bytes": _size(flags["flash_budget"], "--flash-budget"),
        "max_step_ps": _time(flags["max_step_time"], "--max-step-time"),
        "report": reports,
    }
    same = {field.name: flags[field.name] for field in fields(CompileOptions) if field.name not in converted}
    return CompileOptions(**same, **converted)


def _micro_batch(flags: dict[str, Any]) -> int | Literal["auto"] | None:
    """How many samples a call takes; E0101 for what --batch and --accumulate do not allow."""
    text, batch = flags["micro_batch"], flags["batch"]
    if text is None or text == "auto":
        return text
    size = int(text) if text.isascii() and text.isdigit() and len(text) < 8 else 0
    if size < 1 or batch % size:
        what = f"{text!r} does not divide --batch {batch}" if size else f"{text!r} is no number of samples"
        sizes = [str(n) for n in range(1, batch + 1) if batch % n == 0][:12] if batch <= 1 << 12 else ["1"]
        raise CompileError("E0101", "--micro-batch", what, f"use {', '.join(sizes)} or auto")
    if size > 1 and flags["accumulate"] == "inplace":
        what = "with --accumulate inplace each sample is a step of its own"
        raise CompileError("E0101", "--micro-batch", what, "leave one of the two out")
    return size


def _time(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_time(text, flag)


def _size(text: str | None, flag: str) -> int | None:
    return None if text is None else parse_size(text, flag)


def _memories(texts: tuple[str, ...], useful: bool) -> dict[str, int]:
    memories = parse_memories(texts)
    if memories and not useful:
        what = "without --arena nothing has to lie in another memory"
        raise CompileError(
            "E0101", "--memory", what, "add --arena SIZE, the size of the first memory, or --optimise memory"
        )
    return memories
