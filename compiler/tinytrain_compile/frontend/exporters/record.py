"""What PyTorch's newer exporter records in its files: the module's parameters and buffers, and who reads them.

The graph's metadata has the signature of the exported program, and every node the call that it comes from. So a file
tells which of its tensors are parameters, and which parameters are missing because the exporter computed with them.

The exporter computes with constants. A tensor of its making that follows from a parameter hides that parameter; one
that follows from literals or buffers alone hides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property

import onnx

from tinytrain_compile.frontend.exporters.derived_numbers import (
    FEW,
    is_broadcast,
    is_flat,
    is_grid,
    is_scaled,
    is_varied,
    repeats,
)
from tinytrain_compile.frontend.exporters.remarks import REMEDY, SIGNATURE, Remark, named
from tinytrain_compile.frontend.file.model import Links, OnnxModel
from tinytrain_compile.ir.types import Array

_CALL = "pkg.torch.onnx.fx_node"
_INPUT = re.compile(r"^(\w+): (PARAMETER|BUFFER|CONSTANT_TENSOR)\b.* ?target='([^']*)'", re.MULTILINE)
_TARGET = re.compile(r"target=torch\.ops\.(\w+\.\w+)[\w.]*\]\(args = (.*), kwargs = ")
_VALUE = re.compile(r"%(\w+)")


@dataclass(frozen=True)
class Call:
    """The call that a node comes from: its operator (`aten.linear`), its arguments as text, the values among them."""

    op: str
    arguments: str
    values: frozenset[str]


@dataclass(frozen=True)
class Record:
    """The signature and the calls.

    kinds: by the module's name of a tensor, PARAMETER, BUFFER or CONSTANT_TENSOR. given: its name -> the name that
    calls have for it. calls: by the first output of a node. made: every value that a node computes.
    """

    kinds: Mapping[str, str]
    given: Mapping[str, str]
    calls: Mapping[str, Call]
    made: frozenset[str]

    @property
    def read(self) -> frozenset[str]:
        """Every value that a call of a node in the file reads."""
        return frozenset[str]().union(*(call.values for call in self.calls.values()))

    def missing(self, kind: str, held: frozenset[str]) -> dict[str, str]:
        """Return tensors of a kind that the file does not hold: the name in calls -> the module's."""
        return {self.given[name]: name for name, its in self.kinds.items() if its == kind and name not in held}

    def remarks(self, model: OnnxModel, links: Links) -> dict[str, Remark]:
        """Remark on every floating-point initializer that is read."""
        floats = {name: array for name, array in model.floats.items() if links.is_used(name)}
        return _Reading(model, links, self, floats).remarks()


def read_record(proto: onnx.ModelProto) -> Record | None:
    """Return the record in a file; None if it has none."""
    entries = (*proto.graph.metadata_props, *proto.metadata_props)
    signature = next((entry.value for entry in entries if entry.key == SIGNATURE), "")
    found = _INPUT.findall(signature)
    if not found:
        return None
    kinds = {name: kind for _, kind, name in found}
    given = {name: own for own, _, name in found}
    made = frozenset(name for node in proto.graph.node for name in node.output if name)
    inputs = frozenset(value.name for value in proto.graph.input)
    return Record(kinds, given, dict(_calls(proto)), made | inputs)


def _calls(proto: onnx.ModelProto) -> Iterator[tuple[str, Call]]:
    for node in proto.graph.node:
        text = next((entry.value for entry in node.metadata_props if entry.key == _CALL), "")
        match = _TARGET.search(text)
        if match and node.output:
            op, arguments = match.groups()
            yield node.output[0], Call(op, arguments, frozenset(_VALUE.findall(arguments)))


# ---- remarks on initializers -----------------------------------------------------------------------------------------

_WRITTEN = re.compile(
    r"(scalar_tensor.*|(new_)?(zeros|ones|full|empty)(_like)?|arange|eye|linspace|_to_copy|lift_fresh(_copy)?|clone)"
    r"(_\d+)?"
)
"""Names of calls that make numbers of none, or pass literals on."""
_VIEW = re.compile(
    r"(unsqueeze|squeeze|view|_unsafe_view|reshape|permute|transpose|t|slice|select|expand|clone|alias|getitem|unbind)"
    r"(_\d+)?"
)
"""Names of calls that move elements and do not change them."""
_CALLS = """
linear matmul mm bmm addmm bilinear conv1d conv2d conv3d convolution conv_transpose1d conv_transpose2d gru lstm rnn_tanh
rnn_relu embedding index prelu group_norm layer_norm instance_norm batch_norm _native_batch_norm_legit_no_training mul
add sub div einsum cat stack expand view reshape
"""
_LAYOUT = frozenset(_CALLS.split())
"""Calls that become nodes which read their parameters moved at most."""
_NORM = "aten._native_batch_norm_legit_no_training"


