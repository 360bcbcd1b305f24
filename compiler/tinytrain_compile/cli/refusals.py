"""Errors of the command line, as CompileError E0101: the option, the fault and the nearest thing that works.

Click finds the faults, but its messages do not say what to type instead.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from importlib import import_module
from shlex import join

import click

from tinytrain_compile.errors import CompileError
from tinytrain_compile.near import hint, nearest
from tinytrain_compile.options.compile_options import REMOVED

COMMANDS = ("contribution", "finetune", "export", "audit")
"""Commands beside `compile`: each is a function in the module of its name."""
EXAMPLE = "tinytrain-compile model.onnx --arena 256KB --target cortex-m7"
_OTHER_NAMES: Mapping[str, str] = {
    **dict.fromkeys(("learning-rate", "rate", "step-size"), "lr"),
    **dict.fromkeys(("batch-size", "batchsize", "bs"), "batch"),
    **dict.fromkeys(("ram", "ram-size", "ram-budget", "memory-limit", "memory-budget", "sram"), "arena"),
    **dict.fromkeys(("board", "mcu", "cpu", "core", "chip", "device", "platform"), "target"),
    **dict.fromkeys(("dataset", "samples", "train-data", "training-data", "inputs"), "data"),
    **dict.fromkeys(("quantize", "quantise", "quantization", "int8", "dtype", "precision"), "quant"),
    **dict.fromkeys(("output", "output-dir", "outdir", "output-folder"), "out"),
    **dict.fromkeys(("layers", "train", "train-layers", "scheme"), "update"),
    **dict.fromkeys(("flash", "flash-size", "rom"), "flash-budget"),
    **dict.fromkeys(("clip", "grad-clip", "clip-grad", "clip-grad-norm", "max-norm"), "clip-norm"),
    **dict.fromkeys(("calibration", "calib-data", "calibration-data", "representative-dataset"), "calib"),
    **dict.fromkeys(("num-classes", "n-classes"), "classes"),
    **dict.fromkeys(("optimiser", "opt", "optim", "solver"), "optimizer"),
    **dict.fromkeys(("wd", "l2"), "weight-decay"),
    **dict.fromkeys(("shape", "input-size", "input-dim"), "input-shape"),
    **dict.fromkeys(("freeze", "frozen-layers"), "frozen"),
    **dict.fromkeys(("ckpt", "weights-file"), "checkpoint"),
}
"""Names of options in other tools -> the long name here."""
_NUMBERS = {"float": "a number", "integer": "a whole number", "integer range": "a whole number"}
"""Kinds of click's types in its messages -> as an error says them."""
_SEVERAL: Mapping[str, str] = {
    "--lr": "finetune tries rates around it",
    "--batch": "finetune --batches compares several",
}
"""Options that people give several values, to compare them -> what does."""
_LISTS = frozenset(
    ("--update", "--betas", "--runtime", "--plans", "--report", "--batches", "--clips", "--warm-ups", "--averages")
)
"""Options whose value is a list with commas."""
_OTHERWISE: Mapping[str, str] = {
    "--package": "; for any other IDE or build system leave it out: the folder holds plain C files",
}
"""Options -> what to do if none of their values is the one that is wanted."""
_INSTEAD: Mapping[tuple[str, str], str] = {
    ("finetune", "runtime"): "leave it out: --replay N and --averages N,N are tried here",
    ("contribution", "update"): "leave it out: every layer is measured",
    ("contribution", "epochs"): "leave it out: --updates N says how long a run is",
}
"""(command, option of another command) -> what this command has in its place."""


def near_option(name: str, known: Collection[str]) -> str:
    """Return the long name that another name means, without `--`: of another tool, or misspelt; "" for none."""
    meant = _OTHER_NAMES.get(name.lower().replace("_", "-"), "")
    return meant if meant in known else nearest(name, known)


