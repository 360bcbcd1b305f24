"""Training of a model file by an evaluator that shares no code with the importer: onnx.reference in float64, plain SGD
on the file's own weights, gradients by central differences of the loss."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.frontend.models import write
from tinytrain_compile.frontend import FrontendOptions, load_model
from tinytrain_compile.ir.imported import ImportedModel
from tinytrain_compile.reference.trainer import Trainer
from tinytrain_compile.sparse import resolve_update
from tinytrain_compile.training.build import build_training
from tinytrain_compile.training.optimizer import TrainingOptions

STEP = 1e-5


def wide(node: onnx.NodeProto) -> None:
    """A node's numbers in double precision."""
    for attribute in node.attribute:
        if attribute.name in ("value_float", "value_floats"):
            numbers = [attribute.f] if attribute.name == "value_float" else list(attribute.floats)
            shape = () if attribute.name == "value_float" else (len(numbers),)
            tensor = numpy_helper.from_array(np.asarray(numbers, np.float64).reshape(shape))
            attribute.CopyFrom(helper.make_attribute("value", tensor))
        if (node.op_type, attribute.name, attribute.i) == ("Cast", "to", TensorProto.FLOAT):
            attribute.i = TensorProto.DOUBLE


class FileTraining:
    """A model with one sample as input and one row of logits as output, trained with cross-entropy.

    frozen: names of weights (statistics) that are not trained.
    """

    def __init__(self, model: onnx.ModelProto, frozen: Collection[str] = ()) -> None:
        made = onnx.ModelProto()
        made.CopyFrom(model)
        self.weights: dict[str, np.ndarray] = {}
        for tensor in made.graph.initializer:
            array = numpy_helper.to_array(tensor)
            if array.dtype == np.float32:
                self.weights[tensor.name] = array.astype(np.float64)
        kept = [t for t in made.graph.initializer if t.name not in self.weights]
        del made.graph.initializer[:]
        made.graph.initializer.extend(kept)
        for name, array in self.weights.items():
            made.graph.input.append(helper.make_tensor_value_info(name, TensorProto.DOUBLE, array.shape))
        for node in made.graph.node:
            wide(node)
        self._trained = [name for name in self.weights if name not in frozen]
        self._input = made.graph.input[0].name
        self._evaluator = ReferenceEvaluator(made)

    def loss(self, x: np.ndarray, label: int) -> float:
        feeds = {self._input: x.astype(np.float64), **self.weights}
        (logits,) = self._evaluator.run(None, feeds)  # pyright: ignore[reportUnknownMemberType]
        row = np.asarray(logits, np.float64).reshape(-1)
        return float(np.log(np.exp(row - row.max()).sum()) + row.max() - row[label])

    def step(self, x: np.ndarray, label: int, rate: float) -> float:
        """One SGD step; the loss before it."""
        before = self.loss(x, label)
        gradients = {name: self._gradient(self.weights[name], x, label) for name in self._trained}
        for name, gradient in gradients.items():
            self.weights[name] = self.weights[name] - rate * gradient
        return before

    def _gradient(self, weight: np.ndarray, x: np.ndarray, label: int) -> np.ndarray:
        gradient = np.zeros(weight.shape)
        for place in np.ndindex(weight.shape):
            kept = weight[place]
            ends: list[float] = []
            for sign in (1, -1):
                weight[place] = kept + sign * STEP
                ends.append(self.loss(x, label))
            weight[place] = kept
            gradient[place] = (ends[0] - ends[1]) / (2 * STEP)
        return gradient


def import_file(model: onnx.ModelProto, folder: object, **options: object) -> ImportedModel:
    """The model as the compiler imports it from a file."""
    return load_model(write(model, folder), FrontendOptions(**options))  # type: ignore[arg-type]


def our_losses(
    imported: ImportedModel,
    xs: np.ndarray,
    labels: Sequence[int],
    rate: float,
    after: dict[str, np.ndarray] | None = None,
) -> list[float]:
    """Losses of the imported model in our training, all parameters, a sample per step. after: gets the last state."""
    options = TrainingOptions(loss="cross-entropy", learning_rate=rate)
    trainer = Trainer(build_training(imported, resolve_update(imported.graph, "all"), options))
    order = [len(imported.input_perm) if axis < 0 else axis for axis in imported.input_perm]
    losses: list[float] = []
    for x, label in zip(xs, labels, strict=True):
        data = x[None][..., None] if -1 in imported.input_perm else x[None]
        losses += trainer.step(data.transpose(order), np.array([label], np.int32))
    if after is not None:
        after.update(trainer.state)
    return losses


def check_training(
    model: onnx.ModelProto,
    imported: ImportedModel,
    rate: float = 0.3,
    steps: int = 4,
    frozen: Collection[str] = (),
    tolerance: float = 2e-5,
) -> None:
    """Our losses are those of the file's own training, step for step, and training does something."""
    random = np.random.default_rng(5)
    shape = [d.dim_value for d in model.graph.input[0].type.tensor_type.shape.dim]
    xs = random.standard_normal((steps, *shape[1:])).astype(np.float32)
    classes = model.graph.output[0].type.tensor_type.shape.dim[-1].dim_value
    labels = [int(v) for v in random.integers(0, classes, steps)]
    training = FileTraining(model, frozen)
    untrained = [training.loss(x[None], label) for x, label in zip(xs, labels, strict=True)]
    expected = [training.step(x[None], label, rate) for x, label in zip(xs, labels, strict=True)]
    assert np.abs(np.subtract(expected, untrained)).max() > 100 * tolerance, "the steps are too small to tell"
    np.testing.assert_allclose(our_losses(imported, xs, labels, rate), expected, rtol=tolerance, atol=tolerance)
