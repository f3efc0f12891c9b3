"""Scoring of large data sets with language models: each row once, whatever is lost on the way (`docs/scoring.md`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.llm.score.engines.engine import Engine as Engine
    from forebay.llm.score.engines.engine import EngineSpec as EngineSpec
    from forebay.llm.score.engines.engine import Prompt as Prompt
    from forebay.llm.score.engines.engine import RowAnswer as RowAnswer
    from forebay.llm.score.engines.engine import Sampling as Sampling
    from forebay.llm.score.engines.hf import HfEngineSpec as HfEngineSpec
    from forebay.llm.score.request import ScoreRequest as ScoreRequest
    from forebay.llm.score.result import ScoreResult as ScoreResult
    from forebay.llm.score.scoring import score_rows as score_rows

_HOMES = {
    "RowAnswer": "engines.engine",
    "Engine": "engines.engine",
    "EngineSpec": "engines.engine",
    "HfEngineSpec": "engines.hf",
    "Prompt": "engines.engine",
    "Sampling": "engines.engine",
    "ScoreRequest": "request",
    "ScoreResult": "result",
    "score_rows": "scoring",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - derived from the table, so that no name is forgotten


def __getattr__(name: str) -> object:
    """Import a public name on first use: engines need large libraries."""
    if name not in _HOMES:
        raise AttributeError(f"module 'forebay.llm.score' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"forebay.llm.score.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
