"""The block that a terminal shows of what was built."""

from __future__ import annotations

from collections.abc import Iterator

from tinytrain_compile.ir.stages import FurtherMemory, MemoryPlan
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.report.analysis import CATEGORIES, Analysis, analyse, work_of
from tinytrain_compile.report.checks import check_rows, losses_texts, saturation_texts, verdict
from tinytrain_compile.report.choice import cost_pieces, tried_pieces, update_choice_rows
from tinytrain_compile.report.flash_and_ram import code_bytes, code_pieces, const_bytes, ram_pieces
from tinytrain_compile.report.layout import (
    NOT_MEASURED,
    WIDTH,
    Row,
    blocks,
    bytes_text,
    figure,
    grouped,
    listing,
    macs_text,
    printable,
    row,
    sentence,
    share,
    spread,
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


def success_text(summary: Summary, width: int = WIDTH, ending: str = "") -> list[str]:
    """Return the headline, and below it all rows in groups of a kind, then tables; unmeasured figures say so.

    ending: of the headline, such as `PASS   out/ (22 files)`; the verdict alone if it is empty.
    """
    analysis = analyse(summary.train, summary.plan)
    groups = (
        _cost_rows(summary, analysis, width),
        _training_rows(summary, width),
        _note_rows(summary, width),
        check_rows(summary, width),
    )
    lines = [*headline(summary, width, ending), *blocks(groups)]
    for table in (lines_of("pareto", summary, width), lines_of("kernels", summary, width)):
        lines += ["", *table] if table else []
    return lines


def headline(summary: Summary, width: int, ending: str = "") -> list[str]:
    """Name the model, the target and the format, and at the right end what came out."""
    what = f"{printable(summary.model)} for {printable(summary.target)}, {summary.quant}"
    return spread(what, printable(ending) or verdict(summary.verify), width)


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
    at = pieces.index(word)
    return [*pieces[:at], *losses_texts(summary), *pieces[at:], *saturation_texts(summary)]


def _cost_rows(summary: Summary, analysis: Analysis, width: int) -> Iterator[Row]:
    """Yield what the build takes: RAM, stack, flash, work, time."""
    yield from _arena_rows(summary, analysis, width)
    yield row("all RAM", ram_pieces(summary), width)
    yield from _with_remarks("board", summary, width)
    yield _stack_row(summary, width)
    yield _flash_row(summary, width)
    yield row("", code_pieces(summary), width)
    yield _work_row(summary, width)
    yield _time_row(summary, width)


def _training_rows(summary: Summary, width: int) -> Iterator[Row]:
    """Yield what is trained and how, and every choice that a build may have made for it."""
    yield from _model_rows(summary, width)
    yield from update_rows(summary, width)
    yield from untrained_rows(summary, width)
    yield from update_choice_rows(summary, width)
    yield row("loss", [loss_text(summary), _optimizer(summary)], width)
    for name in ("features", "listening", "runtime", "slices", "external"):
        yield row(name, pieces_of(name, summary), width)
    yield row("low rank", pieces_of("low_rank", summary), width)
    yield from _float_rows(summary, width)
    yield row("data", pieces_of("agreement", summary), width)
    yield row("row by row", pieces_of("streams", summary), width)
    yield row("recompute", pieces_of("remat", summary), width)
    yield row("tried", tried_pieces(summary), width, " ")


def _note_rows(summary: Summary, width: int) -> Iterator[Row]:
    for index, note in enumerate(summary.all_notes):
        yield sentence("note" if index == 0 else "", printable(note), width)


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


def _model_rows(summary: Summary, width: int) -> Iterator[Row]:
    totals = update_totals(summary)
    graph = summary.train.graph
    inputs = " and ".join(_shape(value.shape) for value in summary.train.on_windows.data)
    shapes = f"{inputs} -> {_shape(graph.outputs[0].shape)}"
    parameters = f"{grouped(totals['total_parameters'] - left_out(summary))} parameters"
    yield row("model", [layer_counts(summary), parameters, shapes], width)
    yield sentence("target", printable(summary.target_summary), width)


def _optimizer(summary: Summary) -> str:
    return f"{summary.optimizer}, lr {summary.learning_rate:g}, {batch_text(summary.train)}"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(dim) for dim in shape) or "scalar"


