from __future__ import annotations

import json
import os
import resource
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.unit.training.checkpoint.store_laws import checkpoint_at

from forebay.errors import BadJob, CursorMismatch, InvalidOption
from forebay.training.checkpoint.checkpoint import DirectoryStore
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import Bytes, metadata_checksum
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "run" / "checkpoints"


def steps_in(folder: Path) -> list[int]:
    return sorted(int(path.name.removeprefix("step-")) for path in folder.iterdir())


def test_newest_gives_back_what_was_saved(folder: Path) -> None:
    directory = DirectoryStore(folder)
    saved = checkpoint_at(120, rng=[(3, None, "MT19937")], facts={"loss": 0.5})
    directory.save(saved)
    found = DirectoryStore(folder).newest()
    assert found is not None
    assert (found.step, found.cursor, found.world) == (saved.step, saved.cursor, saved.world)
    assert torch.equal(found.shards[0]["weight"], saved.shards[0]["weight"])
    assert found.shards[0]["rng"] == [(3, None, "MT19937")]
    assert sorted(path.name for path in (folder / "step-000000120").iterdir()) == [
        "checkpoint.json",
        "shard-00000.pt",
        "shard-00001.pt",
    ]


def test_nothing_saved_is_none(folder: Path) -> None:
    assert DirectoryStore(folder).newest() is None


def test_only_the_newest_are_kept(folder: Path) -> None:
    directory = DirectoryStore(folder, keep_last=3)
    for step in range(1, 12):
        directory.save(checkpoint_at(step))
        assert steps_in(folder) == list(range(max(1, step - 2), step + 1))
    with pytest.raises(InvalidOption, match="keep_last=0"):
        DirectoryStore(folder, keep_last=0)
    with pytest.raises(InvalidOption, match="keep_every=0"):
        DirectoryStore(folder, keep_every=0)


def test_multiples_are_kept_for_ever(folder: Path) -> None:
    directory = DirectoryStore(folder, keep_last=2, keep_every=5)
    for step in range(1, 14):
        directory.save(checkpoint_at(step))
    assert steps_in(folder) == [5, 10, 12, 13]
    directory.save(checkpoint_at(8))
    assert steps_in(folder) == [5, 8], "what was given up by going back stays under no rule"


