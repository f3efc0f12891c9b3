"""Spans of text as tables of token rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain, islice, pairwise
from typing import Any, Literal, NamedTuple, TypeVar

import numpy as np
import pyarrow as pa

from forebay.data.manifest.manifest import Manifest
from forebay.data.preparation.progress import tell
from forebay.errors import InvalidDocument, InvalidOption
from forebay.llm.chat.documents import Document, Rendered, TrainOn, encode, prompt_and_completion
from forebay.llm.chat.messages import Conversation, InvalidConversation, row_without_nulls, short
from forebay.llm.chat.rendering import render
from forebay.llm.packing import RowLayout
from forebay.llm.source.columns import (
    LABELS,
    PREFERENCES,
    Completion,
    Example,
    Labeled,
    PlainText,
    Preference,
    Schema,
    TokenIds,
    renamed,
)
from forebay.llm.source.text_files import FROM_ARROW, Format, TextSpan
from forebay.llm.source.text_rows import TextRow, rows_of
from forebay.llm.tokens import TokenCounts, token_table
from forebay.runtime.formatting import count_text
from forebay.storage.credentials import Access

OnBadRows = Literal["raise", "skip"]
_EXAMPLES = 256
"""Examples that are split into tokens in one call: enough to keep the tokenizer's threads busy."""
_SKIPPED = "skipped"
_MOST_MEASURED = 2000

Made = TypeVar("Made")


