"""Rows of text data as examples, by their columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any, TypeAlias

from forebay.errors import InvalidOption
from forebay.llm.chat.messages import Conversation, InvalidConversation, conversation_of, short

OF_TALKS = ("system", "system_prompt", "tools", "functions", "chat_template_kwargs")
"""Columns beside messages that change what a template writes."""
CHANGING = (
    *OF_TALKS,
    *("history", "input", "documents", "image", "images", "audio", "audios", "video", "videos"),
)
"""Columns that change a prompt. One that a schema does not read is refused."""
_MASKS = ("attention_mask", "completion_mask", "assistant_masks")
"""Masks beside `input_ids`, of transformers and TRL: 0 for padding, and for tokens that are not learned."""


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
class Labeled:
    """Example of an answer that is desired or not, by its row."""

    row: Mapping[str, Any]

    @property
    def is_desired(self) -> bool:
        return bool(self.row["label"])

    @property
    def answer(self) -> Conversation | Completion:
        """The prompt with its own answer."""
        return _prompt(self.row)

    def with_answer_of(self, other: Labeled) -> Conversation | Completion:
        """The prompt with the answer to another one."""
        return _prompt({**self.row, "completion": other.row["completion"]})


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Example of token ids.

    A label of -100 is not a target. Without labels, all tokens are targets.
    """

    ids: Sequence[int]
    labels: Sequence[int] | None


Example: TypeAlias = Conversation | Completion | PlainText | TokenIds | Preference | Labeled
Row: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """Columns that make an example.

    All of `required` must exist, and `others` are read as well. `build` raises `InvalidConversation`.
    """

    required: tuple[str, ...]
    build: Callable[[Row], Example]
    others: tuple[str, ...] = ()

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
        read = {*self.required, *self.others}
        if unread := [name for name in CHANGING if name in row and name not in read and row[name]]:
            raise InvalidConversation(
                f"column {unread[0]!r} is {short(row[unread[0]])}, which changes a prompt and is not read beside "
                f"{self.name}. Leave the column out of the data, or make messages of the row"
            )
        return self.build(row)


def find_schema(columns: Sequence[str], names: Mapping[str, str]) -> Schema:
    """Schema of rows with these columns, after `names` was applied.

    The first one that reads all columns of `names`. Raises `InvalidOption` if none fits.
    """
    known_names = {name for schema in SCHEMAS for name in (*schema.required, *schema.others)}
    if unknown := sorted(set(names) - known_names):
        raise InvalidOption(f"columns= names {unknown[0]!r}, which is not one of the columns that are looked for.")
    if absent := [name for name, column in names.items() if column not in columns]:
        raise InvalidOption(
            f"columns= reads {absent[0]!r} from the column {names[absent[0]]!r}, and the first row of the data has "
            f"{', '.join(map(repr, columns)) or 'none'}. Name one of these.",
            columns=tuple(columns),
        )
    present = set(renamed(dict.fromkeys(columns), names))
    fitting = [schema for schema in SCHEMAS if present.issuperset(schema.required)]
    for schema in fitting:
        if set(names).issubset((*schema.required, *schema.others)):
            return schema
    if fitting:
        raise InvalidOption(
            f"columns= names {', '.join(map(repr, names))}, and no row has all of them: the data would be read as "
            f"{fitting[0].name}. Name the columns of one kind of row.",
            columns=tuple(columns),
        )
    known = ", ".join(schema.name for schema in SCHEMAS)
    raise InvalidOption(
        f"the data has the columns {', '.join(map(repr, columns)) or 'none'}, and needs one of: {known}. Rename them "
        'with columns=, which maps these names to yours: columns=\'{"text": "body"}\' of a job, or of TokenSource '
        "columns={'text': 'body'}.",
        columns=tuple(columns),
    )


def renamed(row: Row, names: Mapping[str, str]) -> Row:
    """Rename the columns of a row.

    `names` maps the known names to columns of the data, which lose their own names.
    """
    if not names:
        return row
    moved = {*names, *names.values()}
    kept = {name: value for name, value in row.items() if name not in moved}
    return {**kept, **{name: row[column] for name, column in names.items() if column in row}}


def _talk(row: Row, messages: object) -> Conversation:
    """Conversation of messages and the columns beside them."""
    for one, other in (("system", "system_prompt"), ("tools", "functions")):
        if row.get(one) and row.get(other) and row[one] != row[other]:
            raise InvalidConversation(f"the row has both {one!r} and {other!r}")
    return conversation_of(
        messages,
        tools=row.get("tools") or row.get("functions"),
        system=row.get("system") or row.get("system_prompt"),
        variables=row.get("chat_template_kwargs"),
    )


def _messages(row: Row) -> Example:
    return _talk(row, row["messages"])


def _labeled(row: Row) -> Example:
    label = row["label"]
    if not isinstance(label, bool):
        raise InvalidConversation(
            f"column 'label' is {short(label)}, not true or false: beside a prompt and a completion it says whether "
            "the answer is desired (loss=kto). Leave a label of another meaning out of the data"
        )
    _prompt(row)  # raises
    return Labeled(row)


def _prompt(row: Row) -> Conversation | Completion:
    prompt, completion = row["prompt"], row["completion"]
    if isinstance(prompt, list):
        answer = completion if isinstance(completion, list) else [{"role": "assistant", "content": completion}]
        return _talk(row, [*prompt, *answer])
    _refuse_beside_text(row)
    return Completion(_text(row, "prompt"), _text(row, "completion"))


def _refuse_beside_text(row: Row) -> None:
    if beside := [name for name in OF_TALKS if row.get(name)]:
        raise InvalidConversation(
            f"column {beside[0]!r} is {short(row[beside[0]])}, and the prompt is text, which no chat template writes. "
            "Give the prompt as messages"
        )


