from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import forebay as fb
from forebay.data.manifest.prepared import PreparedOrigin
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import InvalidOption, NoFiles, PreparationFailed

Contents = Callable[[str], dict[str, bytes]]


@dataclass
class Squares:
    """Source whose span `n` has the squares from `10 n` on. Span `fails_at` raises while the file `broken` exists."""

    num_spans: int = 4
    empty: tuple[int, ...] = ()
    broken: Path | None = None
    fails_at: int = -1
    log: Path | None = None
    row_group_rows: int = 3

    def origin(self) -> PreparedOrigin:
        return PreparedOrigin(name="squares", function="1", arguments={"spans": str(self.num_spans)})

    def open(self) -> Squares:
        return self

    def spans(self) -> Sequence[int]:
        return range(self.num_spans)

    def read(self, span: int) -> tuple[pa.Table, Mapping[str, int]]:
        if self.log is not None:
            with self.log.open("a") as log:
                log.write(f"{span}\n")
        if span == self.fails_at and self.broken is not None and self.broken.exists():
            raise ValueError("no square today")
        numbers = [] if span in self.empty else [(10 * span + each) ** 2 for each in range(10)]
        return pa.table({"square": pa.array(numbers, pa.int64())}), {"spans": 1, "rows": len(numbers)}

    def facts(self, counts: Sequence[Mapping[str, int]]) -> Mapping[str, Any]:
        return {"spans": sum(each["spans"] for each in counts), "rows": [each["rows"] for each in counts]}


def squares_of(prepared: fb.Prepared) -> list[int]:
    reader = RowGroupReader(prepared.manifest)
    return [value for index in range(len(prepared.manifest)) for value in reader.read(index)["square"].to_pylist()]


def test_each_span_is_one_file(tmp_path: Path) -> None:
    prepared = fb.prepare(Squares(empty=(2,)), into=str(tmp_path), processes=1)
    assert squares_of(prepared) == [number**2 for number in (*range(20), *range(30, 40))]
    assert [file.rows for file in prepared.files] == [(3, 3, 3, 1)] * 3
    assert prepared.facts == {"spans": 4, "rows": [10, 10, 0, 10]}
    again = fb.prepare(Squares(empty=(2,)), into=str(tmp_path))
    assert (again.facts, again.manifest.id) == (prepared.facts, prepared.manifest.id)
    wider = fb.prepare(Squares(empty=(2,)), into=str(tmp_path), row_group_rows=10)
    assert [file.rows for file in wider.files] == [(10,)] * 3


def test_finished_spans_stay_after_a_failure(tmp_path: Path, bytes_of: Contents) -> None:
    log, broken = tmp_path / "log", tmp_path / "broken"
    broken.touch()
    source = Squares(fails_at=2, broken=broken, log=log)
    with pytest.raises(ValueError, match="no square today"):
        fb.prepare(source, into=str(tmp_path / "a"), processes=1)
    broken.unlink()
    prepared = fb.prepare(source, into=str(tmp_path / "a"), processes=1)
    assert log.read_text().split() == ["0", "1", "2", "2", "3"]
    assert prepared.facts["spans"] == 4
    assert bytes_of(prepared.folder) == bytes_of(fb.prepare(Squares(), into=str(tmp_path / "b"), processes=1).folder)


def test_lost_file_of_a_finished_span_is_written_again(tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    source = Squares(fails_at=2, broken=broken)
    with pytest.raises(ValueError, match="no square today"):
        fb.prepare(source, into=str(tmp_path / "a"), processes=1)
    next((tmp_path / "a").glob("*/part-00000*")).unlink()
    broken.unlink()
    assert len(squares_of(fb.prepare(source, into=str(tmp_path / "a"), processes=1))) == 40


@pytest.mark.parametrize("content", ["", '{"file": {"pa'])
def test_part_of_a_record_is_none(tmp_path: Path, content: str) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    source = Squares(fails_at=2, broken=broken)
    with pytest.raises(ValueError, match="no square today"):
        fb.prepare(source, into=str(tmp_path / "a"), processes=1)
    next((tmp_path / "a").glob("*/_spans/000001.json")).write_text(content)
    broken.unlink()
    assert len(squares_of(fb.prepare(source, into=str(tmp_path / "a"), processes=1))) == 40


@pytest.mark.parametrize("options", [{"row_group_rows": 0}, {"processes": 0}, {"processes": -1}], ids=str)
def test_a_number_below_one_is_refused(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(InvalidOption, match=f"{next(iter(options))}=.*1 or more"):
        fb.prepare(Squares(), into=str(tmp_path), **options)


def test_processes_write_the_same_files_and_their_errors_arrive(tmp_path: Path, bytes_of: Contents) -> None:
    broken = tmp_path / "broken"
    broken.touch()
    source = Squares(num_spans=5, fails_at=3, broken=broken)
    with pytest.raises(PreparationFailed, match="(?s)a span could not be prepared: ValueError: no square today.*read"):
        fb.prepare(source, into=str(tmp_path / "a"), processes=2)
    broken.unlink()
    prepared = fb.prepare(source, into=str(tmp_path / "a"), processes=2)
    alone = fb.prepare(Squares(num_spans=5), into=str(tmp_path / "b"), processes=1)
    assert bytes_of(prepared.folder) == bytes_of(alone.folder)
    assert prepared.facts == alone.facts


def test_source_without_rows(tmp_path: Path) -> None:
    with pytest.raises(NoFiles, match="squares gave no row"):
        fb.prepare(Squares(num_spans=1, empty=(0,)), into=str(tmp_path), processes=1)
