"""Request of a win rate, and the judge's prompt."""

from __future__ import annotations

import json
import string
from dataclasses import dataclass

from forebay.errors import InvalidOption
from forebay.llm.score.request import ScoreRequest
from forebay.storage.filesystem import below

TEMPLATE = """Compare two answers to one question.

Question:
{question}

Answer A:
{a}

Answer B:
{b}

Which answer is better? Reply with JSON: {{"winner": "A"}}, {{"winner": "B"}}, or {{"winner": "tie"}}."""
SCHEMA = {"type": "object", "properties": {"winner": {"enum": ["A", "B", "tie"]}}, "required": ["winner"]}
_FIELDS = {"question", "a", "b"}


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRateRequest:
    """Two folders of answers to the same data, and their judge. Raises `InvalidOption` for a template without fields.

    Attributes:
        answers: Folder of the answers whose win rate is measured.
        against: Folder of the other answers.
        data: Data that both answer.
        judge: Model of the judge.
        to: Folder of the pairs and the verdicts.
        by: Column of `answers` (`keep=`) by which wins are counted too, such as the source of a row.
        prompt: Column of the questions, as in `ScoreRequest`.
        template: Prompt of the judge, with the fields `{question}`, `{a}` and `{b}`.
        engine, workers, batch, chat, max_tokens, base_url: Options of the judge, as in `ScoreRequest`.
    """

    answers: str
    against: str
    data: str
    judge: str
    to: str
    by: str | None = None
    prompt: str | None = None
    template: str = TEMPLATE
    engine: str = "hf"
    workers: int = 1
    batch: int = 32
    chat: bool = True
    max_tokens: int = 64
    base_url: str | None = None

    def __post_init__(self) -> None:
        fields = {name for _, name, _, _ in string.Formatter().parse(self.template) if name is not None}
        if fields != _FIELDS:
            raise InvalidOption(
                f"template= has the fields {', '.join(sorted(fields)) or 'none'}, and needs {{question}}, {{a}}, {{b}}."
            )

    @property
    def pairs(self) -> str:
        """File of the pairs."""
        return below(self.to, "pairs.parquet")

    def verdicts_request(self) -> ScoreRequest:
        """Request of the judge's run over the pairs."""
        return ScoreRequest(
            model=self.judge,
            data=self.pairs,
            to=below(self.to, "verdicts"),
            task="judge",
            schema=json.dumps(SCHEMA),
            prompt="prompt",
            keep=("pair",),
            engine=self.engine,
            workers=self.workers,
            batch=self.batch,
            chat=self.chat,
            max_tokens=self.max_tokens,
            base_url=self.base_url,
        )