class _Reading:
    """One file: which parameters are missing from it, and which of its tensors may hide them."""

    def __init__(self, model: OnnxModel, links: Links, record: Record, floats: Mapping[str, Array]) -> None:
        held = frozenset(tensor.name for tensor in model.proto.graph.initializer)
        self._links, self._record, self._floats = links, record, floats
        self._read, self._quantised = record.read, model.quantisation.constants
        self._missing = record.missing("PARAMETER", held)
        self._gone = tuple(name for call, name in self._missing.items() if call not in self._read)
        buffers = {**record.missing("BUFFER", held), **record.missing("CONSTANT_TENSOR", held)}
        self._gone_buffers = any(call not in self._read and "num_batches" not in name for call, name in buffers.items())
        self._known = record.made | {own for name, own in record.given.items() if name in held}

    def remarks(self) -> dict[str, Remark]:
        """Remark on every tensor of which the record tells more than rules do."""
        found = {name: self._remark(name, array) for name, array in self._floats.items()}
        return {name: remark for name, remark in found.items() if remark is not None} | self._folded_norms()

    def _remark(self, name: str, array: Array) -> Remark | None:
        kind = self._record.kinds.get(name)
        if kind == "BUFFER" and name in self._quantised:
            return None  # PT2E makes buffers of weights when it rounds them: rules decide
        if kind is not None:
            return Remark("parameter" if kind == "PARAMETER" else "buffer")
        if name in self._read:
            return self._value(name, array)
        calls = self._calls(name)
        direct = tuple(dict.fromkeys(self._missing[v] for c in calls for v in sorted(c.values) if v in self._missing))
        if direct:
            made = array.size > 1 and not all(call.op.partition(".")[2] in _LAYOUT for call in calls)
            normed = array.ndim > 1 and any(call.op == _NORM for call in calls)  # else it has its parameter's name
            return Remark("made of parameters", (*self._gone, *direct)) if made or normed else None
        hidden = self._hidden(name)
        return self._value(hidden, array) if hidden and array.size > 1 else Remark("number")

    def _calls(self, name: str) -> list[Call]:
        found = (self._record.calls.get(node.output(0)) for node in self._links.readers(name))
        return [call for call in found if call is not None]

    def _hidden(self, name: str) -> str:
        """Return the name of the computed value that a tensor is an inner value of, and which its call reads; or ""."""
        known = self._known | set(self._missing)
        values = (value for call in self._calls(name) for value in sorted(call.values) if value not in known)
        return next(values, "")

    def _value(self, name: str, array: Array) -> Remark:
        """Remark on the result of a call that the exporter has computed, or on what an inner value has of it."""
        moved = _VIEW.fullmatch(name) is not None
        flat = array.size > 1 and is_flat(array) and (moved or not self._gone or not array.any())
        if _WRITTEN.fullmatch(name) or flat:
            return Remark("number")
        if not self._gone:
            plain = self._gone_buffers or is_grid(array) or (array.size > 1 and not is_varied(array))
            return Remark("number" if plain else "computed")
        one = moved and len(self._hiding) >= len(self._gone) and not _is_computed(name, array)
        if one and (array.size > 1 or len(self._hiding) == len(self._gone)):
            return Remark("parameter")
        return Remark("made of parameters", self._gone)

    @cached_property
    def _hiding(self) -> tuple[str, ...]:
        """Tensors that may hide a parameter."""
        others = {n: array for n, array in self._floats.items() if n not in self._record.kinds}
        made = {n: a for n, a in others.items() if not _WRITTEN.fullmatch(n) and (a.size == 1 or not is_flat(a))}
        return tuple(n for n, a in made.items() if n in self._read or (a.size > 1 and self._hidden(n)))

    def _folded_norms(self) -> dict[str, Remark]:
        """Return weights of dense layers that a BatchNormalization is in.

        Behind a Conv PyTorch's own tools do the same.
        """
        found: dict[str, Remark] = {}
        for name in self._floats:
            for node in self._links.readers(name):
                call = self._record.calls.get(node.output(0))
                if call is not None and call.op == _NORM and node.op == "Gemm" and node.input(1) == name:
                    norm = tuple(self._missing[value] for value in sorted(call.values) if value in self._missing)
                    found[name] = Remark("made of parameters", (name, *norm))
        return found


def _is_computed(name: str, array: Array) -> bool:
    """Tell whether the numbers of what a view gives show that they were computed before."""
    positive = name.startswith(("t_", "transpose", "permute")) or name == "t"  # weights, and these have both signs
    traces = is_scaled(array) or is_broadcast(array) or repeats(array)
    return traces or (positive and array.size >= 2 * FEW and bool((array >= 0).all()))


# ---- terms of a loss that are left out -------------------------------------------------------------------------------

_SMOOTHING = re.compile(r"\(%\w+, %\w+, [%\w]+, -?\d+, -?\d+, ([0-9.e-]+),?\)")
"""Arguments of a call of cross_entropy_loss: scores, labels, weights, reduction, ignore_index, label_smoothing."""


_FINITE_BY_A_SMALL_NUMBER = ("Sqrt", "Log")
"""Operators whose gradient a small number keeps finite."""


def dropped_terms(model: OnnxModel) -> list[str]:
    """Return a note for each loss that was exported without label smoothing, and on numbers that are no longer added.

    PyTorch's optimizer takes an Add of 1e-8 for one of 0: the root behind it then has no finite gradient at 0.
    """
    record = read_record(model.proto)
    if record is None:
        return []
    found: list[str] = []
    roots: list[str] = []
    for node in model.proto.graph.node:
        call = record.calls.get(node.output[0]) if node.output else None
        if call is None:
            continue
        match = _SMOOTHING.fullmatch(call.arguments) if call.op == "aten.cross_entropy_loss" else None
        if match and float(match.group(1)) > 0 and node.op_type == "SoftmaxCrossEntropyLoss":
            what = f"the exporter dropped label_smoothing={match.group(1)} of {node.output[0]} ({node.op_type})"
            found.append(f"{what}: write it out in the module, as docs/parameters.md shows")
        lost = [value for value in call.values if value.startswith("add") and value not in record.made]
        if node.op_type in _FINITE_BY_A_SMALL_NUMBER and lost and not node.input[0].startswith("add"):
            roots.append(node.output[0])
    if roots:
        what = f"the exporter dropped a small number that was added before {named(roots)}"
        found.append(f"{what}, so that its gradient may not be finite; export with {REMEDY}")
    return found
