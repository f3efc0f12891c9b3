"""Throughput of an engine over batch sizes.

Measured on the first rows of the data.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from forebay.errors import InvalidOption, ScoringFailed, whole_number
from forebay.llm.chat.messages import InvalidConversation
from forebay.llm.score.engines.engine import Prompt
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import ScoreSetup, set_up
from forebay.report.curves import Curve, Plot, curves
from forebay.report.elements import element, section
from forebay.report.page import document, fragment, write_page
from forebay.storage.filesystem import below

FILE_NAME = "batches.html"
LEAST_ROWS, ROWS_PER_BATCH = 64, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchThroughput:
    """Rates of one batch size and one engine.

    Per second, without the time to open the engine.
    """

    batch: int
    rows: int
    input_tokens: int
    output_tokens: int
    seconds: float

    @property
    def requests_per_s(self) -> float:
        """Rows per second."""
        return self.rows / self.seconds

    @property
    def output_tokens_per_s(self) -> float:
        """Generated tokens per second."""
        return self.output_tokens / self.seconds


_CURVES: Mapping[str, Callable[[BatchThroughput], float]] = {
    "requests/s": lambda each: each.requests_per_s,
    "output tokens/s": lambda each: each.output_tokens_per_s,
}


def sweep_batches(request: ScoreRequest, batches: Sequence[int]) -> Iterator[BatchThroughput]:
    """Measure each batch size with one engine in this process.

    Yields the rates as they are measured. Writes no answers.

    A batch size is measured on `ROWS_PER_BATCH` batches, and at least `LEAST_ROWS` rows, after one batch to warm up.

    Raises as `score_rows`, and `InvalidOption` for sizes below 1.
    """
    if not batches:
        raise InvalidOption("no batch size is given. Give some, such as 1,8,16,32,64,128.")
    for batch in batches:
        whole_number("batch", batch, least=1)
    setup = set_up(request)
    prompts = _prompts(setup, max(LEAST_ROWS, ROWS_PER_BATCH * max(batches)))
    if not prompts:
        raise ScoringFailed(f"none of the first rows of {request.data} has a prompt.")
    for batch in batches:
        yield _measured(replace(request, batch=batch), setup, prompts[: max(LEAST_ROWS, ROWS_PER_BATCH * batch)])


def write_batch_page(found: Sequence[BatchThroughput], folder: str) -> str:
    """Write the curves over batch sizes into `folder`.

    Returns the page's URI. Raises `WriteFailed`.
    """
    pictures = [
        curves(
            Plot(
                title=name,
                x_label="batch",
                curves=[Curve(label=name, points=[(each.batch, value(each)) for each in found if value(each) > 0])],
                is_log=True,
            )
        )
        for name, value in _CURVES.items()
    ]
    shown = fragment(folder, section("Throughput", element("div", *pictures, class_="pair")))
    text = document("Batch sizes", shown)
    return write_page(below(folder, FILE_NAME), text, "The page of the batch sizes")


def _measured(request: ScoreRequest, setup: ScoreSetup, prompts: list[Prompt]) -> BatchThroughput:
    engine = request.engine_spec().open()
    try:
        setup.spec.task.ask(engine, prompts[: request.batch])
        began = time.perf_counter()
        answers = setup.spec.task.ask(engine, prompts)
        seconds = time.perf_counter() - began
    finally:
        engine.close()
    return BatchThroughput(
        batch=request.batch,
        rows=len(prompts),
        input_tokens=sum(each.input_tokens for each in answers),
        output_tokens=sum(each.output_tokens for each in answers),
        seconds=seconds,
    )


def _prompts(setup: ScoreSetup, count: int) -> list[Prompt]:
    """First `count` prompts of the data.

    Rows without a prompt are left out, and a small dataset is repeated.
    """
    stop = min(count, setup.layout.rows)
    found = []
    block = setup.spec.source.open(setup.spec.columns, ()).read(0, stop)
    for row, values in enumerate(block.rows):
        if row in block.errors:
            continue
        try:
            found.append(setup.spec.prompts.prompt(row, values))
        except InvalidConversation:
            continue
    return (found * (count // max(len(found), 1) + 1))[:count]
