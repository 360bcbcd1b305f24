"""What the generated code does where no label of a sample counts."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np

import tinytrain_compile as tt
from testing.networks.models import segmenter, with_loss

IGNORED = 1


def test_a_sample_of_ignored_labels_changes_nothing(tmp_path: Path) -> None:
    """Weight decay and the momentum of an earlier step would move weights without any gradient."""
    (tmp_path / "m.onnx").write_bytes(with_loss(segmenter(), ignore=IGNORED).SerializeToString())
    options = {"update": "last:1", "optimizer": "momentum", "weight_decay": 0.1, "lr": 0.1, "label": "target"}
    compiled = tt.compile(tmp_path / "m.onnx", verify="none", **options)  # type: ignore[arg-type]
    x = np.random.default_rng(0).standard_normal((1, 2, 8, 8)).astype(np.float32)
    none, one = np.full((1, 8, 8), IGNORED, np.int32), np.full((1, 8, 8), IGNORED, np.int32)
    one[0, 3, 4] = 0
    with compiled.twin() as twin:
        states = [twin.state_dict(raw=True)]
        for labels in (one, none, one):
            twin.train_step(x, labels)
            states.append(twin.state_dict(raw=True))
    equal = [all(np.array_equal(a[k], b[k]) for k in a) for a, b in itertools.pairwise(states)]
    assert equal == [False, True, False]