def _instruction(row: Row) -> Example:
    turns = [*alpaca_history(row), {"role": "user", "content": instruction_of(row)}]
    return _talk(row, [*turns, {"role": "assistant", "content": _text(row, "output")}])


def instruction_of(row: Row) -> str:
    """Question of a row of Alpaca: its instruction, and its input if there is one."""
    question, more = _text(row, "instruction"), row.get("input")
    is_blank = not more or (isinstance(more, str) and not more.strip())
    return question if is_blank else f"{question}\n\n{_text(row, 'input')}"


def alpaca_history(row: Row) -> list[dict[str, Any]]:
    """Earlier turns of Alpaca: pairs of a question and its answer."""
    history = row.get("history") or []
    if not isinstance(history, list) or not all(isinstance(each, list | tuple) and len(each) == 2 for each in history):
        raise InvalidConversation(f"column 'history' is {short(history)}, not a list of [question, answer]")
    roles = ("user", "assistant")
    return [{"role": role, "content": text} for pair in history for role, text in zip(roles, pair, strict=True)]


def _conversations(row: Row) -> Example:
    turns = row["conversations"]
    if not isinstance(turns, list) or not all(isinstance(turn, Mapping) for turn in turns):
        raise InvalidConversation("column 'conversations' is not a list of {from, value}")
    return _talk(row, turns)


def _preference(row: Row) -> Example:
    return Preference(_answered(row, "chosen"), _answered(row, "rejected"))


def _answered(row: Row, column: str) -> Conversation | Completion:
    """Prompt of a row with the answer in `column`.

    Both are text, or messages, which may contain the prompt themselves.
    """
    prompt, answer = row.get("prompt"), row[column]
    if isinstance(answer, list):
        if isinstance(prompt, str) and prompt.strip() and all(_role(turn) != "user" for turn in answer):
            prompt = [{"role": "user", "content": prompt}]
        # Messages may contain the prompt themselves.
        before = prompt if isinstance(prompt, list) and answer[: len(prompt)] != prompt else ()
        return _talk(row, [*before, *answer])
    if isinstance(prompt, list):
        return _talk(row, [*prompt, {"role": "assistant", "content": answer}])
    _refuse_beside_text(row)
    if prompt is None:
        raise InvalidConversation(f"column {column!r} is text, and there is no column 'prompt'")
    return Completion(_text(row, "prompt"), _text(row, column))


def _role(turn: object) -> object:
    return turn.get("role", turn.get("from")) if isinstance(turn, Mapping) else None


def _ids(row: Row) -> Example:
    ids, labels = row["input_ids"], row.get("labels")
    for name, values in (("input_ids", ids), ("labels", labels)):
        if values is not None and not (isinstance(values, list) and all(map(_is_id, values))):
            raise InvalidConversation(f"column {name!r} is not a list of whole numbers from -2**31 to 2**31")
    if not ids or (labels is not None and len(labels) != len(ids)):
        raise InvalidConversation(f"the row has {len(ids or ())} input_ids and {len(labels or ())} labels")
    for at, (token, label) in enumerate(zip(ids, labels or (), strict=False)):
        if 0 <= label != token:
            raise InvalidConversation(
                f"labels have {label} at position {at}, and input_ids {token}: a label is the token itself, not the "
                "next one, or -100"
            )
    is_own, *of_targets = (_mask(row, name, len(ids)) for name in _MASKS)
    is_target = [all(each) for each in zip(*of_targets, strict=True)]
    if labels is not None or not all(is_target):
        labels = [label if counts else -100 for label, counts in zip(labels or ids, is_target, strict=True)]
    if not any(is_own):
        raise InvalidConversation(f"column {_MASKS[0]!r} leaves no token of the row")
    # Padding is no part of a text.
    return TokenIds([*compress(ids, is_own)], labels and [*compress(labels, is_own)])


def _mask(row: Row, name: str, length: int) -> list[bool]:
    """Mask of tokens in a column, of which all count without it."""
    values = row.get(name)
    if values is None:
        return [True] * length
    if not isinstance(values, list) or len(values) != length or any(each not in (0, 1) for each in values):
        raise InvalidConversation(f"column {name!r} is {short(values)}, not a list of {length} times 0 or 1")
    return [bool(each) for each in values]


def _is_id(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(1 << 31) <= value < 1 << 31


def _plain(row: Row) -> Example:
    return PlainText(_text(row, "text"))


def _text(row: Row, name: str) -> str:
    value = row[name]
    if not isinstance(value, str) or not value.strip():
        raise InvalidConversation(f"column {name!r} is {str(value)[:60]!r}, not text")
    return value


PREFERENCES = Schema(required=("chosen", "rejected"), build=_preference, others=("prompt", *OF_TALKS))
LABELS = Schema(required=("prompt", "completion", "label"), build=_labeled, others=OF_TALKS)
SCHEMAS = (
    PREFERENCES,
    Schema(required=("messages",), build=_messages, others=OF_TALKS),
    LABELS,
    Schema(required=("prompt", "completion"), build=_prompt, others=OF_TALKS),
    Schema(required=("instruction", "output"), build=_instruction, others=("input", "history", *OF_TALKS)),
    Schema(required=("conversations",), build=_conversations, others=OF_TALKS),
    # Their text is whole: no other column changes it.
    Schema(required=("input_ids",), build=_ids, others=("labels", *_MASKS, *CHANGING)),
    Schema(required=("text",), build=_plain, others=CHANGING),
)
"""Schemas, in the order in which they are looked for."""
