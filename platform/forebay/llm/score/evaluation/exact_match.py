"""Share of answers that are exactly what was expected."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.llm.chat.messages import InvalidConversation, check_turns, without_nulls
from forebay.llm.score.evaluation.answer_files import read_answers
from forebay.llm.score.evaluation.interval import wilson_interval


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatchRequest:
    """Answers to compare with a column.

    Attributes:
        answers: Folder of a scoring run.
        expected: Column of the answers (`keep=`) with the expected text, or with a conversation whose last turn it is.
    """

    answers: str
    expected: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactMatch:
    """Counts of exact matches.

    A row with an error does not match.
    """

    rows: int
    matches: int

    @property
    def share(self) -> float:
        """Share of rows that match."""
        return self.matches / self.rows

    @property
    def interval(self) -> tuple[float, float]:
        """95 % interval of the share, by Wilson."""
        return wilson_interval(self.matches, self.rows)


def count_exact_matches(request: ExactMatchRequest) -> ExactMatch:
    """Count answers equal to the expected text.

    Blanks around them are ignored. Raises as `read_answers`.
    """
    table = read_answers(request.answers, ["text", request.expected])
    matches = 0
    for text, expected in zip(table["text"].to_pylist(), table[request.expected].to_pylist(), strict=True):
        right = _last_turn(expected) if isinstance(expected, list) else expected
        matches += text is not None and isinstance(right, str) and text.strip() == right.strip()
    return ExactMatch(rows=table.num_rows, matches=matches)


def _last_turn(messages: object) -> str | None:
    """Text of the last turn of a conversation, in any form."""
    try:
        return str(check_turns(without_nulls(messages))[-1]["content"]) or None
    except InvalidConversation:
        return None
