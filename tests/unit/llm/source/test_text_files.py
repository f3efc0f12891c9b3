from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import InvalidDocument, InvalidOption, NoFiles
from forebay.llm.source.text_files import cut_spans, find_text_files, refuse_within, scan_parquet
from forebay.llm.source.text_rows import rows_of

ROWS = [{"id": number, "text": "é" * (number % 9) + "x"} for number in range(23)]
FORMATS = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow"]


def read_all(data: Path, span_bytes: int = 16 << 20) -> list[Any]:
    found = find_text_files(str(data))
    manifest = scan_parquet(found) if found.format == "parquet" else None
    spans = cut_spans(found, manifest, span_bytes)
    return [row for span in spans for row in rows_of(span, found.format, manifest)]


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_gives_its_rows_in_order(write: Callable[..., Path], suffix: str) -> None:
    write(ROWS[:10], f"folder/a{suffix}")
    folder = write(ROWS[10:], f"folder/b{suffix}").parent
    assert [row.values for row in read_all(folder)] == ROWS


@pytest.mark.parametrize("span_bytes", range(1, 120, 7))
def test_lines_belong_to_the_span_in_which_they_begin(write: Callable[..., Path], span_bytes: int) -> None:
    path = write(ROWS)
    assert [row.values for row in read_all(path, span_bytes)] == ROWS
    path.write_bytes(path.read_bytes().rstrip(b"\n"))
    assert [row.values for row in read_all(path, span_bytes)] == ROWS


def test_row_groups_are_gathered_into_spans(write: Callable[..., Path]) -> None:
    found = find_text_files(str(write(ROWS, "a.parquet")))
    manifest = scan_parquet(found)
    assert len(manifest) == 4
    whole = int(manifest.bytes.sum())
    assert [(span.start, span.stop) for span in cut_spans(found, manifest, whole // 2)] in (
        [(0, 2), (2, 4)],
        [(0, 3), (3, 4)],
    )
    assert [(span.start, span.stop) for span in cut_spans(found, manifest, 1)] == [(0, 1), (1, 2), (2, 3), (3, 4)]


def test_what_cannot_be_decoded_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "x"}\n\n{"text": \n[1]\n{"text": "\xff"}\n')
    found = [row.values for row in read_all(path, span_bytes=10)]
    assert found[0] == {"text": "x"}
    assert all(isinstance(each, InvalidDocument) for each in found[1:])
    assert [str(each) for each in found[1:3]] == [
        f"{path}, line 3: the line is not JSON (Expecting value: line 2 column 1 (char 10))",
        f"{path}, line 4: the line is a JSON list, not an object",
    ]
    assert str(found[3]).startswith(f"{path}, line 5: the line is not UTF-8")


@pytest.mark.parametrize(
    ("data", "folder", "is_refused"),
    [
        ("lake", "lake/runs", True),
        ("lake", "lake", True),
        ("lake/*.jsonl", "lake/runs", True),
        ("s3://bucket/lake?region=x", "s3://bucket/lake/runs", True),
        (["other", "lake/"], "lake/deep/runs", True),
        ("file:///lake", "/lake/runs", True),
        ("iceberg://catalog/lake", "runs", False),
        ("lake", "lake/_runs", False),
        ("lake", "lake-runs", False),
        ("lake/a.jsonl", "lake/runs", False),
        ("hf:org/lake", "runs", False),
    ],
)
def test_a_folder_within_the_data_is_refused(data: Any, folder: str, *, is_refused: bool) -> None:
    with pytest.raises(InvalidOption, match="storage=.*lies within data=") if is_refused else nullcontext():
        refuse_within(data, "storage", folder)


def test_places_of_rows(write: Callable[..., Path]) -> None:
    parquet = write(ROWS, "p/a.parquet")
    assert read_all(parquet)[8].address() == f"{parquet}, row group 1, row 1"
    arrow = write(ROWS, "q/a.arrow")
    assert read_all(arrow)[8].address() == f"{arrow}, row 8"
    packed = write(ROWS, "r/a.jsonl.gz")
    assert read_all(packed)[13].address() == f"{packed}, line 14"


def test_caches_of_the_datasets_library_are_no_data(write: Callable[..., Path]) -> None:
    write(ROWS, "d/cache-123.arrow")
    assert len(read_all(write(ROWS, "d/data-00000-of-00001.arrow").parent)) == len(ROWS)


def test_several_splits_are_refused(write: Callable[..., Path]) -> None:
    folder = write(ROWS, "d/train/data-0.arrow").parents[1]
    write(ROWS, "d/test/data-0.arrow")
    (folder / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(InvalidOption, match="holds the splits test, train of a dataset. Name the one to train on"):
        find_text_files(str(folder))
    assert len(find_text_files(str(folder / "train")).files) == 1


def test_other_data_is_refused(write: Callable[..., Path], tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    with pytest.raises(InvalidOption, match="unknown format. Give Parquet, JSON Lines or a folder of datasets"):
        find_text_files(str(tmp_path / "a.txt"))
    with pytest.raises(NoFiles, match=r"ending in .parquet, .parq, .pq, .jsonl"):
        find_text_files(str(tmp_path))
    write(ROWS, "a.jsonl")
    write(ROWS, "b.parquet")
    with pytest.raises(InvalidOption, match="several formats"):
        find_text_files([str(tmp_path / "a.jsonl"), str(tmp_path / "b.parquet")])
