"""Make int8 files by PyTorch's PT2E quantisation: after training, and aware of it (docs/pt2e.md).

Writes after.onnx, aware.onnx and data.npz (x, y, and what PyTorch computes of x) beside itself, or into the folder that
is given. Needs PyTorch, torchao and onnxscript; the files are of torch 2.14.1, torchao 0.18.0 and onnxscript 0.7.2:

    python examples/pt2e/export.py
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torchao.quantization.pt2e import (
    FakeQuantize,
    HistogramObserver,
    MovingAverageMinMaxObserver,
    PerChannelMinMaxObserver,
    move_exported_model_to_eval,
)
from torchao.quantization.pt2e.quantize_pt2e import convert_pt2e, prepare_pt2e, prepare_qat_pt2e
from torchao.quantization.pt2e.quantizer import (
    QuantizationAnnotation,
    QuantizationSpec,
    Quantizer,
    SharedQuantizationSpec,
)

OUT = Path(__file__).parent
KEPT = (
    "pkg.torch.export.ExportedProgram.graph_signature",
    "pkg.torch.onnx.fx_node",
    "pkg.torch.onnx.name_scopes",
)
aten = torch.ops.aten


class Int8(Quantizer):
    """Every tensor in int8: activations by one scale and zero point, weights symmetrically by channel.

    Quantisers of other runtimes leave some tensors in float32 (the input of a mean, say): layers that make such a
    tensor compute in float32 on the device too.
    """

    LAYERS = (aten.conv1d.default, aten.conv2d.default, aten.linear.default)
    JOINED = (aten.batch_norm.default, aten.relu.default, aten.relu_.default, aten.hardtanh.default)
    MOVES = (aten.max_pool2d.default, aten.flatten.using_ints, aten.view.default, aten.dropout.default)
    OTHERS = (aten.add.Tensor, aten.mean.dim, aten.adaptive_avg_pool2d.default, aten.avg_pool2d.default)

    def __init__(self, aware: bool) -> None:
        super().__init__()
        shown: Any = MovingAverageMinMaxObserver if aware else HistogramObserver
        activation: Any = FakeQuantize.with_args(observer=shown) if aware else shown
        weight: Any = PerChannelMinMaxObserver
        weight = FakeQuantize.with_args(observer=weight) if aware else weight
        self.activation = QuantizationSpec(torch.int8, activation, -128, 127, torch.per_tensor_affine)
        self.weight = QuantizationSpec(torch.int8, weight, -127, 127, torch.per_channel_symmetric, ch_axis=0)

    def annotate(self, model: torch.fx.GraphModule) -> torch.fx.GraphModule:
        """Say for each node how its operands and its result are stored."""
        for node in model.graph.nodes:
            known = (*self.LAYERS, *self.JOINED, *self.MOVES, *self.OTHERS)
            if node.op == "call_function" and node.target in known:
                operands = dict(self._operands(node))
                result = None if self._goes_on(node) else self.activation
                if node.target in self.MOVES:  # the same numbers, so the same scale
                    result = SharedQuantizationSpec((node.args[0], node))
                annotation = QuantizationAnnotation(operands, result, _annotated=True)
                node.meta["quantization_annotation"] = annotation
        return model

    def _operands(self, node: torch.fx.Node) -> Iterator[tuple[Any, Any]]:
        for index, source in enumerate(node.args):
            if isinstance(source, torch.fx.Node) and not (index > 0 and node.target in self.JOINED):
                layer = node.target in self.LAYERS
                spec = (self.activation, self.weight, None)[index] if layer else self.activation
                if spec is not None and not self._inside(node):
                    yield source, spec

    def _inside(self, node: torch.fx.Node) -> bool:
        """Whether a node only goes on with what a layer has made: nothing is rounded between them."""
        source = node.args[0]
        return node.target in self.JOINED and isinstance(source, torch.fx.Node) and self._goes_on(source)

    def _goes_on(self, node: torch.fx.Node) -> bool:
        users = list(node.users)
        inner = node.target in self.LAYERS or node.target is aten.batch_norm.default
        return inner and len(users) == 1 and users[0].target in self.JOINED

    def validate(self, model: torch.fx.GraphModule) -> None:
        """Nothing to check."""


class Net(nn.Module):
    """Two convolutions, one with a BatchNormalization, a sum, and a dense layer."""

    def __init__(self) -> None:
        super().__init__()
        self.f = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2))
        self.g = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())
        self.c = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return scores of four classes."""
        x = self.f(x)
        return self.c((x + self.g(x)).mean((2, 3)))


def quantised(net: nn.Module, x: torch.Tensor, y: torch.Tensor, aware: bool) -> nn.Module:
    """Return the network in int8. aware: it is trained a little with rounding in the way."""
    net = net.train() if aware else net.eval()
    program: Any = torch.export.export(net, (x[:1],)).module()
    prepared: Any = (prepare_qat_pt2e if aware else prepare_pt2e)(program, Int8(aware))
    if aware:
        optimizer = torch.optim.SGD(prepared.parameters(), 0.05)
        for one, label in zip(x, y, strict=True):
            loss = nn.functional.cross_entropy(prepared(one[None]), label[None])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        move_exported_model_to_eval(prepared)
    else:
        for one in x:
            prepared(one[None])
    converted: Any = convert_pt2e(prepared)
    move_exported_model_to_eval(converted)
    return converted


def _small(model: Any) -> Any:
    """Return the file without records that nobody here reads."""
    for part in (
        model,
        model.graph,
        *model.graph.node,
        *model.graph.input,
        *model.graph.output,
        *model.graph.value_info,
    ):
        kept = [(entry.key, entry.value) for entry in part.metadata_props if entry.key in KEPT]
        del part.metadata_props[:]
        for key, value in kept:
            part.metadata_props.add(key=key, value=value)
    return model


def main(out: Path) -> None:
    """Write both files and what PyTorch computes."""
    torch.manual_seed(0)
    x, y = torch.randn(16, 3, 12, 12), torch.randint(0, 4, (16,))
    found = {}
    for kind in ("after", "aware"):
        model = quantised(Net(), x, y, kind == "aware")
        program = torch.onnx.export(model, (x[:1],), dynamo=True, optimize=False, verbose=False)
        (out / f"{kind}.onnx").write_bytes(_small(program.model_proto).SerializeToString())
        found[kind] = torch.cat([model(one[None]) for one in x]).detach().numpy()
    np.savez(out / "data.npz", x=x.numpy(), y=y.numpy(), **found)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if sys.argv[1:] else OUT)
