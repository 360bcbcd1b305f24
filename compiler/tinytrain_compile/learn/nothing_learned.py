"""If no training of `finetune` made anything better: an error that names the likely cause, instead of a file."""

from __future__ import annotations

import math
from dataclasses import replace

from tinytrain_compile.errors import CompileError
from tinytrain_compile.ir.learning import Finding, Score
from tinytrain_compile.report.learning import finding_lines, score_text

KNOWN = 0.98
"""Accuracy before training from which on there is little left to learn."""


def check_learned(finding: Finding, where: str) -> None:
    """Raise E0309 if neither held-back nor test samples are known better after training, or only the former."""
    if finding.worth_it:
        return
    cause, way = _cause(finding)
    first, last = _ends(finding)
    what = f"nothing was learned ({first} -> {last} at the best rate); likely cause: {cause}"
    raise CompileError("E0309", where, what, way, tuple(finding_lines(finding)))


def _ends(finding: Finding) -> tuple[str, str]:
    """Return the scores before and after that an error shows."""
    curve = finding.learned[0].curve if _held_back_are_known(finding) else finding.chosen.curve
    return score_text(curve[0]), score_text(curve[-1])


def _cause(finding: Finding) -> tuple[str, str]:
    """Return the first of the known causes that this looks like, and what to do."""
    tried = [one for rounds in finding.rounds for one in rounds]
    first = finding.chosen.curve[0]
    if finding.suspects:
        return finding.suspects[0], "mend the samples and call it again"
    if _knows(first):
        return "the network knows these samples already", "give samples that it does not know, or use it as it is"
    if all(one.failed == one.seeds for one in tried):
        cause = f"all rates from {min(one.rate for one in tried):.2g} ended in NaN or infinity"
        return cause, "scale x as in training, or give a smaller --lr to begin with"
    if _held_back_are_known(finding):
        return "x_test is unlike x, whose held-back samples were learned", "draw both from the same samples"
    own = [one.rate for one in finding.rounds[0]]
    if max(finding.rounds[0], key=lambda one: one.best.worth).rate in (min(own), max(own)):
        return f"the best of the rates {min(own):.2g} to {max(own):.2g} is at an end", "give another --lr to begin with"
    return "y does not belong to x, or the trained layers cannot learn it", "check the labels, or try --update all"


def _held_back_are_known(finding: Finding) -> bool:
    """Tell whether held-back samples were learned, so that it is the test samples that were not."""
    return replace(finding, learned=(replace(finding.learned[0], curve=finding.chosen.curve),)).worth_it


def _knows(score: Score) -> bool:
    return score.accuracy is not None and math.isfinite(score.loss) and score.accuracy >= KNOWN
