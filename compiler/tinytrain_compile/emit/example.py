"""Example of a project: a program for this model, to copy. Builds of the library do not compile it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from tinytrain_compile.emit.part import PlanCode, Render
from tinytrain_compile.emit.render import environment
from tinytrain_compile.target.model import BoardNames

MOST_LINES = 60
"""Largest number of lines of the example program."""
_ENOUGH_UPDATES, _ENOUGH_SAMPLES, _EPOCHS = 10, 100, 10
"""Least updates and samples of an epoch, and number of epochs without --epochs. They are enough for the loss to fall in
tests/emit/test_example.py."""


@dataclass(frozen=True)
class _Place:
    """Place of the example in a package, and its form there.

    program: its path, beside which hardware.h is; {p} is the prefix, {does} is train or predict. how: the words that
    tell how to build it, with the board's names if they are known. entry: the function that the system calls.
    sections: whether the project's link script places memories. builds: path and template of each file that builds it.
    """

    program: str
    how: str
    entry: str = "int main(void)"
    sections: bool = False
    builds: tuple[tuple[str, str], ...] = ()

    @property
    def sketch(self) -> bool:
        """True if it is an Arduino sketch: C++ after Arduino.h."""
        return self.program.endswith(".ino")


_SKETCH = _Place("examples/{does}_{p}/{does}_{p}.ino", "An Arduino sketch: open it by File > Examples.", "void setup()")
_WEAK = "__attribute__((weak)) int main(void) /* weak: if an IDE compiles every file, your own main is linked */"
_PLACES: Mapping[str | None, _Place] = {
    None: _Place("example/main.c", "On a PC: cc -I. *.c example/main.c && ./a.out", _WEAK, True),
    "makefile": _Place(
        "example/main.c", "On a PC: make && cc -Isrc example/main.c build/lib{p}.a && ./a.out", _WEAK, True
    ),
    "cmake": _Place(
        "example/main.c",
        "On a PC: cmake -S example -B build && cmake --build build && build/{does}_{p}",
        _WEAK,
        True,
        (("example/CMakeLists.txt", "cmake.txt.j2"),),
    ),
    "arduino": _SKETCH,
    "platformio": replace(_SKETCH, how="An Arduino sketch{platformio}."),
    "zephyr": _Place(
        "samples/{does}_{p}/src/main.c",
        "Build: west build -b {zephyr} samples/{does}_{p}",
        builds=(
            ("samples/{does}_{p}/CMakeLists.txt", "zephyr.txt.j2"),
            ("samples/{does}_{p}/prj.conf", "prj.conf.j2"),
        ),
    ),
    "esp-idf": _Place(
        "examples/{does}_{p}/main/main.c",
        "Build: idf.py -C examples/{does}_{p}{esp_idf} build",
        "void app_main(void)",
        builds=(
            ("examples/{does}_{p}/CMakeLists.txt", "idf.txt.j2"),
            ("examples/{does}_{p}/main/CMakeLists.txt", "idf_main.txt.j2"),
        ),
    ),
}
"""Package -> its example, in the folder for examples by the system's documentation; None: output without a package."""


def example_files(
    package: str | None, board: BoardNames, code: PlanCode, model: Mapping[str, Any], render: Render
) -> dict[str, str]:
    """Write the example of a package: path in the output folder -> text.

    board: its names in the systems of packages. code: of the largest plan. model: values of the templates, as for the
    public header.
    """
    place, trains = _PLACES[package], model["i"].trains
    names = _names(model["p"], trains)
    how = place.how.format(**names, **_named(board))
    values = {**model, **names, "place": place, "how": how, **_sample(code, model)}
    texts = [
        _short(render("example/main.c.j2", values)),
        render("example/hardware.h.j2", values),
        *(environment().get_template(f"example/{template}").render(values) for _, template in place.builds),
    ]
    return dict(zip(example_paths(package, model["p"], trains), texts, strict=True))


def example_paths(package: str | None, prefix: str, trains: bool) -> tuple[str, ...]:
    """Name the files of a package's example. trains: False for a project that only infers."""
    place = _PLACES[package]
    paths = (place.program, f"{place.program.rpartition('/')[0]}/hardware.h", *(path for path, _ in place.builds))
    return tuple(path.format(**_names(prefix, trains)) for path in paths)


def _names(prefix: str, trains: bool) -> dict[str, str]:
    return {"p": prefix, "does": "train" if trains else "predict"}


def _named(board: BoardNames) -> dict[str, str]:
    """Return the words of `how` that name the board."""
    return {
        "zephyr": board.zephyr or "BOARD",
        "esp_idf": f" set-target {board.esp_idf}" if board.esp_idf else "",
        "platformio": f": platform = {board.platform}, {board.platformio}" if board.platformio else "",
    }


def _short(text: str) -> str:
    """Return a program of at most MOST_LINES, without its empty lines if it would have more."""
    lines = text.splitlines()
    kept = lines if len(lines) <= MOST_LINES else [line for line in lines if line]
    return "".join(f"{line}\n" for line in kept)


def _sample(code: PlanCode, model: Mapping[str, Any]) -> dict[str, Any]:
    """Tell the template how to fill a sample.

    All but `kinds`, `samples` and `y_array` are C. together: number of samples in a call; "" for one. x, y: numbers of
    elements of a sample's input and label. x_at, y_at: their elements i. y_array: whether a label has several elements.
    kinds: number of kinds of samples that the stand-in for a sensor makes up. update_calls: number of calls in an
    update; "" for one. samples: number of samples in an epoch. passes: number of epochs.
    """
    face, train, several = model["i"], code.train, model["i"].micro_batch > 1
    prefix = face.prefix
    upper, count = prefix.upper(), model["counted"]
    found: dict[str, Any] = {
        "together": f"{prefix}_micro_batch(model)" if count else f"{upper}_MICRO_BATCH" if several else "",
        "x": f"{face.input_elements // face.micro_batch}u" if several else f"{upper}_INPUT_ELEMENTS",
        "x_at": "input[k].values[i]" if count else f"input->values[{_index('i', face.input_elements, face)}]",
    }
    if not face.trains:
        return {**found, "kinds": 4, "update_calls": ""}
    whole, step = train.batch // train.micro_batch, train.batch
    updates = max(_ENOUGH_UPDATES, -(-_ENOUGH_SAMPLES // step), (code.model["options"].warm_up or 0) // _EPOCHS + 1)
    one = face.label_elements // face.micro_batch
    return {
        **found,
        "kinds": model["classes"] or 4,
        "y": f"{one}u",
        "y_array": one > 1,
        "y_at": _label_at(face, count, one),
        "update_calls": f"{upper}_BATCH / {prefix}_micro_batch(model)" if count else f"{whole}u" if whole > 1 else "",
        "samples": updates * step,
        "passes": f"{upper}_EPOCHS" if code.model["options"].epochs else f"{_EPOCHS}u",
    }


def _index(name: str, elements: int, face: Any) -> str:
    one = elements // face.micro_batch
    if face.micro_batch == 1:
        return name
    return "k" if one == 1 else f"k * {one}u + {name}"


def _label_at(face: Any, counted: bool, one: int) -> str:
    if counted:
        return "labels[k].values[i]" if one > 1 else "labels[k]"
    return "*label" if face.label_elements == 1 else f"label->values[{_index('i', face.label_elements, face)}]"
