"""24 speakers that nothing of this project was chosen by, for `keywords-accuracy`: accents of other languages.

The voices are espeak-ng's (`apt-get install espeak-ng`), as those of examples/keywords are, whose generator makes them;
a file keeps what they say, since that takes some minutes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.learning.learning_tasks import SPEAKERS, VOICES

_LANGUAGES = "af bg ca cy el et eu fi ga hr hu id is lt lv mk ms mt nb sk sl sq sw vi"
_VARIANTS = "f1 m1 f2 m2 f3 m3 f4 m4 f5 m5 m6 m7"
VOICE_NAMES = tuple(f"{a}+{b}" for a, b in zip(_LANGUAGES.split(), 2 * _VARIANTS.split(), strict=True))
"""Languages that no speaker of the example has; the variants are others than those of its old speakers."""


def make(path: Path) -> None:
    """Write what they say, in the scale of the example's base speakers, whose words have to be said again for that."""
    base, _ = VOICES.all_of(tuple(f"en-us+{name}" for name in VOICES.BASE), VOICES.UTTERANCES)
    spread, arrays = VOICES.Spread(base), dict[str, Any]()
    for voice in VOICE_NAMES:
        for part, count in (("own", VOICES.OWN), ("test", VOICES.JUDGED)):
            x, y = VOICES.all_of((voice,), count, part)
            arrays |= {f"{voice}/{part}_x": spread.stored(x), f"{voice}/{part}_y": y}
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)


def parts_of(path: Path, speaker: int) -> Any:
    """Of one of them, with the pool and the old speakers that judge of the example."""
    known, voice = SPEAKERS.parts_of(VOICES.REPORT[0]), VOICE_NAMES[speaker]
    with np.load(path) as data:
        own, test = (SPEAKERS.Part(data[f"{voice}/{part}_x"], data[f"{voice}/{part}_y"]) for part in ("own", "test"))
    order = np.random.default_rng(SPEAKERS.ORDER).permutation(len(own.y))
    return SPEAKERS.Parts(SPEAKERS.Part(own.x[order], own.y[order]), test, known.pool, known.old)
