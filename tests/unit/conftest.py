"""Manifests without files, Python in its own processes, messages of preparations, and a fork server of many runs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import fsspec
import numpy as np
import pytest
from tests.unit.kept_server import KeptForkServer

from forebay.data.manifest.manifest import Field, File, Manifest
from forebay.data.preparation.progress import Report, preparation_listener
from forebay.training.driver.local import driver as local_driver


@pytest.fixture(scope="session")
def memory_manifest() -> Callable[..., Manifest]:
    """`make([3, 1, 5], groups_per_file=2) -> Manifest` of row groups with these row counts. No file exists."""

    def make(rows: Sequence[int], groups_per_file: int = 3) -> Manifest:
        index = np.arange(len(rows))
        count = np.asarray(rows, dtype=np.int64)
        files = [
            File(path=f"part-{number:06d}.parquet", size=1000 + number, mtime_ns=1, etag="")
            for number in range(-(-len(rows) // groups_per_file))
        ]
        return Manifest(
            root="memory://",
            files=tuple(files),
            fields=(Field(name="id", type="int64", nullable=True),),
            columns=("id",),
            file_of=(index // groups_per_file).astype(np.int32),
            group_of=(index % groups_per_file).astype(np.int32),
            rows=count,
            bytes=count * 8,
            source_bytes=count * 8,
        )

    return make


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """`start(code, *arguments) -> Popen` runs code in its own process, which is killed at the end of the test."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", code, *map(str, arguments)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def messages() -> Iterator[list[str]]:
    """Everything preparations report in the test, without counts of rows."""
    found: list[str] = []

    def keep(message: Report) -> None:
        if isinstance(message, str):
            found.append(message)

    with preparation_listener(keep):
        yield found


@pytest.fixture(scope="session")
def one_fork_server() -> Iterator[KeptForkServer]:
    """The server of all tests that ask for `kept_fork_server`. It ends with the session."""
    server = KeptForkServer()
    yield server
    server.end()


@pytest.fixture
def kept_fork_server(one_fork_server: KeptForkServer, monkeypatch: pytest.MonkeyPatch) -> KeptForkServer:
    """Runs of the local driver fork their workers from one server. One of its own takes 2.5 CPU seconds of imports."""
    monkeypatch.setattr(local_driver, "ForkServer", lambda _: one_fork_server)
    return one_fork_server


@pytest.fixture
def touch(tmp_path: Path) -> Callable[..., Path]:
    """`touch("a.parquet", "x/b.parquet")` makes these files of one byte. Returns their folder."""

    def make(*names: str) -> Path:
        for name in names:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(b"x")
        return tmp_path

    return make


@pytest.fixture
def memory() -> Iterator[fsspec.AbstractFileSystem]:
    """File system in the memory of this process, empty afterwards."""
    filesystem = fsspec.filesystem("memory")
    yield filesystem
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
