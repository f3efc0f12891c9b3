"""Prepared datasets in object stores."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import pyarrow as pa
import pytest

import forebay as fb
from forebay.data.manifest.prepared import SEAL, list_prepared, remove_prepared
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import InvalidOption
from forebay.storage import writer_lease
from forebay.storage.writer_lease import LeaseTimes


def numbers(count: int) -> Iterator[pa.Table]:
    for start in range(count, 0, -50):
        rows = list(range(start - 50, start))
        yield pa.table({"row": rows, "half": [row / 2 for row in rows]})


@pytest.fixture(autouse=True)
def leases_settle_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leases that no other process wants: a second less for each preparation."""
    monkeypatch.setattr(writer_lease, "LeaseTimes", partial(LeaseTimes, settle_s=0.02))


def test_prepared_once_read_and_removed(store: Any) -> None:
    into = store.uri("prepared")
    options: dict[str, Any] = {"count": 500, "into": into, "inputs": [], "key": "row", "row_group_rows": 64}
    first = fb.prepare(numbers, **options, fit=fb.preparation.Moments("half"))
    again = fb.prepare(numbers, **options, fit=fb.preparation.Moments("half"))
    assert again.sealed_at == first.sealed_at
    assert again.statistics["half"].mean == 124.75
    assert not any(secret in repr(again) + again.folder for secret in store.secrets)
    reader = RowGroupReader(again.manifest)
    rows = [row for index in range(len(again.manifest)) for row in reader.read(index, ["row"])["row"].to_pylist()]
    assert rows == list(range(500))
    ((folder, found),) = list_prepared(into)
    assert found is not None and found.manifest == first.manifest
    store.delete(f"prepared/{folder.partition('?')[0].rpartition('/')[2]}/{SEAL}")
    with pytest.raises(InvalidOption, match=r"has no prepared\.json"):
        fb.Prepared.load(folder)
    remade = fb.prepare(numbers, **options, fit=fb.preparation.Moments("half"))
    assert remade.manifest == first.manifest
    remove_prepared(remade.folder)
    assert [found for _, found in list_prepared(into) if found] == []
