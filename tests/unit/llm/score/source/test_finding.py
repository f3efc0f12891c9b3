"""Every kind of data as a source of rows, beside the same rows in Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from forebay.errors import InvalidOption, NoFiles, SourceChanged
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows
from forebay.llm.score.source.finding import find_source
from forebay.llm.source import text_files

Requests = Callable[..., ScoreRequest]
ROWS = [{"id": number, "question": f"question {number} " * (number % 7 + 1)} for number in range(60)]


def write_lines(path: Path, lines: list[str]) -> str:
    """Lines as a file, compressed as its name says."""
    codec = {".gz": "gzip", ".zst": "zstd"}.get(path.suffix)
    path.parent.mkdir(exist_ok=True)
    with pa.output_stream(path, compression=codec) as stream:
        stream.write("\n".join(lines).encode())
    return str(path)


@pytest.mark.parametrize("suffix", [".jsonl", pytest.param(".jsonl.gz", marks=pytest.mark.variation), ".jsonl.zst"])
def test_rows_of_any_range(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr(text_files.cut_spans, "__defaults__", (300,))
    for name, rows in (("a", ROWS[:40]), ("b", ROWS[40:])):
        lines = [line for row in rows for line in (json.dumps(row), "")]
        write_lines(tmp_path / "data" / f"{name}{suffix}", lines)
    source = find_source(str(tmp_path / "data"))
    assert (source.num_rows, source.columns) == (60, ("id", "question"))
    reader = source.open(["question"], [])
    for start, stop in [(0, 60), *np.random.default_rng(0).integers(0, 61, (20, 2)).tolist()]:
        if start < stop:
            assert [row["question"] for row in reader.read(start, stop).rows] == [
                row["question"] for row in ROWS[start:stop]
            ]


def test_parquet_rows_of_any_range(parquet_folder: Callable[..., Path]) -> None:
    reader = find_source(str(parquet_folder({"a.parquet": [5, 1, 9], "b.parquet": [4]}))).open(["id"], ["id"])
    every = reader.read(0, 19).kept["id"].to_pylist()
    assert len(every) == 19
    for start, stop in np.random.default_rng(0).integers(0, 20, (40, 2)).tolist():
        if start < stop:
            assert [row["id"] for row in reader.read(start, stop).rows] == every[start:stop]


def test_lines_that_are_no_rows_have_an_error_with_their_place(request_of: Requests, tmp_path: Path) -> None:
    lines = [json.dumps(row) for row in ROWS[:6]]
    lines[2], lines[4] = '{"id": 2, "question"', '{"id": "four", "question": "what"}'
    data = write_lines(tmp_path / "bad.jsonl", ["", *lines, "[1]"])
    with pytest.raises(InvalidOption, match="keep= names 'id', which has values of several types"):
        score_rows(request_of(data=data, keep=("id",)))
    result = score_rows(request_of(data=data, max_tokens=1, shard_rows=4))
    errors = result.read()["error"].to_pylist()
    assert [error is None for error in errors] == [True, True, False, True, True, True, False]
    assert f"{data}, line 4: the line is not JSON" in errors[2]
    assert f"{data}, line 8: the line is a JSON list, not an object" in errors[6]
    assert (result.rows, result.errors) == (7, 2)


def test_value_of_another_type_than_those_of_the_first_rows(
    request_of: Requests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("forebay.llm.score.source.text_rows._SAMPLE_ROWS", 3)
    rows = [*ROWS[:5], {"id": "five", "question": "what"}]
    data = write_lines(tmp_path / "bad.jsonl", [json.dumps(row) for row in rows])
    found = score_rows(request_of(data=data, max_tokens=1, keep=("id",))).read().to_pylist()
    assert [row["id"] for row in found] == [0, 1, 2, 3, 4, None]
    assert "line 6: column 'id' is 'five', and it has int64 in the first rows" in found[5]["error"]


def test_answers_are_those_of_the_same_rows_in_parquet(request_of: Requests, tmp_path: Path) -> None:
    asked = {"data": f"{request_of().data}/1.parquet", "max_tokens": 2, "keep": ("id",)}
    whole = score_rows(request_of(**asked, to=f"{request_of().to}-parquet")).read()
    rows = find_source(asked["data"]).open(["id", "question"], []).read(0, whole.num_rows).rows
    data = write_lines(tmp_path / "questions.jsonl", [json.dumps(row) for row in rows])
    assert score_rows(request_of(**asked | {"data": data})).read().equals(whole)
    with pytest.raises(InvalidOption, match="holds the output of plan"):
        score_rows(request_of(**asked))


def test_changed_and_missing_files(tmp_path: Path) -> None:
    data = write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in ROWS])
    source = find_source(data)
    write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in ROWS[1:]])
    with pytest.raises(SourceChanged, match="was changed while it was scored"):
        source.open(["id"], []).read(0, 1)
    with pytest.raises(InvalidOption, match="has no rows"):
        find_source(write_lines(tmp_path / "empty.jsonl", ["", " "]))
    (tmp_path / "folder").mkdir()
    with pytest.raises(NoFiles):
        find_source(str(tmp_path / "folder"))


@pytest.mark.variation
def test_folder_of_the_datasets_library(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    datasets.Dataset.from_list(ROWS).save_to_disk(str(tmp_path / "saved"))
    source = find_source(str(tmp_path / "saved"))
    assert [row["id"] for row in source.open(["id"], ["id"]).read(3, 9).rows] == list(range(3, 9))
