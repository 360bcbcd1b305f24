"""Choice of the initializers of a file that are parameters, and of those that are one.

ONNX does not say what its framework trains: rules do, in this order.

1. What the user says (--trainable, --frozen).
2. An output of a Constant node is not a parameter, unless the file has no floating-point initializer at all.
3. An initializer that no gradient reaches is not a parameter: settings of nodes, statistics of a BatchNormalization.
4. What the exporter recorded as a buffer, or computed from no parameter, is not one
   (frontend/exporters/record.py).
5. Numbers with a known purpose are none (frontend/weights/known_constants.py).
6. One that only the nodes of the model's own loss read is none: a factor of a term, weights of classes.
7. Every other floating-point initializer is one, whatever node reads it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from tinytrain_compile.errors import CompileError
from tinytrain_compile.frontend.exporters.names import is_made_up, modules_of
from tinytrain_compile.frontend.exporters.remarks import OF_THE_LOSS, Remark, has_record
from tinytrain_compile.frontend.file.folding import PARTS, VIEWS, fold
from tinytrain_compile.frontend.file.model import LITERT, Links, OnnxModel, OnnxNode, rewritten, unused
from tinytrain_compile.frontend.options import FrontendOptions
from tinytrain_compile.frontend.weights.known_constants import Case, Use, prepared_inputs, purpose
from tinytrain_compile.ir.imported import Copy, ParameterChoice
from tinytrain_compile.ir.types import Array
from tinytrain_compile.near import hint

if TYPE_CHECKING:
    from tinytrain_compile.frontend.exporters.record import Record

_PASSING = (*VIEWS, *PARTS, "Expand")
"""Operators whose first input is still the same numbers behind them."""

SETTINGS: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (3, 4),
    "Clip": (1, 2),
    "Dropout": (1, 2),
    "Pad": (1, 2, 3),
    "Resize": (1, 2, 3),
    "Upsample": (1,),
    "Where": (0,),
    **dict.fromkeys(("QuantizeLinear", "DequantizeLinear"), (1, 2)),
    **dict.fromkeys(("Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"), (0, 1)),
    **dict.fromkeys(("SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"), (1, 2)),
}
"""Operands that decide how a node computes, and get no gradient."""


@dataclass(frozen=True)
class Trainables:
    """Whether each floating-point initializer is trained, and why. remarks: what the exporter's traces say of some."""

    choices: Mapping[str, ParameterChoice]
    remarks: Mapping[str, Remark] = field(default_factory=dict[str, Remark])

    def trained(self, name: str) -> bool:
        """Tell whether an initializer is a parameter; False for what is no initializer."""
        return name in self.choices and self.choices[name].trained


def by_rules(model: OnnxModel, links: Links) -> Trainables:
    """Decide as if the user had not named any initializer."""
    return choose_trainables(model, links, FrontendOptions())


def with_numbers_of_the_loss(found: Trainables, model: OnnxModel, links: Links) -> Trainables:
    """Add the initializers that only the model's own loss reads. links: of the model with its loss."""
    rest = {
        name: ParameterChoice(name, False, OF_THE_LOSS, array.size)
        for name, array in model.floats.items()
        if links.is_used(name) and name not in found.choices
    }
    return Trainables({**found.choices, **rest}, remarks_on(model, links))


def remarks_on(model: OnnxModel, links: Links) -> Mapping[str, Remark]:
    """Remark on initializers by the exporter's record, or by the names that it makes up."""
    record = _record(model)
    if record is not None:
        return record.remarks(model, links)
    if model.proto.producer_name == "pytorch":
        from tinytrain_compile.frontend.exporters.numbered import numbered_remarks

        return numbered_remarks(model, links)
    return {}


def _record(model: OnnxModel) -> Record | None:
    """Return what PyTorch's newer exporter has recorded in the file; None if it has not."""
    if not has_record(model.proto):
        return None
    from tinytrain_compile.frontend.exporters.record import read_record

    return read_record(model.proto)


