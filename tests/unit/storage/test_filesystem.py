"""One spelling per place, for all spellings of the user."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyarrow import fs

from forebay.errors import InvalidOption, ReadFailed
from forebay.storage import arrow_stores
from forebay.storage.filesystem import below, resolve


@pytest.mark.parametrize("spelling", ["{0}/data", "file://{0}/data", "{0}/./x/../data/", "data", "./data"])
def test_local_spellings_are_one_place(spelling: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    location = resolve(spelling.format(tmp_path))
    assert location.path == location.uri == str(tmp_path / "data")
    assert location.is_local


def test_path_objects_and_home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert resolve(Path("~/clicks")).path == str(tmp_path / "clicks")


def test_a_link_keeps_its_name(tmp_path: Path) -> None:
    (tmp_path / "v1").mkdir()
    (tmp_path / "latest").symlink_to("v1")
    assert resolve(tmp_path / "latest").path == str(tmp_path / "latest")


def test_percent_signs_are_literal_in_paths_and_decoded_in_uris(tmp_path: Path) -> None:
    assert resolve(f"{tmp_path}/a%20b").path == f"{tmp_path}/a%20b"
    assert resolve(f"file://{tmp_path}/a%20b").path == f"{tmp_path}/a b"


def test_arrow_file_systems_are_made_once_per_authority(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        asked.append(uri)
        return fs.SubTreeFileSystem("/", fs.LocalFileSystem()), "bucket/forebay-probe"

    monkeypatch.setattr(arrow_stores.fs, "FileSystem", type("Fake", (), {"from_uri": staticmethod(from_uri)}))
    arrow_stores._open_store.cache_clear()
    one = resolve("s3://bucket/a%20b/c.parquet?region=x")
    assert (one.path, one.uri) == ("bucket/a b/c.parquet", "s3://bucket/a%20b/c.parquet?region=x")
    assert not one.is_local
    assert resolve("s3://bucket/other/?region=x").path == "bucket/other"
    assert asked == ["s3://bucket/forebay-probe?region=x"]
    arrow_stores._open_store.cache_clear()


def test_a_file_system_that_cannot_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def from_uri(uri: str) -> tuple[fs.FileSystem, str]:
        raise OSError("no answer")

    monkeypatch.setattr(arrow_stores.fs, "FileSystem", type("Fake", (), {"from_uri": staticmethod(from_uri)}))
    arrow_stores._open_store.cache_clear()
    with pytest.raises(ReadFailed, match=r"gs://bucket/.*no answer.*Check its address"):
        resolve("gs://bucket/data")


def test_fsspec_serves_the_rest() -> None:
    location = resolve("memory://folder/a.parquet")
    with location.fs.open_output_stream(location.path) as stream:
        stream.write(b"abc")
    assert location.fs.get_file_info(location.path).size == 3
    location.fs.delete_file(location.path)


def test_an_unknown_scheme_names_the_known() -> None:
    with pytest.raises(InvalidOption, match=r"s4://.*Use a local path.*s3.*memory") as caught:
        resolve("s4://bucket/data")
    assert caught.value.scheme == "s4"


@pytest.mark.parametrize("options", ["", "?scheme=http"])
@pytest.mark.parametrize("variable", ["AWS_REGION", "AWS_DEFAULT_REGION", None])
def test_a_region_that_cannot_be_asked_for_is_the_environments_or_named(
    monkeypatch: pytest.MonkeyPatch, variable: str | None, options: str
) -> None:
    """Arrow asks Amazon for the region of a bucket, and ignores the environment.

    No other test has a bucket of this name: credentials that one grants stay in the process.
    """
    from_uri = fs.FileSystem.from_uri

    def offline(uri: str) -> object:
        if "region=" not in uri:
            raise OSError("When resolving region for bucket 'offline': AWS Error NETWORK_CONNECTION")
        return from_uri(uri)

    monkeypatch.setattr(fs, "FileSystem", type("Fake", (), {"from_uri": staticmethod(offline)}))
    for each in ("AWS_REGION", "AWS_DEFAULT_REGION"):
        monkeypatch.delenv(each, raising=False)
    arrow_stores._open_store.cache_clear()
    if variable is None:
        with pytest.raises(ReadFailed, match=r"NETWORK_CONNECTION.*\?region=eu-west-1.*AWS_REGION"):
            resolve(f"s3://offline/runs{options}")
    else:
        monkeypatch.setenv(variable, "eu-north-1")
        found = resolve(f"s3://offline/runs{options}")
        assert (found.fs.region, found.path) == ("eu-north-1", "offline/runs")
    arrow_stores._open_store.cache_clear()


@pytest.mark.parametrize("text", ["", " "])
def test_an_empty_path_is_refused(text: str) -> None:
    for open_it in (resolve, lambda path: below(path, "a")):
        with pytest.raises(InvalidOption, match="names no file or folder. .* may be unset"):
            open_it(text)
