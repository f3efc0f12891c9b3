"""Every store gives the rows of the local disk.

In the same order, with clear errors.
"""

from __future__ import annotations

import itertools
import json
import pickle
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import torch

import forebay as fb
from forebay.data.parquet import reading
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.plan.cursor import Cursor
from forebay.errors import InvalidOption, NoFiles, NotPlainParquet, SourceChanged
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import resolve
from forebay.storage.globs import children
from forebay.storage.json_file import read_json_content
from forebay.storage.retry import ReadPolicy
from forebay.training.checkpoint.checkpoint import Checkpoint, DirectoryStore

Folder = Callable[..., Path]


def test_order_is_that_of_the_local_files_and_a_second_epoch_opens_none(
    store: Any, local_files: Path, cache: fb.DiskCache, epochs_of: Any
) -> None:
    expected, _ = epochs_of(fb.scan(local_files), None)
    manifest = fb.scan(store.upload(local_files, "order"))
    digests, sums = epochs_of(manifest, cache)
    assert digests == expected
    assert digests[0] != digests[1]
    # Readers of one process share the open files of some stores.
    assert len(manifest.files) <= sums[0]["parquet_opens"] <= len(manifest) == 6
    assert sums[1]["parquet_opens"] == sums[0]["parquet_opens"]
    assert [unquote(file.path) for file in manifest.files] == [
        "day=1/a.parquet",
        "day=1/b c.parquet",
        "day=2/a.parquet",
    ]


def test_patterns_and_named_files(store: Any, local_files: Path) -> None:
    store.upload(local_files, "patterns")
    assert fb.scan(store.uri("patterns/day=*/a.parquet")).num_rows == 140
    assert fb.scan(store.uri("patterns/day=1/b c.parquet")).num_rows == 25
    assert fb.scan([store.uri("patterns/day=2"), store.uri("patterns/day=1")]).num_rows == 165


def test_an_object_that_changed_since_the_scan(store: Any, parquet_folder: Folder, quick: ReadPolicy) -> None:
    store.upload(parquet_folder({"a.parquet": [8]}, seed=1, folder="v1"), "changed")
    manifest = fb.scan(store.uri("changed"))
    reader = RowGroupReader(manifest, quick)
    assert reader.read(0).num_rows == 8
    # Same size and, if the store's clock has whole seconds, same time.
    store.upload(parquet_folder({"a.parquet": [8]}, seed=2, folder="v2"), "changed")
    with pytest.raises(SourceChanged, match=r"changed/a.parquet.* changed since the scan.*Scan again"):
        reader.read(0)


