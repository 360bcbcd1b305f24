"""Flash as a limit of --update auto: --flash-budget, or what a board's flash has for models.

What a choice takes is measured: its smallest code that --code allows is compiled. What another one would take less is
estimated by its nodes: a choice that is too large lowers the limit of the estimate, so that the next one has fewer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tinytrain_compile.driver.candidates.planner import Candidate, Planner
from tinytrain_compile.ops.input_lines import takes_lines
from tinytrain_compile.plan.selection import Row, Selection
from tinytrain_compile.training import SamplesMixError

NODE_BYTES = 400
"""Code of a node: MCUNet's project has 79 KB for 200 nodes."""
MOST_NODE_BYTES = 8192
"""What no node takes: below it nothing need be measured."""
MOST_MEASURED = 8
"""Compilations, up to two of a choice; behind these none is taken any more."""


@dataclass(eq=False)
class FlashLimit:
    """budget_bytes: None for no limit, or nobody who could measure. most: nodes that a choice may have, once something
    was too large; refused: whether the last one was."""

    planner: Planner
    budget_bytes: int | None
    most: int | None = None
    measured: int = 0
    refused: bool = False

    @property
    def unknown(self) -> bool:
        """Whether what was refused may fit after all, since nothing is compiled any more."""
        return self.refused and self.measured > MOST_MEASURED

    def unplanned(self, spec: str) -> Candidate | None:
        """Return what is measured of an update before a plan of it that is a search: it with nothing that helps, which
        has hardly more code than what is found; None if plans are quick, so that one measurement is enough, or if an
        inference of one sample does not fit into it."""
        if self.budget_bytes is None or not self.planner.wish.searches:
            return None
        try:
            return self.planner.with_inference(self.planner.plain(spec))
        except SamplesMixError:
            return None

    def over(self, candidate: Candidate | None) -> int:
        """Return by how many bytes a choice is too large; 0 where it fits, and of None."""
        if candidate is None or self.budget_bytes is None or _surely_below(candidate, self.budget_bytes):
            return 0
        self.measured += 1
        if self.measured > MOST_MEASURED:
            return 1
        from tinytrain_compile.driver.code.generate import least_flash_bytes  # it plans smaller copies, by the search

        rows = any(map(takes_lines, candidate.plan.order))  # a plan with nothing that helps takes the image as a whole
        size = least_flash_bytes(candidate, replace(self.planner.options, input_lines=rows), self.planner.target)
        return max(0, size - self.budget_bytes)

    def refuses(self, candidate: Candidate | None, nodes: Row, selection: Selection) -> bool:
        """Tell whether a choice is too large: the next one's estimate is then less by as much, and by a node at
        least."""
        over = self.over(candidate)
        self.refused = over > 0
        if self.refused:
            most = nodes.load(selection) - max(1, -(-over // NODE_BYTES))
            self.most = most if self.most is None else min(self.most, most)
        return self.refused

    def row(self, nodes: Row) -> Row:
        """Return the row of nodes with what it may come to."""
        assert self.most is not None
        return replace(nodes, limit=self.most)


def flash_limit(planner: Planner) -> FlashLimit:
    """Return that of the options, or of the board, where its compiler is here."""
    from tinytrain_compile.verify.tools import find_tools

    o, board = planner.options, planner.target.board
    budget = o.flash_budget_bytes if o.flash_budget_bytes is not None or board is None else board.flash_bytes
    able = find_tools(planner.target).cross_cc is not None
    return FlashLimit(planner, budget if able else None)


def _surely_below(candidate: Candidate, budget_bytes: int) -> bool:
    constants = sum(array.nbytes for array in candidate.train.graph.constants.values())
    return constants + MOST_NODE_BYTES * len(candidate.plan.order) <= budget_bytes
