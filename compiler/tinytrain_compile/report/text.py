"""The block that a terminal shows of what was built."""

from __future__ import annotations

from collections.abc import Iterator

from tinytrain_compile.ir.stages import FurtherMemory, MemoryPlan
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.report.analysis import CATEGORIES, Analysis, analyse, work_of
from tinytrain_compile.report.choice import choice_rows, update_choice_rows
from tinytrain_compile.report.flash_and_ram import code_bytes, code_pieces, const_bytes, ram_pieces
from tinytrain_compile.report.layout import (
    NOT_MEASURED,
    WIDTH,
    Row,
    block,
    bytes_text,
    grouped,
    listing,
    macs_text,
    plural,
    printable,
    row,
    sentence,
    share,
)
from tinytrain_compile.report.rows import lines_of, pieces_of, remarks_of
from tinytrain_compile.report.trained import (
    batch_text,
    layer_counts,
    left_out,
    loss_text,
    untrained_rows,
    update_rows,
    update_totals,
)


def success_text(summary: Summary, width: int = WIDTH) -> list[str]:
    """Return all rows of the block as plain lines, and the tables below it; a figure that nobody measured says so."""
    analysis = analyse(summary.train, summary.plan)
    rows = [
        *_model_rows(summary, width),
        sentence("target", _target(summary), width),
        *_with_remarks("board", summary, width),
        row("RAM", ram_pieces(summary), width),
        *update_rows(summary, width),
        *untrained_rows(summary, width),
        *update_choice_rows(summary, width),
        *_arena_rows(summary, analysis, width),
        row("features", pieces_of("features", summary), width),
        row("runtime", pieces_of("runtime", summary), width),
        row("slices", pieces_of("slices", summary), width),
        row("stack", _stack(summary), width),
        row("flash", [*_flash(summary), *code_pieces(summary)], width),
        row("external", pieces_of("external", summary), width),
        row("peak at", [f"step {summary.plan.peak_step} of {len(summary.plan.order)}", peak_text(analysis)], width),
        row("work", _work(summary), width),
        row("low rank", pieces_of("low_rank", summary), width),
        *_float_rows(summary, width),
        row("data", pieces_of("agreement", summary), width),
        row("row by row", pieces_of("streams", summary), width),
        row("recompute", pieces_of("remat", summary), width),
        *choice_rows(summary, width),
        *_verify_rows(summary, width),
        *_with_remarks("derivative", summary, width),
    ]
    return [*block(rows), *lines_of("pareto", summary), *lines_of("kernels", summary)]


def fit_verdict(plan: MemoryPlan, limit_bytes: int) -> str:
    """Say whether the bound proves that these steps do not fit, or nothing was found; other steps may need less."""
    if plan.lower_bound_bytes > limit_bytes:
        if plan.order_proven:
            return "proven, no order and no placement of these steps can fit"
        return "no placement of this order can fit; a better order is not excluded"
    if plan.placement_proven:
        return "proven, no placement of this order can fit; a better order is not excluded"
    return "a placement that fits is not excluded, the search found none"


def bound_text(plan: MemoryPlan) -> str:
    """Tell the bound, of all memories if there are several, and what is proven about it."""
    of = " of all memories" if plan.further else ""
    return f"lower bound{of} {bytes_text(plan.lower_bound_bytes)}, gap {bytes_text(plan.gap_bytes)}: {proof(plan)}"


def proof(plan: MemoryPlan) -> str:
    """Say what is known about the distance to the smallest arena of the plan's steps."""
    order = "order proven minimal" if plan.order_proven else "order not proven"
    if plan.gap_bytes == 0:
        return "OPTIMAL for these steps" if plan.order_proven else "placement OPTIMAL, order not proven minimal"
    placed = "placement proven minimal for this order" if plan.placement_proven else "placement not proven"
    return f"{placed}, {order}"


def verify_pieces(summary: Summary) -> list[str]:
    """Return the parts of the stage's own line and the verdict; behind the verdict, what was left out."""
    word = summary.verify.result.upper()
    message = printable(summary.verify.message).strip()
    head, _, last = message.rpartition(" ")
    if last.strip(".:!").upper() == word:
        message = head.strip()
    pieces = [piece.strip() for piece in message.split("   ") if piece.strip()]
    pieces = pieces if word in pieces else [*pieces, word]
    losses = summary.verify.losses
    if len(losses) > 1 and summary.own_samples:
        most = f", at most {max(losses):.3g}" if max(losses) > 2 * max(losses[0], losses[-1]) else ""
        said = f"loss {losses[0]:.3g} -> {losses[-1]:.3g} in {len(losses)} steps{most}"
        pieces.insert(pieces.index(word), said)
    elif losses:
        pieces.insert(pieces.index(word), f"{plural(len(losses), 'step')} on random samples")
    counted = summary.verify.saturations
    if counted is not None:
        before = f"{grouped(counted.before)} before"
        pieces.append(f"{grouped(counted.after)} of {plural(counted.weights, 'int8 weight')} at +-127 ({before})")
        if counted.rescaled is not None:
            pieces.append(f"{plural(counted.rescaled, 'channel')} rescaled")
    return pieces


