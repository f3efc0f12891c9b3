"""Engines by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from forebay.errors import InvalidOption
from forebay.llm.score.engines.engine import EngineSpec
from forebay.llm.score.engines.hf import HfEngineSpec
from forebay.llm.score.engines.openai import OpenAiEngineSpec
from forebay.llm.score.engines.vllm import VllmEngineSpec

ENGINES: Mapping[str, Callable[..., EngineSpec]] = {
    "hf": HfEngineSpec,
    "vllm": VllmEngineSpec,
    "openai": OpenAiEngineSpec,
}


def engine_named(name: str, options: Mapping[str, Any]) -> EngineSpec:
    """Engine `name` with those of `options` that it has.

    Raises `InvalidOption` for an unknown name, and for an option that differs from its default and is another engine's.
    """
    if name not in ENGINES:
        raise InvalidOption(f"engine={name!r} is unknown. Choose one of {', '.join(map(repr, ENGINES))}.", engine=name)
    made = ENGINES[name]
    takes = inspect.signature(made).parameters
    for option in ("tensor_parallel", "base_url", "engine_options"):
        if option not in takes and options.get(option) not in (None, 1, {}):
            raise InvalidOption(f"{option}={options[option]!r} is not an option of engine={name!r}. Leave it out.")
    return made(**{option: value for option, value in options.items() if option in takes})
