"""What is known of initializers because an exporter wrote them: which ones it computed, and from what.

PyTorch's exporters compute at once what follows from parameters alone. The tensors that come of it are no parameters of
the module: trained in their place, they learn otherwise (docs/parameters.md).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import onnx

from tinytrain_compile.ir.imported import ParameterChoice

Kind = Literal["parameter", "buffer", "number", "made of parameters", "computed", "may be a buffer"]
REMEDY = "torch.onnx.export(..., dynamo=True, optimize=False)"
OF_THE_LOSS = "a number of the loss itself"
SIGNATURE = "pkg.torch.export.ExportedProgram.graph_signature"
"""Metadata in which PyTorch's newer exporter records the module's parameters and buffers."""
SHOWN = 6
"""Names that one note lists; report.json has all."""


@dataclass(frozen=True)
class Remark:
    """What one initializer is.

    kind: "parameter" and "buffer" of the module, says the file; "number": written by the exporter, no part of either.
    "made of parameters": it trains instead of them; "computed": it does not train, and a parameter that it follows from
    gets no gradient through it; "may be a buffer": it trains, and looks like one.
    of: the parameters that it may have been made of, as far as the file tells.
    """

    kind: Kind
    of: tuple[str, ...] = ()

    @property
    def why(self) -> str:
        """The remark, for the list of parameters."""
        return {
            "parameter": "a parameter, as the exporter recorded",
            "buffer": "a buffer, as the exporter recorded",
            "number": "a number that the exporter wrote",
            "made of parameters": f"the exporter computed it{_of(self.of)}",
            "computed": "the exporter computed it",
            "may be a buffer": "perhaps a buffer",
        }[self.kind]


def has_record(proto: onnx.ModelProto) -> bool:
    """Tell whether PyTorch's newer exporter has recorded in a file what its tensors are (see record.py)."""
    return any(entry.key == SIGNATURE for entry in (*proto.graph.metadata_props, *proto.metadata_props))


def _of(names: tuple[str, ...]) -> str:
    return f" from {', '.join(names)}" if names else " from parameters"


def notes_on(remarks: Mapping[str, Remark], choices: Mapping[str, ParameterChoice]) -> list[str]:
    """Return one note for each thing that the user can do, with the names of the tensors.

    There is nothing to note of a tensor that the user has decided about, or that has a known purpose.
    """
    told = [(remark, choices[name]) for name, remark in remarks.items() if name in choices]
    told = [(remark, choice) for remark, choice in told if not choice.why.startswith("--")]
    made = [(remark, choice) for remark, choice in told if remark.kind == "made of parameters"]
    instead = named(f"{one.name} ({one.elements:,}{_of(remark.of)})" for remark, one in made if one.trained)
    lost = [
        one for remark, one in made if not one.trained and (remark.of or one.elements == 1 or one.why == OF_THE_LOSS)
    ]
    lost += [choice for remark, choice in told if remark.kind == "computed" and choice.why in (remark.why, OF_THE_LOSS)]
    kept = named(f"{choice.name} ({choice.elements:,})" for choice in lost)
    buffers = [choice.name for remark, choice in told if remark.kind == "may be a buffer" and choice.trained]
    found: list[str] = []
    if instead:
        what = f"the exporter computed {instead}, which trains in their place and learns otherwise"
        found.append(f"{what}; to train the parameters themselves, export with {REMEDY}")
    if kept:
        what = f"the exporter computed {kept}, which stays as it is: no parameter gets a gradient through it"
        found.append(f"{what}; to change that, export with {REMEDY}")
    frozen = [choice for remark, choice in told if remark.kind == "parameter" and not choice.trained]
    if frozen:
        names = named(f"{choice.name} ({choice.elements:,}, {choice.why})" for choice in frozen)
        way = "" if all(one.why == OF_THE_LOSS for one in frozen) else "; to train one, --trainable NAME"
        found.append(f"parameters of the module that are not trained: {names}{way}")
    if buffers:
        flags = " ".join(f"--frozen {name}" for name in buffers[:SHOWN])
        found.append(f"trained, and perhaps a buffer of the module: {named(buffers)} (if so, {flags})")
    return found


def named(names: Iterable[str]) -> str:
    """Return names behind commas; of a long list, how many more there are and where."""
    listed = list(names)
    more = f" and {len(listed) - SHOWN} more (in report.json)" if listed[SHOWN:] else ""
    return ", ".join(listed[:SHOWN]) + more
