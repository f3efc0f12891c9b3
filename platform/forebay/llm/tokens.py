"""Documents as a table of token rows, with counts.

Everything that was left out or cut is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields

import numpy as np
import pyarrow as pa

from forebay.data.transform.block import BlockArray
from forebay.errors import InvalidOption
from forebay.llm.chat.documents import Document
from forebay.llm.packing import START, PackedRows, RowLayout, arrange, num_targets
from forebay.runtime.formatting import count_text

TOKENS, TARGETS, PAIRS, REFERENCE = "tokens", "targets", "pairs", "reference"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCounts:
    """Counts of a preparation.

    Attributes:
        documents: Documents in the rows.
        rows: Rows.
        tokens: Tokens of the documents, without the rest of rows.
        targets: Tokens that count in the loss.
        truncated: Documents that lost their end, or their start.
        split: Documents that were cut into several.
        dropped: Documents that were left out because they are too long.
        without_targets: Documents, or pieces of one, that were left out because nothing of them is a target.
        skipped: Rows of the source that are not valid.
        longest: Length of the longest document, in tokens.
    """

    documents: int = 0
    rows: int = 0
    tokens: int = 0
    targets: int = 0
    truncated: int = 0
    split: int = 0
    dropped: int = 0
    without_targets: int = 0
    skipped: int = 0
    longest: int = 0

    def __add__(self, other: TokenCounts) -> TokenCounts:
        mine, others = asdict(self), asdict(other)
        sums = {name: mine[name] + others[name] for name in mine}
        return TokenCounts(**sums | {"longest": max(self.longest, other.longest)})

    @classmethod
    def of(cls, facts: Mapping[str, int]) -> TokenCounts:
        """Counts from their facts. Unknown names are ignored."""
        return cls(**{each.name: int(facts.get(each.name, 0)) for each in fields(cls)})

    def fill(self, seq_len: int) -> float:
        """Share of the rows' tokens that belong to documents."""
        return self.tokens / max(self.rows * seq_len, 1)

    def text(self, seq_len: int) -> str:
        """One line for people."""
        parts = [
            f"{count_text(self.documents)} documents in {count_text(self.rows)} rows of {seq_len} tokens",
            f"fill {self.fill(seq_len):.3f}",
            f"{count_text(self.targets)} targets",
        ]
        changes = {
            "truncated": self.truncated,
            "split": self.split,
            "dropped as too long": self.dropped,
            "left out without a target": self.without_targets,
            "rows skipped as not valid": self.skipped,
        }
        return ", ".join(parts + [f"{count_text(count)} {what}" for what, count in changes.items() if count])


def token_table(documents: Iterable[Document], layout: RowLayout) -> tuple[pa.Table, TokenCounts]:
    """Make the table of token rows, and the counts.

    It depends on the documents and their order alone.

    Columns: `tokens` fixed_size_list<int32>[seq_len] (see `forebay.llm.packing`), and `targets` int32, their number.

    Raises `InvalidOption` for a document that is longer than a row, with `overflow="raise"`.
    """
    kept, counts = _fitted(documents, layout)
    packed = arrange(kept, layout)
    targets = num_targets(packed)
    if layout.packing == "wrapped":
        # A row may begin with its only target, which then has nothing before it.
        packed, targets = packed[targets > 0], targets[targets > 0]
    counts += TokenCounts(
        documents=len(kept),
        rows=len(packed),
        tokens=sum(len(document.ids) for document in kept),
        targets=int(targets.sum()),
    )
    column = pa.FixedSizeListArray.from_arrays(pa.array(packed.reshape(-1), pa.int32()), layout.seq_len)
    return pa.table({TOKENS: column, TARGETS: pa.array(targets, pa.int32())}), counts


def token_arrays(batch: pa.RecordBatch) -> dict[str, BlockArray]:
    """Arrays of a batch of token rows.

    `tokens` int32 [rows, seq_len], `targets` int32 [rows].
    """
    column = batch.column(TOKENS)
    packed: PackedRows = column.flatten().to_numpy(zero_copy_only=False).reshape(len(batch), -1)
    return {TOKENS: packed.copy(), TARGETS: batch.column(TARGETS).to_numpy(zero_copy_only=False).copy()}


def pair_arrays(batch: pa.RecordBatch) -> dict[str, BlockArray]:
    """Arrays of `token_arrays`, and `pairs` int32 [rows].

    `pairs` is the number of pairs of answers in each row.
    """
    arrays = token_arrays(batch)
    # The rest of a row is one more document.
    texts = ((arrays[TOKENS] & START) != 0).sum(axis=1)
    return arrays | {PAIRS: (texts // 2).astype(np.int32)}


def reference_arrays(width: int, batch: pa.RecordBatch) -> dict[str, BlockArray]:
    """Arrays of `pair_arrays`, and `reference` float64 [rows, width].

    `reference` has the stored log-probability of each text of a row, and 0 behind them.
    """
    column = batch.column(REFERENCE)
    values = np.zeros((len(batch), width))
    lengths = column.value_lengths().to_numpy(zero_copy_only=False)
    values[np.arange(width) < lengths[:, None]] = column.flatten().to_numpy(zero_copy_only=False)
    return pair_arrays(batch) | {REFERENCE: values}


def _fitted(documents: Iterable[Document], layout: RowLayout) -> tuple[list[Document], TokenCounts]:
    """Documents that have targets and fit, with the others counted."""
    kept: list[Document] = []
    truncated = split = dropped = without = longest = 0
    for number, document in enumerate(documents):
        length = len(document.ids)
        longest = max(longest, length)
        pieces: Sequence[Document] = (document,)
        if length > layout.seq_len and layout.packing != "wrapped":
            pieces = _shortened(document, layout, number)
            is_dropped = not pieces
            truncated += layout.overflow == "truncate" and not is_dropped
            split += layout.overflow == "split"
            dropped += is_dropped
        trained = [piece for piece in pieces if piece.is_trained]
        without += len(pieces) - len(trained)
        kept += trained
    return kept, TokenCounts(
        truncated=truncated, split=split, dropped=dropped, without_targets=without, longest=longest
    )


def _shortened(document: Document, layout: RowLayout, number: int) -> Sequence[Document]:
    length, room = len(document.ids), layout.seq_len
    match layout.overflow:
        case "truncate":
            if layout.truncate == "drop":
                return ()
            part = slice(room) if layout.truncate == "end" else slice(length - room, None)
            return (Document(document.ids[part], document.is_target[part]),)
        case "split":
            cuts = np.arange(0, length, room)
            return [Document(document.ids[at : at + room], document.is_target[at : at + room]) for at in cuts]
        case "drop":
            return ()
    raise InvalidOption(
        f"overflow='raise': document {number} has {length} tokens and seq_len={room}. Raise seq_len, or set "
        "overflow='truncate', 'split' or 'drop'.",
        length=length,
        seq_len=room,
    )
