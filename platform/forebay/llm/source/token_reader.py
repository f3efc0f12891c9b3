"""Spans of text as tables of token rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from forebay.data.manifest.manifest import Manifest
from forebay.data.preparation.progress import tell
from forebay.errors import InvalidDocument, InvalidOption
from forebay.llm.chat import (
    Document,
    InvalidConversation,
    Rendered,
    TrainOn,
    encode,
    encode_marked,
    has_generation_marks,
    prompt_and_completion,
    render,
)
from forebay.llm.packing import RowLayout
from forebay.llm.source.columns import (
    PREFERENCES,
    Completion,
    Conversation,
    Example,
    PlainText,
    Preference,
    Schema,
    TokenIds,
    renamed,
)
from forebay.llm.source.text_files import Format, TextSpan
from forebay.llm.source.text_rows import TextRow, rows_of
from forebay.llm.tokens import TokenCounts, token_table
from forebay.runtime.formatting import count_text
from forebay.storage.credentials import Access

OnBadRows = Literal["raise", "skip"]
_EXAMPLES = 256
"""Examples that are split into tokens in one call: enough to keep the tokenizer's threads busy."""
_SKIPPED = "skipped"
_MOST_MEASURED = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleRows:
    """Examples of text data.

    Its format, its columns, and the rule for invalid rows.

    `manifest` lists Parquet files. None: another format.
    """

    format: Format
    schema: Schema
    names: Mapping[str, str]
    on_bad_rows: OnBadRows
    manifest: Manifest | None
    access: Access

    def examples(
        self,
        span: TextSpan,
        on_skipped: Callable[[], None] = lambda: None,
        check: Callable[[Example], None] = lambda _: None,
    ) -> Iterator[Example]:
        """Examples of a span, in order.

        `check` raises `InvalidConversation` for an example that is not valid. Raises `InvalidDocument` for the first
        invalid row.
        """
        for row in rows_of(span, self.format, self.manifest):
            example = self._example(row, check)
            if not isinstance(example, InvalidDocument):
                yield example
            elif self.on_bad_rows == "raise":
                raise example
            else:
                on_skipped()

    def _example(self, row: TextRow, check: Callable[[Example], None]) -> Example | InvalidDocument:
        if isinstance(row.values, InvalidDocument):
            return row.values
        try:
            example = self.schema.example(renamed(row.values, self.names))
            check(example)
        except InvalidConversation as error:
            address = row.address()
            return InvalidDocument(
                f"{address}: {error}. Correct the row, or set on_bad_rows='skip' to leave such rows out.",
                address=address,
            )
        return example


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenReader:
    """Reader of the spans of a `TokenSource`.

    A `SpanReader`: examples, tokens, rows.

    `tokenizer` is one of the transformers library. `trained` is its text if it was trained on the data.
    """

    rows: ExampleRows
    tokenizer: Any
    layout: RowLayout
    train_on: TrainOn
    all_spans: tuple[TextSpan, ...]
    trained: str | None

    def spans(self) -> Sequence[TextSpan]:
        return self.all_spans

    def read(self, span: TextSpan) -> tuple[pa.Table, Mapping[str, int]]:
        skipped: list[None] = []
        examples = self.rows.examples(span, lambda: skipped.append(None), self._check)
        table, counts = token_table(self.documents(examples), self.layout)
        return table, asdict(counts) | {_SKIPPED: len(skipped)}

    def facts(self, counts: Sequence[Mapping[str, int]]) -> Mapping[str, Any]:
        total = sum((TokenCounts.of(each) for each in counts), TokenCounts())
        if not total.rows:
            raise self._nothing(total)
        tell(f"tokens: {total.text(self.layout.seq_len)}")
        return {
            "seq_len": self.layout.seq_len,
            "packing": self.layout.packing,
            "vocab_size": len(self.tokenizer),
            "counts": asdict(total),
            "trained_tokenizer": self.trained,
            "has_pairs": self.has_pairs,
        }

    def documents(self, examples: Iterable[Example]) -> Iterator[Document]:
        """Token ids and targets of each example, in order."""
        examples = iter(examples)
        while some := list(islice(examples, _EXAMPLES)):
            ready = [self._ready(text) for example in some for text in _texts_of(example)]
            encoded = encode(self.tokenizer, [each for each in ready if isinstance(each, Rendered)])
            found = (next(encoded) if isinstance(each, Rendered) else each for each in ready)
            yield from (
                _pair(next(found), next(found)) if isinstance(each, Preference) else next(found) for each in some
            )

    def _ready(self, example: Example) -> Rendered | Document:
        """Text of an example, or its document."""
        begin, end = self._begin(), self.tokenizer.eos_token
        match example:
            case Conversation(messages) if has_generation_marks(self.tokenizer):
                return encode_marked(self.tokenizer, messages, self._train_on)
            case Conversation(messages):
                return render(self.tokenizer, messages, self._train_on)
            case Completion(prompt, completion):
                rendered = prompt_and_completion(begin + prompt, completion + end)
                return Rendered(rendered.text, None) if self._train_on == "all" else rendered
            case PlainText(text):
                return Rendered(begin + text + end, None)
            case TokenIds(ids, labels):
                return self._given(ids, labels)
            case Preference():
                raise AssertionError("its answers are read one by one")

    @property
    def has_pairs(self) -> bool:
        """Whether each document is a pair of answers."""
        return self.rows.schema is PREFERENCES

    @property
    def _train_on(self) -> TrainOn:
        # The answers differ in their last turn.
        return "last" if self.has_pairs else self.train_on

    def _begin(self) -> str:
        """Text of the tokenizer's begin token, or empty."""
        before: Sequence[int] = self.tokenizer("")["input_ids"]
        is_begin = bool(before) and before[0] == self.tokenizer.bos_token_id
        return str(self.tokenizer.bos_token) if is_begin else ""

    def _check(self, example: Example) -> None:
        """Raise `InvalidConversation` for token ids of another tokenizer."""
        if isinstance(example, TokenIds) and not 0 <= min(example.ids) <= max(example.ids) < len(self.tokenizer):
            raise InvalidConversation(
                f"input_ids hold {min(example.ids)} to {max(example.ids)}, and the tokenizer has entries 0 to "
                f"{len(self.tokenizer) - 1}: give the tokenizer that made them"
            )

    def _given(self, ids: Sequence[int], labels: Sequence[int] | None) -> Document:
        is_target = np.ones(len(ids), bool) if labels is None else np.asarray(labels) >= 0
        return Document(np.asarray(ids, np.int32), is_target)

    def _nothing(self, total: TokenCounts) -> InvalidOption:
        return InvalidOption(
            f"no document of the data can be trained on with seq_len={self.layout.seq_len}, "
            f"overflow={self.layout.overflow!r} and train_on={self.train_on!r}: {count_text(total.dropped)} are too "
            f"long, {count_text(total.without_targets)} have no target within a row, {count_text(total.skipped)} rows "
            f"are not valid, and the longest has {count_text(total.longest)} tokens{self._median()}. Raise seq_len, or "
            'set train_on="all".',
            longest=total.longest,
        )

    def _median(self) -> str:
        """Median length of the first documents, for a message.

        Reads the first span again.
        """
        examples = self.rows.examples(self.all_spans[0], check=self._check) if self.all_spans else iter(())
        lengths = sorted(len(document.ids) for document in islice(self.documents(examples), _MOST_MEASURED))
        if not lengths:
            return ""
        return f", the median of the first {count_text(len(lengths))} has {count_text(lengths[len(lengths) // 2])}"


def _texts_of(example: Example) -> Sequence[Example]:
    return (example.chosen, example.rejected) if isinstance(example, Preference) else (example,)


def _pair(chosen: Document, rejected: Document) -> Document:
    ids = np.concatenate([chosen.ids, rejected.ids])
    return Document(ids, np.concatenate([chosen.is_target, rejected.is_target]), second=len(chosen.ids))
