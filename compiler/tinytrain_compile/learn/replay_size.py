"""How many old samples `finetune` recommends to keep, of those that fit beside the model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tinytrain_compile.driver.search.board import most_samples, with_board
from tinytrain_compile.ir.learning import Learned, Score
from tinytrain_compile.ir.summary import Summary
from tinytrain_compile.learn.rate_search import Place, Trainings
from tinytrain_compile.options.compile_options import CompileOptions
from tinytrain_compile.parts.replay.part import record_bytes
from tinytrain_compile.target import load_target

FEWEST_KEPT = 20
"""Old samples that are tried first: in learning tasks these brought back 57 of the 65 points that 100 brought back."""
FORGOTTEN, REPLAY_GAIN, FORGOTTEN_LOSS = 0.02, 0.01, 1.1
"""Of the accuracy on old samples: what may be lost before replay is asked for, and what more of it has to bring back;
where labels are values, how many times larger the loss on them may become."""


@dataclass(frozen=True)
class Room:
    """What old samples take: bytes of each, and how many the target's RAM holds beside the model (None: not known)."""

    target: str
    record_bytes: int
    most: int | None

    def notes(self, wanted: int) -> tuple[str, ...]:
        """Return the note for so many old samples that have no room."""
        if self.most is None or self.most >= wanted:
            return ()
        many = f"at most {self.most} old samples" if self.most else "no old samples"
        needed = f"{min(FEWEST_KEPT, wanted)} need {min(FEWEST_KEPT, wanted) * self.record_bytes:,} B"
        return (f"{self.target} has room for {many} beside the model ({needed}): a smaller --arena leaves more",)


def room_for(options: CompileOptions, summary: Summary) -> Room:
    """Return room for old samples beside a compilation and the other parts of --runtime."""
    target = with_board(options, load_target(options.target))[1]
    feature_bytes = summary.feature_bytes
    most = most_samples(target, summary.plan, summary.train, options.runtime, feature_bytes)
    return Room(target.name, record_bytes(summary.train, feature_bytes), most)


def reservoir_sizes(asked: int, old: int, most: int | None) -> tuple[int, ...]:
    """Return sizes to try, smallest first.

    asked: the largest that the user allows; old: old samples of the file, half of which judge; most: what fits (None:
    anything).
    """
    allowed = min(asked, old // 2, asked if most is None else most)
    return tuple(sorted({min(FEWEST_KEPT, allowed), allowed} - {0}))


def final_trainings(trainings: Trainings, place: Place, epochs: int, sizes: Sequence[int]) -> tuple[Learned, ...]:
    """Train without replay, and with reservoirs of these sizes until one keeps what was known."""
    learned = [trainings.learned(place, epochs, 0)]
    for size in sizes:
        learned.append(trainings.learned(place, epochs, size))
        if not _lost(learned[-1]):
            break
    return tuple(learned)


def kept_of(learned: Sequence[Learned]) -> int:
    """Return how many old samples to keep: 0 if nothing is forgotten without them, or nothing is brought back.

    More only if that brings back more.
    """
    best = learned[0]
    for one in learned[1:]:
        if _lost(best) and _brings_back(one.old[-1], best.old[-1]):
            best = one
    return best.replay


def _lost(one: Learned) -> bool:
    """Tell whether what was known before is forgotten."""
    first, last = one.old[0], one.old[-1]
    if first.accuracy is None or last.accuracy is None:
        return not last.loss <= FORGOTTEN_LOSS * first.loss
    return first.accuracy - last.accuracy > FORGOTTEN


def _brings_back(one: Score, other: Score) -> bool:
    if one.accuracy is None or other.accuracy is None:
        return one.loss < other.loss
    return one.accuracy - other.accuracy > REPLAY_GAIN
