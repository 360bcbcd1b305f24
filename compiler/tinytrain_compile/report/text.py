"""The blocks that a terminal shows: what was built, or why training does not fit and what would."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from rich.cells import cell_len

from tinytrain_compile.ir.stages import FurtherMemory, MemoryPlan
from tinytrain_compile.ir.summary import LayerUpdate, Suggestion, Summary
from tinytrain_compile.ir.types import Node
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.ops.names import operand
from tinytrain_compile.report.analysis import CATEGORIES, Analysis, analyse, work_of
from tinytrain_compile.report.choice import attempt_lines, choice_rows, update_choice_rows
from tinytrain_compile.report.data import batch_text, code_bytes, const_bytes, is_updated, loss_name, update_totals
from tinytrain_compile.report.further import data_pieces, float_pieces, remat_pieces, stream_pieces
from tinytrain_compile.report.layout import MIN_WIDTH, WIDTH, Row, block, listing, priced, row, sentence, wrapped
from tinytrain_compile.report.rows.board import board_rows
from tinytrain_compile.report.rows.code import code_pieces
from tinytrain_compile.report.rows.derivative import derivative_rows
from tinytrain_compile.report.rows.external import external_pieces
from tinytrain_compile.report.rows.low_rank import low_rank_pieces
from tinytrain_compile.report.rows.ram import ram_pieces
from tinytrain_compile.report.rows.runtime import feature_pieces, runtime_pieces, slice_pieces
from tinytrain_compile.report.rows.untrained import left_out, untrained_rows
from tinytrain_compile.report.words import (
    NOT_MEASURED,
    bytes_text,
    grouped,
    macs_text,
    pad,
    plural,
    printable,
    share,
    shorten,
)

LARGEST_SHOWN = 6

LAYER_KINDS = {
    "Conv": "conv",
    "ConvGradInput": "transposed conv",
    "Gemm": "fc",
    "MatMul": "matmul",
    "Normalize": "norm",
}


def success_text(summary: Summary, width: int = WIDTH) -> list[str]:
    """The success block, all of its rows as plain lines; figures that nobody measured are said to be so."""
    analysis = analyse(summary.train, summary.plan)
    rows = [
        *_model_rows(summary, width),
        sentence("target", _target(summary), width),
        *board_rows(summary, width),
        row("RAM", ram_pieces(summary), width),
        *_update_rows(summary, width),
        *untrained_rows(summary, width),
        *update_choice_rows(summary, width),
        *_arena_rows(summary, analysis, width),
        row("features", feature_pieces(summary), width),
        row("runtime", runtime_pieces(summary), width),
        row("slices", slice_pieces(summary), width),
        row("stack", _stack(summary), width),
        row("flash", [*_flash(summary), *code_pieces(summary)], width),
        row("external", external_pieces(summary), width),
        row("peak at", [f"step {summary.plan.peak_step} of {len(summary.plan.order)}", _peak(analysis)], width),
        row("work", _work(summary), width),
        row("low rank", low_rank_pieces(summary), width),
        *_float_rows(summary, width),
        row("data", data_pieces(summary), width),
        row("row by row", stream_pieces(summary), width),
        row("recompute", remat_pieces(summary), width),
        *choice_rows(summary, width),
        *_verify_rows(summary, width),
        *derivative_rows(summary, width),
    ]
    return block(rows)


def does_not_fit_text(summary: Summary, width: int = WIDTH) -> list[str]:
    """What stands below the one-line error E0401: the gap, what is proven, the peak, and ways out with their price."""
    plan, analysis = summary.plan, analyse(summary.train, summary.plan)
    limit = summary.arena_limit_bytes
    asked = (
        "" if limit is None else f", the arena is {bytes_text(limit)}: over by {bytes_text(plan.arena_bytes - limit)}"
    )
    what = "training" if summary.train.reads_state_of is None else "inference"
    lines = [f"  {what} needs {bytes_text(plan.arena_bytes)}{asked}"]
    if limit is not None:
        verdict = f"lower bound {bytes_text(plan.lower_bound_bytes)}: {fit_verdict(plan, limit)}"
        lines += wrapped("  ", verdict, width, indent=4)
    lines += [f"  peak at step {plan.peak_step} of {len(plan.order)}: {_peak(analysis)}"]
    lines += ["  live there, largest first:", *_largest(analysis, width)]
    lines += attempt_lines(summary.choice, limit, width)
    return [*(shorten(line, max(width, MIN_WIDTH)) for line in lines), *_suggested(summary, width)]


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
    """The bound, of all memories where there are several, and what is proven about it."""
    of = " of all memories" if plan.further else ""
    return f"lower bound{of} {bytes_text(plan.lower_bound_bytes)}, gap {bytes_text(plan.gap_bytes)}: {proof(plan)}"


def proof(plan: MemoryPlan) -> str:
    """Say what is known about the distance to the smallest arena of the plan's steps."""
    order = "order proven minimal" if plan.order_proven else "order not proven"
    if plan.gap_bytes == 0:
        return "OPTIMAL for these steps" if plan.order_proven else "placement OPTIMAL, order not proven minimal"
    placed = "placement proven minimal for this order" if plan.placement_proven else "placement not proven"
    return f"{placed}, {order}"


