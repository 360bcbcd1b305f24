"""Checkpoints of random models: every bit flipped, cut at every length, forged with a right CRC."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from random import Random

import numpy as np
from onnx import numpy_helper

from tests.campaign.cases import Case, Kind
from tests.campaign.judge import OUT
from tests.campaign.model_kinds import NET
from tests.campaign.nets import image_net, random_net

PROGRAM = Path(__file__).parent / "programs" / "damage.c"
FLAGS = ("-std=c11", "-O0", "-g1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-ffp-contract=off")
LARGEST = 600
"""Numbers in the weights of a model whose checkpoints are damaged: every bit of them is a load."""
TIMEOUT_S = 600


def _checkpoint(source: Random, folder: Path) -> Case:
    int8 = bool(source.randrange(2))
    while True:
        drawn = image_net(source) if int8 else random_net(source)
        if sum(numpy_helper.to_array(tensor).size for tensor in drawn.model.graph.initializer) <= LARGEST:
            break
    loss = source.choice(drawn.losses)
    Path(NET).write_bytes(drawn.finished(drawn.model).SerializeToString())
    options = [
        "--optimizer",
        source.choice(("sgd", "momentum") if int8 else ("sgd", "momentum", "adam", "adagrad", "rmsprop", "lion")),
    ]
    options += ["--loss", loss] if loss else []
    options += ["--batch", "2"] if source.randrange(3) == 0 else []
    if int8:
        shape = [d.dim_value for d in drawn.model.graph.input[0].type.tensor_type.shape.dim]
        np.savez(folder / "calib.npz", x=np.random.default_rng(1).standard_normal((4, *shape[1:])).astype(np.float32))
        options += ["--quant", "int8", "--calib", "calib.npz", "--rescale", source.choice(("on", "off"))]
        options += [
            "--head",
            source.choice(("fp32", "int8")),
            "--weight-store",
            source.choice(("sr8", "q8.8", "mixed")),
        ]
    return Case((NET, "-o", OUT, "--update", "all", "--target", "host", "--verify", "none", *options), check=_damage)


def _damage(place: Path) -> int:
    """Build and run the program; how many damaged checkpoints it tried."""
    sources = sorted(path.name for path in (place / OUT).glob("*.c"))
    build = ["gcc", *FLAGS, "-DTT_HAS_FMA=0", "-I.", *sources, str(PROGRAM), "-lm", "-o", "damage"]
    for step in (build, ["./damage"]):
        line = ["bash", "-c", 'ulimit -S -v unlimited; exec "$@"', "bash", *step]
        environment = {**os.environ, "ASAN_OPTIONS": "detect_leaks=0"}
        done = subprocess.run(
            line, cwd=place / OUT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
        )
        assert done.returncode == 0, f"{done.stdout}{done.stderr}"[:2000]
    bits, cuts, forged, _ = map(int, re.findall(r"\d+", done.stdout))
    return bits + cuts + forged


CHECKPOINT_KINDS = (Kind("checkpoints", 40, _checkpoint, least_passed=0.9),)
