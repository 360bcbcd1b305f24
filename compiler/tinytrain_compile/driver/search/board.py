"""Limits that a board sets for the model: arena, further memories and flash, beside the buffers of --runtime.

The arena may have what the first memory leaves. If the buffers then have no room, and nobody asked for that arena, it
is planned once more with what they leave. An error says what would fit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from tinytrain_compile.driver.candidate import Candidate
from tinytrain_compile.driver.candidates.planner import Planner
from tinytrain_compile.driver.checks.combinations import takes_no_memory
from tinytrain_compile.driver.search.choose import choose, deepest
from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.buffers import PartRam, RuntimeBuffer, most_records, part_ram, reserved, taken_by
from tinytrain_compile.ir.runtime_parts import RuntimeParts
from tinytrain_compile.ir.stages import MemoryPlan, TrainGraph
from tinytrain_compile.ir.summary import Suggestion, Summary
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.registry import runtime_parts
from tinytrain_compile.report.ways_out import ram_text
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.target.boards import with_reserve
from tinytrain_compile.target.loader import list_boards, load_target
from tinytrain_compile.target.model import Target
from tinytrain_compile.training import SamplesMixError


def buffers_of(candidate: Candidate, options: CompileOptions) -> tuple[RuntimeBuffer, ...]:
    """Return the buffers of --runtime for a candidate."""
    return runtime_buffers(candidate.train, options.runtime, feature_bytes_of(candidate, options))


def runtime_buffers(train: TrainGraph, parts: RuntimeParts, feature_bytes: int = 0) -> tuple[RuntimeBuffer, ...]:
    """Return the RAM beside the arena that parts of --runtime need: kept samples, the best state, a store, a message.

    A reservoir of as many samples as the caller says, an average (behind callbacks) and small structures are the
    caller's statics: a board has its reserve for them.
    """
    found = (part.buffer(train, feature_bytes) for part in runtime_parts(parts))
    return tuple(buffer for buffer in found if buffer is not None)


def feature_bytes_of(candidate: Candidate, options: CompileOptions) -> int:
    """Return bytes of a sample's features, 0 without --features on."""
    if options.features == "off":
        return 0
    from tinytrain_compile.parts.features.border import feature_cut

    cut = feature_cut(candidate.train, candidate.plan)
    return 0 if cut is None else cut.size_bytes


def ram_of(planner: Planner, candidate: Candidate) -> PartRam:
    """Return what a candidate and its buffers take of the target's RAM."""
    return part_ram(planner.target.board, candidate.plan, buffers_of(candidate, planner.options))


def most_samples(
    target: Target, plan: MemoryPlan, train: TrainGraph, parts: RuntimeParts, feature_bytes: int = 0
) -> int | None:
    """Return the largest N for which replay=N has room beside a plan, the other parts, the stack and the reserve.

    0: none fits. None: the target is no board, and has no RAM size.
    """
    if target.board is None:
        return None
    from tinytrain_compile.parts.replay.part import record_bytes

    others = [each for each in runtime_buffers(train, parts, feature_bytes) if each.part != "replay"]
    return most_records(target.board, taken_by(target.board, plan), others, record_bytes(train, feature_bytes))


def with_board(options: CompileOptions, target: Target) -> tuple[CompileOptions, Target, tuple[str, ...]]:
    """Return the same with what the board has as limits where the user gave none, and remarks that say which these are.

    Errors: E0113 for --reserve without a board, E0101 if it is beyond its RAM. E0107 for an --arena, or largest of
    --plans, that the board has not.
    """
    if target.board is None:
        if options.reserve_bytes is not None:
            what = f"{target.name} is a core, which has no RAM of its own"
            raise CompileError("E0113", "--reserve", what, "name a board (--list-targets), or leave it out")
        return options, target, ()
    target = target if options.reserve_bytes is None else _reserved(target, options.reserve_bytes)
    first = target.memories[0]
    if options.arena_bytes is not None and options.arena_bytes > first.size_bytes:
        what = f"{options.arena_bytes} B are asked for, {target.name} has {first.size_bytes} B in {first.name} for it"
        way = "give at most that (or --reserve, or a file of your own: docs/on-your-board.md)"
        raise CompileError("E0107", "--plans" if options.plans else "--arena", what, way)
    said: list[str] = []
    if options.arena_bytes is None:
        options = replace(options, arena_bytes=first.size_bytes)
        said.append(f"arena up to {first.size_bytes:,} B of {first.name}")
    asked = options.memories or options.input_lines or options.lock or options.optimise
    if not (asked or takes_no_memory(options)):
        further = {bank.name: bank.size_bytes for bank in target.memories[1:] if bank.size_bytes}
        options = replace(options, memories=further)
        said += [f"{name} {size:,} B" for name, size in further.items()]
    return options, target, (f"{target.name} offers: {', then '.join(said)}",) if said else ()


