"""Win rate of answers, judged in both orders."""

from __future__ import annotations

import json
import string
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import pyarrow as pa

from forebay.errors import InvalidOption, ScoringFailed
from forebay.llm.score.engines.engine import EngineSpec
from forebay.llm.score.evaluation.answer_files import plan_facts, read_answers
from forebay.llm.score.evaluation.given_rows import ROWS_AT_A_TIME, write_once
from forebay.llm.score.evaluation.interval import wilson_interval
from forebay.llm.score.pool.counters import ProgressListener
from forebay.llm.score.prompts import PromptSource, find_prompt
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows
from forebay.llm.score.source.finding import find_source
from forebay.llm.score.source.row_source import RowSource
from forebay.llm.score.tasks import VERDICT
from forebay.storage.filesystem import below, resolve

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
    """Two folders of answers to compare, and a judge.

    Raises `InvalidOption` for a template without fields.

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


_SCHEMA = pa.schema([("pair", pa.int64()), ("prompt", pa.string()), ("by", pa.string())])


def judged_pairs(request: WinRateRequest) -> tuple[pa.Table, int]:
    """Prompts of the judge, and the number of unpaired rows.

    Each pair has two rows.

    Raises `InvalidOption` for answers to other data, and as `read_answers`.
    """
    data = find_source(request.data)
    _check_same_data(request, data)
    ours = read_answers(request.answers, ["text", *([request.by] if request.by else [])])
    theirs = read_answers(request.against, ["text"])
    groups = ours[request.by].to_pylist() if request.by else [None] * ours.num_rows
    made: list[dict[str, Any]] = []
    unanswered = 0
    rows = zip(_questions(request, data), ours["text"].to_pylist(), theirs["text"].to_pylist(), groups, strict=True)
    for number, (question, a, b, group) in enumerate(rows):
        if question is None or a is None or b is None:
            unanswered += 1
            continue
        for first, second in ((a, b), (b, a)):
            prompt = request.template.format(question=question, a=first, b=second)
            made.append({"pair": number, "prompt": prompt, "by": str(group)})
    return pa.Table.from_pylist(made, _SCHEMA), unanswered


def _questions(request: WinRateRequest, data: RowSource) -> list[str | None]:
    """Text of each question, or None.

    The last turn of a conversation.
    """
    source = find_prompt(PromptSource(column=request.prompt), data.columns, data.name, from_arrow=data.from_arrow)
    reader = data.open(source.columns(data.columns), ())
    found: list[str | None] = []
    for start in range(0, data.num_rows, ROWS_AT_A_TIME):
        block = reader.read(start, min(start + ROWS_AT_A_TIME, data.num_rows))
        found += [None if at in block.errors else source.question(row) for at, row in enumerate(block.rows)]
    return found


def _check_same_data(request: WinRateRequest, data: RowSource) -> None:
    for folder in (request.answers, request.against):
        answered = plan_facts(resolve(folder).uri)["data"]
        if answered != data.identity:
            raise InvalidOption(
                f"{folder} answers data {answered[:16]}, and {request.data} is data {data.identity[:16]}. Give the "
                "data that both answer, unchanged.",
                found=answered,
                data=data.identity,
            )


PairOutcome = Literal["win", "loss", "tie"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRate:
    """Wins, losses and ties of the judged pairs.

    A pair is judged in both orders. A contradiction is a tie.

    Attributes:
        wins, losses, ties: Pairs.
        invalid: Pairs without a valid verdict in one of the orders.
        unanswered: Rows that one of the two folders does not answer.
    """

    wins: int
    losses: int
    ties: int
    invalid: int = 0
    unanswered: int = 0

    @property
    def pairs(self) -> int:
        """Pairs that count."""
        return self.wins + self.losses + self.ties

    @property
    def share(self) -> float:
        """Win rate, with a tie as half a win."""
        return (self.wins + self.ties / 2) / max(self.pairs, 1)

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the win rate, by Wilson."""
        return wilson_interval(self.wins + self.ties / 2, self.pairs)


@dataclass(frozen=True, slots=True, kw_only=True)
class WinRates:
    """Win rate in total, and by values of a column."""

    total: WinRate
    by: Mapping[str, WinRate] = field(default_factory=dict)


def measure_win_rate(
    request: WinRateRequest, *, engine: EngineSpec | None = None, listener: ProgressListener | None = None
) -> WinRates:
    """Ask the judge about each pair in both orders.

    A stopped run continues.

    Raises as `score_rows`, `InvalidOption` for answers to other data, `ScoringFailed` without a pair to judge.
    """
    pairs, unanswered = judged_pairs(request)
    if not pairs.num_rows:
        raise ScoringFailed(f"no row has an answer in both {request.answers} and {request.against}.")
    write_once(pairs, request.pairs, "The pairs of the judge")
    verdicts = score_rows(request.verdicts_request(), engine=engine, listener=listener).read()
    assert verdicts["pair"].to_pylist() == pairs["pair"].to_pylist(), "verdicts are in the order of the pairs"
    winners = [None if text is None else str(json.loads(text)["winner"]) for text in verdicts[VERDICT].to_pylist()]
    outcomes = [outcome_of_pair(winners[at], winners[at + 1]) for at in range(0, len(winners), 2)]
    groups: list[str] = pairs["by"].to_pylist()[::2]
    by = {
        group: _counted([outcome for outcome, other in zip(outcomes, groups, strict=True) if other == group], 0)
        for group in (sorted(set(groups)) if request.by else ())
    }
    return WinRates(total=_counted(outcomes, unanswered), by=by)


def outcome_of_pair(first: str | None, second: str | None) -> PairOutcome | None:
    """Outcome of a pair from its two verdicts.

    `first` has the answers as A and B, `second` as B and A. None: a verdict is missing.

    >>> outcome_of_pair("A", "B"), outcome_of_pair("B", "A"), outcome_of_pair("A", "A"), outcome_of_pair("A", None)
    ('win', 'loss', 'tie', None)
    """
    if first is None or second is None:
        return None
    known: dict[tuple[str, str], PairOutcome] = {("A", "B"): "win", ("B", "A"): "loss"}
    return known.get((first, second), "tie")


def _counted(outcomes: Sequence[PairOutcome | None], unanswered: int) -> WinRate:
    counts = Counter(outcomes)
    return WinRate(
        wins=counts["win"], losses=counts["loss"], ties=counts["tie"], invalid=counts[None], unanswered=unanswered
    )
