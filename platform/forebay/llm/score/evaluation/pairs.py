"""Pairs of answers as prompts of a judge, each in both orders."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from forebay.errors import InvalidOption
from forebay.llm.score.evaluation.answer_files import plan_facts, read_answers
from forebay.llm.score.evaluation.win_rate_request import WinRateRequest
from forebay.llm.score.prompts import PromptSource, find_prompt
from forebay.llm.score.source.finding import find_source
from forebay.llm.score.source.row_source import RowSource
from forebay.storage.atomic import write_atomically, write_failed
from forebay.storage.filesystem import resolve
from forebay.storage.small_files import read_small

_ROWS_AT_A_TIME = 1024
_SCHEMA = pa.schema([("pair", pa.int64()), ("prompt", pa.string()), ("by", pa.string())])


def judged_pairs(request: WinRateRequest) -> tuple[pa.Table, int]:
    """Prompts of the judge, two rows for each pair, and the number of rows without a pair.

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


def write_pairs(pairs: pa.Table, uri: str) -> None:
    """Write the pairs, unless equal ones are there: a file that is written again would be other data.

    Raises `WriteFailed`.
    """
    place, content = resolve(uri), io.BytesIO()
    pq.write_table(pairs, content, row_group_size=_ROWS_AT_A_TIME, compression="zstd")
    try:
        if place.fs.get_file_info(place.path).type and read_small(place) == content.getvalue():
            return
        if not place.is_local:
            place.fs.create_dir(place.path.rpartition("/")[0], recursive=True)
        write_atomically(uri, content.getvalue())
    except OSError as error:
        raise write_failed("The pairs of the judge", uri, error) from error


def _questions(request: WinRateRequest, data: RowSource) -> list[str | None]:
    """Text of each question: the last turn of a conversation. None where there is none."""
    source = find_prompt(PromptSource(column=request.prompt), data.columns, data.name)
    reader = data.open(source.columns(data.columns), ())
    found: list[str | None] = []
    for start in range(0, data.num_rows, _ROWS_AT_A_TIME):
        block = reader.read(start, min(start + _ROWS_AT_A_TIME, data.num_rows))
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
