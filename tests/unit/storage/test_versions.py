"""A local file that replaced another one under its old size and time is another version."""

from __future__ import annotations

import json
import os
import shutil
import tarfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet import reading
from forebay.errors import InvalidOption, SourceChanged
from forebay.storage import versions
from forebay.storage.versions import stat

OLD_NS = 1_700_000_000_000_000_000
TRANSFORM = fb.Transform(x=fb.Label("x", dtype="int64"))


def write(path: Path, value: int) -> None:
    """Files that differ in their pages only: neither size nor footer tells them apart."""
    path.parent.mkdir(exist_ok=True)
    table = pa.table({"x": np.full(100, value)})
    pq.write_table(table, path, use_dictionary=False, compression="none", write_statistics=False)
    os.utime(path, ns=(OLD_NS, OLD_NS))


def unpacked(new: Path, path: Path) -> None:
    with tarfile.open(new.with_suffix(".tar"), "w", format=tarfile.PAX_FORMAT) as packed:
        packed.add(new, path.name)
    path.unlink()
    with tarfile.open(new.with_suffix(".tar")) as packed:
        packed.extractall(path.parent, filter="fully_trusted")


def in_place(new: Path, path: Path) -> None:
    path.write_bytes(new.read_bytes())
    os.utime(path, ns=(OLD_NS, OLD_NS))


def linked(new: Path, path: Path) -> None:
    path.unlink()
    path.symlink_to(new)


WAYS: dict[str, Callable[[Path, Path], object]] = {
    "renamed over": lambda new, path: new.replace(path),
    "copied over": shutil.copy2,
    "removed and hard linked": lambda new, path: (path.unlink(), os.link(new, path)),
    "unpacked": unpacked,
    "written in place": in_place,
    "a link to another file": linked,
}
ways = pytest.mark.parametrize("replace", WAYS.values(), ids=WAYS)


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "data/a.parquet"
    write(path, 1)
    return path


@pytest.fixture
def new(tmp_path: Path) -> Path:
    path = tmp_path / "other/b.parquet"
    write(path, 2)
    return path


def value(manifest: fb.Manifest, cache: fb.DiskCache | None) -> int:
    with fb.Loader(fb.Data(plan=fb.build_plan(manifest), transform=TRANSFORM, global_batch=100), cache) as loader:
        return int(next(iter(loader))["x"][0])


@ways
def test_it_is_never_read_as_the_old_one(
    tmp_path: Path, old: Path, new: Path, replace: Callable[[Path, Path], object]
) -> None:
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=10 << 20, min_free_bytes=0)
    before = fb.scan(old.parent)
    for suffix in ("json", "parquet"):
        before.save(tmp_path / f"m.{suffix}")
    assert value(before, cache) == 1
    replace(new, old)
    after = fb.scan(old.parent)
    assert (after.files[0].size, after.files[0].mtime_ns) == (before.files[0].size, before.files[0].mtime_ns)
    assert (after.id, after.version == before.version) == (before.id, False)
    assert [value(after, each) for each in (cache, None)] == [2, 2]
    for manifest in (before, *(fb.Manifest.load(tmp_path / f"m.{suffix}") for suffix in ("json", "parquet"))):
        with pytest.raises(SourceChanged, match=r"a\.parquet.*same size and time, but was replaced"):
            value(manifest, None)


@ways
@pytest.mark.parametrize("is_late", [False, True])
def test_it_is_seen_in_the_middle_of_a_read(
    old: Path,
    new: Path,
    monkeypatch: pytest.MonkeyPatch,
    replace: Callable[[Path, Path], object],
    is_late: bool,
) -> None:
    manifest = fb.scan(old)
    open_input, fetch = reading.open_input, reading.fetch

    def opened(uri: str) -> pa.NativeFile:
        if not is_late:
            replace(new, old)
        return open_input(uri)

    def fetched(*arguments: object, **options: object) -> object:
        if is_late:
            replace(new, old)
        return fetch(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "open_input", opened)
    monkeypatch.setattr(reading, "fetch", fetched)
    with pytest.raises(SourceChanged, match=r"a\.parquet"):
        value(manifest, None)


@pytest.mark.parametrize("size", [4, 50, 2000])
def test_a_file_that_is_cut_or_grows_during_a_read(old: Path, monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    manifest, fetch = fb.scan(old), reading.fetch

    def fetched(*arguments: object, **options: object) -> object:
        os.truncate(old, size)
        os.utime(old, ns=(OLD_NS, OLD_NS))
        return fetch(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(reading, "fetch", fetched)
    with pytest.raises(SourceChanged, match=r"a\.parquet"):
        value(manifest, None)


@pytest.mark.parametrize(
    "touch",
    [lambda path: path.chmod(0o640), lambda path: os.link(path, path.with_suffix(".bak"))],
    ids=["chmod", "link"],
)
def test_a_change_of_the_inode_costs_a_scan_and_never_a_run(old: Path, touch: Callable[[Path], object]) -> None:
    before = fb.scan(old)
    touch(old)
    with pytest.raises(SourceChanged, match="its mode, owner or links were changed"):
        value(before, None)
    after = fb.scan(old)
    assert fb.build_plan(after).id == fb.build_plan(before).id
    assert value(after, None) == 1


def test_copies_of_a_dataset_need_a_word(tmp_path: Path, old: Path) -> None:
    manifest = fb.scan(old)
    shutil.copy2(old, tmp_path / "copy")
    (tmp_path / "copy").replace(old)
    with pytest.raises(SourceChanged, match=r"manifest\.for_copies\(\)"):
        value(manifest, None)
    copies = manifest.for_copies()
    copies.save(tmp_path / "m.json")
    for each in (copies, fb.Manifest.load(tmp_path / "m.json")):
        assert (value(each, None), each.id) == (1, manifest.id)


@pytest.mark.parametrize("suffix", ["json", "parquet"])
def test_a_manifest_of_an_earlier_release_is_refused(tmp_path: Path, old: Path, suffix: str) -> None:
    path = tmp_path / f"m.{suffix}"
    fb.scan(old).save(path)
    if suffix == "json":
        facts = json.loads(path.read_text())
        del facts["files"][0]["stamp"]
        path.write_text(json.dumps(facts))
    else:
        pq.write_table(pq.read_table(path).drop_columns(["file_stamp"]), path)
    with pytest.raises(InvalidOption, match=r"saved by an earlier release.*Scan again"):
        fb.Manifest.load(path)


def test_file_systems_that_make_inodes_up_are_told_by_the_time_alone(
    old: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(versions, "_keeps_inodes", lambda _device: False)
    assert stat(old).stamp == f"0.{old.stat().st_ctime_ns}"