def layer_text(layer: LayerUpdate) -> str:
    """A trained layer and which part of it: `conv3 (bias, 12 in channels)`; nothing in brackets if all of it is."""
    if layer.elements == layer.total_elements:
        return printable(layer.shown)
    parts = ["bias"] if layer.bias else []
    if layer.weight:
        parts.append("weight" if layer.channels is None else f"{layer.channels} {layer.axis or 'out'} channels")
    return f"{printable(layer.shown)} ({', '.join(parts)})"


def layer_counts(summary: Summary) -> str:
    """`9 conv, 1 fc`: the forward nodes that carry weights, by kind."""
    graph = summary.train.graph
    forward, producers = graph.ancestors((*graph.outputs, summary.train.loss)), graph.producers()
    kinds = [_layer_kind(node, producers) for node in graph.nodes if node.name in forward]
    counts = Counter(kind for kind in kinds if kind)
    return ", ".join(f"{count} {kind}" for kind, count in counts.items()) or "no weights"


def _layer_kind(node: Node, producers: Mapping[str, Node]) -> str:
    """What a forward node with weights is called, "" for others; in int8 dense layers and pools are convolutions."""
    if node.op != "QConv":
        return LAYER_KINDS.get(node.op, "")
    if not operand(node, "w").origin:  # a table of ones, not of the model: a pool
        return ""
    x = operand(node, "x")
    view, (_, rows, _, columns) = producers.get(x.name), x.shape
    is_matrix = view is not None and view.op == "Reshape" and operand(view, "x").shape == (rows, columns)
    return "fc" if is_matrix else "conv"


def verify_pieces(summary: Summary) -> list[str]:
    """The parts of the stage's own line and the verdict; behind the verdict, what was left out."""
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


def _float_rows(summary: Summary, width: int) -> Iterator[Row]:
    """What an int8 model computes in float32, and its price."""
    head, names = float_pieces(summary)
    if head:
        yield listing("float32", names, width, head=head)


def _verify_rows(summary: Summary, width: int) -> Iterator[Row]:
    """The verdict ends its line; what was left out is a sentence (it says how to)."""
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


_CONTRACTS = {
    1: "from the options",
    2: "of the model itself",
    3: "of the training information in the model",
    4: "of the training graph in the file",
}


def loss_text(summary: Summary) -> str:
    """The loss, and whether the options say it, the model ends in it, or a training graph has it."""
    return f"{loss_name(summary)} ({_CONTRACTS[summary.contract]})"


def _shape(shape: tuple[int, ...]) -> str:
    return "x".join(str(dim) for dim in shape) or "scalar"


def _update_rows(summary: Summary, width: int) -> Iterator[Row]:
    totals = update_totals(summary)
    yield row("update", [f"{printable(summary.update_label)}:", update_counts(summary)], width, " ")
    names = [layer_text(layer) for layer in summary.layers if is_updated(layer)]
    if 0 < len(names) < totals["total_layers"]:
        yield listing("", names, width)


def update_counts(summary: Summary) -> str:
    """`3 of 10 layers, 5,312 of 22,600 parameters (23.5%)`; numbers, if the file has some that no build trains."""
    totals = update_totals(summary)
    part, whole = totals["parameters"], totals["total_parameters"]
    what = "numbers" if left_out(summary) else "parameters"
    return (
        f"{grouped(totals['layers'])} of {plural(totals['total_layers'], 'layer')}, "
        f"{grouped(part)} of {grouped(whole)} {what} ({_share_of_all(part, whole)})"
    )


