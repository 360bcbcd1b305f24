"""Small modules as PyTorch's two exporters write them, with PyTorch's own training beside them. Run by hand:

    python -m venv /tmp/torch && /tmp/torch/bin/pip install torch==2.13.0 onnx onnxscript
    /tmp/torch/bin/python scripts/export_folded.py tests/frontend/exported [NAME ...]
    python -m benchmarks zoo --zoo3 --notes --folder tests/frontend/exported

NAME.ts.onnx: by the TorchScript exporter; NAME.dyn.onnx: by the newer one; NAME.raw.onnx: by that with optimize=False.
The rest is as in ../shared/zoo3 (testing/networks/zoo.py). Nothing else in this repository needs torch.
"""

# ruff: noqa: D102, N801, N812
from __future__ import annotations

import contextlib
import io
import json
import math
import sys
from pathlib import Path

import numpy as np
import onnx
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

KEPT = ("pkg.torch.export.ExportedProgram.graph_signature", "pkg.torch.onnx.fx_node")
RATE, STEPS, CLASSES = 0.05, 5, 4


class weight_norm(nn.Module):
    """A dense layer under weight normalisation."""

    def __init__(self):
        super().__init__()
        self.a, self.b = parametrizations.weight_norm(nn.Linear(10, 8)), nn.Linear(8, CLASSES)

    def forward(self, x):
        return self.b(torch.relu(self.a(x)))


class lora_merged(nn.Module):
    """A weight plus a product of two small ones."""

    def __init__(self):
        super().__init__()
        self.w, self.o = nn.Linear(10, 8), nn.Linear(8, CLASSES)
        self.A, self.B = nn.Parameter(torch.randn(2, 10) * 0.3), nn.Parameter(torch.randn(8, 2) * 0.3)

    def forward(self, x):
        return self.o(torch.relu(F.linear(x, self.w.weight + self.B @ self.A * 0.5, self.w.bias)))


class cosine_head(nn.Module):
    """Scores are cosines between activations and class vectors."""

    def __init__(self):
        super().__init__()
        self.a, self.w = nn.Linear(10, 8), nn.Parameter(torch.randn(CLASSES, 8))

    def forward(self, x):
        return 5 * F.linear(F.normalize(torch.relu(self.a(x)) + 0.1), F.normalize(self.w))


class exp_scale(nn.Module):
    """A scale that stays positive."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.l = nn.Linear(10, 8), nn.Linear(8, CLASSES), nn.Parameter(torch.randn(8) * 0.3)

    def forward(self, x):
        return self.b(torch.tanh(self.a(x)) * torch.exp(self.l))


class gaussians(nn.Module):
    """Log-likelihoods of diagonal Gaussians: log deviations are read as they are, and through Exp."""

    def __init__(self):
        super().__init__()
        self.mean, self.log = nn.Parameter(torch.randn(CLASSES, 10)), nn.Parameter(torch.randn(CLASSES, 10) * 0.1)

    def forward(self, x):
        return (-0.5 * ((x[:, None] - self.mean) / self.log.exp()) ** 2 - self.log).sum(-1)


class tied_transpose(nn.Module):
    """A decoder that reads the encoder's weight transposed."""

    def __init__(self):
        super().__init__()
        self.a, self.c, self.b = nn.Linear(10, 6), nn.Parameter(torch.randn(10) * 0.1), nn.Linear(10, CLASSES)

    def forward(self, x):
        return self.b(F.linear(torch.relu(self.a(x)), self.a.weight.t(), self.c))


class tied_table(nn.Module):
    """A table of tokens that is the last layer, too."""

    def __init__(self):
        super().__init__()
        self.e, self.l = nn.Embedding(12, 6), nn.Linear(6, 6)

    def forward(self, x):
        return F.linear(torch.tanh(self.l(self.e(x))), self.e.weight).mean(1)


class relative_positions(nn.Module):
    """A bias of attention for each distance: a table that is read several times."""

    def __init__(self):
        super().__init__()
        self.t, self.q, self.b = nn.Parameter(torch.randn(11) * 0.5), nn.Linear(8, 8), nn.Linear(8, CLASSES)
        steps = torch.arange(6)
        self.register_buffer("i", steps[:, None] - steps[None] + 5)

    def forward(self, x):
        h = self.q(x)
        return self.b(((h @ h.transpose(1, 2) / math.sqrt(8) + self.t[self.i]).softmax(-1) @ h).mean(1))


