"""Runs a .tflite file in LiteRT (PyPI ai-edge-litert), by its reference kernels.

    python litert.py REQUEST.npz ANSWER.npz

It is a program of its own, because a damaged file can end LiteRT's process by a signal. It imports nothing of the
compiler. Exit code 1: the last line says why LiteRT does not run the file.

Request: `model`, the bytes of the file; `output`, the name of the output that counts; `whole`, whether all tensors are
wanted; `S.I`, the real numbers of input I of sample S, in the file's axes. Answer: `names`, `scales` and `zeros` of
tensors, the output first; `S.T`, what tensor T held in each step of sample S.

A window is heard step by step: its last step gives the output, and nothing before the window counts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def main(request: str, answer: str) -> None:
    """Run the samples of a request."""
    with np.load(request) as given:
        known = dict(given)
    runner = _opened(known["model"].tobytes())
    outputs: list[Any] = runner.get_output_details()
    chosen = [next((one for one in outputs if one["name"] == str(known["output"])), outputs[0])]
    if known["whole"]:
        chosen += [one for one in runner.get_tensor_details() if _is_compared(one)]
    count = len(runner.get_input_details())
    held = dict[str, Any]()
    for sample in range(sum(name.endswith(".0") for name in known)):
        steps = list[dict[int, Array]]()
        for _ in _steps_of(runner, [known[f"{sample}.{place}"] for place in range(count)]):
            values = ((number, _held(runner, one)) for number, one in enumerate(chosen))
            steps.append({number: array for number, array in values if array is not None})
        kept = steps if known["whole"] else steps[-1:]
        held |= {f"{sample}.{number}": np.stack([step[number] for step in kept]) for number in steps[-1]}
    formats = [one["quantization"] for one in chosen]
    np.savez(
        answer,
        names=np.asarray([one["name"] for one in chosen]),
        scales=np.asarray([scale for scale, _ in formats], np.float32),
        zeros=np.asarray([zero for _, zero in formats], np.int64),
        **held,
    )


def _opened(model: bytes) -> Any:
    from ai_edge_litert import interpreter as litert

    runner = litert.Interpreter(
        model_content=model,
        experimental_op_resolver_type=litert.OpResolverType.BUILTIN_REF,
        experimental_preserve_all_tensors=True,
        num_threads=1,
    )
    runner.allocate_tensors()
    return runner


def _steps_of(runner: Any, inputs: list[Array]) -> Iterator[None]:
    """Yield after each step of a sample."""
    details = runner.get_input_details()
    stored = [_stored(array, one) for array, one in zip(inputs, details, strict=True)]
    parts = [_cut(array, tuple(one["shape"])) for array, one in zip(stored, details, strict=True)]
    for step in zip(*parts, strict=True):
        for one, array in zip(details, step, strict=True):
            runner.set_tensor(one["index"], array)
        runner.invoke()
        yield


def _held(runner: Any, detail: Mapping[str, Any]) -> Array | None:
    try:
        return runner.get_tensor(detail["index"])
    except ValueError:  # nothing was allocated for it
        return None


def _is_compared(detail: Mapping[str, Any]) -> bool:
    kind = np.dtype(detail["dtype"]).name
    return kind == "float32" or (kind in ("int8", "uint8") and bool(detail["quantization"][0]))


def _stored(real: Array, detail: Mapping[str, Any]) -> Array:
    """Return real numbers as an input of the file stores them."""
    kind, (scale, zero) = np.dtype(detail["dtype"]), detail["quantization"]
    if not scale:
        return real.astype(kind)
    limits = np.iinfo(kind)
    return np.clip(np.rint(real / np.float32(scale)) + zero, limits.min, limits.max).astype(kind)


def _cut(array: Array, shape: tuple[int, ...]) -> list[Array]:
    """Cut a window into the steps of a stream, the last rows last; a sample of the file's own shape is one step."""
    if array.shape == shape:
        return [array]
    axis = next(k for k, (one, other) in enumerate(zip(array.shape, shape, strict=True)) if one != other)
    before = -array.shape[axis] % shape[axis]
    first = np.repeat(np.take(array, [0], axis), before, axis)
    whole = np.concatenate([first, array], axis)
    return np.split(whole, whole.shape[axis] // shape[axis], axis)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:])
    except Exception as problem:  # whatever LiteRT raises: the file is another's
        sys.exit(" ".join(str(problem).split()) or type(problem).__name__)
