"""Prompts of rows, from their columns or a function."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from forebay.data.parquet.schemas import missing_column
from forebay.data.transform.fingerprint.function import function_identity
from forebay.data.transform.fingerprint.values import Identity
from forebay.errors import InvalidOption
from forebay.llm.chat.messages import (
    InvalidConversation,
    Messages,
    check_turns,
    row_without_nulls,
    short,
    tools_of,
    variables_of,
    with_system,
)
from forebay.llm.score.engines.engine import Prompt, TokenPrompt
from forebay.llm.source.columns import CHANGING, OF_TALKS, alpaca_history, instruction_of

Row: TypeAlias = Mapping[str, Any]
PromptFunction: TypeAlias = Callable[[dict[str, Any]], Any]
"""Function of a row, as a dictionary, that returns a text, a conversation or a `TokenPrompt`."""
_TURNS = ("messages", "conversations")
KNOWN = ("messages", "conversations", "prompt", "instruction", "text")
"""Columns that are looked for, in this order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptSource:
    """Rule by which a row becomes a prompt.

    Attributes:
        column: Column of the prompt, None with a template or a function.
        template: Text with `{column}` fields.
        function: Function of the row.
        completion: Column of the text whose log-likelihood is asked for.
        is_chat: Whether a text is asked as the turn of a user, by the chat template.
        with_answer: Whether a conversation keeps its last turn if that is the assistant's.
        with_end: Whether the likelihood counts the end token.
        beside: Columns of the data beside the prompt that change it, such as `system` and `tools`.
        from_arrow: Whether structs of a row have null for fields of other rows. A function gets them as they are.
    """

    column: str | None = None
    template: str | None = None
    function: PromptFunction | None = None
    completion: str | None = None
    is_chat: bool = False
    with_answer: bool = False
    with_end: bool = False
    beside: tuple[str, ...] = ()
    from_arrow: bool = False

    def columns(self, present: Sequence[str]) -> tuple[str, ...]:
        """Columns that a prompt needs. A function may need all."""
        if self.function is not None:
            return tuple(present)
        names: list[str | None] = [self.column] if self.template is None else [*_fields(self.template)]
        if self.column == "instruction" and "input" in present:
            names.append("input")
        return tuple(dict.fromkeys(name for name in (*names, self.completion, *self.beside) if name is not None))

    @property
    def changing(self) -> tuple[str, ...]:
        """Columns that change a prompt, and are read or refused.

        A function gets all of a row, and a template names its columns. Text for completion is whole.
        """
        if self.function is not None or (self.template is not None and not self.is_chat) or self.column == "text":
            return ()
        others = CHANGING if self.column in KNOWN else OF_TALKS
        return tuple(name for name in others if name not in (self.column, self.completion, "input"))

    def identity(self) -> Identity:
        """Everything that decides the prompts of given rows."""
        facts: dict[str, Identity] = {
            "column": self.column,
            "template": self.template,
            "function": None if self.function is None else function_identity(self.function, None),
            "completion": self.completion,
            "chat": self.is_chat,
            "with_answer": self.with_answer,
            "beside": list(self.beside) or None,
            # Before this fact there was one rule: the end token counted.
            "end": "counts" if self.with_end else "left out" if self.with_answer else None,
            # The same: a token of both the prompt and the completion did not count.
            "border": "counts" if self.with_answer else None,
        }
        return {name: fact for name, fact in facts.items() if fact not in (None, False)}

    def prompt(self, number: int, row: Row) -> Prompt:
        """Prompt of row `number`.

        Raises `InvalidConversation` for a row without a prompt.
        """
        if self.from_arrow and self.function is None:
            row = row_without_nulls(row)
        completion = None if self.completion is None else _completion(row[self.completion], self.completion)
        content, given = self._content(row), {name: row[name] for name in self.beside if row[name]}
        if isinstance(content, str | TokenPrompt):
            if given:
                name, value = next(iter(given.items()))
                raise InvalidConversation(
                    f"column {name!r} is {short(value)}, and the prompt is text, which no chat template writes. Set "
                    "chat=true, or leave the column out of the data"
                )
            return Prompt(row=number, content=content, completion=completion, with_end=self.with_end)
        unread = [name for name in given if name not in (*OF_TALKS, *self._history)]
        if unread:
            raise InvalidConversation(
                f"column {unread[0]!r} is {short(given[unread[0]])}, which no prompt can have yet"
            )
        return Prompt(
            row=number,
            content=with_system(content, given.get("system") or given.get("system_prompt")),
            tools=tools_of(given.get("tools") or given.get("functions")),
            variables=variables_of(given.get("chat_template_kwargs")),
            completion=completion,
            with_end=self.with_end,
        )

    @property
    def _history(self) -> tuple[str, ...]:
        return ("history",) if self.column == "instruction" else ()

    def question(self, row: Row) -> str | None:
        """Text of a row's prompt, or None.

        The last turn of a conversation. Tokens have none.
        """
        try:
            content = self._content(row)
        except InvalidConversation:
            return None
        if isinstance(content, TokenPrompt):
            return None
        return content if isinstance(content, str) else str(content[-1]["content"])

    def _content(self, row: Row) -> str | Messages | TokenPrompt:
        if self.function is not None:
            return self._checked(self.function(dict(row)), "the prompt function's result")
        if self.template is not None:
            for name in _fields(self.template):
                if row[name] is None:
                    raise InvalidConversation(f"column {name!r} is null")
            return self._checked(self.template.format(**row), "the template's result")
        assert self.column is not None
        value = row[self.column]
        if self.column == "instruction":
            value = instruction_of(row)
        found = self._checked(value, f"column {self.column!r}")
        return [*alpaca_history(row), *found] if self._history and not isinstance(found, str | TokenPrompt) else found

    def _checked(self, value: object, what: str) -> str | Messages | TokenPrompt:
        if isinstance(value, TokenPrompt):
            return value
        is_chat = self.is_chat or self.column == "instruction"
        if isinstance(value, str) and self.column in _TURNS and value.lstrip().startswith("["):
            raise InvalidConversation(f"{what} is JSON text, not a list of turns: {short(value)}")
        if isinstance(value, str):
            if not value.strip():
                raise InvalidConversation(f"{what} is empty")
            return [{"role": "user", "content": value}] if is_chat else value
        if value is None:
            raise InvalidConversation(f"{what} is null")
        turns = check_turns(value)
        if not self.with_answer and turns[-1]["role"] == "assistant":
            turns = turns[:-1]
        if not turns:
            raise InvalidConversation(f"{what} has no turn but the assistant's")
        return turns