class fourier_features(nn.Module):
    """Random frequencies, which are a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("B", torch.randn(3, 8))
        self.a, self.b = nn.Linear(16, 8), nn.Linear(8, CLASSES)

    def forward(self, x):
        p = 2 * math.pi * x @ self.B
        return self.b(torch.relu(self.a(torch.cat([p.sin(), p.cos()], -1))))


class one_more_axis(nn.Module):
    """A scalar with another axis: it is the parameter all the same."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.g = nn.Linear(10, 10), nn.Linear(10, CLASSES), nn.Parameter(torch.tensor(0.23))

    def forward(self, x):
        return self.b(x + self.g.unsqueeze(0) * torch.relu(self.a(x)))


class penalty(nn.Module):
    """Weight decay in the loss."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 8), nn.Linear(8, CLASSES)

    def forward(self, x, y):
        decay = sum((each**2).sum() for each in self.parameters())
        return F.cross_entropy(self.b(torch.relu(self.a(x))), y) + 0.01 * decay


class smoothed(nn.Module):
    """Label smoothing of PyTorch's own, which the exporter drops."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(10, 8), nn.Linear(8, CLASSES)

    def forward(self, x, y):
        return F.cross_entropy(self.b(torch.relu(self.a(x))), y, label_smoothing=0.1)


class smoothed_in_full(smoothed):
    """The same, written out."""

    def forward(self, x, y):
        scores = self.b(torch.relu(self.a(x)))
        return 0.9 * F.cross_entropy(scores, y) - 0.1 * F.log_softmax(scores, -1).mean()


MODULES = {
    weight_norm: (10,),
    lora_merged: (10,),
    cosine_head: (10,),
    exp_scale: (10,),
    gaussians: (10,),
    tied_transpose: (10,),
    tied_table: (5,),
    relative_positions: (6, 8),
    fourier_features: (3,),
    one_more_axis: (10,),
    penalty: (10,),
    smoothed: (10,),
    smoothed_in_full: (10,),
}
"""With the shape of a sample."""
LOSSES = (penalty, smoothed, smoothed_in_full)
"""Those that end in their loss."""


def export(module, given, path: Path, form: str) -> None:
    """Write one file; of the metadata only what the compiler reads."""
    names = ["x", "y"][: len(given)]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        if form == "ts":
            torch.onnx.export(module, given, str(path), dynamo=False, input_names=names, opset_version=17)
            return
        torch.onnx.export(
            module, given, str(path), dynamo=True, input_names=names, optimize=form == "dyn", external_data=False
        )
    model = onnx.load(path)
    for entry in (model.graph, *model.graph.node):
        kept = [each for each in entry.metadata_props if each.key in KEPT]
        del entry.metadata_props[:]
        entry.metadata_props.extend(kept)
    del model.graph.value_info[:]
    for node in model.graph.node:
        node.doc_string = ""
    onnx.save(model, path)


def train(module, x, y, ends_in_loss: bool) -> list[float]:
    """Losses of SGD with one sample a step."""
    optimizer, losses = torch.optim.SGD(module.parameters(), lr=RATE), []
    for i in range(STEPS):
        one, label = x[i : i + 1], y[i : i + 1]
        loss = module(one, label) if ends_in_loss else F.cross_entropy(module(one), label)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def numbers(module, prefix: str) -> dict[str, np.ndarray]:
    """Every parameter by its name."""
    return {f"{prefix}{name}": each.detach().numpy().copy() for name, each in module.named_parameters()}


def main(folder: Path, only: list[str]) -> None:
    """Write every module's files."""
    folder.mkdir(exist_ok=True)
    for kind, shape in MODULES.items():
        name = kind.__name__
        if only and name not in only:
            continue
        torch.manual_seed(sum(map(ord, name)))
        module, tokens = kind().eval(), kind is tied_table
        x = torch.randint(0, 12, (STEPS, *shape)) if tokens else torch.randn(STEPS, *shape)
        y = torch.randint(0, 12 if tokens else CLASSES, (STEPS,))
        given = (x[:1], y[:1]) if kind in LOSSES else (x[:1],)
        for form in ("ts", "dyn", "raw"):
            path = folder / f"{name}.{form}.onnx"
            try:
                export(module, given, path, form)
            except Exception as problem:  # TorchScript does not know label smoothing
                path.unlink(missing_ok=True)
                print(f"{path.name}: {type(problem).__name__}")
        before = numbers(module, "i_")
        losses = train(module, x, y, kind in LOSSES)
        np.savez_compressed(folder / f"{name}.ref.npz", **before, **numbers(module, "f_"))
        np.savez_compressed(folder / f"{name}.npz", x=x.numpy(), y=y.numpy())
        known = {"loss": "graph" if kind in LOSSES else "ce", "opt": "sgd", "lr": RATE, "LA": losses, "LB": None}
        (folder / f"{name}.json").write_text(json.dumps(known) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
