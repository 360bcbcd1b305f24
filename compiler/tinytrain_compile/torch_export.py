"""A PyTorch module as an ONNX model that trains as the module does."""

from __future__ import annotations

import inspect
import io
import logging
import re
import warnings
from collections.abc import Generator
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from importlib import import_module
from typing import Any, cast

from tinytrain_compile.errors import CompileError

_INSTALL = "pip install 'tinytrain-compile[torch]'"


def c_name(module: Any) -> str:
    """Return a name for what is made of a module: that of its class."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", type(module).__name__).strip("_")
    return name[:60] if name[:1].isalpha() else "model"


def exported(module: Any, example: Any, dropout: bool = False) -> bytes:
    """Return the ONNX model of a module, of one sample, with all its parameters under their names.

    `optimize=False`: the exporter would compute with constants, and so fold parameters into others
    (docs/parameters.md). dropout: keep it in the graph, for `--dropout on`. Raises E0114 without PyTorch, E0101 for
    what its exporter cannot take.
    """
    torch = _imported("torch")
    _imported("onnxscript")  # the exporter needs it
    if not isinstance(module, torch.nn.Module):
        what = f"{type(module).__name__} is no torch.nn.Module"
        raise CompileError("E0101", "from_torch", what, "give the module itself; an ONNX model: tt.compile")
    arguments = arguments_of(torch, module, example)
    try:
        with _inferring(torch, module, dropout), _quiet():
            program = torch.onnx.export(module, arguments, dynamo=True, optimize=False, verbose=False)
            return cast("bytes", program.model_proto.SerializeToString())
    except Exception as problem:  # the exporter's own errors are many, and long
        what = f"PyTorch cannot export {type(module).__name__}: {_reason(problem)}"
        way = "torch.onnx.export(module, example, dynamo=True, report=True) tells more"
        raise CompileError("E0101", "from_torch", what, way) from problem


def arguments_of(torch: Any, module: Any, example: Any) -> tuple[Any, ...]:
    """Return one sample of each input of a module; E0101 for an example that it does not take.

    A list of tensors, such as a batch of a DataLoader, is a tuple of inputs.
    """
    several = isinstance(example, tuple)
    if isinstance(example, list):
        several = all(isinstance(each, torch.Tensor) for each in cast("list[Any]", example))
    examples = tuple(cast("list[Any]", example)) if several else (cast("Any", example),)
    with suppress(ValueError):  # a callable of C has no signature
        takes = inspect.signature(module.forward)
        try:
            takes.bind(*examples)
        except TypeError as problem:
            forward = f"{type(module).__name__}.forward({', '.join(takes.parameters)})"
            what = f"{forward} does not take {len(examples)} inputs, as the example has"
            way = "give one for each argument, and no labels: of a batch x, y only x"
            raise CompileError("E0101", "from_torch", what, way) from problem
    try:
        return tuple(_one_sample(torch, each) for each in examples)
    except (TypeError, ValueError, RuntimeError) as problem:
        what = f"the example is no tensor: {_reason(problem)}"
        way = "give a tensor or a tuple of tensors, such as x[:1]"
        raise CompileError("E0101", "from_torch", what, way) from problem


def _imported(name: str) -> Any:
    try:
        return import_module(name)
    except ImportError as problem:
        raise CompileError("E0114", "from_torch", f"{name} cannot be imported ({problem})", _INSTALL) from problem


def _one_sample(torch: Any, value: Any) -> Any:
    """Return the first sample of an example: the device takes one at a time."""
    tensor = value if isinstance(value, torch.Tensor) else torch.as_tensor(value)
    return tensor[:1] if tensor.ndim else tensor


def _reason(problem: BaseException) -> str:
    """Return the first line of the error that the others come from."""
    while problem.__cause__ is not None:
        problem = problem.__cause__
    lines = [line.strip() for line in str(problem).splitlines() if line.strip()]
    return (lines[0] if lines else type(problem).__name__)[:200]


@contextmanager
def _inferring(torch: Any, module: Any, dropout: bool) -> Generator[None]:
    """Put a module and its parts into evaluation (but Dropout, if asked), and back into what each of them was in."""
    were = {part: part.training for part in module.modules()}
    with suppress(NotImplementedError):  # a program that torch.export has made is in one mode for good
        module.eval()
    for part in were:
        part.training = part.training or (dropout and isinstance(part, torch.nn.modules.dropout._DropoutNd))
    try:
        with torch.no_grad():
            yield
    finally:
        for part, training in were.items():
            part.training = training


@contextmanager
def _quiet() -> Generator[None]:
    """Keep what the exporter prints and warns of from the terminal: what matters is an error or a note of ours."""
    before = logging.root.manager.disable
    try:
        logging.disable(logging.WARNING)
        with warnings.catch_warnings(), redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)