def _reserved(target: Target, reserve_bytes: int) -> Target:
    changed = with_reserve(target, reserve_bytes)
    assert changed.board is not None, "with_reserve is for boards"
    place = changed.board.reserve
    if place.model_bytes < 0 or changed.memories[0].size_bytes <= 0:
        room = place.region.size_bytes - place.stack_bytes
        what = f"{reserve_bytes} B are asked for, {place.name} of {target.name} has {room} B beside the stack"
        raise CompileError("E0101", "--reserve", what, "give less, or a board file of your own")
    return changed


def check_flash(target: Target, code_bytes: int | None, const_bytes: int | None) -> None:
    """Raise E0403 for code and constants that the board's flash does not hold; where nobody has measured them,
    nothing."""
    board = target.board
    if board is None or code_bytes is None or const_bytes is None or code_bytes + const_bytes <= board.flash_bytes:
        return
    needed = code_bytes + const_bytes
    what = (
        f"code {code_bytes} B and constants {const_bytes} B need {needed} B, models have {board.flash_bytes} B "
        f"(over by {needed - board.flash_bytes} B)"
    )
    way = f"try --flash-budget {board.flash_bytes}, which chooses small code where it has to, or train fewer layers"
    raise CompileError("E0403", f"flash of {target.name}", what, way)


def check_constants(target: Target, const_bytes: int, quant: str) -> None:
    """Raise E0403 for constants that alone are more than the board's flash: known before there is code, in a dry run
    too."""
    board = target.board
    if board is None or const_bytes <= board.flash_bytes:
        return
    rooms = {name: load_target(name).board for name in list_boards()}
    larger = [name for name, other in rooms.items() if other is not None and other.flash_bytes > const_bytes]
    what = (
        f"weights and first values alone need {const_bytes} B, models have {board.flash_bytes} B "
        f"(over by {const_bytes - board.flash_bytes} B)"
    )
    ways = ["--quant int8, a quarter of it"] if quant != "int8" else ["a smaller model"]
    ways += [f"a board with more flash ({', '.join(larger)})"] if larger else []
    raise CompileError("E0403", f"flash of {target.name}", what, f"try {', or '.join(ways)}")


ROUNDS = 3
"""Times that a plan is made, at most, until the buffers have room beside it: some depend on what is trained."""

OTHER_BOARDS = 2
"""Boards that a message names: each is planned for."""

LEAST_RESERVE_BYTES = 4096
"""Below this no smaller reserve is offered: start-up, libc and a stack of an interrupt need some."""


def leaving_room(
    planner: Planner, asked: CompileOptions, make: Callable[[Planner], Candidate] = choose
) -> tuple[Planner, Candidate]:
    """Return a candidate beside which the buffers have room, if that can be, and the planner that made it.

    asked: the options as they were given; limits that the board gave are lowered, others are not.
    """
    may_shrink = asked.arena_bytes is None and asked.lock is None
    if planner.target.board is None or not planner.options.runtime.names or not may_shrink:
        return planner, make(planner)
    used = _beforehand(planner, asked) or planner
    candidate = make(used)
    for _ in range(ROUNDS - 1):
        if ram_of(used, candidate).fits:
            return used, candidate
        smaller = _lowered(planner, asked, buffers_of(candidate, planner.options))
        if smaller is None or smaller.options == used.options:
            break
        used, candidate = smaller, make(smaller)
    return used, candidate


def lowered_note(offered: CompileOptions, lowered: CompileOptions) -> tuple[str, ...]:
    """Return a remark where the buffers have taken something of what the board offered to the plan."""
    if lowered.arena_bytes == offered.arena_bytes and lowered.memories == offered.memories:
        return ()
    further = "".join(f", then {name} {size:,} B" for name, size in lowered.memories.items())
    return (f"beside the buffers of --runtime: arena up to {lowered.arena_bytes or 0:,} B{further}",)


