"""Conversations as messages, in the forms that data sets have."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

ROLES = ("system", "developer", "user", "assistant", "tool")
OTHER_ROLES = {
    "human": "user",
    "gpt": "assistant",
    "model": "assistant",
    "observation": "tool",
    "function": "tool",
    "tool_response": "tool",
    "function_call": "assistant",
    "tool_call": "assistant",
}
"""Roles of ShareGPT, LLaMA-Factory and older forms of OpenAI."""
_CALLS = ("function_call", "tool_call")
"""Roles of an assistant's turn whose text is the JSON of its tool calls."""
REASONING = ("reasoning_content", "reasoning", "thinking")
"""Names under which a turn's thinking is stored. Templates know one of them each."""
_SHARES = ("weight", "train", "loss")
"""Names of a turn's share in the loss, of OpenAI, axolotl and ms-swift."""

_NOT_VARIABLES = ("messages", "tools", "add_generation_prompt", "continue_final_message", "self")
"""Names that a template gets in another way."""

Message = Mapping[str, Any]
Messages = Sequence[Message]


class InvalidConversation(ValueError):
    """A conversation that cannot be rendered, with what was found."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages, the tools that they may call, and variables of the template.

    `untrained` numbers the turns of the assistant that are left out of the loss.
    """

    messages: Messages
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    untrained: frozenset[int] = frozenset()


def conversation_of(
    messages: object, *, tools: object = None, system: object = None, variables: object = None
) -> Conversation:
    """Conversation of the parts of a row, with an answer of the assistant.

    Raises `InvalidConversation`.
    """
    turns = with_system(check_messages(messages), system)
    return Conversation(
        messages=[{name: value for name, value in turn.items() if name not in _SHARES} for turn in turns],
        tools=tools_of(tools),
        variables=variables_of(variables),
        untrained=frozenset(number for number, turn in enumerate(turns) if not _is_trained(turn, number)),
    )


def check_messages(messages: object) -> Messages:
    """Check that `messages` is a conversation with an assistant turn.

    Returns its turns as `check_turns`. Raises `InvalidConversation`.
    """
    turns = check_turns(messages)
    roles = [message["role"] for message in turns]
    if "assistant" not in roles:
        raise InvalidConversation("no message is the assistant's, so there is nothing to train on")
    if roles[0] == "assistant":
        raise InvalidConversation("the first message is the assistant's, which has nothing to answer")
    return turns


def check_turns(messages: object) -> Messages:
    """Turns of a list of {role, content} or {from, value}.

    With the roles of `ROLES`, text as content, and tool calls as OpenAI and transformers have them. Fields that are
    null are left out. Raises `InvalidConversation`.
    """
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes) or not messages:
        raise InvalidConversation(f"the messages are {short(messages)}, not a list of {{role, content}}")
    return [_turn(message, number) for number, message in enumerate(messages)]


def with_system(turns: Messages, system: object) -> Messages:
    """Turns behind the system's text of another column.

    Raises `InvalidConversation` if the turns have another one.
    """
    if system is None or (isinstance(system, str) and not system.strip()):
        return turns
    if not isinstance(system, str):
        raise InvalidConversation(f"column 'system' is {short(system)}, not text")
    if turns[0]["role"] in ("system", "developer"):
        if turns[0]["content"].strip() == system.strip():
            return turns
        raise InvalidConversation("the row has a column 'system' and another system turn among its messages")
    return [{"role": "system", "content": system}, *turns]


def tools_of(value: object) -> Sequence[Mapping[str, Any]]:
    """Tools of a row: a list of descriptions, or its JSON text.

    A description of a function alone gets the wrapper that templates expect. Raises `InvalidConversation`.
    """
    if isinstance(value, str):
        value = _parsed(value, "tools") if value.strip() else None
    if isinstance(value, Mapping):
        value = [value]
    if value is None:
        return ()
    if not isinstance(value, Sequence):
        raise InvalidConversation(f"the tools are {short(value)}, not a list")
    found = []
    for each in value:
        tool = _parsed(each, "tools") if isinstance(each, str) else each
        if not isinstance(tool, Mapping) or not (tool.get("function") or tool.get("name")):
            raise InvalidConversation(f"a tool is {short(tool)}, not {{type, function}}")
        found.append(tool if "function" in tool else {"type": "function", "function": tool})
    return tuple(found)


def variables_of(value: object) -> Mapping[str, Any]:
    """Variables of the chat template: `chat_template_kwargs` of a row.

    Raises `InvalidConversation`.
    """
    if value is not None and not isinstance(value, Mapping):
        raise InvalidConversation(f"column 'chat_template_kwargs' is {short(value)}, not an object")
    found = {name: each for name, each in (value or {}).items() if each is not None}
    if taken := [name for name in _NOT_VARIABLES if name in found]:
        raise InvalidConversation(
            f"column 'chat_template_kwargs' has {taken[0]!r}, which is given by the row itself or by what is asked for"
        )
    return found


