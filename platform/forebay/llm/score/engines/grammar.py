"""JSON schemas of any kind, to which generated tokens are held.

By llguidance, the library that vLLM's backend `guidance` uses too.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from forebay.errors import InvalidOption, MissingPackage
from forebay.runtime.extras import extra_package

_COMPACT = {"whitespace_flexible": False}
"""Otherwise any number of spaces may stand within JSON, which small models never end."""


def grammar_of(schema: Mapping[str, Any], engine: str) -> str:
    """Grammar of a schema, for llguidance.

    Raises `InvalidOption` for a schema that it cannot hold to, and `MissingPackage`.
    """
    matcher = _import_llguidance(engine).LLMatcher
    grammar: str = matcher.grammar_from_json_schema(json.dumps(schema), overrides=_COMPACT)
    is_error, messages = matcher.validate_grammar_with_warnings(grammar)
    if is_error:
        raise InvalidOption(
            f"engine={engine!r} cannot hold its answers to schema=: {' '.join(messages[0].split())}. Leave that "
            "keyword out, or state the rule in the prompt.",
            engine=engine,
        )
    return grammar


@dataclass(frozen=True, slots=True)
class SchemaTokens:
    """Tokens of a tokenizer as llguidance needs them. Made once for an engine."""

    own: Any

    @classmethod
    def of(cls, tokenizer: Any, entries: int, ends: frozenset[int]) -> SchemaTokens:
        """`entries` of the model's vocabulary, of which `ends` end an answer."""
        with extra_package("llguidance", "A grammar"):
            from llguidance.hf import from_tokenizer  # noqa: PLC0415 - an extra
        return cls(from_tokenizer(tokenizer, n_vocab=entries, eos_token=sorted(ends)))

    def held(self, grammar: str, rows: int, width: int) -> HeldToGrammar:
        """Logits processor of a batch, whose prompts have `width` tokens."""
        matcher = _import_llguidance("hf").LLMatcher
        return HeldToGrammar([matcher(self.own, grammar) for _ in range(rows)], width)


class HeldToGrammar:
    """Logits processor that leaves the tokens that a grammar allows.

    Each row has a matcher of its own.
    """

    def __init__(self, matchers: list[Any], width: int) -> None:
        self._matchers, self._width = matchers, width

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Scores [rows, entries], -inf for tokens that are not allowed."""
        allowed = np.empty(tuple(scores.shape), bool)
        last = input_ids[:, -1].tolist()
        for row, matcher in enumerate(self._matchers):
            if input_ids.shape[1] > self._width and not matcher.is_stopped():
                matcher.consume_token(last[row])
            if matcher.is_error():
                raise RuntimeError(f"the schema cannot be followed: {matcher.get_error()}")
            # Of a matcher that has stopped: the end tokens.
            bits = np.unpackbits(np.frombuffer(matcher.compute_bitmask(), np.uint8), bitorder="little")
            allowed[row] = bits[: scores.shape[1]]
        return scores.masked_fill(~torch.from_numpy(allowed).to(scores.device), -torch.inf)


def _import_llguidance(engine: str) -> Any:
    try:
        with extra_package("llguidance", f"schema= of many values with engine={engine!r}"):
            import llguidance  # noqa: PLC0415 - an extra
    except MissingPackage as error:
        raise MissingPackage(
            f"{error}. Without it, an answer is held to a schema of few values: enums, booleans, small ranges, and "
            "objects of these.",
            package="llguidance",
        ) from error
    return llguidance
