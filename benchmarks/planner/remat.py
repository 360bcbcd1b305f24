"""Plan a full update with and without rematerialisation: bytes, extra MACs, the 55 % bar.

Every row plans one training graph twice, with --remat off and --remat min, as the command line does. Exits 1 if one of
the three int8 networks needs more than 55 % of its transient bytes without. `rows()` serves other tables.

usage: python -m benchmarks remat [NAME ...]
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from testing.networks.big_models import MODELS
from testing.places import SHARED
from tinytrain_compile.compilation import compile_model
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.report.analysis import work_of

INT8 = {"mcunet-5fps-10c-qdq": None, "mbv2-w0.35-qdq": 10, "proxyless-w0.3-qdq": 10}
"""Networks of ../shared/models and, where they have another head, --classes."""

MOST_SHARE = 0.55


@dataclass(frozen=True)
class Row:
    """One network: bytes without and with second runs. extra_share: extra MACs over those of the step without."""

    name: str
    quant: str
    persistent_bytes: int
    off_bytes: int
    min_bytes: int
    gap_bytes: int
    runs: int
    extra_macs: int
    extra_share: float
    seconds: float

    @property
    def ratio(self) -> float:
        """Transient bytes with over those without."""
        return self.min_bytes / self.off_bytes


def _row(name: str, options: CompileOptions) -> Row:
    start = time.process_time()
    summary = compile_model(options).summary
    seconds = time.process_time() - start
    assert summary is not None
    plan, remat = summary.plan, summary.plan.remat
    without = plan.arena_bytes if remat is None else remat.arena_without_bytes
    extra = 0 if remat is None else remat.extra_macs
    return Row(
        name,
        summary.quant,
        plan.persistent_bytes,
        without - plan.persistent_bytes,
        plan.arena_bytes - plan.persistent_bytes,
        plan.gap_bytes,
        0 if remat is None else len(remat.runs),
        extra,
        extra / (sum(work_of(summary.train)) - extra),
        seconds,
    )


def rows(names: tuple[str, ...] = (*INT8, *MODELS)) -> Iterator[Row]:
    """Plan these networks, all parameters updated."""
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            common = {"update": "all", "remat": "min", "stream": "off", "dry_run": True}
            if name in INT8:
                path = SHARED / "models" / f"{name}.onnx"
                yield _row(name, CompileOptions(path, quant="int8", classes=INT8[name], **common))  # type: ignore[arg-type]
            else:
                path = Path(folder) / f"{name}.onnx"
                path.write_bytes(MODELS[name]().SerializeToString())
                yield _row(name, CompileOptions(path, **common))  # type: ignore[arg-type]


def main() -> None:
    """Print the table; exit code 1 if the bar is missed."""
    heads = f"{'off B':>10} {'min B':>10} {'ratio':>6} {'gap B':>7} {'runs':>5} {'MACs':>7} {'CPU s':>6}"
    print(f"{'network':28} {heads}")
    missed: list[str] = []
    for row in rows(tuple(sys.argv[1:]) or (*INT8, *MODELS)):
        print(
            f"{row.name:22} {row.quant:5} {row.off_bytes:10,} {row.min_bytes:10,} {row.ratio:6.1%} {row.gap_bytes:7,} "
            f"{row.runs:5} {row.extra_share:+7.1%} {row.seconds:6.1f}",
            flush=True,
        )
        if row.name in INT8 and row.ratio > MOST_SHARE:
            missed.append(row.name)
    if missed:
        sys.exit(f"more than {MOST_SHARE:.0%} of the transient bytes without rematerialisation: {', '.join(missed)}")
