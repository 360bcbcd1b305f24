"""What becomes of every floating-point initializer of a file that can change the result: no number is left out unsaid.

Each ends in one of four classes: a parameter of the graph holds its numbers; they are multiplied into, or added to,
those of another one; the parameter follows `--update`; or it is not trained, for a reason. The third is told apart when
the updates are chosen (`driver/summary.py`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import numpy as np

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.exporters.derived_numbers import is_flat
from tinytrain_compile.frontend.exporters.remarks import OF_THE_LOSS, has_record, notes_on
from tinytrain_compile.frontend.file.model import LOSS_OPS, QUANTISED_OPS, Links, OnnxModel, reachable
from tinytrain_compile.frontend.graph.context import ImportContext
from tinytrain_compile.frontend.graph.entries import Claim, tied_weights
from tinytrain_compile.frontend.weights.parameters import SETTINGS, Merged, constant_outputs
from tinytrain_compile.ir.imported import ImportedModel, ParameterChoice
from tinytrain_compile.ir.types import Value

CONSTANT_NODE = "the output of a Constant node"
DECIDING = "how often a loop runs, or which branch is taken"


def accounted(
    ctx: ImportContext, read: OnnxModel, outputs: Iterable[str], parameters: Iterable[Value]
) -> tuple[ParameterChoice, ...]:
    """Return the choices about every initializer that outputs depend on, and about what became of others.

    read: the model as the file has it. parameters: of the graph.
    """
    made = {name for node in read.nodes for name in node.outputs}
    nodes = reachable(read.nodes, [name for name in outputs if name in made] or read.outputs)
    links = Links(nodes, read.outputs, read.constants)
    accounts = _Accounts(ctx, links, tuple(value.name for value in parameters))
    sizes = {name: a.size for name, a in read.constants.items() if a.dtype.kind == "f" and links.readers(name)}
    sizes |= {
        name: read.constants[name].size for name in sorted(read.deciding) if read.constants[name].dtype.kind == "f"
    }
    for name, array in constant_outputs(nodes, ctx.model.opset).items():  # tables that more than a setting reads
        if array.size and not is_flat(array) and not _is_setting(name, links):
            sizes[name] = array.size
    sizes |= {choice.name: choice.elements for choice in ctx.trainables.choices.values()}
    return tuple(accounts.of(name, size) for name, size in sizes.items() if size)


def _is_setting(name: str, links: Links) -> bool:
    places = [(node, index) for node in links.readers(name) for index, one in enumerate(node.inputs) if one == name]
    return all(index in SETTINGS.get(node.op, ()) for node, index in places)


def folded_into(ctx: ImportContext, parameters: Iterable[Value]) -> list[str]:
    """Return `gamma in weight` for each normalisation that is in the weight of a layer."""
    found: list[str] = []
    for claim in ctx.claims(value.name for value in parameters):
        gamma = None if claim.fold is None else claim.fold.origins[0]
        if gamma is not None and claim.fold is not None and not claim.fold.offset.any():  # not the bias
            found.append(f"{gamma.base} in {claim.origins[0].base}")
    return found


def _roots(claim: Claim) -> list[str]:
    """Return the initializers that a constant depends on. A weight does not depend on the shift that was folded."""
    fold = claim.fold
    gamma, shift = (None, None) if fold is None else (fold.origins[0], fold.origins[-1] if fold.offset.any() else None)
    origins = (origin for origin in (*claim.origins[:1], gamma, shift) if origin is not None)
    return list(dict.fromkeys(root for origin in origins for root in sorted(origin.roots())))


class _Accounts:
    """Which parameters of the graph hold each initializer, or have it in their numbers."""

    def __init__(self, ctx: ImportContext, links: Links, parameters: tuple[str, ...]) -> None:
        self._ctx, self._links, self._choices = ctx, links, ctx.trainables.choices
        self._holders: dict[str, list[str]] = {}
        self._folds: dict[str, list[str]] = {}
        self._bases: dict[str, str] = {}
        for claim in ctx.claims(parameters):
            base = claim.origins[0].base if claim.origins else claim.name
            self._bases[claim.name] = base
            for root in _roots(claim):
                (self._holders if root == base else self._folds).setdefault(root, []).append(claim.name)

    def of(self, name: str, size: int) -> ParameterChoice:
        """Return what becomes of one initializer."""
        known = self._choices.get(name)
        if known is not None and not known.trained:
            return known
        why = self._why(name) if known is None else known.why
        if name in self._holders:
            return ParameterChoice(name, True, why, size, tuple(self._holders[name]))
        if name in self._folds:
            holders = tuple(self._folds[name])
            return ParameterChoice(name, True, why, size, holders, self._bases[holders[0]])
        copy = self._ctx.model.copies.get(name)
        if copy is not None and copy.source in self._holders:
            holders = tuple(self._holders[copy.source])
            return ParameterChoice(name, True, f"it follows from {copy.source}", size, holders, copy.source)
        if copy is not None:
            why = f"it follows from {copy.source}, which is not trained"
        elif known is not None:
            why = f"the compiler keeps it as numbers of {self._readers(name)}"
        return ParameterChoice(name, False, why, size)

    def _why(self, name: str) -> str:
        """Return why there is no choice about an initializer."""
        readers = self._links.readers(name)
        if self._links.maker(name) is not None:
            return CONSTANT_NODE
        if name in self._ctx.model.deciding and not readers:
            return DECIDING
        if readers and all(node.op in LOSS_OPS for node in readers):
            return OF_THE_LOSS
        casts = [one for node in readers if node.op == "Cast" for one in self._links.readers(node.output(0))]
        if any(node.op in QUANTISED_OPS or node.op.startswith("QLinear") for node in (*readers, *casts)):
            return "scales of the quantised file"
        if self._ctx.model.fresh:
            return "replaced by --classes"
        return f"the compiler keeps it as numbers of {self._readers(name)}"

    def _readers(self, name: str) -> str:
        nodes = self._links.readers(name)
        return f"{nodes[0].name} ({nodes[0].op})" if nodes else "nothing"


def parameter_notes(ctx: ImportContext, found: tuple[Merged, ...]) -> list[str]:
    """Say what is trained as one because the file holds it once, and what the exporter computed from parameters."""
    choices = ctx.trainables.choices
    tied = [one for one in found if ctx.trainables.trained(one.name)]
    notes = [f"trained tied, the file holds them once: {one.name}, {', '.join(one.tensors)} (--untie)" for one in tied]
    notes += notes_on(ctx.trainables.remarks, choices)
    if has_record(ctx.model.proto):
        from tinytrain_compile.frontend.exporters.record import dropped_terms

        notes += dropped_terms(ctx.model)
    if ctx.model.proto.producer_name == "tf2onnx":
        from tinytrain_compile.frontend.exporters.keras import lost_by_tf2onnx

        notes += lost_by_tf2onnx(ctx.model)
    return notes


def check_parameters(ctx: ImportContext, model: ImportedModel) -> frozenset[str]:
    """Return the weights of the file of which the graph has two copies that would drift apart.

    E0504 if they cannot be one.
    """
    trained = frozenset(value.name for value in model.graph.parameters)
    written = None if model.loss is None else model.loss.written
    constants = dict.fromkeys((*model.graph.constants, *(() if written is None else written.constants)))
    found = tied_weights(ctx.claims(constants), trained)
    apart = sorted(found & ctx.tied) or _stored_once(ctx, model)
    if apart:
        what = "it would become several parameters, which training would drive apart"
        raise CompileError("E0504", f"weight {apart[0]}", what, "use it in one way, or export two weights")
    return found


def _stored_once(ctx: ImportContext, model: ImportedModel) -> list[str]:
    """Return integers of a quantised file that several parameters are made of: by other scales, or moved in other ways.

    But for one number throughout (zero biases), which exporters write once for whatever reads it.
    """
    stored, numbers = ctx.model.quantisation.constants, model.graph.constants
    bases = {one.tensor.name for name, one in model.sources.items() if np.ptp(numbers[name], axis=None) > 0}
    times = Counter(stored[name].root for name in bases if name in stored and not stored[name].is_bias)
    return sorted(root for root, count in times.items() if count > 1)
