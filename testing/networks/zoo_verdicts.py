"""What is known of the networks of the zoo beside their files, and the verdict on each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from testing.networks.zoo import ABSOLUTE, RELATIVE, Network, Outcome, loss_error, trained, weight_errors

OTHERWISE: Mapping[str, tuple[Mapping[str, Any], str]] = {
    **dict.fromkeys(
        ("torch-ts/x_fresh_norms", "torch-ts/prelu_chan", "torch-ts/act_prelu", "torch-dynamo/act_prelu"),
        ({"untie": True}, "give --untie: the exporter wrote equal values only once"),
    ),
    **dict.fromkeys(
        ("torch-dynamo/shufflenetv2", "torch-dynamo/dyn_shuffle", "torch-dynamo/bn_trainmode"),
        ({"frozen": ("*.weight_bias",)}, "give --frozen '*.weight_bias': PyTorch's folding freezes beta"),
    ),
    **dict.fromkeys(("zoo3/gmlp_sgu.ts", "zoo3/gmlp_sgu.dyn"), ({"untie": True}, "give --untie: equal values")),
    "zoo3/bn_mlp.ts": ({"batch_norm": "keep"}, "give --batch-norm keep: gamma and weight train apart"),
    "zoo3/siren_fourier.ts": ({"frozen": ("B",)}, "give --frozen B: a buffer that the file does not mark"),
    "torch-ts/features_also_out": ({"model_output": "output"}, "give --model-output: the file has several outputs"),
    "torch-ts/dyn_hw": (
        {"input_shapes": {"input": (1, 3, 16, 16)}},
        "give --input-shape: the sizes in the file are dynamic",
    ),
}
"""Options that a network needs to train as in its framework, and why."""

CHANGED: Mapping[str, str] = {
    "torch-ts/circularpad": "the exporter pads differently: onnxruntime's first loss equals ours, not the framework's",
}
"""Networks whose file is not what the framework trained."""

NOT_ASKED: Mapping[str, str] = {
    "torch-dynamo/conv3d": "three-dimensional convolutions are not supported",
}
"""Networks that are refused for a stated limit."""


NOTED = re.compile(
    r"the exporter (computed|dropped) |perhaps a buffer|parameters of the module that are not trained"
    r"|trained tied|tf2onnx computed |tf2onnx leaves out |gamma and weight train as one"
)
"""Notes that name a tensor which trains otherwise than in the framework, and a way to change that."""


def judge(network: Network, outcome: Outcome) -> tuple[str, str]:
    """(verdict, remark): equal, imports, changed, refused, noted (different, and a note says so), DIFFERENT."""
    if outcome.error is not None:
        code, what = outcome.error.code, outcome.error.what
        return "refused", NOT_ASKED.get(network.name, f"{code}: {what}")
    if not network.trains:
        return "imports", "the framework gives no losses"
    texts = list[str]()
    for golden in network.goldens:
        loss = loss_error(outcome.losses, golden.losses)
        weights = weight_errors(network, outcome, golden)
        furthest = max(weights.values(), default=0.0)
        apart = [name for name, error in weights.items() if not error <= ABSOLUTE]
        text = f"losses {loss:.1e}" + (f", weights {furthest:.1e}" if weights else "")
        text += f" ({golden.how})" if golden.how else ""
        if loss <= RELATIVE and not apart:
            return "equal", text
        texts.append(text + (f": {', '.join(apart)}" if apart and network.zoo3 else ""))
    text = "; ".join(texts)
    if network.name in CHANGED:
        return "changed", f"{text}: {CHANGED[network.name]}"
    notes = [note for note in outcome.notes if NOTED.search(note)]
    lost = [note for note in notes if "tf2onnx" in note]
    if lost:
        return "noted", f"{text}: {lost[-1]}"
    return ("noted" if network.zoo3 and notes else "DIFFERENT"), text


def judged(network: Network) -> tuple[str, str]:
    """The verdict with the options of OTHERWISE, named in the remark."""
    more, why = OTHERWISE.get(network.name, ({}, ""))
    try:
        verdict, remark = judge(network, trained(network, **more))
    except Exception as wrong:  # what is to be found: anything that is no CompileError
        return "INTERNAL", f"{type(wrong).__name__}: {wrong}"
    return verdict, f"{remark}; {why}" if why else remark
