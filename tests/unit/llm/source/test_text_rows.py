"""Lines and rows that no example can be made of: an error of the row with its place, which obeys `on_bad_rows`."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from forebay.errors import CorruptFile, InvalidDocument
from forebay.llm.source.columns import find_schema
from forebay.llm.source.text_files import cut_spans, find_text_files, scan_parquet
from forebay.llm.source.text_rows import count_rows
from forebay.llm.source.token_reader import ExampleRows, OnBadRows
from forebay.storage.credentials import Access

GOOD: dict[str, dict[str, Any]] = {
    "text": {"text": "a"},
    "prompt": {"prompt": "a", "completion": "b"},
    "messages": {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]},
    "chosen": {"prompt": "a", "chosen": "b", "rejected": "c"},
    "instruction": {"instruction": "a", "output": "b"},
    "conversations": {"conversations": [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}]},
    "input_ids": {"input_ids": [1, 2]},
}
"""A row of each schema, by its first column."""
BAD_LINES = {
    "half of a character in a value": rb'{"other": "\ud83d"}',
    "half of a character in a key": rb'{"\udc00": 1}',
    "half of a character, deep": rb'{"other": [{"a": ["\uD800x"]}]}',
    "bytes of half a character": b'{"other": "\xed\xa0\x80"}',
    "Latin-1": '{"other": "\xe9"}'.encode("latin-1"),
    "UTF-16": '{"other": 1}'.encode("utf-16-le"),
    "a zero byte": b'{"other": "\x00"}',
    "zero bytes in place of a line": bytes(12),
    "nested very deep": b'{"other": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested deep": b'{"other": ' + b"[" * 200 + b"]" * 200 + b"}",
    "a key twice": b'{"other": 1, "other": 2}',
    "a key twice, deep": b'{"other": [{"a": 1, "b": 2, "a": 1}]}',
    "a number of 5,000 digits": b'{"other": ' + b"9" * 5000 + b"}",
    "cut": b'{"other": "tex',
    "another cut": b"{",
    "no object": b"[1]",
    "two objects": b"{} {}",
    "a single quote": b"{'other': 1}",
}
BAD_VALUES: dict[str, Any] = {
    "null": None,
    "number": 3,
    "2**63": 2**63,
    "2**64": 2**64,
    "infinite": float("inf"),
    "NaN": float("nan"),
    "empty": "",
    "list of lists": [[]],
    "list of numbers": [2**63, -(2**63) - 1],
    "true": True,
    "object": {"role": None},
    "list of null": [None],
    "list of bools": [True],
    "list of objects": [{"role": ["user"], "content": {}, "from": {}, "value": 2**70}],
}


def examples(path: Path, column: str, on_bad_rows: OnBadRows) -> tuple[list[Any], int]:
    """Examples of a file, and how many rows were skipped."""
    found = find_text_files(str(path))
    manifest = scan_parquet(found) if found.format == "parquet" else None
    schema = find_schema(list(GOOD[column]), {})
    rows = ExampleRows(
        format=found.format, schema=schema, names={}, on_bad_rows=on_bad_rows, manifest=manifest, access=Access([])
    )
    skipped: list[None] = []
    spans = cut_spans(found, manifest)
    made = [each for span in spans for each in rows.examples(span, lambda each: each, lambda: skipped.append(None))]
    return made, len(skipped)


def write(folder: Path, lines: list[bytes], suffix: str) -> Path:
    path = folder / f"a{suffix}"
    content = b"\n".join(lines)
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    return path


def check(path: Path, column: str, line: int, good: int) -> None:
    """The row at `line` is an error with its place, and alone left out."""
    with pytest.raises(InvalidDocument) as caught:
        examples(path, column, "raise")
    assert f"{path}, line {line}: " in str(caught.value)
    str(caught.value).encode()
    made, skipped = examples(path, column, "skip")
    assert (len(made), skipped) == (good, 1)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("name", BAD_LINES)
def test_a_line_that_is_no_row_is_an_error_of_this_row(name: str, suffix: str, tmp_path: Path) -> None:
    row = json.dumps(GOOD["text"]).encode()
    bad = BAD_LINES[name].replace(b"\n", b"")
    check(write(tmp_path, [row, b"", row, bad, row], suffix), "text", 4, 3)


@pytest.mark.parametrize("column", GOOD)
@pytest.mark.parametrize("value", BAD_VALUES)
def test_a_value_of_another_type_is_an_error_of_this_row(value: str, column: str, tmp_path: Path) -> None:
    row = GOOD[column]
    bad = json.dumps(row | {column: BAD_VALUES[value]}).encode()
    check(write(tmp_path, [json.dumps(row).encode(), bad], ".jsonl"), column, 2, 1)


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz"])
@pytest.mark.parametrize("ends", [b"\n", b"\r\n", b"\n\n", b"\r\n \t\r\n"], ids=repr)
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"], ids=["", "marked"])
def test_each_way_to_end_a_line_is_read(mark: bytes, ends: bytes, suffix: str, tmp_path: Path) -> None:
    texts = ["a", "\u2028b\u0085", "\ud83d\ude00 \0".encode("utf-16", "surrogatepass").decode("utf-16"), "\\ud83d"]
    lines = [json.dumps({"text": text}, ensure_ascii=number % 2 == 0).encode() for number, text in enumerate(texts)]
    path = tmp_path / f"a{suffix}"
    content = mark + ends.join([*lines, b""])
    path.write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    made, skipped = examples(path, "text", "raise")
    assert ([each.text for each in made], skipped) == (texts, 0)


@pytest.mark.parametrize("kept", [0.2, 0.9, 0.99])
def test_a_compressed_file_that_was_cut_is_named(kept: float, tmp_path: Path) -> None:
    whole = gzip.compress(b"\n".join(json.dumps({"text": f"text {number}"}).encode() for number in range(2000)))
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(whole[: int(len(whole) * kept)])
    for on_bad_rows in ("raise", "skip"):
        with pytest.raises(CorruptFile, match=r"a\.jsonl\.gz is corrupt: it was cut off"):
            examples(path, "text", on_bad_rows)
    (span,) = cut_spans(find_text_files(str(path)), None)
    with pytest.raises(CorruptFile, match=r"a\.jsonl\.gz is corrupt"):
        count_rows(span, "compressed")


@pytest.mark.parametrize("suffix", [".parquet", ".arrow"])
def test_values_that_python_cannot_hold_are_errors_of_their_rows(suffix: str, tmp_path: Path) -> None:
    times = pa.array([0, 9 * 10**17, 0], pa.int64()).view(pa.timestamp("us"))
    table = pa.table({"text": ["a", "b", "c"], "at": times})
    path = tmp_path / f"a{suffix}"
    if suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_stream(path, table.schema) as writer:
            writer.write_table(table)
    with pytest.raises(InvalidDocument, match=r"row 1: column 'at'"):
        examples(path, "text", "raise")
    made, skipped = examples(path, "text", "skip")
    assert ([each.text for each in made], skipped) == (["a", "c"], 1)


def test_an_arrow_file_that_is_no_utf_8_or_cut_is_named(tmp_path: Path) -> None:
    table = pa.table({"text": pa.array([b"a", b"\xff", b"c"]).view(pa.string())})
    path = tmp_path / "a.arrow"
    with pa.ipc.new_stream(path, table.schema) as writer:
        writer.write_table(table)
    made, skipped = examples(path, "text", "skip")
    assert ([each.text for each in made], skipped) == (["a", "c"], 1)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(CorruptFile, match=r"a\.arrow is corrupt"):
        examples(path, "text", "skip")