def find_prompt(source: PromptSource, present: Sequence[str], where: str, *, from_arrow: bool = False) -> PromptSource:
    """Choose the column of the data, unless `source` names one.

    `from_arrow` is the source's.

    Raises `InvalidOption` if none of `KNOWN` is there, `MissingColumn` for a named one that is not.
    """
    if source.column is None and source.template is None and source.function is None:
        found = [name for name in KNOWN if name in present]
        if not found:
            raise InvalidOption(
                f"{where} has the columns {', '.join(map(repr, present))}, and none of {', '.join(KNOWN)}. Name the "
                'column of the prompts: prompt=NAME, or give template="... {column} ...".',
                columns=tuple(present),
            )
        source = replace(source, column=found[0])
    beside = tuple(name for name in source.changing if name in present)
    source = replace(source, beside=beside, from_arrow=from_arrow)
    for name in source.columns(present):
        if name not in present:
            raise missing_column(name, present, where)
    return source


def _fields(template: str) -> list[str]:
    try:
        names = [name for _, name, _, _ in string.Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise InvalidOption(
            f"template={template!r} is not a template ({error}). Double the braces of a text."
        ) from error
    if not names or not all(name.isidentifier() for name in names):
        raise InvalidOption(
            f"template={template!r} needs fields that are names of columns, such as {{question}}. Double the braces of "
            "a text: {{ and }}."
        )
    return list(dict.fromkeys(names))


def _completion(value: object, name: str) -> str:
    if not isinstance(value, str) or not value:
        raise InvalidConversation(f"column {name!r} is {str(value)[:60]!r}, not text")
    return value