def refusal(problem: click.UsageError, command: click.Command, arguments: Sequence[str]) -> CompileError:
    """Return the error for what click found wrong. arguments: as typed, after the name of the command."""
    name = problem.ctx.command_path if problem.ctx is not None else "tinytrain-compile"
    late = next((word for word in _loose(arguments) if word in COMMANDS), "")
    if late and name == "tinytrain-compile":
        place = arguments.index(late)
        rest = join((*arguments[:place], *arguments[place + 1 :]))
        return CompileError("E0101", late, "a command comes first", f"write tinytrain-compile {late} {rest}")
    if isinstance(problem, click.NoSuchOption):
        return _no_option(problem.option_name, name, command, arguments)
    if isinstance(problem, click.MissingParameter):
        return _missing(problem.param, name, arguments)
    if isinstance(problem, click.BadParameter):
        return _bad_value(problem)
    if isinstance(problem, click.BadOptionUsage):
        option = next((item for item in command.params if problem.option_name in item.opts), None)
        kind = "" if option is None else f" {option.make_metavar(click.Context(command))}"
        return CompileError("E0101", problem.option_name, "needs a value", f"give {problem.option_name}{kind}")
    extra = re.match(r"Got unexpected extra arguments? \((.*)\)", problem.message)
    if extra is not None and extra[1].split():
        return _extra(extra[1].split()[0], command, arguments)
    return CompileError("E0101", "command line", problem.message.rstrip("."), f"see {name} --help")


def _loose(arguments: Sequence[str]) -> list[str]:
    """Return the words that neither are options nor follow one."""
    pairs = zip(("", *arguments), arguments, strict=False)
    return [word for before, word in pairs if not before.startswith("-") and not word.startswith("-")]


def _no_option(flag: str, name: str, command: click.Command, arguments: Sequence[str]) -> CompileError:
    typed = next((text for text in arguments if text.startswith(flag)), flag).split("=")[0]
    if flag in REMOVED:
        return CompileError("E0101", "command line", f"{flag} {REMOVED[flag]}", f"see {name} --help")
    own = long_names(command)
    plain = typed.lstrip("-")
    what = f"{name} has no such option"
    if plain in own:
        return CompileError("E0101", typed, what, f"write --{plain}, with two dashes")
    others = [other for other in ("compile", *COMMANDS) if plain in long_names(_command(other))]
    if (name.split()[-1], plain) in _INSTEAD:
        return CompileError("E0101", typed, what, _INSTEAD[name.split()[-1], plain])
    if others:
        whole = "tinytrain-compile" if others[0] == "compile" else f"tinytrain-compile {others[0]}"
        return CompileError("E0101", typed, what, f"leave it out: it is an option of {whole}")
    near = near_option(plain, own)
    way = f"did you mean --{near}?" if near else f"{name} --help lists all options"
    return CompileError("E0101", typed, what, way)


def _command(name: str) -> click.Command:
    if name == "compile":
        return import_module("tinytrain_compile.cli.command").command
    return getattr(import_module(f"tinytrain_compile.cli.{name}"), name)


def long_names(command: click.Command) -> list[str]:
    """Return the long names of the options of a command, without `--`."""
    options = [item for item in command.params if isinstance(item, click.Option)]
    return [flag.removeprefix("--") for item in options for flag in item.opts if flag.startswith("--")]


def _missing(param: click.Parameter | None, name: str, arguments: Sequence[str]) -> CompileError:
    if isinstance(param, click.Option):
        flag, loose = param.opts[-1], _loose(arguments)
        files = [word for word in loose if not word.endswith((".onnx", ".tflite"))]
        way = f"write {flag} {files[0]}" if len(loose) == 2 and len(files) == 1 else ""
        return CompileError("E0101", name, f"{flag} is missing", way or f"add {flag} {param.metavar or 'VALUE'}")
    example = f"{name} model.onnx" if name.split()[-1] in COMMANDS else EXAMPLE
    return CompileError("E0101", "MODEL", "no model file is given", f"for example {example}")


def _bad_value(problem: click.BadParameter) -> CompileError:
    param, message = problem.param, problem.message.rstrip(".")
    flag = param.opts[-1] if param is not None else str(problem.param_hint or "command line")
    word = re.match(r"'(.*)' is not one of ", message)
    if word is not None and param is not None and isinstance(param.type, click.Choice):
        known = [str(choice) for choice in param.type.choices]
        return CompileError("E0101", flag, f"unknown value {word[1]!r}", _way(flag, word[1], known))
    number = re.match(r"'(.*)' is not a valid (.*)$", message)
    if param is not None and number is not None and number[2] in _NUMBERS:
        return CompileError("E0101", flag, f"{number[1]!r} is not {_NUMBERS[number[2]]}", _as_number(number[1], param))
    limits = re.match(r"(.*) is not in the range (-?\d+)<=x<=(-?\d+)$", message)
    if limits is not None:
        return CompileError("E0101", flag, f"{limits[1]} is out of range", f"use {limits[2]} to {limits[3]}")
    first, _, rest = message.partition("; ")
    return CompileError("E0101", flag, first, rest or "see --help")