def test_an_object_that_is_put_back_during_the_read(
    store: Any, parquet_folder: Folder, quick: ReadPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its pages may be of the version between. Stores date versions by the second."""
    first, second = (parquet_folder({"a.parquet": [8, 8]}, seed=seed, folder=f"v{seed}") for seed in (1, 2))
    store.upload(first, "back")
    reader = RowGroupReader(fb.scan(store.uri("back")), quick)
    assert reader.read(0).num_rows == 8  # from here on it may know more about the file
    fetch = reading.fetch

    def between(*given: Any, **options: Any) -> Any:
        monkeypatch.setattr(reading, "fetch", fetch)
        store.upload(second, "back")
        try:
            return fetch(*given, **options)
        finally:
            time.sleep(1.1)
            store.upload(first, "back")

    monkeypatch.setattr(reading, "fetch", between)
    try:
        assert reader.read(1).equals(RowGroupReader(fb.scan(first), quick).read(1))
    except SourceChanged:
        assert store.name != "s3", "there an etag is a hash of the content"


def test_an_object_of_another_size_is_never_read_as_the_one_before(
    store: Any, parquet_folder: Folder, quick: ReadPolicy
) -> None:
    for number, rows in enumerate(([8, 8], [9, 9, 9], [1])):
        store.upload(parquet_folder({"a.parquet": [8, 8]}, seed=1, folder="v1"), f"other-{number}")
        reader = RowGroupReader(fb.scan(store.uri(f"other-{number}")), quick)
        reader.read(0)
        store.upload(parquet_folder({"a.parquet": rows}, seed=2, folder=f"w{number}"), f"other-{number}")
        with pytest.raises(SourceChanged):
            reader.read(1)


def test_a_row_group_of_a_known_file_is_one_get_and_one_head(
    faulty: Any, faults: Any, parquet_folder: Folder, quick: ReadPolicy
) -> None:
    faulty.upload(parquet_folder({"a.parquet": [8] * 6}), "requests")
    reader = RowGroupReader(fb.scan(faulty.uri("requests")), quick)
    reader.read(0)
    faults.set(*({"method": each, "kind": "delay", "seconds": 0, "times": -1} for each in ("GET", "HEAD")))
    for number in range(1, 6):
        reader.read(number)
    assert faults.shown() == [5, 5]


def test_an_object_that_is_gone(store: Any, parquet_folder: Folder, quick: ReadPolicy) -> None:
    store.upload(parquet_folder({"a.parquet": [3]}), "gone")
    manifest = fb.scan(store.uri("gone"))
    store.delete("gone/a.parquet")
    with pytest.raises(SourceChanged, match=r"gone/a.parquet.*no longer exists"):
        RowGroupReader(manifest, quick).read(0)


@pytest.mark.parametrize("log", [".hoodie/hoodie.properties"])
def test_tables_of_other_formats(store: Any, parquet_folder: Folder, quick: ReadPolicy, log: str) -> None:
    table = f"tables/{log.partition('/')[0]}"
    store.upload(parquet_folder({"data/day=1/a.parquet": [3]}), table)
    assert fb.scan(store.uri(f"{table}/data"), policy=quick).num_rows == 3
    store.write(f"{table}/{log}", b"{}")
    for place in ("", "/data/day=1", "/data/*/*.parquet", "/**/*.parquet"):
        with pytest.raises(NotPlainParquet, match=log.partition("/")[0]):
            fb.scan(store.uri(table + place), policy=quick)
    assert fb.scan(store.uri(f"{table}/data/day=1/a.parquet"), policy=quick).num_rows == 3


@pytest.mark.parametrize("log", ["_delta_log/00000000000000000000.json", "metadata/v1.metadata.json"])
def test_a_table_is_refused_where_its_log_cannot_be_read(
    store: Any, parquet_folder: Folder, quick: ReadPolicy, log: str
) -> None:
    table = f"tables/{log.partition('/')[0]}"
    store.upload(parquet_folder({"a.parquet": [3]}), table)
    store.write(f"{table}/{log}", b"{}")
    with pytest.raises(InvalidOption, match="settings of a store from|Name the table by its catalog"):
        fb.scan(store.uri(table), policy=quick)
    with pytest.raises(NotPlainParquet, match=log.partition("/")[0]):
        fb.scan(store.uri(f"{table}/*.parquet"), policy=quick)


def test_a_json_file_that_is_replaced_is_read_whole(store: Any) -> None:
    """Short and long contents in turn, as heartbeats are.

    A reader never meets the beginning of one.
    """
    place = resolve(store.uri("replaced/alive.json"))
    contents = [json.dumps({"step": 0}).encode(), json.dumps({"step": 12_345, "why": "x" * 1_000}).encode()]
    write_atomically(place.uri, contents[0])
    ended = threading.Event()

    def replace() -> None:
        for content in itertools.islice(itertools.cycle(contents), 30):
            write_atomically(place.uri, content)
            time.sleep(0.02)
        ended.set()

    with ThreadPoolExecutor(1) as writer:
        replaced = writer.submit(replace)
        while not ended.is_set() and not replaced.done():
            # Azure refuses a range that the new content does not have.
            with suppress(OSError):
                assert read_json_content(place) in contents
        replaced.result()
    assert read_json_content(place) == contents[1]


def test_nothing_there(store: Any, quick: ReadPolicy) -> None:
    with pytest.raises(NoFiles, match=r"nowhere\S* does not exist"):
        fb.scan(store.uri("nowhere"), policy=quick)
    with pytest.raises(NoFiles, match="No file matches"):
        fb.scan(store.uri("nowhere/*.parquet"), policy=quick)


def test_a_manifest_saved_there_reads_the_same_in_another_process(
    store: Any, local_files: Path, tmp_path: Path
) -> None:
    manifest = fb.scan(store.upload(local_files, "saved"))
    manifest.save(store.uri("saved/manifest.json"))
    assert fb.Manifest.load(store.uri("saved/manifest.json")) == manifest
    (tmp_path / "pickled").write_bytes(pickle.dumps(manifest.take([1])))
    code = (
        "import pickle, sys; from forebay.data.parquet.reading import RowGroupReader as R\n"
        "print(R(pickle.load(open(sys.argv[1], 'rb'))).read(0, ['id'])['id'].to_pylist())"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "pickled")]
    ids = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ids.strip() == str(list(range(40, 70)))


def test_files_are_replaced_whole(store: Any) -> None:
    for content in (b"one" * 1000, b"two"):
        write_atomically(store.uri("whole/a.json"), content)
        place = resolve(store.uri("whole/a.json"))
        with place.fs.open_input_stream(place.path) as stream:
            assert stream.read() == content


def test_commits_are_saved_and_restored(store: Any) -> None:
    uri = store.uri("run/checkpoints")
    for step in (1, 2, 3):
        state = {"weights": torch.full((5,), float(step)), "step": step}
        cursor = Cursor(plan_id="p", epoch=0, position=step, global_batch=4)
        DirectoryStore(uri).save(Checkpoint(step=step, cursor=cursor, world=fb.World(), shards={0: state}))
    restored = DirectoryStore(uri).newest()
    assert restored is not None
    assert restored.step == 3
    assert restored.cursor.position == 3
    assert torch.equal(restored.shards[0]["weights"], torch.full((5,), 3.0))
    place = resolve(uri)
    names = {info.base_name for info in children(place.fs, place.path)}
    assert names == {"step-000000002", "step-000000003"}