def _arena_rows(summary: Summary, analysis: Analysis, width: int) -> Iterator[Row]:
    """Yield the arena, what is in it when it is fullest, further memories, and what is proven."""
    plan, limit = summary.plan, summary.arena_limit_bytes
    used = bytes_text(plan.arena_bytes)
    of = "no limit given" if limit is None else f"of {grouped(limit)} ({share(plan.arena_bytes, limit)})"
    smallest = "" if plan.gap_bytes else "smallest possible for these steps"
    smallest = smallest if plan.order_proven or not smallest else "smallest possible for this order of steps"
    yield figure("RAM", f"{used}{',' if limit is None else ''} {of}", smallest, width)
    for memory in plan.further:
        yield row("memory", memory_pieces(memory), width)
    if plan.gap_bytes:
        yield sentence("", bound_text(plan), width)
    first, *rest = breakdown_pieces(analysis)
    together = f"{bytes_text(plan.total_bytes)} in all memories:" if plan.further else ""
    yield row("", [*filter(None, [together]), first, *rest], width, " ")
    peak = f"at step {plan.peak_step} of {len(plan.order)}, {_without_op(peak_text(analysis))};"
    yield row("", [peak, f"{bytes_text(plan.persistent_bytes)} kept between steps"], width, " ")
    yield row("paging", pieces_of("paging", summary), width)


def memory_pieces(memory: FurtherMemory) -> list[str]:
    """Tell how full a further memory is, and what its accesses cost a step by the target's figures."""
    used, limit = memory.used_bytes, memory.capacity_bytes
    price = f"+{memory.extra_ps / 1e9:.3g} ms, +{memory.extra_pj / 1e9:.3g} mJ a step (model)"
    return [f"{printable(memory.name)} {bytes_text(used)} of {grouped(limit)} ({share(used, limit)})", price]


def breakdown_pieces(analysis: Analysis) -> list[str]:
    """Return `96,512 activations`, `+ ...` at the peak step, largest first; their sum is all memory that is used."""
    plan = analysis.plan
    parts = {CATEGORIES[key]: size for key, size in analysis.breakdown(plan.peak_step).items() if size}
    parts |= {"in gaps": plan.gap_bytes} if plan.gap_bytes else {}
    found = [f"{grouped(size)} {name}" for name, size in sorted(parts.items(), key=lambda part: -part[1])]
    return [*found[:1], *(f"+ {one}" for one in found[1:])]


def _without_op(label: str) -> str:
    """Leave out the operator behind a node's name that ends with it: `conv3.ConvGradInput (ConvGradInput)`."""
    name, _, op = label.partition(" (")
    return name if name.endswith(f".{op.removesuffix(')')}") else label


def _stack_row(summary: Summary, width: int) -> Row:
    static, painted = summary.verify.stack_bytes, summary.verify.stack_measured_bytes
    if static is None and painted is None:
        return row("stack", [NOT_MEASURED], width)
    apart = " without callbacks" if any(map(takes_lines, summary.plan.order)) else ""
    used = "not run on the board" if painted is None else f"{bytes_text(painted)} used in QEMU"
    return figure("stack", bytes_text(static), f"worst case{apart}; {used}", width)


def _flash_row(summary: Summary, width: int) -> Row:
    code, const = code_bytes(summary), const_bytes(summary)
    if code is None and const is None:
        return row("flash", [NOT_MEASURED], width)
    if code is None or const is None:
        return row("flash", [f"code {bytes_text(code)}, constants {bytes_text(const)}"], width)
    return figure("flash", bytes_text(code + const), f"{grouped(code)} code + {grouped(const)} constants", width)


def peak_text(analysis: Analysis) -> str:
    """Name the step with the most live bytes."""
    return printable(analysis.node_label(analysis.plan.peak_step))


def _work_row(summary: Summary, width: int) -> Row:
    forward, backward = work_of(summary.train)
    size = summary.train.micro_batch
    step = f"a step of {size} samples" if size > 1 else "a step"
    parts = f"{macs_text(forward)} forward + {macs_text(backward)} backward"
    return figure("work", f"{macs_text(forward + backward)} MAC {step}", parts, width)


def _time_row(summary: Summary, width: int) -> Row:
    """Return time and energy of a step by the target's figures, and by what the plan was chosen."""
    found = cost_pieces(summary)
    if not found:
        return row("time", [], width)
    time, energy, model, *goal = found
    return figure("time", f"{time}, {energy}", ", ".join([model, *goal]), width)