def test_a_write_deletes_no_later_step_that_came_while_it_was_under_way(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory, successor = DirectoryStore(folder), DirectoryStore(folder)
    directory.save(checkpoint_at(99))
    directory.save(checkpoint_at(120))
    write = CheckpointFiles._write

    def slow(files: CheckpointFiles, path: str, contents: Bytes) -> None:
        write(files, path, contents)
        if path.endswith("100/checkpoint.json"):
            successor.save(checkpoint_at(105))
            (folder / "step-000000106").mkdir()

    monkeypatch.setattr(CheckpointFiles, "_write", slow)
    directory.save(checkpoint_at(100))
    assert steps_in(folder)[-2:] == [105, 106] and 120 not in steps_in(folder)
    newest = directory.newest()
    assert newest is not None and newest.step == 105


def truncate_state(step: Path) -> None:
    (step / "shard-00000.pt").write_bytes((step / "shard-00000.pt").read_bytes()[:-1])


def empty_state(step: Path) -> None:
    (step / "shard-00000.pt").write_bytes(b"")


def remove_state(step: Path) -> None:
    (step / "shard-00000.pt").unlink()


def remove_seal(step: Path) -> None:
    (step / "checkpoint.json").unlink()


def remove_other_shard(step: Path) -> None:
    (step / "shard-00001.pt").unlink()


def empty_shard_table(step: Path) -> None:
    metadata = json.loads((step / "checkpoint.json").read_text()) | {"shards": {}}
    del metadata["xxh3_128"]
    (step / "checkpoint.json").write_text(json.dumps(metadata | {"xxh3_128": metadata_checksum(metadata)}))


def truncate_seal(step: Path) -> None:
    (step / "checkpoint.json").write_bytes((step / "checkpoint.json").read_bytes()[:-3])


def list_as_seal(step: Path) -> None:
    (step / "checkpoint.json").write_text("[]")


def flip_state_byte(step: Path) -> None:
    content = bytearray((step / "shard-00000.pt").read_bytes())
    content[len(content) // 2] ^= 1
    (step / "shard-00000.pt").write_bytes(content)


def move_cursor(step: Path) -> None:
    text = (step / "checkpoint.json").read_text()
    assert '\\"position\\": 20' in text
    (step / "checkpoint.json").write_text(text.replace('\\"position\\": 20', '\\"position\\": 30'))


TEARS = [
    truncate_state,
    empty_state,
    remove_state,
    remove_seal,
    remove_other_shard,
    empty_shard_table,
    truncate_seal,
    list_as_seal,
    flip_state_byte,
    move_cursor,
]


@pytest.mark.parametrize("tear", TEARS)
def test_a_torn_commit_is_passed_over(
    folder: Path, tear: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    directory = DirectoryStore(folder)
    directory.save(checkpoint_at(1))
    directory.save(checkpoint_at(2))
    tear(folder / "step-000000002")
    found = directory.newest({0})
    assert found is not None and found.step == 1
    assert "step 2 is corrupt" in caplog.text
    tear_first = folder / "step-000000001" / "checkpoint.json"
    tear_first.unlink()
    assert directory.newest() is None


def test_every_flipped_byte_of_a_commit_is_noticed(folder: Path) -> None:
    directory = DirectoryStore(folder)
    directory.save(checkpoint_at(1))
    for name in ("shard-00000.pt", "shard-00001.pt", "checkpoint.json"):
        path = folder / "step-000000001" / name
        content = path.read_bytes()
        for at in range(0, len(content), max(1, len(content) // 300)):
            path.write_bytes(content[:at] + bytes([content[at] ^ 4]) + content[at + 1 :])
            assert_not_taken(directory)
        path.write_bytes(content)
    assert directory.newest() is not None


def assert_not_taken(directory: DirectoryStore) -> None:
    try:
        found = directory.newest()
    except CursorMismatch:  # the flip hit the version: a checkpoint of another release raises an error
        return
    # White space of the seal has no meaning.
    assert found is None or found.cursor == checkpoint_at(1).cursor


def test_a_flipped_byte_in_a_shard_that_is_not_read_costs_nothing(folder: Path) -> None:
    directory = DirectoryStore(folder)
    directory.save(checkpoint_at(2))
    flip_state_byte(folder / "step-000000002")
    found = directory.newest({1})
    assert found is not None
    assert found.shards == {1: {"part": 2}}
    assert directory.newest() is None


def test_the_next_save_clears_torn_and_abandoned_steps(folder: Path) -> None:
    directory = DirectoryStore(folder)
    for step in (100, 200, 300):
        directory.save(checkpoint_at(step))
    remove_seal(folder / "step-000000300")
    (folder / "notes").mkdir()
    directory.save(checkpoint_at(250))
    assert sorted(path.name for path in folder.iterdir()) == ["notes", "step-000000200", "step-000000250"]


def test_saving_a_step_again_replaces_it_as_a_whole(folder: Path) -> None:
    directory = DirectoryStore(folder)
    directory.save(checkpoint_at(7, note="first"))
    truncate_seal(folder / "step-000000007")
    directory.save(checkpoint_at(7, note="second"))
    found = directory.newest()
    assert found is not None and found.shards[0]["note"] == "second"


def test_a_write_that_fails_leaves_the_commit_before_it(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    directory = DirectoryStore(folder)
    directory.save(checkpoint_at(1))
    original = CheckpointFiles._write

    def fail_at_seal(self: CheckpointFiles, path: str, contents: bytes) -> None:
        if path.endswith("checkpoint.json"):
            raise OSError("disk full")
        original(self, path, contents)

    monkeypatch.setattr(CheckpointFiles, "_write", fail_at_seal)
    with pytest.raises(OSError, match="disk full"):
        directory.save(checkpoint_at(2))
    found = directory.newest()
    assert found is not None and found.step == 1


def test_a_writer_killed_in_the_metadata_makes_no_checkpoint_complete(folder: Path) -> None:
    directory, files = DirectoryStore(folder), CheckpointFiles(CheckpointConfig(uri=str(folder)))
    directory.save(checkpoint_at(1))
    process = os.fork()
    if process == 0:
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills at the first byte beyond the limit
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, 3_000))
        try:
            directory.save(replace(checkpoint_at(2), shards={number: {} for number in range(100)}))
        finally:
            os._exit(0)
    _, status = os.waitpid(process, 0)
    assert os.WTERMSIG(status) == signal.SIGXFSZ and (folder / "step-000000002" / "shard-00099.pt").exists()
    assert files.complete_steps() == [1]
    directory.save(checkpoint_at(2))
    assert steps_in(folder) == [1, 2] and len(list((folder / "step-000000002").iterdir())) == 3, "nothing is left of it"


def test_a_later_version_is_refused_not_passed_over(folder: Path) -> None:
    directory = DirectoryStore(folder)
    directory.save(checkpoint_at(1))
    directory.save(checkpoint_at(2))
    path = folder / "step-000000002" / "checkpoint.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"version": 4}))
    with pytest.raises(CursorMismatch, match=r"version 4.*version 3"):
        directory.newest()


def test_other_file_systems() -> None:
    directory = DirectoryStore("memory://runs/one/checkpoints")
    assert directory.newest() is None
    for step in (1, 2, 3):
        directory.save(checkpoint_at(step))
    found = directory.newest()
    assert found is not None and found.step == 3
    assert CheckpointFiles(CheckpointConfig(uri="memory://runs/one/checkpoints")).steps() == [3, 2]


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (np.float64(0.5), r"objects\.s\.best is a numpy\.float64.*float\(x\)"),
        (np.ones(2), r"objects\.s\.best is a numpy\.ndarray.*torch\.from_numpy"),
        ([{np.int64(3): 1}], r"the key objects\.s\.best\[0\]\.3 is a numpy\.int64"),
    ],
)
def test_a_state_that_could_not_be_read_back_is_refused_when_it_is_saved(folder: Path, value: Any, said: str) -> None:
    directory = DirectoryStore(folder)
    with pytest.raises(BadJob, match=said):
        directory.save(checkpoint_at(1, objects={"s": {"best": value}}))
    assert directory.newest() is None
    # None at first: a type that cannot be restored appears at a later save.
    directory.save(checkpoint_at(2, objects={"s": {"best": None}}))
    with pytest.raises(BadJob, match=said):
        directory.save(checkpoint_at(3, objects={"s": {"best": value}}))
    assert steps_in(folder) == [2], "the save that was refused left a folder"


def test_only_new_types_are_read_back(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loads: list[object] = []
    original = torch.load
    monkeypatch.setattr(torch, "load", lambda *args, **options: (loads.append(1), original(*args, **options))[1])
    directory = DirectoryStore(folder)
    for step, value in enumerate([1, 2, 3, None, None], 1):
        directory.save(checkpoint_at(step, value=value))
    assert len(loads) == 2
