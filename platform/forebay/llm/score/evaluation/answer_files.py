"""Answers of finished runs, for those who compare them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from forebay.data.parquet.schemas import missing_column
from forebay.errors import InvalidOption
from forebay.llm.score.answer_folder import AnswerFolder
from forebay.llm.score.plan import FILE_NAME
from forebay.llm.score.tasks import ROW
from forebay.storage.filesystem import resolve
from forebay.storage.json_file import read_json_file


def read_answers(folder: str, columns: Sequence[str]) -> pa.Table:
    """Columns `row` and `columns` of all answers.

    In the order of the source.

    Raises `InvalidOption` for a folder that holds no answers or not all, `MissingColumn` for an unknown column.
    """
    uri = resolve(folder).uri
    rows = plan_facts(uri)["rows"]
    tables = []
    for table in AnswerFolder(uri=uri, plan="").read():
        for name in columns:
            if name not in table.column_names:
                raise missing_column(name, table.column_names, uri)
        tables.append(table.select([ROW, *columns]))
    found = sum(table.num_rows for table in tables)
    if found != rows:
        raise InvalidOption(
            f"{uri} has answers to {found} of {rows} rows: its run has not ended. Run it again.", found=found, rows=rows
        )
    return pa.concat_tables(tables)


def plan_facts(folder: str) -> dict[str, Any]:
    """Facts of the plan in `folder`.

    Raises `InvalidOption` if it has no plan.
    """
    text = read_json_file(folder, FILE_NAME, "scoring run")
    if text is None:
        raise InvalidOption(f"{folder} has no {FILE_NAME}: it is not the folder of a scoring run.", path=folder)
    facts: dict[str, Any] = json.loads(text)["facts"]
    return facts