def _share_of_all(part: int, whole: int) -> str:
    """A percentage that is 100.0% only if it is all."""
    text = share(part, whole)
    return ">99.9%" if text == "100.0%" and part < whole else text


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
    if plan.paging:
        yield row("paging", paging_pieces(plan), width)
    bound = bound_text(plan)
    yield sentence("", bound, width)
    yield row("  at peak", breakdown_pieces(analysis), width, " | ")


def memory_pieces(memory: FurtherMemory) -> list[str]:
    """A further memory: how full it is, and what its accesses cost a step by the target's figures."""
    used, limit = memory.used_bytes, memory.capacity_bytes
    price = f"+{memory.extra_ps / 1e9:.3g} ms, +{memory.extra_pj / 1e9:.3g} mJ a step (model)"
    return [f"{printable(memory.name)} {bytes_text(used)} of {grouped(limit)} ({share(used, limit)})", price]


def paging_pieces(plan: MemoryPlan) -> list[str]:
    """How many page moves a step has, their bytes, and their price by the target's figures."""
    count, size = len(plan.paging), sum(move.size_bytes for move in plan.paging)
    time, energy = sum(move.ps for move in plan.paging), sum(move.pj for move in plan.paging)
    price = f"+{time / 1e9:.3g} ms, +{energy / 1e9:.3g} mJ a step (model)"
    return [f"{plural(count, 'move')}, {bytes_text(size)} a step", price]


def breakdown_pieces(analysis: Analysis) -> list[str]:
    """`activations 96,512`, ... at the peak step; what is nothing is left out."""
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


def _peak(analysis: Analysis) -> str:
    return printable(analysis.node_label(analysis.plan.peak_step))


def _work(summary: Summary) -> list[str]:
    forward, backward = work_of(summary.train)
    size = summary.train.micro_batch
    step = f"a step of {size} samples" if size > 1 else "a step"
    return [
        f"{macs_text(forward)} MAC forward + {macs_text(backward)} backward = {macs_text(forward + backward)} {step}"
    ]


def _largest(analysis: Analysis, width: int) -> list[str]:
    """A table: bytes, name, reason."""
    live = analysis.live(analysis.plan.peak_step)
    shown, rest = live[:LARGEST_SHOWN], live[LARGEST_SHOWN:]
    sizes = [bytes_text(item.buffer.size_bytes) for item in shown]
    others = sum(item.buffer.size_bytes for item in rest)
    column = max(len(text) for text in (*sizes, bytes_text(others)))
    names = [shorten(printable(item.tenant.names[0]), max(width, MIN_WIDTH) // 2 - column) for item in shown]
    wide = max((cell_len(name) for name in names), default=0)
    lines: list[str] = []
    for size, name, item in zip(sizes, names, shown, strict=True):
        lines += wrapped(f"    {size:>{column}}  {pad(name, wide)}  ", printable(item.reason), width)
    return [*lines, f"    {bytes_text(others):>{column}}  in {plural(len(rest), 'smaller buffer')}"] if rest else lines


def _suggested(summary: Summary, width: int) -> list[str]:
    """Options, price and remark in columns; the arena that the plan needs is always one way out."""
    ways: Sequence[Suggestion] = summary.suggestions
    needed, board = summary.plan.arena_bytes, summary.board
    there = board is None or needed <= board.memories[0].model_bytes
    if there and not any(way.sets_arena for way in ways):
        ways = (*ways, Suggestion(f"--arena {needed}", needed, "fits as it is", sets_arena=True))
    if not ways:
        return ["  a larger board has room for it: --list-targets"]
    fitting = [way for way in ways if fits(way, summary.arena_limit_bytes)]
    rest = [way for way in ways if way not in fitting]
    rows = [(printable(w.options), bytes_text(w.arena_bytes), printable(w.note)) for w in (*fitting, *rest)]
    table = priced(rows, width)  # one table, so that both parts have its columns
    first, last = (
        [line for lines in part for line in lines] for part in (table[: len(fitting)], table[len(fitting) :])
    )
    return ["  what would fit:", *first, *(["  not enough alone:", *last] if rest else [])]


def fits(way: Suggestion, limit_bytes: int | None) -> bool:
    """Whether a way out fits: under the arena that was asked for, or because it names a larger one."""
    return limit_bytes is None or way.arena_bytes <= limit_bytes or way.sets_arena
