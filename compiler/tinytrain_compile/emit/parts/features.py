"""The lines of m_features and of a step on features: calls of the step's own functions, and copies between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tinytrain_compile.emit.parts.border import Border, Crossing, Stretch
from tinytrain_compile.emit.sequence import Part, Sequencer

FROM, TO = "from", "to"
"""Where features are read and written."""


def feature_lines(border: Border, parts: Sequence[Part], cut: int, sequencer: Sequencer) -> dict[str, object]:
    """For the templates. parts: the functions of the step, each of nodes of one stretch; those from `cut` on are behind
    the loss.
    """
    lines = _Lines(border, sequencer)
    return {
        "feature_bytes": border.size_bytes,
        "take_lines": [*lines.taken(parts)],
        "feature_loss_lines": [*lines.given(parts[:cut])],
        "feature_gradient_lines": [*lines.given(parts[cut:])],
        "feature_floats": sorted({(one.at, one.value.size_bytes) for one in _floats(border)}),
    }


def _floats(border: Border) -> Iterator[Crossing]:
    """What of the features may be no number."""
    for stretch in border.stretches:
        yield from (crossing for crossing in stretch.crossing if crossing.value.dtype == "float32")


class _Lines:
    def __init__(self, border: Border, sequencer: Sequencer) -> None:
        self._border, self._sequencer = border, sequencer
        self._where = {node.name: index for index, stretch in enumerate(border.stretches) for node in stretch.nodes}
        self._given = 0
        """Stretches whose crossing values are there."""

    def taken(self, parts: Sequence[Part]) -> Iterator[str]:
        """All that is frozen, and behind it copies of what crosses, each once."""
        done = set[int]()
        last = max(index for index, stretch in enumerate(self._border.stretches) if self._new(stretch, done))
        done.clear()
        for index, stretch in enumerate(self._border.stretches[: last + 1]):
            if stretch.frozen:
                yield from (part.call for part in parts if self._where[part.first] == index)
            for crossing in self._new(stretch, done):
                yield self._copy(f"{TO} + {crossing.at}", self._place(crossing), crossing)

    def _new(self, stretch: Stretch, done: set[int]) -> list[Crossing]:
        """What crosses here and was not copied yet."""
        found = [crossing for crossing in stretch.crossing if crossing.at not in done]
        done.update(crossing.at for crossing in found)
        return found

    def given(self, parts: Sequence[Part]) -> Iterator[str]:
        """All that is not frozen, and before each stretch what crosses there."""
        for part in parts:
            index = self._where[part.first]
            stretches = self._border.stretches
            for stretch in stretches[self._given : index + 1]:
                for crossing in stretch.crossing:
                    yield self._copy(self._place(crossing), f"{FROM} + {crossing.at}", crossing)
            self._given = max(self._given, index + 1)
            if not stretches[index].frozen:
                yield part.call

    def _place(self, crossing: Crossing) -> str:
        return self._sequencer.pointer(crossing.value.name)

    def _copy(self, to: str, source: str, crossing: Crossing) -> str:
        return f"memcpy({to}, {source}, {crossing.value.size_bytes}u);"
