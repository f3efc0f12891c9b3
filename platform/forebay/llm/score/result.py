"""Result of a scoring run."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from forebay.llm.score.answer_folder import AnswerFolder
from forebay.llm.score.pool.counters import WorkerTotals


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreResult:
    """Counts of a run that has ended.

    Attributes:
        folder: Folder of the answers.
        rows: Rows of the data.
        rows_before: Rows that had been scored before this run.
        workers: Counts of each worker of this run.
        workers_lost: Workers of this run that were lost.
        seconds: Seconds from the first request for a worker to the last shard.
    """

    folder: str
    rows: int
    rows_before: int
    workers: tuple[WorkerTotals, ...]
    workers_lost: int
    seconds: float

    @property
    def rows_scored(self) -> int:
        """Rows that this run scored."""
        return sum(each.rows for each in self.workers)

    @property
    def errors(self) -> int:
        """Rows of this run that have an error."""
        return sum(each.errors for each in self.workers)

    @property
    def input_tokens(self) -> int:
        """Tokens of the prompts of this run."""
        return sum(each.input_tokens for each in self.workers)

    @property
    def output_tokens(self) -> int:
        """Tokens that this run generated, or whose likelihood it computed."""
        return sum(each.output_tokens for each in self.workers)

    def tables(self) -> Iterator[pa.Table]:
        """Answers, one table per shard, in source order."""
        return AnswerFolder(uri=self.folder, plan="").read()

    def read(self) -> pa.Table:
        """All answers as one table, in source order.

        They must fit in memory.
        """
        return pa.concat_tables(self.tables())

    def facts(self) -> dict[str, Any]:
        """Numbers of the run, for programs."""
        return {
            "folder": self.folder,
            "rows": self.rows,
            "rows_scored": self.rows_scored,
            "rows_before": self.rows_before,
            "errors": self.errors,
            "input_tokens": self.input_tokens,
            "output_tokens": self.output_tokens,
            "seconds": round(self.seconds, 3),
            "workers": len(self.workers),
            "workers_lost": self.workers_lost,
        }
