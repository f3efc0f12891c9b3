"""A file system without credentials in its pickle works like the original one."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from pyarrow import fs

from forebay.storage import credentials
from forebay.storage.filesystem import resolve
from forebay.sweep.tune.filesystems import without_secrets


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    yield
    credentials._granted.clear()
    credentials._secrets.clear()


def test_pickle_tells_no_credentials_and_finds_them_where_they_are_granted() -> None:
    uri = "s3://AKIATESTKEY:sesame-open-now@bucket/runs?region=us-east-1&endpoint_override=127.0.0.1:1&scheme=http"
    made = without_secrets(resolve(uri))
    assert made.type_name == "py::granted s3"  # opened, with them
    pickled = pickle.dumps(made)
    assert b"sesame" not in pickled and b"AKIATEST" not in pickled
    again = pickle.loads(pickled)
    assert again == made
    opened = again.handler._fs.__reduce__()[1][0]
    assert (opened["access_key"], opened["secret_key"], opened["background_writes"]) == (
        *("AKIATESTKEY", "sesame-open-now"),
        False,
    )


def test_files_and_folders_are_those_of_the_place(tmp_path: Path) -> None:
    place = resolve(f"memory://{uuid.uuid4().hex}")
    (tmp_path / "a").write_text("one")
    (tmp_path / "b").write_text("two")
    files = without_secrets(place)
    fs.copy_files(str(tmp_path), place.path, destination_filesystem=files)
    found = files.get_file_info(fs.FileSelector(place.path))
    assert sorted(info.base_name for info in found) == ["a", "b"]
    files.move(f"{place.path}/b", f"{place.path}/c")
    files.delete_file(f"{place.path}/a")
    with files.open_input_file(f"{place.path}/c") as file:
        assert file.read() == b"two"
    with pytest.raises(FileNotFoundError):
        files.open_input_stream(f"{place.path}/a")
    files.delete_dir(place.path)
    assert files.get_file_info(place.path).type == fs.FileType.NotFound
