"""Parts are in memory where other processes can open it, and in storage elsewhere."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.unit.training.checkpoint.store_laws import chunk_of, in_parts, read_in_parts

from forebay.training.checkpoint import background_writer
from forebay.training.checkpoint.background_writer import BackgroundWriter
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.local_store import DirectStore
from forebay.training.checkpoint.part_buffers import can_share


@pytest.fixture(autouse=True)
def asked_again() -> Iterator[None]:
    can_share.cache_clear()
    yield
    can_share.cache_clear()


def refuse(_: str) -> int:
    raise OSError(errno.ENOSYS, "Function not implemented")


@pytest.mark.parametrize("cat", ["opens it", "is refused", "is missing", "has no memory to open"])
def test_a_sandbox_that_hides_descriptors_costs_time_only(
    cat: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cat != "opens it":
        monkeypatch.setenv("PATH", str(tmp_path))
    if cat == "is refused":
        (tmp_path / "cat").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "cat").chmod(0o700)
    if cat == "has no memory to open":
        monkeypatch.setattr(os, "memfd_create", refuse)
    monkeypatch.setattr(background_writer, "LEAST_BYTES", 0)
    if cat != "opens it":  # the next parts would be beside a checkpoint that is being written
        monkeypatch.setattr(BackgroundWriter, "_add", lambda *_: pytest.fail("its parts are in storage"))
    config = CheckpointConfig(uri=str(tmp_path / "checkpoints"))
    ranks = [DirectStore(config) for _ in range(3)]
    receipts = [store.save_part(3, number, chunk_of(3, number)) for number, store in enumerate(ranks, 1)]
    assert [bool(each.path) for each in receipts] == [cat == "opens it"] * 3
    ranks[0].save(in_parts(3, receipts), receipts)
    found = ranks[0].newest()
    assert found is not None and found.step == 3
    assert read_in_parts(ranks[0], found)["rows"][:, 0].tolist() == [31.0, 32.0, 33.0]
    for each in ranks:
        each.close()
