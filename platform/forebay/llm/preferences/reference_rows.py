"""Log-probabilities of a reference, prepared once beside the rows.

They are computed in one process, with the GPU of this machine if there is one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from forebay.data.loader.batch import Batch
from forebay.data.manifest.prepared import PreparedOrigin
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.preparation.progress import tell
from forebay.data.preparation.request import preparation_options
from forebay.data.preparation.spans.prepare_spans import SpanMap, SpanWriter, WrittenSpan, in_processes, prepare_spans
from forebay.data.preparation.spans.process_pool import map_unordered
from forebay.data.transform.fingerprint.values import canonical, digest, value_identity
from forebay.llm.models import TINY
from forebay.llm.preferences.answers import log_probabilities, row_sums
from forebay.llm.preferences.reference import base_model
from forebay.llm.recipe import Recipe
from forebay.llm.source.folders import folder_digest
from forebay.llm.source.prepared_tokens import PreparedTokens, prepared_tokens
from forebay.llm.tokens import PAIRS, REFERENCE, TARGETS, TOKENS, pair_arrays
from forebay.runtime.formatting import count_text
from forebay.runtime.gpus import num_gpus

VERSION = 2
"""Part of every fingerprint. Raised when equal rows would get other numbers."""
_TEXTS = "most texts of a row"


def with_reference(
    tokens: PreparedTokens, recipe: Recipe, *, into: str, seed: int = 0, gpus: float | None = None
) -> PreparedTokens:
    """Token rows with the log-probabilities of the model that `recipe` begins with.

    Prepared once, under a fingerprint of rows, model and type of the computation. Those that are finished stay after a
    kill.

    Args:
        tokens: Rows of pairs of answers, or of answers with labels.
        recipe: Recipe of the training.
        into: Folder of prepared datasets.
        seed: Seed of the run, from which the tiny model is drawn.
        gpus: 0 computes on the CPU. None: on a GPU of this machine, if there is one.
    """
    device = torch.device("cuda" if gpus != 0 and num_gpus() else "cpu")
    source = ReferenceSource(tokens, recipe, seed=seed, device=device)
    options = preparation_options(
        into=into, key=(), row_group_rows=source.row_group_rows, fit=(), fit_on=None, inputs=None, version=None
    )
    # A process of its own returns all memory of the GPU to the workers.
    call_all: SpanMap = _in_a_process if device.type == "cuda" else in_processes(1)
    return prepared_tokens(prepare_spans(source, options, call_all))


def _in_a_process(writer: SpanWriter, tasks: Sequence[tuple[int, Any]]) -> Iterator[tuple[int, WrittenSpan]]:
    yield from map_unordered(writer, tasks, processes=1, apart=True)


class ReferenceSource:
    """Token rows as a source of the same rows with log-probabilities.

    A `SpanSource`. A span is a row group.
    """

    def __init__(self, tokens: PreparedTokens, recipe: Recipe, *, seed: int, device: torch.device) -> None:
        self._tokens, self._recipe, self._seed, self._device = tokens, recipe, seed, device

    @property
    def row_group_rows(self) -> int:
        """Rows of the largest row group: none is cut."""
        return max(rows for file in self._tokens.prepared.files for rows in file.rows)

    def origin(self) -> PreparedOrigin:
        """Rows, model, and types of its weights and of the computation."""
        model, rows = self._recipe.model, self._tokens.prepared
        facts: Mapping[str, Any] = {
            "rows": rows.fingerprint,
            "model": f"{model.vocab_size} {self._seed}" if model.name == TINY else folder_digest(model.name),
            "quantization": str(model.quantization),
            "dtype": str(self._recipe.compute_type(self._device)),
            "weights": str(self._recipe.weight_type(self._device)),
        }
        return PreparedOrigin(
            name="reference",
            function=digest(f"reference of preferences {VERSION}".encode()),
            arguments={name: digest(canonical(value_identity(value)).encode()) for name, value in facts.items()},
            inputs=rows.origin.inputs,
        )

    def open(self) -> ReferenceReader:
        """Open a reader of the row groups. The model is built at the first one."""
        return ReferenceReader(self._tokens, self._recipe, seed=self._seed, device=self._device)


class ReferenceReader:
    """Reader of the row groups of a `ReferenceSource`. A `SpanReader`."""

    def __init__(self, tokens: PreparedTokens, recipe: Recipe, *, seed: int, device: torch.device) -> None:
        self._tokens, self._recipe, self._seed, self._device = tokens, recipe, seed, device
        self._model: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_model": None}

    def spans(self) -> Sequence[int]:
        return range(len(self._tokens.prepared.manifest))

    def read(self, span: int) -> tuple[pa.Table, Mapping[str, int]]:
        if self._model is None:
            with torch.random.fork_rng(devices=[]):
                self._model = base_model(self._recipe, self._seed, self._device)
        table = RowGroupReader(self._tokens.prepared.manifest).read(span, [TOKENS, TARGETS])
        whole, sums = table.combine_chunks(), list[list[float]]()
        for start in range(0, whole.num_rows, self._recipe.per_device_batch):
            part = whole.slice(start, self._recipe.per_device_batch).combine_chunks().to_batches()[0]
            sums += self._sums(part)
        column = pa.array(sums, pa.list_(pa.float64()))
        tell(f"reference: row group {span + 1} of {len(self.spans())}, {count_text(whole.num_rows)} rows")
        return whole.append_column(REFERENCE, column), {_TEXTS: max(map(len, sums), default=0)}

    def facts(self, counts: Sequence[Mapping[str, int]]) -> Mapping[str, Any]:
        self._model = None
        facts = self._tokens.prepared.facts
        return {**facts, "counts": asdict(self._tokens.counts), "reference": max(each[_TEXTS] for each in counts)}

    def _sums(self, rows: pa.RecordBatch) -> list[list[float]]:
        """Log-probabilities of the texts of each row."""
        arrays = {name: torch.from_numpy(np.asarray(each)) for name, each in pair_arrays(rows).items()}
        batch = Batch(arrays, num_rows=len(rows), size=len(rows)).to(self._device)
        with torch.no_grad(), self._recipe.autocast(self._device):
            scores = log_probabilities(self._model, batch, chunk=self._recipe.loss_chunk)
        return row_sums(scores, arrays[PAIRS])
