"""JSON schemas with few values, listed to constrain an engine."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

MOST_CHOICES = 1024


@dataclass(frozen=True, slots=True)
class Choices:
    """Token ids of every allowed text, with its end token."""

    lines: tuple[tuple[int, ...], ...]

    def next_tokens(self, ids: Sequence[int]) -> list[int]:
        """Tokens that may follow `ids`.

        After the end of a text: its end token again.
        """
        begun = tuple(ids)
        found = sorted(
            {line[len(begun)] for line in self.lines if line[: len(begun)] == begun and len(line) > len(begun)}
        )
        return found or [self.lines[0][-1]]


def choices_of(schema: Mapping[str, Any], tokenizer: Any) -> Choices | None:
    """Choices of a schema.

    None if it has more than `MOST_CHOICES` values, or if they cannot be listed.
    """
    values = few_values(schema)
    if values is None:
        return None
    texts = [json.dumps(value, ensure_ascii=False) for value in values]
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return Choices(tuple((*ids, tokenizer.eos_token_id) for ids in encoded))


def few_values(schema: Mapping[str, Any]) -> list[Any] | None:
    """All values of a schema. None if there are too many, or if they cannot be listed."""
    values = list(itertools.islice(_values(schema) or (), MOST_CHOICES + 1))
    return values if 0 < len(values) <= MOST_CHOICES else None


def _values(schema: Mapping[str, Any]) -> list[Any] | None:
    """List the values of a schema, or return None.

    Enums, booleans, small whole numbers, and objects of these.
    """
    match schema:
        case {"enum": [*values]}:
            return list(values)
        case {"const": value}:
            return [value]
        case {"type": "boolean"}:
            return [False, True]
        case {"type": "integer", "minimum": int(least), "maximum": int(most)} if most - least < MOST_CHOICES:
            return list(range(least, most + 1))
        case {"type": "object", "properties": dict(properties)} if set(properties) == set(schema.get("required", ())):
            return _objects(properties)
    return None


def _objects(properties: Mapping[str, Mapping[str, Any]]) -> list[Any] | None:
    listed = [_values(each) for each in properties.values()]
    found: list[list[Any]] = []
    for each in listed:
        if each is None:
            return None
        found.append(each)
    objects = itertools.islice(itertools.product(*found), MOST_CHOICES + 1)
    return [dict(zip(properties, values, strict=True)) for values in objects]
