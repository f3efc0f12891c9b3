"""Source of token rows for `fb.prepare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, get_args

from forebay.data.manifest.prepared import PreparedOrigin
from forebay.data.transform.fingerprint.values import canonical, digest, value_identity
from forebay.errors import InvalidDocument, InvalidOption, NoFiles
from forebay.llm.chat.documents import TrainOn, check_train_on
from forebay.llm.chat.messages import Conversation
from forebay.llm.chat.template import chat_template
from forebay.llm.packing import Overflow, Packing, RowLayout, Truncate
from forebay.llm.source.columns import (
    LABELS,
    PREFERENCES,
    Completion,
    Example,
    Labeled,
    PlainText,
    Preference,
    Schema,
    find_schema,
)
from forebay.llm.source.text_files import TextFiles, TextSpan, cut_spans, find_text_files, scan_parquet
from forebay.llm.source.text_rows import rows_of
from forebay.llm.source.token_reader import ExampleRows, OnBadRows, TokenReader
from forebay.llm.source.tokenizers import TokenizerSpec, load_tokenizer, to_text, train_tokenizer
from forebay.runtime.late_import import with_keyword_hints
from forebay.storage.credentials import Access

VERSION = 4
"""Part of every fingerprint. Raised when equal data would give other rows."""
ROW_GROUP_TOKENS = 1 << 18
_TRAINING_EXAMPLES = 2000
_MOST_NAMED_INPUTS = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenOptions:
    """Options of a `TokenSource`.

    Raises `InvalidOption` for values that can never work.
    """

    seq_len: int = 1024
    packing: Packing | None = None
    overflow: Overflow = "truncate"
    truncate: Truncate = "end"
    train_on: TrainOn = "assistant"
    columns: Mapping[str, str] = field(default_factory=dict)
    on_bad_rows: OnBadRows = "raise"

    def __post_init__(self) -> None:
        self.layout("bfd", pad=0)
        check_train_on(self.train_on)
        if self.on_bad_rows not in get_args(OnBadRows):
            known = ", ".join(map(repr, get_args(OnBadRows)))
            raise InvalidOption(f"on_bad_rows={self.on_bad_rows!r} is unknown. Choose one of {known}.")

    def layout(self, default: Packing, *, pad: int) -> RowLayout:
        """Layout of the rows.

        `default` is the packing that suits the data.
        """
        return RowLayout(
            seq_len=self.seq_len,
            packing=self.packing or default,
            overflow=self.overflow,
            pad=pad,
            truncate=self.truncate,
        )


class TokenSource:
    """Source of token rows for `fb.prepare`.

    ```python
    source = llm.TokenSource("s3://lake/chats", llm.tokenizer("/models/mine"), seq_len=4096)
    prepared = fb.prepare(source, into="runs/prepared")
    ```

    Args:
        data: File, folder, pattern, or several of these: Parquet, JSON Lines (also `.gz`, `.zst`), or a folder of
            `datasets.save_to_disk`. The columns of the first row decide what a row is: `messages`, `prompt` and
            `completion` (and `label`), `chosen` and `rejected` (and `prompt`), `instruction` and `output` (and
            `input`), `conversations`, `input_ids` (and `labels`), `text`.
        tokenizer: From `llm.tokenizer(model)`.
        options: Fields of `TokenOptions`. `seq_len`: tokens of a row. `packing`: "bfd" (rows filled up),
            "wrapped" (documents end to end, the default for `text`) or "none" (one document a row). `overflow`:
            "truncate", "split", "drop" or "raise" for longer documents. `truncate`: what "truncate" cuts off, the
            "end" or the "start" of a document, or "drop" for all of it. `train_on`: targets are the tokens of the
            "assistant", of its "last" turn, or "all". `columns`: names of the data's columns by the names above.
            `on_bad_rows`: "raise" or "skip".

    The rows of a span of about 16 MiB are a function of this span alone. Spans are prepared in parallel.

    Raises `InvalidOption` for options that can never work.
    """

    def __init__(self, data: str | Sequence[str], tokenizer: TokenizerSpec, **options: Any) -> None:
        if not isinstance(tokenizer, TokenizerSpec):
            raise InvalidOption(f"tokenizer is a {type(tokenizer).__name__}. Give llm.tokenizer(model).")
        self.data = data if isinstance(data, str) else tuple(map(str, data))
        self.tokenizer = tokenizer
        self.options: TokenOptions = with_keyword_hints(TokenOptions, "fb.llm.TokenSource", __name__)(**options)

    @property
    def row_group_rows(self) -> int:
        """Rows of a row group: 262,144 tokens, 1 MiB."""
        return max(ROW_GROUP_TOKENS // self.options.seq_len, 1)

    def origin(self) -> PreparedOrigin:
        """Everything that decides the rows.

        Lists the files of the data, and opens none.
        """
        versions = find_text_files(self.data).versions
        if len(versions) > _MOST_NAMED_INPUTS:
            versions = {str(self.data): digest(canonical(dict(versions)).encode())}
        options = self.options
        arguments: Mapping[str, Any] = {
            "seq_len": options.seq_len,
            "packing": options.packing,
            "overflow": options.overflow,
            "truncate": options.truncate,
            "train_on": options.train_on,
            "columns": dict(sorted(options.columns.items())),
            "on_bad_rows": options.on_bad_rows,
            **self.tokenizer.identity(),
        }
        return PreparedOrigin(
            name="tokens",
            function=digest(f"forebay.llm.TokenSource {VERSION}".encode()),
            arguments={name: digest(canonical(value_identity(value)).encode()) for name, value in arguments.items()},
            inputs=versions,
        )

    def open(self) -> TokenReader:
        """Open a reader of the spans.

        Reads the first rows, and trains the tokenizer if the data has its own.

        Raises `InvalidOption` for columns that make no example, and for conversations without a chat template.
        """
        files = find_text_files(self.data)
        manifest = scan_parquet(files) if files.format == "parquet" else None
        spans = cut_spans(files, manifest)
        schema = self._schema(files, spans, manifest)
        if schema in (PREFERENCES, LABELS):
            self._check_pairs(schema)
        rows = ExampleRows(
            format=files.format,
            schema=schema,
            names=dict(self.options.columns),
            on_bad_rows=self.options.on_bad_rows,
            manifest=manifest,
            access=Access([self.data] if isinstance(self.data, str) else self.data),
        )
        found, trained = self._tokenizer(rows, spans)
        is_plain = schema.required == ("text",)
        self._check_template(found, schema)
        return TokenReader(
            rows=rows,
            tokenizer=found,
            layout=self.options.layout("wrapped" if is_plain else "bfd", pad=found.pad_token_id),
            train_on=self.options.train_on,
            all_spans=tuple(spans),
            trained=trained,
        )

    def _schema(self, files: TextFiles, spans: Sequence[TextSpan], manifest: Any) -> Schema:
        rows = chain.from_iterable(rows_of(span, files.format, manifest) for span in spans)
        for row in rows:
            if not isinstance(row.values, InvalidDocument):
                return find_schema(list(row.values), self.options.columns)
            if self.options.on_bad_rows == "raise":
                raise row.values
        raise NoFiles(f"{self.data}: no file has a row. Name files that have.")

    def _tokenizer(self, rows: ExampleRows, spans: Sequence[TextSpan]) -> tuple[Any, str | None]:
        """Tokenizer, and its text if trained on the first examples."""
        spec = self.tokenizer
        if spec.folder is not None or spec.trained is not None:
            return load_tokenizer(spec), spec.trained
        texts = islice(chain.from_iterable(rows.examples(span, _texts) for span in spans), _TRAINING_EXAMPLES)
        found = train_tokenizer(chain.from_iterable(texts), spec)
        return found, to_text(found)

    def _check_pairs(self, schema: Schema) -> None:
        """Check that pairs of answers stay whole, and only their last turns are targets."""
        what = "pairs of answers" if schema is PREFERENCES else "answers with labels"
        if self.options.train_on == "all":
            raise InvalidOption(
                f"the data has {what}, which differ in their last turn, and train_on='all' would compare the prompts "
                "too. Leave train_on out.",
                option="train_on",
            )
        is_dropped = self.options.truncate == "drop"
        for option, values in (("overflow", ("truncate", "split")[is_dropped:]), ("packing", ("wrapped",))):
            value = getattr(self.options, option)
            if value in values:
                raise InvalidOption(
                    f"the data has {what}, and {option}={value!r} would cut them. Set overflow='drop' or "
                    "'raise', and packing='bfd' or 'none'.",
                    option=option,
                )

    def _check_template(self, found: Any, schema: Schema) -> None:
        is_conversation = schema.required in {("messages",), ("conversations",), ("instruction", "output")}
        if found.chat_template:
            chat_template(found)  # raises for one that is not Jinja
        elif is_conversation:
            raise InvalidOption(
                f"the data has {schema.name}, and the tokenizer of {self.tokenizer.folder} has no chat template. Give "
                'llm.tokenizer(model, template="chatml") (template=chatml of a job), or the template that the model '
                "was trained with, by its name or as a Jinja text."
            )


def _texts(example: Example) -> list[str]:
    """Texts of an example, to train a tokenizer on."""
    match example:
        case Conversation():
            return [message["content"] for message in example.messages]
        case Completion(prompt, completion):
            return [prompt, completion]
        case Preference(chosen, rejected):
            return _texts(chosen) + _texts(rejected)
        case Labeled():
            return _texts(example.answer)
        case PlainText(text):
            return [text]
        case _:
            raise InvalidOption(
                "the data holds input_ids, and a tokenizer is trained on text. Give the tokenizer that made the ids: "
                "llm.tokenizer(folder)."
            )