def _beforehand(planner: Planner, asked: CompileOptions) -> Planner | None:
    """Lower the limits first: --update auto takes what there is, so the buffers come first, as large as they are at
    least."""
    if planner.options.update != "auto":
        return None
    try:
        train = planner.train(resolve_update(planner.model.graph, "head"))
    except (CompileError, SamplesMixError):
        return None
    return _lowered(planner, asked, runtime_buffers(train, planner.options.runtime))


def _lowered(planner: Planner, asked: CompileOptions, buffers: tuple[RuntimeBuffer, ...]) -> Planner | None:
    """Return the same planner with what the buffers leave of the board's memories; None if they leave nothing."""
    board = planner.target.board
    assert board is not None, "only boards have limits to lower"
    left = reserved(board, buffers)
    if left is None:
        return None
    o = planner.options
    further = o.memories
    if not asked.memories:
        further = {name: min(size, left[name]) for name, size in o.memories.items() if left[name] > 0}
    arena = min(o.arena_bytes or left[board.memories[0].name], left[board.memories[0].name])
    if arena == o.arena_bytes and further == o.memories:
        return planner
    return planner.with_options(arena_bytes=arena, memories=further)


def check_ram(summary: Summary, planner: Planner, candidate: Candidate, asked: CompileOptions) -> None:
    """Raise E0405, with ways out, for a plan and buffers that no board's linker would place."""
    ram, limit = ram_of(planner, candidate), asked.arena_bytes
    buffers = buffers_of(candidate, planner.options)
    over = limit is not None and candidate.plan.arena_bytes > limit  # which is E0401
    if not buffers or planner.target.board is None or over:
        return
    exceeds = planner.options.arena_bytes is not None and candidate.plan.arena_bytes > planner.options.arena_bytes
    if ram.fits and not exceeds:
        return
    ways = tuple(_Ways(planner, candidate, asked).all())
    details = ram_text(replace(summary.with_fact(ram), suggestions=ways))
    lacking = ", ".join(f"{one.what} {one.size_bytes} B" for one in (ram.lacking or buffers))
    what = f"arena {candidate.plan.arena_bytes} B, stack and reserve leave no room for: {lacking}"
    way = f"try {ways[0].options}" if ways else "train fewer layers, keep fewer samples, or take a larger board"
    raise CompileError("E0405", f"RAM of {planner.target.name}", what, way, tuple(details))


def board_ways(planner: Planner, candidate: Candidate, asked: CompileOptions) -> tuple[Suggestion, ...]:
    """Return other boards on which an arena fits that is more than this one has; a figure is the arena there."""
    if asked.lock is not None:
        return ()
    found = _Ways(planner, candidate, asked).boards()
    return tuple(Suggestion(text, made.plan.arena_bytes, "fits as is", sets_arena=True) for text, _, made in found)


