"""A folder is read rightly, whatever lies in it, or refused by name. What was left out is said."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import fsspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.left_out import suffix_counts
from forebay.data.sources.parquet_files import find_parquet
from forebay.errors import ForebayError, InvalidOption, NoFiles, ReadFailed

Build = Callable[[Path], object]


def put(path: Path, first: int, rows: int = 4) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({"id": range(first, first + rows)}), path)
    return path


def ids(uri: object) -> list[int]:
    manifest = fb.scan(uri)  # type: ignore[arg-type]
    reader = RowGroupReader(manifest)
    return [row for index in range(len(manifest)) for row in reader.read(index, ["id"])["id"].to_pylist()]


def link(root: Path, name: str, target: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).symlink_to(target)


LINKS: dict[str, tuple[Build, str]] = {
    "to the folder beside it": (lambda root: link(root, "latest", "v1"), "left out"),
    "to the folder, sorted last": (lambda root: link(root, "zz", "v1"), "left out"),
    "to the file beside it": (lambda root: link(root, "v1/b.parquet", "a.parquet"), "left out"),
    "to the root": (lambda root: link(root, "v1/up", ".."), "left out"),
    "to itself by the root": (lambda root: link(root, "me", f"../{root.name}"), "left out"),
    "two loops": (lambda root: (link(root, "v1/p", ".."), link(root, "v1/q", "..")), "left out"),
    "of a link of a link": (lambda root: (link(root, "b", "v1"), link(root, "a", "b")), "left out"),
    "by an absolute path": (lambda root: link(root, "abs", str(root / "v1")), "left out"),
    "to a folder outside": (lambda root: (put(root.parent / "o/b.parquet", 4), link(root, "o", "../o")), "followed"),
    "to a file outside": (
        lambda root: (put(root.parent / "o/b.parquet", 4), link(root, "b.parquet", "../o/b.parquet")),
        "followed",
    ),
    "to a hidden folder": (lambda root: (put(root / ".v2/b.parquet", 4), link(root, "now", ".v2")), "followed"),
    "twice to a folder outside": (
        lambda root: (put(root.parent / "o/b.parquet", 4), link(root, "o", "../o"), link(root, "p", "../o")),
        "left out",
    ),
    "hidden": (lambda root: link(root, "_latest", "v1"), "hidden names"),
}


@pytest.mark.parametrize(("build", "said"), LINKS.values(), ids=LINKS)
@pytest.mark.parametrize("pattern", ["", "*", "**", "**/*.parquet"])
def test_a_file_comes_once_whatever_links_lead_to_it(tmp_path: Path, build: Build, said: str, pattern: str) -> None:
    root = tmp_path / "root"
    put(root / "v1/a.parquet", 0)
    build(root)
    uri = f"{root}/{pattern}".rstrip("/")
    manifest = fb.scan(uri)
    found = ids(uri)
    assert sorted(found) == list(range(len(found))), "each row once"
    assert len(found) == (8 if said == "followed" or (root / "o").exists() else 4)
    assert all(file.path == "v1/a.parquet" for file in manifest.files if file.path.endswith("a.parquet"))
    if pattern in ("", "**"):
        assert said in "; ".join(manifest.notes)
        assert bool(said) == bool(manifest.notes)


@pytest.mark.parametrize("name", ["b.parquet", "day=2", "v2"])
@pytest.mark.parametrize("target", ["/unmounted/b.parquet", "gone", "b.parquet", "v2"])
@pytest.mark.parametrize("pattern", ["", "/*", "/**/*"])
def test_a_link_to_nowhere_is_refused_by_name(tmp_path: Path, name: str, target: str, pattern: str) -> None:
    put(tmp_path / "v1/a.parquet", 0)
    link(tmp_path, name, target)
    with pytest.raises(ReadFailed, match=rf"{name} is a link to {target}, where nothing is"):
        fb.scan(f"{tmp_path}{pattern}")


def test_the_root_may_be_a_link_and_names_stay_its_own(tmp_path: Path) -> None:
    put(tmp_path / "v1/a.parquet", 0)
    link(tmp_path, "latest", "v1")
    manifest = fb.scan(tmp_path / "latest")
    assert (manifest.root, manifest.notes) == (str(tmp_path / "latest"), ())
    both = fb.scan([tmp_path / "latest", tmp_path / "v1"])
    assert (both.num_rows, [file.path for file in both.files]) == (4, ["v1/a.parquet"])


PARTITIONS = ["_date=2024-01-01", ".date=1", "_=1", "_date=a=b", "day=1/_batch=7", "_date=x%2Fy/_hour=1"]


@pytest.mark.parametrize("folder", PARTITIONS)
@pytest.mark.parametrize("pattern", ["", "/*", "/**", "/**/*.parquet"])
@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_partition_whose_key_begins_with_a_hidden_mark_is_data(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, folder: str, pattern: str, place: str
) -> None:
    put(tmp_path / folder / "a.parquet", 0)
    put(tmp_path / "_temporary/0/a.parquet", 100)
    put(tmp_path / "_tmp/day=1/a.parquet", 100)
    put(tmp_path / folder / "_a.parquet", 100)
    root = str(tmp_path)
    if place == "memory":
        memory.put(root, "/hidden", recursive=True)
        root = "memory://hidden"
    assert ids(root + pattern) == [0, 1, 2, 3]
    if not pattern:
        assert any("3 files with hidden names" in note for note in fb.scan(root).notes)


@pytest.mark.parametrize("place", ["local", "memory"])
def test_files_of_other_suffixes_are_counted(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, place: str, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path / "a.parquet", 0)
    for name in ("b.csv", "c/d.csv", "part-0000", "e.parquet.gz", "F.PARQUET", "g.parquet.tmp", ".a.crc", "_SUCCESS"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    root = str(tmp_path)
    if place == "memory":
        memory.put(root, "/others", recursive=True)
        root = "memory://others"
    note = "left out: 6 files of other suffixes (.csv 2, none 1, .PARQUET 1, .parquet.gz 1, .parquet.tmp 1)"
    with caplog.at_level("INFO"):
        assert fb.scan(root).notes == (note,)
    assert note in caplog.text
    assert fb.scan(f"{root}/*.parquet").notes == ()
    # What one of several URIs takes is not left out.
    (tmp_path / "part-0000").write_bytes((tmp_path / "a.parquet").read_bytes())
    found = find_parquet([tmp_path, tmp_path / "part-0000"])
    assert (len(found.files), "none" in found.left_out.notes()[0]) == (2, False)


@pytest.mark.parametrize(
    ("name", "kind"), [("a.csv", "CSV"), ("a.TSV", "CSV"), ("b.jsonl", "JSON Lines"), ("c.orc", "ORC")]
)
def test_a_folder_of_another_format_says_so(tmp_path: Path, name: str, kind: str) -> None:
    (tmp_path / name).write_text("x,y\n1,2\n")
    with pytest.raises(
        NoFiles, match=rf"1 file of other names, e\.g\. {name}.*holds {kind}, and Forebay reads Parquet"
    ):
        fb.scan(tmp_path)


def test_suffixes_beyond_five_are_summed() -> None:
    assert suffix_counts([f"a.{number}" for number in range(8)]).endswith("others 3")


def test_pipes_and_sockets_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path / "a.parquet", 0)
    os.mkfifo(tmp_path / "b.parquet")
    monkeypatch.chdir(tmp_path)  # the path of a socket is short
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("c.parquet")
        manifest = fb.scan(tmp_path)
    assert (manifest.num_rows, manifest.notes) == (4, (f"left out: 2 that are no files (e.g. {tmp_path}/b.parquet)",))


@pytest.mark.parametrize("name", [b"caf\xe9.parquet", b"caf\xe9.txt", b"\xff", b"day=\xe9/a.parquet"])
@pytest.mark.parametrize("pattern", ["", "/*", "/**"])
def test_a_name_that_is_no_utf8_is_shown(tmp_path: Path, name: bytes, pattern: str) -> None:
    put(tmp_path / "a.parquet", 0)
    odd = os.path.join(os.fsencode(tmp_path), name)  # noqa: PTH118 - bytes
    os.makedirs(os.path.dirname(odd), exist_ok=True)  # noqa: PTH103, PTH120
    with open(odd, "wb"):  # noqa: PTH123
        pass
    with pytest.raises(InvalidOption, match=r"\\x(e9|ff).*this name is no UTF-8.*Rename it"):
        fb.scan(f"{tmp_path}{pattern}")


NAMES = ["a\nb.parquet", "a#b.parquet", "a?b.parquet", "50%.parquet", "a%20b.parquet", "a*b.parquet", "a[1].parquet",
         " a .parquet", "\u00e9\u4e2d\U0001f600.parquet", "a\\b.parquet", "x" * 240 + ".parquet", "day=1\n2/a.parquet",
         "k=50%/a.parquet", "k=%zz/a.parquet", "k=a=b/a.parquet", "k=/a.parquet"]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("place", ["local", "memory"])
def test_any_name_is_read_by_its_folder_its_name_and_from_a_saved_manifest(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, name: str, place: str
) -> None:
    if place == "memory" and "?" in name:
        pytest.skip("a ? begins the options of a URI")
    root = tmp_path / "data"
    put(root / name, 0)
    uri = str(root)
    if place == "memory":
        memory.pipe(f"/names/{name}", (root / name).read_bytes())
        uri = "memory://names"
    manifest = fb.scan(uri)
    assert ids(uri) == ids(f"{uri}/{name}") == [0, 1, 2, 3]
    for suffix in ("json", "parquet"):
        manifest.save(tmp_path / f"m.{suffix}")
        again = fb.Manifest.load(tmp_path / f"m.{suffix}")
        assert (again, RowGroupReader(again).read(0, ["id"]).num_rows) == (manifest, 4)


VALUES = {"%3A": ":", "%20": " ", "%2F": "/", "%253A": "%3A", "a%3Db": "a=b", "a=b": "a=b", "50%25": "50%",
          "%zz": "%zz", "%": "%", "50%": "50%", "%E4%B8%AD": "\u4e2d", "\u4e2d": "\u4e2d", "%e9": "%e9"}  # fmt: skip


@pytest.mark.parametrize(("written", "value"), VALUES.items())
@pytest.mark.parametrize("place", ["local", "memory"])
def test_a_partition_value_is_decoded_once(
    tmp_path: Path, memory: fsspec.AbstractFileSystem, written: str, value: str, place: str
) -> None:
    put(tmp_path / f"k={written}x/a.parquet", 0)
    root = str(tmp_path)
    if place == "memory":
        memory.put(root, "/values", recursive=True)
        root = "memory://values"
    manifest = fb.scan(root)
    assert manifest.files[0].constants == (("k", f"{value}x"),)
    assert fb.scan(root, where=f"k == {value + 'x'!r}").num_rows == 4


@pytest.mark.parametrize("pattern", ["", "/*", "/**/*.parquet"])
def test_a_folder_that_may_not_be_opened_is_named(
    tmp_path: Path, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(tmp_path / "a.parquet", 0)
    put(tmp_path / "sub/b.parquet", 4)
    scandir = os.scandir

    def denied(path: str) -> object:  # the tests may run as root
        if str(path).endswith("sub"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", denied)
    with pytest.raises(ForebayError, match=rf"may not be listed.*{tmp_path}/sub"):
        fb.scan(f"{tmp_path}{pattern}")
