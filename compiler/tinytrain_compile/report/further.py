"""What a build does beside training layers in the arena: pieces of text for the terminal and report.html alike."""

from __future__ import annotations

from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ops.stream import StreamAttrs
from tinytrain_compile.report.analysis import work_of
from tinytrain_compile.report.choice import gain_pieces, rule_texts, tried_pieces
from tinytrain_compile.report.formats import float_regions
from tinytrain_compile.report.rows.external import external_pieces
from tinytrain_compile.report.rows.low_rank import low_rank_pieces
from tinytrain_compile.report.rows.runtime import feature_pieces, runtime_pieces, slice_pieces
from tinytrain_compile.report.words import bytes_text, macs_text, plural, printable, share


def further_texts(summary: Summary) -> list[tuple[str, str]]:
    """(label, text) of everything that applies to this build, for a table of figures."""
    head, names = float_pieces(summary)
    update = None if summary.choice is None else summary.choice.update
    found = (
        ("Gain", gain_pieces(summary), " "),
        ("Rules compared", rule_texts(summary), "; "),
        ("Limits of the gain", [] if update is None else [printable(text) for text in update.why], "; "),
        ("Features", feature_pieces(summary), ", "),
        ("Runtime parts", runtime_pieces(summary), ", "),
        ("Slices", slice_pieces(summary), ", "),
        ("External kernels", external_pieces(summary), ", "),
        ("Low rank", low_rank_pieces(summary), ", "),
        ("In float32", [f"{head} {', '.join(names)}"] if head else [], ""),
        ("On your data", data_pieces(summary), ", "),
        ("Row by row", stream_pieces(summary), ", "),
        ("Computed twice", remat_pieces(summary), ", "),
        ("Tried", tried_pieces(summary), " "),
    )
    return [(label, joint.join(pieces)) for label, pieces, joint in found if pieces]


def float_pieces(summary: Summary) -> tuple[str, list[str]]:
    """What an int8 model computes in float32: a sentence with the price, and the layers; "" without any."""
    found = float_regions(summary.train)
    if not found:
        return "", []
    names = [f"{printable(region.origins[0])} ({bytes_text(region.float_bytes)})" for region in found if region.origins]
    nodes, macs = sum(region.nodes for region in found), macs_text(sum(region.macs for region in found))
    return f"{plural(nodes, 'node')} in {plural(len(found), 'region')}, {macs} MAC a step; from", names


def data_pieces(summary: Summary) -> list[str]:
    """What the model does on the user's data before training, and how far int8 is from float."""
    known = summary.agreement
    if known is None:
        return []
    pieces: list[str] = []
    if known.accuracy is not None:
        floats = "" if known.float_accuracy is None else f" (float model {_percent(known.float_accuracy)})"
        pieces.append(f"accuracy {_percent(known.accuracy)}{floats}")
    if known.top1_agreement is not None:
        pieces.append(f"top-1 agreement with float {_percent(known.top1_agreement)}")
    if known.output_rmse is not None:
        pieces.append(f"output RMSE {known.output_rmse:.3g} of RMS {known.output_rms:.3g}")
    return [f"{plural(known.samples, 'sample')}, before training", *pieces] if pieces else []


def _percent(part: float) -> str:
    return f"{100 * part:.1f} %"


def stream_pieces(summary: Summary) -> list[str]:
    """What is computed row by row, and what that saves."""
    plan = summary.plan
    if plan.streams is None:
        return []
    names = [printable(node.origin) for node in plan.order if isinstance(node.attrs, StreamAttrs)]
    return [plural(len(names), "stream"), f"saves {bytes_text(plan.streams.saved_bytes)}", *names]


def remat_pieces(summary: Summary) -> list[str]:
    """What is computed twice: how many tensors, at which price, for how many bytes."""
    remat = summary.plan.remat
    if remat is None:
        return []
    step = sum(work_of(summary.train)) - remat.extra_macs
    price = f"+{macs_text(remat.extra_macs)} MAC a step ({share(remat.extra_macs, step)})"
    saved = f"saves {bytes_text(remat.arena_without_bytes - summary.plan.arena_bytes)}"
    return [plural(len(remat.runs), "tensor"), price, saved]