@dataclass(frozen=True)
class _Ways:
    """Ways out for what was asked, each followed: its figure is the RAM that it takes."""

    planner: Planner
    candidate: Candidate
    asked: CompileOptions

    def all(self) -> Iterator[Suggestion]:
        """Yield fewer samples, the best state in flash, less to train, a smaller arena, a smaller reserve, another
        board."""
        yield from self._fewer_samples()
        if self.asked.lock is not None:
            return
        parts = self.asked.runtime
        if "monitor" in parts.names and parts.best_in_ram:
            elsewhere = replace(parts, best_in_ram=False)
            yield from self._way(
                f"--runtime {elsewhere.text}", "the best state in flash, by callbacks", runtime=elsewhere
            )
        yield from self._less()
        yield from self._smaller_arena()
        yield from self._smaller_reserve()
        for text, planner, found in self.boards():
            ram = ram_of(planner, found)
            yield Suggestion(text, ram.used_bytes, f"of {ram.size_bytes or 0:,} B")

    def follow(self, **changes: Any) -> tuple[Planner, Candidate] | None:
        """Run the same command with other options; None if it refuses them."""
        asked, given = replace(self.asked, **changes), self.planner
        try:
            options, target, _ = with_board(asked, load_target(asked.target))
            planner = Planner(given.model, options, target, given.externals)
            planner, candidate = leaving_room(planner, asked)
        except CompileError:
            return None
        limit = planner.options.arena_bytes
        fits = ram_of(planner, candidate).fits and (limit is None or candidate.plan.arena_bytes <= limit)
        return (planner, candidate) if fits else None

    def _way(self, text: str, note: str, **changes: Any) -> Iterator[Suggestion]:
        found = self.follow(**changes)
        if found is not None:
            yield Suggestion(text, ram_of(*found).used_bytes, note)

    def _fewer_samples(self) -> Iterator[Suggestion]:
        """Yield as many samples as there is room for beside this plan."""
        o, parts = self.asked, self.asked.runtime
        if not parts.replay_samples:
            return
        known = self.planner.target, self.candidate.plan, self.candidate.train
        most = most_samples(*known, parts, feature_bytes_of(self.candidate, o)) or 0
        fewer = replace(parts, replay_samples=most)
        if most == 0:
            names = tuple(name for name in parts.names if name != "replay")
            without = replace(parts, names=names, replay_samples=0)
            yield from self._way(
                f"--runtime {without.text}" if names else "--runtime ''", "no kept samples", runtime=without
            )
        elif most < parts.replay_samples and o.lock is not None:
            ram = part_ram(self.planner.target.board, known[1], buffers_of(self.candidate, replace(o, runtime=fewer)))
            yield Suggestion(
                f"--runtime {fewer.text}", ram.used_bytes, f"{most:,} samples, as many as fit beside this plan"
            )
        elif most < parts.replay_samples:
            yield from self._way(
                f"--runtime {fewer.text}", f"{most:,} samples, as many as fit beside this plan", runtime=fewer
            )

    def _less(self) -> Iterator[Suggestion]:
        """Yield the deepest update whose arena and buffers fit."""
        lowered = _lowered(self.planner, self.asked, buffers_of(self.candidate, self.planner.options))
        if self.asked.update == "auto" or lowered is None or self.planner.wish.is_smallest:
            return
        count = self.planner.layer_count
        depth, _ = deepest(lowered, count) or (0, None)
        if depth:
            yield from self._way(f"--update last:{depth}", f"of {count} layers", update=f"last:{depth}")

    def _smaller_arena(self) -> Iterator[Suggestion]:
        board, limit = self.planner.target.board, self.asked.arena_bytes
        left = None if board is None else reserved(board, buffers_of(self.candidate, self.planner.options))
        if board is None or left is None or limit is None:
            return
        size = left[board.memories[0].name] // 8 * 8
        if 0 < size < limit:
            yield from self._way(f"--arena {size}", "leaves room for the buffers", arena_bytes=size)

    def _smaller_reserve(self) -> Iterator[Suggestion]:
        board = self.planner.target.board
        assert board is not None, "only boards have a reserve"
        taken, place = taken_by(board, self.candidate.plan), board.reserve
        lacking = sum(one.placed_bytes for one in ram_of(self.planner, self.candidate).lacking)
        free = place.model_bytes - taken[place.name]
        size = (place.reserve_bytes - max(lacking - free, 0)) // 1024 * 1024
        if LEAST_RESERVE_BYTES <= size < place.reserve_bytes:
            yield from self._way(f"--reserve {size}", "if all else of the firmware needs no more", reserve_bytes=size)

    def boards(self) -> Iterator[tuple[str, Planner, Candidate]]:
        """Yield boards where it fits, those with the least RAM first: options, and what was planned for them."""
        buffers, plan = buffers_of(self.candidate, self.planner.options), self.candidate.plan
        changes: dict[str, Any] = {}
        if self.asked.arena_bytes is not None and self.asked.arena_bytes < plan.arena_bytes:
            changes = {"arena_bytes": plan.arena_bytes}
        more = "".join(f" --arena {size}" for size in changes.values())
        others = [target for name in list_boards() if (target := load_target(name)).name != self.planner.target.name]
        sizes = {target.name: part_ram(target.board, replace(plan, further=()), buffers) for target in others}
        likely = [target.name for target in others if sizes[target.name].fits]
        count = 0
        for name in sorted(likely, key=lambda name: sizes[name].size_bytes or 0):
            followed = self.follow(target=name, **changes)
            if followed is not None:
                count += 1
                yield f"--target {name}{more}", *followed
            if count == OTHER_BOARDS:
                return
