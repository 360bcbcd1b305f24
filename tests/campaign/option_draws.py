"""Random options beside those of memory and optimizers: what a network is asked for that is drawn for a campaign."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from random import Random

import numpy as np
import onnx

SAMPLES = 4
RARE = 5
"""One in so many networks is asked for an option."""

_WHERE = "where files go and what is printed: tests/cli/test_cli.py and others"
_FILES = "names a file, which has a kind of its own (tests/campaign/file_kinds.py) or tests"
_LONG = "takes longer than the 60 seconds of a case"
_MODEL = "is about names, layers or weights of a certain model"
NOT_DRAWN = {
    **dict.fromkeys(("--out", "-o", "--force", "--version", "--explain", "--color", "--verbose", "-v"), _WHERE),
    **dict.fromkeys(("--list-targets", "--list-ops", "--dump-after", "--dry-run", "--report", "--name"), _WHERE),
    **dict.fromkeys(("--lock", "--config", "--kernels", "--gains"), _FILES),
    **dict.fromkeys(("--count", "--cycles", "--pareto"), _LONG),
    **dict.fromkeys(("--classes", "--input-shape", "--trainable", "--frozen", "--untie", "--label"), _MODEL),
    **dict.fromkeys(("--model-output", "--weights", "--max-window", "--listen"), _MODEL),
    "--reserve": "changes what fits and nothing else",
    "--package": "changes what lies beside the code: tests/examples/test_package_page.py builds each",
    **dict.fromkeys(("--epochs", "--warm-up"), "is a macro for the firmware's own loop"),
    "--input-type": "is of rows that --input-lines takes: tests/e2e/test_lines.py",
}
"""Flag that no case of this campaign's networks has -> why not."""

_TOGETHER = (
    ("--guard-drop", ("--input-lines", "--inference-only")),
    ("--guard", ("--input-lines", "--inference-only")),
    ("--features", ("--micro-batch", "--memory", "--plans", "--input-lines")),
    ("--plans", ("--arena", "--memory", "--input-lines", "--activations", "--optimise")),
    ("--inference-only", ("--features", "--slices", "--runtime", "--plans", "--activations")),
    ("--input-lines", ("--micro-batch", "--stream", "--memory", "--activations")),
)
"""An option is left out where there is one of these."""
_NOT_WITH_JOURNAL = {"--features", "--slices", "--plans", "--input-lines", "--accumulate"}
"""Options with which a journal is refused."""


def more_options(source: Random, options: Sequence[str], model: onnx.ModelProto, folder: Path) -> list[str]:
    """Options to add to those of a case; samples for them are written into the folder."""
    found = [word for draw in _DRAWS if source.randrange(RARE) == 0 for word in draw(source)]
    if "--loss" in options and options[options.index("--loss") + 1] == "mse" and source.randrange(3) == 0:
        _write_samples(source, model, folder / "data.npz")
        found += ["--data", "data.npz", "--activations", source.choice(("asi", "subspace", "auto"))]
        found += ["--rank-error", source.choice(("0.02", "0.4"))] if source.randrange(2) else []
        found += _guard(source, found)
    if "journal" in found and _NOT_WITH_JOURNAL & {*options, *found}:
        found[found.index("journal")] = "store"
    for flag, others in _TOGETHER:
        if flag in found and set(others) & {*options, *found}:
            place = found.index(flag)
            del found[place : place + 1 + (place + 1 < len(found) and not found[place + 1].startswith("--"))]
    return found


def _write_samples(source: Random, model: onnx.ModelProto, path: Path) -> None:
    random = np.random.default_rng(source.randrange(1 << 30))
    ends = (model.graph.input[0], model.graph.output[0])
    x, y = (
        random.standard_normal((SAMPLES, *[d.dim_value for d in end.type.tensor_type.shape.dim][1:])) for end in ends
    )
    np.savez(path, x=x.astype(np.float32), y=y.astype(np.float32))


def _clipped(source: Random) -> list[str]:
    per = ["--clip-per", "layer"] if source.randrange(2) else []
    return ["--clip-norm", source.choice(("0.01", "0.5", "10")), *per]


def _guard(source: Random, found: Sequence[str]) -> list[str]:
    """Golden samples, or their features. Takes nothing from the source, so that cases that were found stay the same."""
    own = Random()
    own.setstate(source.getstate())
    if own.randrange(2):
        return []
    features = ["--features", "on"] if own.randrange(2) and "--features" not in found else []
    return ["--guard", "data.npz", "--guard-drop", own.choice(("0%", "25%")), *features]


def _plans(source: Random) -> list[str]:
    return ["--plans", ",".join(str(2 ** source.randrange(11, 18)) for _ in range(2))]


def _runtime(source: Random) -> list[str]:
    return [
        "--runtime",
        source.choice(("replay", "replay=5", "monitor,schedule", "store", "delta", "average=2", "journal")),
    ]


_DRAWS = (
    _clipped,
    _plans,
    _runtime,
    lambda source: ["--stream", source.choice(("off", "auto", "min"))],
    lambda _source: ["--features", "on"],
    lambda _source: ["--slices", "on"],
    lambda source: ["--input-lines"] if source.randrange(3) == 0 else [],
    lambda _source: ["--inference-only"],
)
