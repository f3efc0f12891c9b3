"""Engine of a scoring run: requests, answers, and laws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, get_args, runtime_checkable

from forebay.errors import InvalidOption, whole_number
from forebay.llm.chat.messages import Conversation, Message, Messages

Pooling = Literal["mean", "last"]
"""Vector of a text: the mean over its tokens, or its last token's."""


@dataclass(frozen=True, slots=True)
class TokenPrompt:
    """Prompt as token ids of the model's own tokenizer.

    `targets`: tokens at its end whose log-likelihood is asked for.
    """

    ids: tuple[int, ...]
    targets: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """Question of one row.

    Attributes:
        row: Number of the row in the source.
        content: Text, which is continued as it is, a conversation, which is rendered by the chat template, or tokens.
        tools: Tools of a conversation.
        variables: Variables of the chat template.
        completion: Text whose log-likelihood is asked for. None: the content itself.
        with_end: Whether the end token behind that text counts.
    """

    row: int
    content: str | Messages | TokenPrompt
    tools: Sequence[Mapping[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    completion: str | None = None
    with_end: bool = False

    def conversation(self, *more: Message) -> Conversation:
        """The prompt as a conversation, with more turns."""
        assert not isinstance(self.content, str | TokenPrompt)
        return Conversation([*self.content, *more], self.tools, self.variables)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowAnswer:
    """Answer to one prompt.

    Only the fields of the task are set. With an `error`, the others have no meaning.

    Attributes:
        text: Generated text, without its end token.
        finish_reason: "stop" at an end token or a stop text, "length" at the limit of tokens or positions.
        input_tokens: Tokens of the prompt.
        output_tokens: Generated tokens, with the end token. For a log-likelihood: tokens that count in it.
        log_likelihood: Sum of the natural logarithms of the probabilities of all tokens that count.
        is_greedy: Whether greedy decoding would give these tokens.
        embedding: Vector of the text.
        error: Reason for which there is no answer.
    """

    text: str | None = None
    finish_reason: str | None = None
    input_tokens: int = 0
    output_tokens: int = 0
    log_likelihood: float | None = None
    is_greedy: bool | None = None
    embedding: tuple[float, ...] | None = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """Rules by which tokens are chosen.

    Raises `InvalidOption` for values that can never work.

    Attributes:
        max_tokens: Most generated tokens of a row.
        temperature: 0 takes the most likely token.
        top_k: Only the most likely tokens are drawn. 0: all.
        top_p: Only the most likely tokens that together have this probability are drawn.
        seed: Seed of the draws.
        stop: Texts that end an answer. They are not part of it.
        schema: JSON schema of the answer. An engine that can constrain its output to it does so.
    """

    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        whole_number("max_tokens", self.max_tokens, least=1)
        whole_number("top_k", self.top_k)
        whole_number("seed", self.seed, most=2**63 - 1)
        if not self.temperature >= 0:
            raise InvalidOption(f"temperature={self.temperature}: give 0 for greedy decoding, or more.")
        if not 0 < self.top_p <= 1:
            raise InvalidOption(f"top_p={self.top_p}: give a share above 0, and at most 1.")
        if "" in self.stop:
            raise InvalidOption("stop= holds an empty text, at which every answer would end. Leave it out.")


class Engine(Protocol):
    """Opened language model.

    Laws: answers come in the order of the prompts, one each. An answer depends on its prompt and its row number, and on
    no other prompt. A prompt that cannot be answered, such as one longer than the model's positions, gets an answer
    with an error. `EngineFailed` means that the engine can answer no more, and has to be opened again. A method that
    an engine does not have raises `InvalidOption`.
    """

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]: ...

    def log_likelihood(self, prompts: Sequence[Prompt]) -> list[RowAnswer]: ...

    def embed(self, prompts: Sequence[Prompt], pooling: Pooling) -> list[RowAnswer]: ...

    def close(self) -> None: ...


@runtime_checkable
class EngineSpec(Protocol):
    """Closed engine, which is pickled for each process that scores."""

    def identity(self) -> Mapping[str, Any]:
        """Everything that decides the answers, besides prompts and sampling.

        Plain data that JSON can hold.
        """
        ...

    def check(self) -> None:
        """Check what can be checked without opening the engine.

        Raises `InvalidOption`, for example for a missing package.
        """
        ...

    def open(self) -> Engine:
        """Open the engine.

        Raises `InvalidOption` if it can never be opened.
        """
        ...


@runtime_checkable
class SchemaEngineSpec(Protocol):
    """`EngineSpec` that knows to which schemas it can hold answers."""

    def check_schema(self, schema: Mapping[str, Any]) -> None:
        """Raise `InvalidOption` for a schema to which answers cannot be held."""
        ...


def check_pooling(pooling: str) -> None:
    """Raise `InvalidOption` for an unknown way of pooling."""
    if pooling not in get_args(Pooling):
        known = ", ".join(map(repr, get_args(Pooling)))
        raise InvalidOption(f"pooling={pooling!r} is unknown. Choose one of {known}.")