def choose_trainables(model: OnnxModel, links: Links, options: FrontendOptions) -> Trainables:
    """Decide about every initializer that the outputs depend on. E0101 for globs that match nothing, E0113 for both."""
    made = {
        name: array
        for name, array in constant_outputs(model.nodes, model.opset).items()
        if links.is_used(name) and array.size
    }
    used = {name: array for name, array in model.floats.items() if links.is_used(name)}
    asked = _asked({**used, **made}, links, options)
    candidates = {**(used or made), **{name: made[name] for name in asked if name in made}}
    prepared = prepared_inputs(model, links)
    cases = [Case(name, array, tuple(_uses(links, name)), links, prepared) for name, array in candidates.items()]
    remarks = remarks_on(model, links)
    return Trainables(
        {case.name: _choice(case, asked.get(case.name), remarks.get(case.name)) for case in cases}, remarks
    )


def _choice(case: Case, asked: str | None, remark: Remark | None) -> ParameterChoice:
    settings = all(use.index in SETTINGS.get(use.node.op, ()) for use in case.uses)
    if asked is not None:
        trained = asked == "--trainable"
        if trained and settings:
            what = f"no gradient reaches {case.name}: it is a setting of {_readers(case)}"
            raise CompileError("E0113", "--trainable", what, "leave it out of --trainable")
        return ParameterChoice(case.name, trained, asked, case.array.size)
    if settings:
        statistics = all(use.node.op == "BatchNormalization" for use in case.uses)
        what = "running statistics of" if statistics else "a setting of"
        return ParameterChoice(case.name, False, f"{what} {_readers(case)}", case.array.size)
    kind = "" if remark is None else remark.kind
    known = purpose(case, kind in ("parameter", "computed"))
    if not known and remark is not None and kind in ("buffer", "number", "computed"):
        known = remark.why
    told = f"; {remark.why}" if remark is not None and kind in ("made of parameters", "may be a buffer") else ""
    why = known or f"read by {_readers(case)}{told}"
    return ParameterChoice(case.name, not known, why, case.array.size)


def _readers(case: Case) -> str:
    names = list(dict.fromkeys(f"{use.node.name} ({use.node.op})" for use in case.uses))
    return names[0] + (f" and {len(names) - 1} more" if names[1:] else "") if names else "nothing"


def _uses(links: Links, tensor: str) -> Iterator[Use]:
    """Yield who reads a tensor, directly or behind what only moves its elements."""
    tensors = [tensor]
    for one in tensors:  # grows: what views of it are called, each once
        for node in links.readers(one):
            for index, name in enumerate(node.inputs):
                if name == one and node.op in _PASSING and index == 0 and not node.domain:
                    tensors += node.outputs
                elif name == one:
                    yield Use(node, index)


def constant_outputs(nodes: Iterable[OnnxNode], opset: int) -> dict[str, Array]:
    """Return what Constant nodes hold, if it is a tensor of floating-point numbers."""
    found: dict[str, Array] = {}
    for node in nodes:
        if node.op == "Constant" and not node.domain and not {"value_string", "value_strings"} & set(node.attrs):
            (array,) = fold(node, {}, opset)
            if array.dtype.kind == "f":
                found[node.output(0)] = array
    return found


def _named(glob: str, names: Iterable[str], links: Links) -> list[str]:
    """Return the initializers of a name, or, if there are none, of a module."""
    hits = [name for name in names if fnmatchcase(name, glob)]
    return hits or [name for name in names if any(fnmatchcase(each, glob) for each in modules_of(name, links))]


def _asked(names: Mapping[str, Array], links: Links, options: FrontendOptions) -> dict[str, str]:
    """Return by initializer the option that names it."""
    said = {True: "--trainable", False: "--frozen"}
    found = {name: said[trained] for name, trained in options.chosen.items() if name in names}
    for flag, globs in (("--trainable", options.trainable), ("--frozen", options.frozen)):
        for glob in globs:
            hits = _named(glob, names, links)
            if not hits:
                what = "no floating-point initializer that is used has such a name, nor its module"
                raise CompileError("E0101", f"{flag} {glob}", what, hint(glob, names, "report.json has all"))
            for name in hits:
                if found.get(name, flag) != flag:
                    what = f"{name} is named by --trainable and by --frozen"
                    raise CompileError("E0113", f"{flag} {glob}", what, "leave it out of one of them")
                found[name] = flag
    return found


