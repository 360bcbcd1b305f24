"""What layers keep of their inputs where that is not all of them, in words and for report.json."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from tinytrain_compile.ir.activations import MODES, KeptActivation
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.report.layout import bytes_text, macs_text, plural, printable, wrapped


def low_rank_pieces(summary: Summary) -> list[str]:
    """Tell how many gradients read a low-rank copy, what that keeps, takes and costs, and the largest error."""
    kept = summary.train.low_rank
    exact, now = sum(item.exact_bytes for item in kept), sum(item.kept_bytes for item in kept)
    state, flash = sum(item.state_bytes for item in kept), sum(item.const_bytes for item in kept)
    kinds = " and ".join(sorted({item.kind for item in kept}))
    pieces = [f"{kinds}: {plural(len(kept), 'layer')} keep {bytes_text(now)}, exactly {bytes_text(exact)}"]
    pieces += [f"{bytes_text(state)} of state"] if state else []
    pieces += [f"{bytes_text(flash)} of flash"] if flash else []
    extra = sum(item.extra_macs for item in kept)
    pieces.append(f"{'-' if extra < 0 else '+'}{macs_text(abs(extra))} MAC a step")
    errors = [item.error for item in kept if item.error is not None]
    return [*pieces, f"error of a gradient up to {100 * max(errors):.1f} %"] if errors else pieces


def low_rank_lines(summary: Summary, width: int) -> list[str]:
    """Return what -v says of each such layer."""
    said = (f"{printable(item.layer)}: {_line(item)}" for item in summary.train.low_rank)
    return [line for each in said for line in wrapped("low rank   ", each, width)]


def _line(item: KeptActivation) -> str:
    names = (name for name, _ in MODES[len(item.shape)])
    lengths = (item.shape[axis] for _, axis in MODES[len(item.shape)])
    modes = (
        f"{rank} of {length} {n}" for n, rank, length in zip(names, item.ranks, lengths, strict=True) if length > 1
    )
    error = "not measured" if item.error is None else f"{100 * item.error:.1f} %"
    kept = f"keeps {bytes_text(item.kept_bytes)}, exactly {bytes_text(item.exact_bytes)}"
    return f"{item.kind}, ranks {', '.join(modes)}; {kept}; {item.extra_macs:+,} MAC; error {error}"


def low_rank_json(summary: Summary) -> list[dict[str, Any]]:
    """Return for each gradient the fields of KeptActivation, and their sum of bytes."""
    return [{**asdict(item), "kept_bytes": item.kept_bytes} for item in summary.train.low_rank]
