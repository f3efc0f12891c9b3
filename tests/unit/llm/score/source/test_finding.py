"""Every kind of data as a source of rows, beside the same rows in Parquet."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.errors import InvalidOption, NoFiles, SourceChanged
from forebay.llm.score.engines.engine import RowAnswer
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.scoring import score_rows
from forebay.llm.score.shard_scorer import readable
from forebay.llm.score.source.finding import find_source
from forebay.llm.score.source.text_rows import TextRows
from forebay.llm.score.tasks import ScoreTask
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
    monkeypatch.setattr(text_files, "SPAN_BYTES", 300)
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


KEPT: dict[str, tuple[object, object]] = {
    "a text after numbers": (1, "one"),
    "a number after texts": ("one", 1),
    "a fraction after numbers": (1, 1.5),
    "NaN after numbers": (1, float("nan")),
    "a bool after numbers": (1, True),
    "a number after bools": (True, 1),
    "2**63 after numbers": (1, 2**63),
    "2**53 + 1 after fractions": (0.5, 2**53 + 1),
    "1e400 as a number": (0.5, 10**400),
    "a list after numbers": (1, [1]),
    "an object after texts": ("one", {"a": 1}),
    "another field": ({"a": 1}, {"a": 1, "b": 2}),
    "another field, deep": ([{"a": {"b": 1}}], [{"a": {"b": 1, "c": None}}]),
    "another type, deep": ([{"a": [1]}], [{"a": ["x"]}]),
    "a bool in a list": ([1], [True]),
}


@pytest.mark.parametrize("after", [3, 1100])
@pytest.mark.parametrize("name", KEPT)
def test_a_kept_value_of_another_type_is_an_error_of_its_row(name: str, after: int, tmp_path: Path) -> None:
    usual, other = KEPT[name]
    rows = [{"id": number, "kept": usual, "question": "what"} for number in range(after + 2)]
    rows[after]["kept"] = other
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in rows])
    source = find_source(path)
    assert isinstance(source, TextRows)
    if source.types["kept"] is None:  # both are among the rows that decide the type
        assert after == 3
        with pytest.raises(InvalidOption, match="several types"):
            source.open(["question", "kept"], ["kept"])
        return
    block = source.open(["question", "kept"], ["kept"]).read(0, len(rows))
    kept = pa.table(dict(block.kept))["kept"].to_pylist()
    if after == 3 and not block.errors:  # one type holds both
        assert kept[after] == other or kept[after] != kept[after]
        return
    assert list(block.errors) == [after]
    assert f"line {after + 1}: column 'kept'" in block.errors[after]
    assert kept == [usual] * after + [None, usual]


@pytest.mark.parametrize("column", ["question", "kept"])
def test_half_of_a_character_is_an_error_of_its_row(column: str, tmp_path: Path) -> None:
    rows = [{"question": f"what {number}", "kept": "x"} for number in range(4)]
    rows[2][column] = "\ud83d"
    path = write_lines(tmp_path / "a.jsonl", [json.dumps(row) for row in rows])
    block = find_source(path).open(["question", "kept"], ["kept"]).read(0, 4)
    assert list(block.errors) == [2] and "line 3" in block.errors[2]
    assert pa.table(dict(block.kept))["kept"].to_pylist() == ["x", "x", None, "x"]


@pytest.mark.parametrize("answer", [RowAnswer(text="a\ud83d"), RowAnswer(error="b\udc00"), RowAnswer(text="c")])
def test_an_answer_with_half_of_a_character_is_an_error(answer: RowAnswer) -> None:
    columns = ScoreTask(kind="generate").columns([readable(answer)])
    assert columns["text"].to_pylist() == [answer.text if answer.text == "c" else None]
    assert (columns["error"][0].as_py() is None) == (answer.text == "c")
    assert json.dumps(columns["error"].to_pylist()).count("\\\\u") == (answer.text != "c")


def test_parquet_values_that_python_cannot_hold_are_errors_of_their_rows(
    tmp_path: Path,
) -> None:
    times = pa.array([0, 9 * 10**17, 0], pa.int64()).view(pa.timestamp("us"))
    pq.write_table(pa.table({"question": ["a", "b", "c"], "at": times}), tmp_path / "a.parquet")
    block = find_source(str(tmp_path / "a.parquet")).open(["question", "at"], ["at"]).read(0, 3)
    assert list(block.errors) == [1] and "column 'at'" in block.errors[1]
    assert block.kept["at"].combine_chunks().equals(times)
