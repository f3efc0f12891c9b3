"""Scoring of one shard after the other.

Rows, prompts, answers, file: what each process of a run does.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from forebay.errors import ForebayError
from forebay.llm.chat.messages import InvalidConversation
from forebay.llm.score.answer_folder import AnswerFolder
from forebay.llm.score.engines.engine import Engine, EngineSpec, Prompt, RowAnswer
from forebay.llm.score.prompts import PromptSource
from forebay.llm.score.shards import Piece
from forebay.llm.score.source.row_source import RowBlock, RowSource
from forebay.llm.score.tasks import ERROR, ROW, ScoreTask
from forebay.runtime.foreign_code import outcome_of
from forebay.storage.credentials import Access

_LONGEST_ERROR = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSpec:
    """Everything that a process needs to score any shard.

    It is pickled for each process.

    `keep` are the columns of the source that the output has too, `columns` all that are read. `access` holds the
    credentials of model and folder.
    """

    source: RowSource
    columns: tuple[str, ...]
    keep: tuple[str, ...]
    prompts: PromptSource
    task: ScoreTask
    engine: EngineSpec
    folder: AnswerFolder
    access: Access


@dataclass(frozen=True, slots=True, kw_only=True)
class PieceReport:
    """Counts of a piece that was scored, in `seconds`.

    `error` is the first error of a row.
    """

    piece: Piece
    errors: int
    input_tokens: int
    output_tokens: int
    seconds: float
    error: str | None = None


class ShardScorer:
    """Scorer of pieces, with its engine and source.

    The engine is opened at the first piece.
    """

    def __init__(self, spec: ScoreSpec) -> None:
        self._spec = spec
        self._rows = spec.source.open(spec.columns, spec.keep)
        self._engine: Engine | None = None

    def open(self) -> None:
        """Open the engine. Raises what it raises."""
        if self._engine is None:
            self._engine = self._spec.engine.open()

    def close(self) -> None:
        """Close the engine, if it is open."""
        if self._engine is not None:
            self._engine.close()
            self._engine = None

    def write(self, piece: Piece) -> PieceReport:
        """Score a whole shard, and write its file.

        Raises as `table`, and as `AnswerFolder.write`.
        """
        table, report = self.table(piece)
        self._spec.folder.write(piece.shard, table)
        return report

    def table(self, piece: Piece) -> tuple[pa.Table, PieceReport]:
        """Answers of a piece as a table.

        A row that cannot be answered has an error.

        Raises `EngineFailed` if the engine can answer no more, and the errors of storage.
        """
        began = time.perf_counter()
        self.open()
        source = self._rows.read(piece.start, piece.stop)
        answers = self._answers(piece, source)
        table = self._assemble(piece, source, answers)
        errors = [error for error in table[ERROR].to_pylist() if error is not None]
        return table, PieceReport(
            piece=piece,
            errors=len(errors),
            input_tokens=sum(each.input_tokens for each in answers),
            output_tokens=sum(each.output_tokens for each in answers),
            seconds=time.perf_counter() - began,
            error=errors[0] if errors else None,
        )

    def marked(self, piece: Piece, error: str) -> tuple[pa.Table, PieceReport]:
        """Table of a piece without answers.

        Every row has `error`. Needs no engine.
        """
        source = self._rows.read(piece.start, piece.stop)
        table = self._assemble(piece, source, [RowAnswer(error=error)] * piece.num_rows)
        return table, PieceReport(
            piece=piece, errors=piece.num_rows, input_tokens=0, output_tokens=0, seconds=0.0, error=error
        )

    def _assemble(self, piece: Piece, source: RowBlock, answers: Sequence[RowAnswer]) -> pa.Table:
        numbers = pa.array(range(piece.start, piece.stop), pa.int64())
        return pa.table({ROW: numbers, **source.kept, **self._spec.task.columns([readable(each) for each in answers])})

    def _answers(self, piece: Piece, source: RowBlock) -> list[RowAnswer]:
        answers: list[RowAnswer | None] = [None] * piece.num_rows
        asked: list[Prompt] = []
        for at, row in enumerate(source.rows):
            number, error = piece.start + at, source.errors.get(at)
            prompt = self._prompt(number, row) if error is None else RowAnswer(error=error[:_LONGEST_ERROR])
            if isinstance(prompt, RowAnswer):
                answers[number - piece.start] = prompt
            else:
                asked.append(prompt)
        for prompt, answer in zip(asked, self._asked(asked), strict=True):
            answers[prompt.row - piece.start] = answer
        return [each for each in answers if each is not None]

    def _prompt(self, number: int, row: dict[str, Any]) -> Prompt | RowAnswer:
        found = outcome_of(lambda: self._spec.prompts.prompt(number, row))
        if found.error is None:
            return found.result()
        if isinstance(found.error, InvalidConversation):
            return RowAnswer(error=str(found.error))
        return _as_answer(found.error, "the prompt function")

    def _asked(self, prompts: list[Prompt]) -> list[RowAnswer]:
        """Answers of the engine.

        If it raises, halves are asked, down to the prompts that it cannot answer.
        """
        if not prompts:
            return []
        assert self._engine is not None
        engine = self._engine
        found = outcome_of(lambda: self._spec.task.ask(engine, prompts))
        if found.error is None:
            return found.result()
        if len(prompts) == 1:
            return [_as_answer(found.error, "the engine")]
        _raise_what_is_not_a_row(found.error)
        middle = len(prompts) // 2
        return self._asked(prompts[:middle]) + self._asked(prompts[middle:])


def _as_answer(error: BaseException, who: str) -> RowAnswer:
    _raise_what_is_not_a_row(error)
    return RowAnswer(error=f"{who} failed: {type(error).__name__}: {_in_utf8(str(error))}"[:_LONGEST_ERROR])


def _in_utf8(text: str) -> str:
    """Text with halves of characters as escapes, which Arrow holds."""
    return text.encode(errors="backslashreplace").decode()


def readable(answer: RowAnswer) -> RowAnswer:
    """Answer, or an error for a text that is not UTF-8."""
    error, text = answer.error, answer.text
    if error is not None:
        return replace(answer, error=_in_utf8(error))
    if text is not None and _in_utf8(text) != text:
        return replace(
            answer, text=None, error=f"the answer has half of a character: {_in_utf8(text)}"[:_LONGEST_ERROR]
        )
    return answer


def _raise_what_is_not_a_row(error: BaseException) -> None:
    """Raise errors that affect all rows.

    Errors of Forebay, and Ctrl-C.
    """
    if isinstance(error, ForebayError) or not isinstance(error, Exception):
        raise error