class Texts(NamedTuple):
    """Texts of an example that are split into tokens: one, or the two of a pair."""

    texts: tuple[Rendered | Document, ...]
    is_desired: bool = False


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
        make: Callable[[Example], Made],
        on_skipped: Callable[[], None] = lambda: None,
    ) -> Iterator[Made]:
        """Apply `make` to the examples of a span, in order.

        `make` raises `InvalidConversation` for an example that is not valid. Raises `InvalidDocument` for the first
        invalid row.
        """
        for row in rows_of(span, self.format, self.manifest):
            made = self._made(row, make)
            if not isinstance(made, InvalidDocument):
                yield made
            elif self.on_bad_rows == "raise":
                raise made
            else:
                on_skipped()

    def _made(self, row: TextRow, make: Callable[[Example], Made]) -> Made | InvalidDocument:
        if isinstance(row.values, InvalidDocument):
            return row.values
        values = renamed(row.values, self.names)
        if self.format in FROM_ARROW:
            values = row_without_nulls(values)
        try:
            return make(self.schema.example(values))
        except InvalidConversation as error:
            address = row.address()
            return InvalidDocument(
                f"{address}: {error}. Correct the row, or set on_bad_rows='skip' to leave such rows out.",
                address=address,
            )


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
        texts = self._all_texts(span, lambda: skipped.append(None))
        table, counts = token_table(self.documents(texts), self.layout)
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
            "has_labels": self.has_labels,
        }

    def documents(self, texts: Iterable[Texts]) -> Iterator[Document]:
        """Token ids and targets of each example, in order."""
        texts = iter(texts)
        while some := list(islice(texts, _EXAMPLES)):
            rendered = [each for one in some for each in one.texts if isinstance(each, Rendered)]
            encoded = encode(self.tokenizer, rendered)
            for one in some:
                found = [next(encoded) if isinstance(each, Rendered) else each for each in one.texts]
                yield found[0] if len(found) == 1 else _pair(*found, is_desired=one.is_desired)

    def _texts(self, example: Example) -> Texts:
        """Texts of an example.

        Raises `InvalidConversation` for one that is not valid under the tokenizer.
        """
        parts = (example.chosen, example.rejected) if isinstance(example, Preference) else (example,)
        return Texts(tuple(map(self._ready, parts)))

    def _all_texts(self, span: TextSpan, on_skipped: Callable[[], None] = lambda: None) -> Iterator[Texts]:
        """Texts of the examples of a span.

        Beside an answer with a label is the same prompt with the answer of the next row, and of the first row beside
        the last one: they estimate the divergence from the reference.
        """
        if not self.has_labels:
            yield from self.rows.examples(span, self._texts, on_skipped)
            return
        examples = self.rows.examples(span, self._labeled, on_skipped)
        first = next(examples, None)
        if first is None:
            return
        ring = pairwise(chain((first,), examples, (first,)))
        pair = next(ring)
        if pair[0] is pair[1]:
            raise InvalidOption(
                f"{span.uri} has a single answer with a label, and each needs the answer of another row (loss=kto). "
                "Give more rows in a file."
            )
        for one, other in chain((pair,), ring):
            yield self._with_other(one, other)

    def _labeled(self, example: Example) -> Labeled:
        """The example. Raises as `_texts`."""
        assert isinstance(example, Labeled), "the schema makes no other"
        self._ready(example.answer)
        return example

    def _with_other(self, one: Labeled, other: Labeled) -> Texts:
        try:
            parts = one.answer, one.with_answer_of(other)
            return Texts(tuple(map(self._ready, parts)), is_desired=one.is_desired)
        except InvalidConversation as error:
            raise InvalidOption(
                f"the prompt of a row with the completion of the next one, {short(other.row['completion'])}: {error}. "
                "Let all rows be text, or all messages."
            ) from error

    def _ready(self, example: Example) -> Rendered | Document:
        """Text of an example, or its document."""
        begin, end = self._begin(), self.tokenizer.eos_token
        match example:
            case Conversation():
                return render(self.tokenizer, example, self._train_on)
            case Completion(prompt, completion):
                rendered = prompt_and_completion(begin + prompt, completion + end)
                return Rendered(rendered.text, None) if self._train_on == "all" else rendered
            case PlainText(text):
                return Rendered(begin + text + end, None)
            case TokenIds(ids, labels):
                self._check(ids)
                return self._given(ids, labels)
            case Preference() | Labeled():
                raise AssertionError("its answers are read one by one")

    @property
    def has_pairs(self) -> bool:
        """Whether each document is a pair of answers."""
        return self.rows.schema == PREFERENCES

    @property
    def has_labels(self) -> bool:
        """Whether each document is an answer with a label."""
        return self.rows.schema == LABELS

    @property
    def _train_on(self) -> TrainOn:
        # The answers differ in their last turn.
        return "last" if self.has_pairs or self.has_labels else self.train_on

    def _begin(self) -> str:
        """Text of the tokenizer's begin token, or empty."""
        before: Sequence[int] = self.tokenizer("")["input_ids"]
        is_begin = bool(before) and before[0] == self.tokenizer.bos_token_id
        return str(self.tokenizer.bos_token) if is_begin else ""

    def _check(self, ids: Sequence[int]) -> None:
        """Raise `InvalidConversation` for token ids of another tokenizer."""
        if not 0 <= min(ids) <= max(ids) < len(self.tokenizer):
            raise InvalidConversation(
                f"input_ids hold {min(ids)} to {max(ids)}, and the tokenizer has entries 0 to "
                f"{len(self.tokenizer) - 1}: give the tokenizer that made them"
            )

    def _given(self, ids: Sequence[int], labels: Sequence[int] | None) -> Document:
        is_target = np.ones(len(ids), bool) if labels is None else np.asarray(labels) >= 0
        return Document(np.asarray(ids, np.int32), is_target)

    def _nothing(self, total: TokenCounts) -> InvalidOption:
        if total.skipped and not total.longest:
            return InvalidOption(
                f"none of the {count_text(total.skipped)} rows of the data is valid. Set on_bad_rows='raise' to see "
                "why."
            )
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
        texts = self._all_texts(self.all_spans[0]) if self.all_spans else iter(())
        lengths = sorted(len(document.ids) for document in islice(self.documents(texts), _MOST_MEASURED))
        if not lengths:
            return ""
        return f", the median of the first {count_text(len(lengths))} has {count_text(lengths[len(lengths) // 2])}"


def _pair(chosen: Document, rejected: Document, *, is_desired: bool) -> Document:
    ids = np.concatenate([chosen.ids, rejected.ids])
    is_target = np.concatenate([chosen.is_target, rejected.is_target])
    return Document(ids, is_target, second=len(chosen.ids), is_desired=is_desired)
