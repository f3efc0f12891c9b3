"""Every listing refuses folders of table formats and accepts plain folders."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import fsspec
import pytest

from forebay.data.sources import table_formats
from forebay.data.sources.parquet_files import find_parquet
from forebay.errors import NotPlainParquet

DELTA = ("t/_delta_log/00000000000000000000.json", "t/part-0.snappy.parquet", "t/day=1/part-1.snappy.parquet")
ICEBERG = (
    "t/metadata/00001-3f1c7a52-0c6e-4a7e-9d3e-6a1f0c2b4d5e.metadata.json",
    "t/metadata/snap-1.avro",
    "t/data/part-0.parquet",
    "t/data/day=1/part-1.parquet",
)
HUDI = ("t/.hoodie/hoodie.properties", "t/part-0.parquet", "t/day=1/part-1.parquet")
TABLES = {"Delta Lake": DELTA, "Iceberg": ICEBERG, "Hudi": HUDI}

Touch = Callable[..., Path]


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("place", ["t", "", "t/*", "*", "**/*.parquet", "t/**/*.parquet", "*/day=*/*.parquet"])
def test_a_table_is_refused_from_above_and_by_patterns(touch: Touch, name: str, place: str) -> None:
    root = touch(*TABLES[name], "plain/a.parquet")
    if name == "Iceberg":
        place = place.replace("*/day=", "*/data/day=")
    with pytest.raises(
        NotPlainParquet, match=rf"reads from a {name} table at {root}/t: .*plain Parquet.*list"
    ) as found:
        find_parquet(f"{root}/{place}")
    assert found.value.facts["table"] == f"{root}/t"


@pytest.mark.parametrize("name", TABLES)
@pytest.mark.parametrize("place", ["{}day=1", "{}day=1/*.parquet", "{}*.parquet", "{}part-?.*"])
def test_a_place_within_a_table_is_refused(touch: Touch, name: str, place: str) -> None:
    root = touch(*TABLES[name])
    with pytest.raises(NotPlainParquet, match=f"{name} table at {root}/t"):
        find_parquet(f"{root}/t/{place.format('data/' if name == 'Iceberg' else '')}")


@pytest.mark.parametrize("name", TABLES)
def test_files_named_one_by_one_are_taken(touch: Touch, name: str) -> None:
    root = touch(*TABLES[name])
    files = sorted(str(root / file) for file in TABLES[name] if file.endswith(".parquet"))
    assert [file.uri for file in find_parquet(files).files] == files


@pytest.mark.parametrize(
    "others",
    [
        ("d/metadata/readme.json", "d/metadata/a.parquet", "d/data/b.parquet"),
        ("d/metadata/schema.metadata.json", "d/data/b.parquet"),
        ("d/_delta_log/notes.txt", "d/a.parquet"),
        ("d/.hoodie/empty", "d/a.parquet"),
        ("d/_old/t/_delta_log/00000000000000000000.json", "d/_old/t/b.parquet", "d/a.parquet"),
        ("other/_delta_log/00000000000000000000.json", "other/a.parquet", "d/a.parquet"),
    ],
)
@pytest.mark.parametrize("place", ["d", "d/*", "d/**/*.parquet"])
def test_plain_folders_are_read(touch: Touch, others: tuple[str, ...], place: str) -> None:
    root = touch(*others)
    expected = sorted(
        str(root / name)
        for name in others
        if name.startswith("d/") and name.endswith(".parquet") and "_old" not in name
    )
    assert [file.uri for file in find_parquet(f"{root}/{place}").files] == expected


@pytest.mark.parametrize("name", TABLES)
def test_tables_of_other_file_systems(memory: fsspec.AbstractFileSystem, name: str) -> None:
    memory.pipe({f"/{path}": b"x" for path in TABLES[name]})
    day = "data/day=1" if name == "Iceberg" else "day=1"
    for place in ("memory://t", f"memory://t/{day}", "memory://*", f"memory://t/{day}/*.parquet"):
        with pytest.raises(NotPlainParquet, match=f"{name} table"):
            find_parquet(place)


def test_folders_above_are_asked_about_once(touch: Touch, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    original = table_formats.children

    def counted(filesystem: object, folder: str) -> object:
        asked.append(folder)
        return original(filesystem, folder)

    monkeypatch.setattr(table_formats, "children", counted)
    root = touch(*(f"d/day={day}/a.parquet" for day in range(5)))
    find_parquet([f"{root}/d/day={day}" for day in range(5)])
    assert len(asked) == len(set(asked))
