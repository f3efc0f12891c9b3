"""Rows of text data as examples, by their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from forebay.errors import InvalidOption
from forebay.llm.chat import InvalidConversation, Messages, check_messages

SHAREGPT_ROLES = {"human": "user", "gpt": "assistant", "system": "system", "user": "user", "assistant": "assistant"}


@dataclass(frozen=True, slots=True)
class Conversation:
    """Example of messages."""

    messages: Messages


@dataclass(frozen=True, slots=True)
class Completion:
    """Example of a prompt and the text that completes it."""

    prompt: str
    completion: str


@dataclass(frozen=True, slots=True)
class PlainText:
    """Example of text, all of which is trained on."""

    text: str


@dataclass(frozen=True, slots=True)
class Preference:
    """Example of a preferred and a rejected answer."""

    chosen: Conversation | Completion
    rejected: Conversation | Completion


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Example of token ids.

    A label of -100 is not a target. Without labels, all tokens are targets.
    """

    ids: Sequence[int]
    labels: Sequence[int] | None


Example: TypeAlias = Conversation | Completion | PlainText | TokenIds | Preference
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Columns that make an example.

    All of `required` must exist. `build` raises `InvalidConversation`.
    """

    required: tuple[str, ...]
    build: Callable[[Row], Example]

    @property
    def name(self) -> str:
        return " + ".join(self.required)

    def example(self, row: Row) -> Example:
        """Example of a row. Raises `InvalidConversation` with what was found."""
        if missing := [name for name in self.required if name not in row]:
            raise InvalidConversation(
                f"the row has the columns {', '.join(map(repr, row)) or 'none'}, without {missing[0]!r}, and the first "
                f"row of the data has {self.name}"
            )
        return self.build(row)


def find_schema(columns: Sequence[str], names: Mapping[str, str]) -> Schema:
    """Schema of rows with these columns, after `names` was applied.

    Raises `InvalidOption` if none fits.
    """
    if unknown := sorted(set(names) - {name for schema in SCHEMAS for name in schema.required} - {"input", "labels"}):
        raise InvalidOption(f"columns= names {unknown[0]!r}, which is not one of the columns that are looked for.")
    present = set(renamed(dict.fromkeys(columns), names))
    for schema in SCHEMAS:
        if present.issuperset(schema.required):
            return schema
    known = ", ".join(schema.name for schema in SCHEMAS)
    raise InvalidOption(
        f"the data has the columns {', '.join(map(repr, columns)) or 'none'}, and needs one of: {known}. Rename them "
        "with columns=, such as columns={'text': 'body'}.",
        columns=tuple(columns),
    )


def renamed(row: Row, names: Mapping[str, str]) -> Row:
    """Rename the columns of a row.

    `names` maps the known names to columns of the data.
    """
    if not names:
        return row
    return {**row, **{name: row[column] for name, column in names.items() if column in row}}


def _messages(row: Row) -> Example:
    return Conversation(check_messages(row["messages"]))


def _prompt(row: Row) -> Example:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, list):
        answer = completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
        return Conversation(check_messages([*prompt, *answer]))
    return Completion(_text(row, "prompt"), _text(row, "completion"))


def _instruction(row: Row) -> Example:
    question = _text(row, "instruction")
    if row.get("input"):
        question = f"{question}\n\n{_text(row, 'input')}"
    turns = ({"role": "user", "content": question}, {"role": "assistant", "content": _text(row, "output")})
    return Conversation(turns)


def _conversations(row: Row) -> Example:
    turns = row["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise InvalidConversation("column 'conversations' is not a list of {from, value}")
    return Conversation(
        check_messages(
            [
                {"role": SHAREGPT_ROLES.get(str(turn.get("from")), turn.get("from")), "content": turn.get("value")}
                for turn in turns
            ]
        )
    )


def _preference(row: Row) -> Example:
    return Preference(_answered(row, "chosen"), _answered(row, "rejected"))


def _answered(row: Row, column: str) -> Conversation | Completion:
    """Prompt of a row with the answer in `column`.

    Both are text, or messages, which may contain the prompt themselves.
    """
    prompt, answer = row.get("prompt"), row[column]
    if isinstance(answer, list):
        return Conversation(check_messages([*(prompt if isinstance(prompt, list) else ()), *answer]))
    if isinstance(prompt, list):
        return Conversation(check_messages([*prompt, {"role": "assistant", "content": answer}]))
    if prompt is None:
        raise InvalidConversation(f"column {column!r} is text, and there is no column 'prompt'")
    return Completion(_text(row, "prompt"), _text(row, column))


def _ids(row: Row) -> Example:
    ids, labels = row["input_ids"], row.get("labels")
    for name, values in (("input_ids", ids), ("labels", labels)):
        if values is not None and not (isinstance(values, list) and all(map(_is_id, values))):
            raise InvalidConversation(f"column {name!r} is not a list of whole numbers from -2**31 to 2**31")
    if not ids or (labels is not None and len(labels) != len(ids)):
        raise InvalidConversation(f"the row has {len(ids or ())} input_ids and {len(labels or ())} labels")
    return TokenIds(ids, labels)


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31


def _plain(row: Row) -> Example:
    return PlainText(_text(row, "text"))


def _text(row: Row, name: str) -> str:
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise InvalidConversation(f"column {name!r} is {str(value)[:60]!r}, not text")
    return value


PREFERENCES = Schema(required=("chosen", "rejected"), build=_preference)
SCHEMAS = (
    PREFERENCES,
    Schema(required=("messages",), build=_messages),
    Schema(required=("prompt", "completion"), build=_prompt),
    Schema(required=("instruction", "output"), build=_instruction),
    Schema(required=("conversations",), build=_conversations),
    Schema(required=("input_ids",), build=_ids),
    Schema(required=("text",), build=_plain),
)
"""Schemas, in the order in which they are looked for."""