def _with_remarks(name: str, summary: Summary, width: int) -> Iterator[Row]:
    """Yield a row that only some builds have, and its remarks as sentences."""
    yield row(name, pieces_of(name, summary), width)
    for remark in remarks_of(name, summary):
        yield sentence("", remark, width)


def _float_rows(summary: Summary, width: int) -> Iterator[Row]:
    """Yield what an int8 model computes in float32, and its price."""
    head, *names = pieces_of("float32", summary) or [""]
    if head:
        yield listing("float32", names, width, head=head)


def _verify_rows(summary: Summary, width: int) -> Iterator[Row]:
    """Yield the verdict at the end of its line; what was left out is a sentence (it says how to)."""
    pieces = verify_pieces(summary)
    end = pieces.index(summary.verify.result.upper()) + 1
    last = "   ".join(pieces[max(end - 2, 0) : end])  # the verdict never stands alone
    yield row("verify", [*pieces[: max(end - 2, 0)], last], width)
    for piece in pieces[end:]:
        yield sentence("", piece, width)


def _model_rows(summary: Summary, width: int) -> Iterator[Row]:
    totals = update_totals(summary)
    graph = summary.train.graph
    inputs = " and ".join(_shape(value.shape) for value in graph.data)
    shapes = f"{inputs} -> {_shape(graph.outputs[0].shape)}"
    parameters = f"{grouped(totals['total_parameters'] - left_out(summary))} parameters"
    yield row("model", [printable(summary.model), layer_counts(summary), parameters, shapes], width)
    optimizer = f"{summary.optimizer}, learning rate {summary.learning_rate:g}"
    yield row("loss", [loss_text(summary), optimizer, batch_text(summary.train)], width)
    for index, note in enumerate(summary.all_notes):
        yield sentence("note" if index == 0 else "", printable(note), width)


def _target(summary: Summary) -> str:
    return f"{printable(summary.target)}: {printable(summary.target_summary)}, {summary.quant}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(dim) for dim in shape) or "scalar"


def _arena_rows(summary: Summary, analysis: Analysis, width: int) -> Iterator[Row]:
    plan, limit = summary.plan, summary.arena_limit_bytes
    used = bytes_text(plan.arena_bytes)
    head = (
        f"{used}, no limit given" if limit is None else f"{used} of {grouped(limit)} ({share(plan.arena_bytes, limit)})"
    )
    transient = plan.total_bytes - plan.persistent_bytes
    pieces = [head, f"{grouped(plan.persistent_bytes)} persistent + {grouped(transient)} transient"]
    yield row("ARENA", pieces, width)
    for memory in plan.further:
        yield row("memory", memory_pieces(memory), width)
    yield row("paging", pieces_of("paging", summary), width)
    bound = bound_text(plan)
    yield sentence("", bound, width)
    yield row("  at peak", breakdown_pieces(analysis), width, " | ")


def memory_pieces(memory: FurtherMemory) -> list[str]:
    """Tell how full a further memory is, and what its accesses cost a step by the target's figures."""
    used, limit = memory.used_bytes, memory.capacity_bytes
    price = f"+{memory.extra_ps / 1e9:.3g} ms, +{memory.extra_pj / 1e9:.3g} mJ a step (model)"
    return [f"{printable(memory.name)} {bytes_text(used)} of {grouped(limit)} ({share(used, limit)})", price]


def breakdown_pieces(analysis: Analysis) -> list[str]:
    """Return `activations 96,512`, ... at the peak step; what is nothing is left out."""
    parts = analysis.breakdown(analysis.plan.peak_step)
    return [f"{CATEGORIES[key]} {grouped(size)}" for key, size in parts.items() if size]


def _stack(summary: Summary) -> list[str]:
    static, painted = summary.verify.stack_bytes, summary.verify.stack_measured_bytes
    if static is None and painted is None:
        return [NOT_MEASURED]
    apart = " but callbacks" if any(map(takes_lines, summary.plan.order)) else ""
    return [f"static bound {bytes_text(static)}{apart}", f"high-water in the run {bytes_text(painted)}"]


def _flash(summary: Summary) -> list[str]:
    code, const = code_bytes(summary), const_bytes(summary)
    if code is None and const is None:
        return [NOT_MEASURED]
    both = f" = {bytes_text(code + const)}" if code is not None and const is not None else ""
    return [f"code {bytes_text(code)} + const {bytes_text(const)}{both}"]


def peak_text(analysis: Analysis) -> str:
    """Name the step with the most live bytes."""
    return printable(analysis.node_label(analysis.plan.peak_step))


def _work(summary: Summary) -> list[str]:
    forward, backward = work_of(summary.train)
    size = summary.train.micro_batch
    step = f"a step of {size} samples" if size > 1 else "a step"
    return [
        f"{macs_text(forward)} MAC forward + {macs_text(backward)} backward = {macs_text(forward + backward)} {step}"
    ]
