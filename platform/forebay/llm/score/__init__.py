"""Scoring of large datasets with language models (`docs/scoring.md`).

Each row is scored once, also when workers are lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.llm.score.engines.engine import Engine as Engine
    from forebay.llm.score.engines.engine import EngineSpec as EngineSpec
    from forebay.llm.score.engines.engine import Prompt as Prompt
    from forebay.llm.score.engines.engine import RowAnswer as RowAnswer
    from forebay.llm.score.engines.engine import Sampling as Sampling
    from forebay.llm.score.engines.engine import TokenPrompt as TokenPrompt
    from forebay.llm.score.engines.hf import HfEngineSpec as HfEngineSpec
    from forebay.llm.score.request import ScoreRequest as ScoreRequest
    from forebay.llm.score.result import ScoreResult as ScoreResult
    from forebay.llm.score.scoring import score_rows as score_rows

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "Engine": "forebay.llm.score.engines.engine",
        "EngineSpec": "forebay.llm.score.engines.engine",
        "HfEngineSpec": "forebay.llm.score.engines.hf",
        "Prompt": "forebay.llm.score.engines.engine",
        "RowAnswer": "forebay.llm.score.engines.engine",
        "Sampling": "forebay.llm.score.engines.engine",
        "ScoreRequest": "forebay.llm.score.request",
        "ScoreResult": "forebay.llm.score.result",
        "TokenPrompt": "forebay.llm.score.engines.engine",
        "score_rows": "forebay.llm.score.scoring",
    },
)