def _way(flag: str, word: str, known: Sequence[str]) -> str:
    """Return what to do about an unknown value of an option that has a choice of these."""
    return hint(word, known) + ("" if nearest(word, known) else _OTHERWISE.get(flag, ""))


def _as_number(text: str, param: click.Parameter) -> str:
    """Say how a number is typed, from a text that was meant as one or several."""
    flag, whole = param.opts[-1], isinstance(param.type, click.types.IntParamType)
    if re.fullmatch(r"-?\d+,\d+", text) and not whole:
        return f"write a decimal point: {flag} {text.replace(',', '.')}"
    first, comma, _ = text.partition(",")
    if comma and flag == "--seeds":
        return f"it is how many runs to make: --seeds {text.count(',') + 1}; --seed is the first of their seeds"
    if comma and re.fullmatch(r"[0-9.]+(?:[eE][-+]?\d+)?", first):
        return f"give one: {flag} {first}" + (f"; {_SEVERAL[flag]}" if flag in _SEVERAL else "")
    meant = re.fullmatch(r"(\d+)(?:\.0*|[eE]\+?0*)", text)
    usual = param.default if type(param.default) in (int, float) else 1
    return f"for example {flag} {meant[1] if meant else usual}"


def _extra(word: str, command: click.Command, arguments: Sequence[str]) -> CompileError:
    """Return the error for a word that no option takes."""
    several = _several(arguments, arguments.index(word), command) if word in arguments else None
    if several is not None:
        return CompileError("E0101", *several)
    before = arguments[arguments.index(word) - 1] if word in arguments and arguments.index(word) else ""
    what = "this word belongs to no option"
    if re.fullmatch(r"[0-9.]+", before) and re.fullmatch(r"[A-Za-z]{1,3}", word):
        return CompileError("E0101", f"{before} {word}", "a size or time is one word", f"write {before}{word}")
    if word.endswith(".onnx"):
        return CompileError("E0101", word, "a second model; a run compiles one", "run the command once for each model")
    if word.endswith((".npz", ".npy", ".csv")):
        return CompileError("E0101", word, what, f"for samples write --data {word}")
    return CompileError("E0101", word, what, "put quotes around a value with spaces or *, or leave it out")


def _several(arguments: Sequence[str], place: int, command: click.Command) -> tuple[str, str, str] | None:
    """Return where, what and the way out if the word at a place is one more value of an option; None if it is not."""
    start = next((at for at in range(place - 1, -1, -1) if arguments[at].startswith("--")), place)
    end = next((at for at in range(place, len(arguments)) if arguments[at].startswith("-")), len(arguments))
    flag, values = arguments[start], [word for word in arguments[start + 1 : end] if not word.endswith(".onnx")]
    if len(values) < 2 or any(re.search(r"\.[a-z]", value) for value in values):
        return None
    if flag in _LISTS:
        joined = re.sub(r"\b(last|replay|average),(?=\d)", _with_sign, ",".join(each.strip(",") for each in values))
        return flag, "a list has commas and no blanks", f"write {flag} {joined}"
    if any(flag in item.opts and isinstance(item, click.Option) and item.multiple for item in command.params):
        return flag, "takes one value, and may be repeated", f"write {' '.join(f'{flag} {each}' for each in values)}"
    return None


def _with_sign(found: re.Match[str]) -> str:
    """Return the word before a number with the sign that belongs between them."""
    return found[1] + (":" if found[1] == "last" else "=")


def check_command(word: str, rest: Sequence[str]) -> None:
    """Raise E0101 for a word in place of the model, which is no file, that is meant as a command or an option.

    rest: the arguments after it.
    """
    near, what = nearest(word, COMMANDS), "is neither a command nor a model file"
    if near:
        raise CompileError("E0101", word, what, f"did you mean tinytrain-compile {near}?")
    if word in (*long_names(_command("compile")), "help"):
        raise CompileError("E0101", word, what, f"write --{word}, with two dashes")
    if rest and not rest[0].startswith("-"):
        way = f"leave it out to compile {rest[0]}; commands are {', '.join(COMMANDS)}"
        raise CompileError("E0101", word, what, way)
