"""All kinds of cases, by name."""

from __future__ import annotations

from tests.campaign.cases import Kind
from tests.campaign.chain_kinds import CHAIN_KINDS
from tests.campaign.checkpoint_kinds import CHECKPOINT_KINDS
from tests.campaign.export_kinds import EXPORT_KINDS
from tests.campaign.file_kinds import FILE_KINDS
from tests.campaign.graph_kinds import GRAPH_KINDS
from tests.campaign.model_kinds import MODEL_KINDS
from tests.campaign.stream_kinds import STREAM_KINDS
from tests.campaign.tflite_kinds import TFLITE_KINDS

KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        *(*MODEL_KINDS, *TFLITE_KINDS, *GRAPH_KINDS, *CHAIN_KINDS, *STREAM_KINDS),
        *(*CHECKPOINT_KINDS, *EXPORT_KINDS, *FILE_KINDS),
    )
}