def without_nulls(value: Any) -> Any:
    """Value without the fields that are null, at any depth.

    A column of Arrow gives each struct the fields of all of them.
    """
    if isinstance(value, Mapping):
        return {name: without_nulls(each) for name, each in value.items() if each is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list) else value


def row_without_nulls(row: Mapping[str, Any]) -> Mapping[str, Any]:
    """Row of Arrow with the fields that its structs had before, as `without_nulls`."""
    return {name: without_nulls(value) if isinstance(value, list | dict) else value for name, value in row.items()}


def short(value: object) -> str:
    """Representation of a value, cut for a message."""
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def _turn(message: object, number: int) -> Message:
    if not isinstance(message, Mapping):
        raise InvalidConversation(f"message {number} is {short(message)}, not {{role, content}}")
    turn = {name: value for name, value in message.items() if value is not None or name == "content"}
    for name, other in (("role", "from"), ("content", "value")):
        if name not in turn and other in turn:
            turn[name] = turn.pop(other)
    calls = _calls(turn, number)
    if "role" not in turn or ("content" not in turn and not calls):
        raise InvalidConversation(f"message {number} is {short(message)}, not {{role, content}}")
    turn["role"] = OTHER_ROLES.get(str(turn["role"]), turn["role"])
    if turn["role"] not in ROLES:
        raise InvalidConversation(f"message {number} has the role {turn['role']!r}, not one of {', '.join(ROLES)}")
    if calls and turn["role"] != "assistant":
        raise InvalidConversation(f"message {number} has tool calls, and is not the assistant's")
    turn["content"] = _text(turn.get("content"), number, may_be_empty=bool(calls) or turn["role"] == "tool")
    if calls:
        turn["tool_calls"] = calls
    if thinking := next((turn[name] for name in REASONING if turn.get(name)), None):
        turn |= dict.fromkeys(REASONING, _text(thinking, number, may_be_empty=True))
    return turn


def _text(content: object, number: int, *, may_be_empty: bool) -> str:
    """Text of a turn. Parts that are text are joined."""
    if isinstance(content, list) and content:
        kinds = [part.get("type") if isinstance(part, Mapping) else type(part).__name__ for part in content]
        if other := [kind for kind in kinds if kind != "text"]:
            raise InvalidConversation(
                f"message {number} has a part of the kind {other[0]!r}, and only parts of text are trained on"
            )
        content = "".join(str(part.get("text") or "") for part in content)
    if may_be_empty and not content:
        return ""
    if not isinstance(content, str) or not (may_be_empty or content.strip()):
        raise InvalidConversation(f"message {number} has the content {short(content)}, not text")
    return content


def _calls(turn: dict[str, Any], number: int) -> list[dict[str, Any]]:
    """Tool calls of a turn, of which `turn` is cleared.

    Arguments are objects, as templates of transformers expect.
    """
    found: Any = turn.pop("tool_calls", None) or []
    if isinstance(found, str):
        found = _parsed(found, f"tool_calls of message {number}")
    if old := turn.pop("function_call", None):
        found = [old]
    if turn.get("role") in _CALLS:
        content = turn.pop("content", None)
        parsed = _parsed(content, f"calls of message {number}") if isinstance(content, str) else content
        found = parsed if isinstance(parsed, list) else [parsed]
    if not isinstance(found, Sequence):
        raise InvalidConversation(f"message {number} has the tool_calls {short(found)}, not a list")
    return [_call(each, number) for each in found]


def _call(call: object, number: int) -> dict[str, Any]:
    function = call.get("function", call) if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping) or not isinstance(function.get("name"), str):
        raise InvalidConversation(f"message {number} has the tool call {short(call)}, not one of {{name, arguments}}")
    arguments = function.get("arguments", function.get("parameters"))
    if isinstance(arguments, str) and arguments.strip():
        arguments = _parsed(arguments, f"arguments of message {number}")
    given = dict(call) if isinstance(call, Mapping) and "function" in call else {}
    return {"type": "function"} | given | {"function": {"name": function["name"], "arguments": arguments or {}}}


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise InvalidConversation(f"the {what} are text that is not JSON ({error})") from error


def _is_trained(turn: Message, number: int) -> bool:
    """Whether a turn counts in the loss. Raises `InvalidConversation`."""
    if "train_detail" in turn:
        raise InvalidConversation(f"message {number} has train_detail, which is not read. Give the turn weight 0 or 1")
    given = {name: turn[name] for name in _SHARES if name in turn}
    for name, value in given.items():
        if value not in (0, 1):
            raise InvalidConversation(f"message {number} has {name}={short(value)}, and only 0 and 1 are known")
    if turn["role"] != "assistant" and any(given.values()):
        name = next(name for name, value in given.items() if value)
        raise InvalidConversation(
            f"message {number} has {name}={given[name]!r}, and is the {turn['role']}'s: only turns of the assistant "
            'are targets, or all tokens with train_on="all"'
        )
    return all(given.values())