# ---- parameters that are one -----------------------------------------------------------------------------------------
# Initializers that are one for several readers: shared in the framework, or made one by an exporter. PyTorch's
# TorchScript exporter writes tensors of equal values once, whether they are one parameter or not: fresh norms and
# zero biases then train tied. Its newer exporter computes with constants, and may leave a copy of a parameter.


@dataclass(frozen=True)
class Merged:
    """One initializer, and the names under which the layers of the framework may have had it."""

    name: str
    tensors: tuple[str, ...]


def merged(model: OnnxModel) -> tuple[Merged, ...]:
    """Return initializers that may have been several: behind an Identity, or one number with several readers."""
    links = Links(model.nodes, model.outputs, model.constants)
    found: list[Merged] = []
    for name, array in model.floats.items():
        others = [node.output(0) for node in links.readers(name) if node.op == "Identity" and not node.domain]
        if _is_fresh(links, name, array):
            others += [_name(name, node) for node in _further_readers(links, name)]
        if others:
            found.append(Merged(name, tuple(others)))
    return tuple(found)


def _is_fresh(links: Links, name: str, array: Array) -> bool:
    """Tell whether an initializer is one number throughout, as before any training.

    A single number only as a PRelu's.
    """
    slopes = all(node.op in ("PRelu", "Identity") for node in links.readers(name))
    return (array.size > 1 or slopes) and bool((array == array.reshape(-1)[0]).all())


def _further_readers(links: Links, name: str) -> list[OnnxNode]:
    """Return readers of an initializer behind the first, without Identities."""
    return [node for node in links.readers(name) if node.op != "Identity"][1:]


def _name(name: str, node: OnnxNode) -> str:
    return f"{name} of {node.name}"


def untied(model: OnnxModel) -> OnnxModel:
    """Return the model with an initializer for every reader of those that may have been several."""
    links, constants = Links(model.nodes, model.outputs, model.constants), dict(model.constants)
    changed: dict[str, OnnxNode | None] = {}
    for name in (found.name for found in merged(model)):
        for node in links.readers(name):
            if node.op == "Identity" and not node.domain:
                constants[node.output(0)] = model.constants[name]
                changed[node.name] = None
        if _is_fresh(links, name, model.constants[name]):
            for node in _further_readers(links, name):
                now, own = changed.get(node.name) or node, unused(_name(name, node), constants, links)
                constants[own] = model.constants[name]
                changed[node.name] = rewritten(now, [own if other == name else other for other in now.inputs])
    nodes = (changed.get(node.name, node) for node in model.nodes)
    return replace(model, nodes=tuple(node for node in nodes if node is not None), constants=constants)


def without_copies(model: OnnxModel) -> OnnxModel:
    """Return the model with what an exporter has computed, where that follows from a parameter, made of the parameter.

    A zero state times a weight, plus a bias, is that bias: one parameter in the framework. So is a weight transposed.
    Names of a .tflite file tell nothing about that: it holds a parameter once, and equal ones are several.
    """
    if model.proto.producer_name == LITERT:
        return model
    floats = {name: array for name, array in model.floats.items() if array.size > 1}
    record = _record(model)
    made = {name: None for name in floats if (is_made_up(name) if record is None else name not in record.kinds)}
    if not made:
        return model
    from tinytrain_compile.frontend.exporters.weight_forms import form_of

    links, constants = Links(model.nodes, model.outputs, model.constants), dict(model.constants)
    nodes: list[OnnxNode] = []
    copies: dict[str, Copy] = {}
    for name in made:
        for source in (source for source in floats if source not in made):
            form = form_of(floats[name], floats[source], model.opset)
            if form is not None:
                more, shapes = form.nodes(source, name, lambda new: unused(new, constants, links))
                nodes += more
                constants.update(shapes)
                del constants[name]
                copies[name] = Copy(source, form.of)
                break
    return replace(model, nodes=(*nodes, *model.nodes), constants=constants, copies=copies) if nodes else model
