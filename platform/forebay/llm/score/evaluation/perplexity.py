"""Perplexity of a model on documents, each by itself.

It does not depend on the number of workers or the packing.
"""

from __future__ import annotations

import math
import tempfile
from dataclasses import dataclass, replace

from forebay.errors import InvalidOption, ScoringFailed
from forebay.llm.score.pool.counters import ProgressListener
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.result import ScoreResult
from forebay.llm.score.scoring import score_rows

_LARGEST_EXPONENT = 700.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """Loss of a model over the targets of documents.

    Targets are the same as in training: the assistant's turns of conversations, completions, all tokens but the first
    of a text.

    Attributes:
        loss: Mean over all targets, in nats.
        targets: Tokens that count.
        documents: Rows that count.
        errors: Rows that do not, because they have no target, or do not fit the model.
        folder: Folder with the log-likelihood of each row. Empty if it was not kept.
    """

    loss: float
    targets: int
    documents: int
    errors: int
    folder: str

    @property
    def perplexity(self) -> float:
        """Exponential of the loss."""
        return math.exp(self.loss) if self.loss < _LARGEST_EXPONENT else math.inf


def measure_perplexity(request: ScoreRequest, *, listener: ProgressListener | None = None) -> Perplexity:
    """Measure the perplexity of `request.model` on `request.data`.

    From log-likelihoods of rows that are kept in `request.to`.

    With an empty `to`, they are kept in a temporary folder, which only works for one worker.

    Raises as `score_rows`, and `ScoringFailed` if no row has a target.
    """
    asked = replace(request, task="log_likelihood", end=True)
    if asked.to:
        return _summary(score_rows(asked, listener=listener), asked.to)
    if asked.workers > 1:
        raise InvalidOption(
            f"workers={asked.workers} need a folder that all of them can write: give to=, on storage of the cluster."
        )
    with tempfile.TemporaryDirectory(prefix="forebay-perplexity-") as folder:
        return _summary(score_rows(replace(asked, to=folder), listener=listener), "")


def _summary(result: ScoreResult, folder: str) -> Perplexity:
    sums: list[float] = []
    targets = documents = rows = 0
    for table in result.tables():
        found = table.select(["log_likelihood", "output_tokens"]).drop_null()
        sums += found["log_likelihood"].to_pylist()
        targets += sum(found["output_tokens"].to_pylist())
        documents, rows = documents + found.num_rows, rows + table.num_rows
    if not targets:
        raise ScoringFailed(f"none of the {rows} rows has a target. Read the column error of {result.folder}.")
    # fsum: the sum does not depend on how rows are divided into shards.
    return Perplexity(
        loss=-math.fsum(sums) / targets, targets=targets, documents=documents, errors=rows - documents, folder=folder
    )
