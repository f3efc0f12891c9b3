"""Answers held to schemas of any kind. Needs llguidance, of the extra `score`, where answers are generated."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from forebay.errors import InvalidOption, MissingPackage
from forebay.llm.score.engines.engine import Prompt, Sampling
from forebay.llm.score.engines.hf import HfEngineSpec

PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "tags": {"type": "array", "items": {"$ref": "#/$defs/tag"}, "minItems": 1, "maxItems": 3},
        "more": {"anyOf": [{"type": "null"}, {"type": "boolean"}]},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
    "$defs": {"tag": {"enum": ["fox", "bee", '\u00fc"x']}},
}
SCHEMAS = [
    PERSON,
    {"type": "string", "pattern": "^[a-f]{3,6}$"},
    {"type": "array", "items": {"type": "number", "minimum": -1, "maximum": 1}, "minItems": 2, "maxItems": 2},
    {"type": "object", "additionalProperties": {"type": "boolean"}, "maxProperties": 2, "minProperties": 1},
]
HAS_LIBRARY = importlib.util.find_spec("llguidance") is not None
PROMPTS = [Prompt(row=row, content="question " + "ab " * row) for row in range(12)]


@pytest.mark.skipif(not HAS_LIBRARY, reason="the package llguidance is not installed")
@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_answers_that_end_fit_the_schema(model_folder: Path, temperature: float) -> None:
    engines = [HfEngineSpec(model=str(model_folder), batch=batch).open() for batch in (5, 12)]
    for schema in SCHEMAS:
        sampling = Sampling(max_tokens=150, temperature=temperature, seed=2, schema=schema)
        found = engines[0].generate(PROMPTS, sampling)
        ended = [each for each in found if each.finish_reason == "stop"]
        assert ended or not temperature, [each.text for each in found]
        for each in ended:
            jsonschema.Draft202012Validator(schema).validate(json.loads(each.text or ""))
        # Of the row alone, as without a schema.
        assert engines[1].generate(PROMPTS, sampling) == found


@pytest.mark.skipif(not HAS_LIBRARY, reason="the package llguidance is not installed")
def test_what_the_library_cannot_hold_to_is_refused(model_folder: Path) -> None:
    spec = HfEngineSpec(model=str(model_folder))
    spec.check_schema(PERSON)
    for keyword in ({"uniqueItems": True, "type": "array"}, {"not": {"type": "null"}}):
        with pytest.raises(InvalidOption, match="cannot hold its answers to schema="):
            spec.check_schema(keyword)


@pytest.mark.skipif(HAS_LIBRARY, reason="the package llguidance is installed")
def test_without_the_library_many_values_are_refused(model_folder: Path) -> None:
    spec = HfEngineSpec(model=str(model_folder))
    spec.check_schema({"enum": ["A", "B"]})
    with pytest.raises(MissingPackage, match=r"llguidance.*forebay\[score\].*few values"):
        spec.check_schema(PERSON)
    with pytest.raises(MissingPackage, match="llguidance"):
        spec.open().generate(PROMPTS, Sampling(schema=PERSON))
