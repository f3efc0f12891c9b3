"""A library writes complete files or none through this file system."""

from __future__ import annotations

import pickle
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pyarrow import fs

from forebay.sweep.tune.filesystems import whole_files


@contextmanager
def room_for_1000_bytes() -> Iterator[None]:
    """Limit every file of this process to 1000 bytes, which looks like full storage.

    No fixture: pytest could not write its own progress into a file.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)


def test_copies_replace_files_and_are_read_again(tmp_path: Path) -> None:
    (tmp_path / "from").mkdir()
    (tmp_path / "from" / "a").write_text("new")
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "a").write_text("what was there")
    files = pickle.loads(pickle.dumps(whole_files()))
    fs.copy_files(str(tmp_path / "from"), str(tmp_path / "to"), destination_filesystem=files)
    assert [path.name for path in (tmp_path / "to").iterdir()] == ["a"]
    assert files.open_input_stream(str(tmp_path / "to" / "a")).read() == b"new"


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "from"
    path.write_bytes(bytes(5000))
    return path


def test_full_storage_is_told_and_leaves_what_was_there(tmp_path: Path, big: Path) -> None:
    (tmp_path / "to").write_text("old")
    with room_for_1000_bytes(), pytest.raises(OSError, match="File too large"):
        fs.copy_files(str(big), str(tmp_path / "to"), destination_filesystem=whole_files())
    assert (tmp_path / "to").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["from", "to"]


def test_a_file_that_is_given_up_is_not_there(tmp_path: Path) -> None:
    stream = whole_files().open_output_stream(str(tmp_path / "a"))
    stream.write(b"half")
    assert not (tmp_path / "a").exists()
    del stream
    assert list(tmp_path.iterdir()) == []
