"""Checkpoints of several attempts in one folder.

They are ordered by attempt, then step. Only older attempts are deleted.
"""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from forebay.data.plan.cursor import Cursor
from forebay.errors import Fenced, InvalidOption
from forebay.training.checkpoint.checkpoint import Checkpoint, found_in
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles, readable_checkpoints
from forebay.training.checkpoint.files.names import SavedStep, lineage
from forebay.training.checkpoint.local_store import open_local_checkpoints
from forebay.training.checkpoint.uploader import Uploader
from forebay.world import World


def files_of(folder: Path, attempt: int | None, **options: int) -> CheckpointFiles:
    return CheckpointFiles(CheckpointConfig(uri=str(folder), attempt=attempt, **options))


def encoded(step: int, content: bytes = b"state") -> EncodedCheckpoint:
    return EncodedCheckpoint.build({"step": step}, {0: content})


def restored(files: CheckpointFiles) -> tuple[int, bytes]:
    newest = max(found_in(files))
    return newest.attempt, bytes(newest.read(None).shards[0])


def test_late_upload_of_an_older_attempt_is_not_restored(tmp_path: Path) -> None:
    first, second = files_of(tmp_path, 1), files_of(tmp_path, 2)
    first.write(encoded(20, b"first"))
    second.write(encoded(25, b"second"))
    first.write(encoded(30, b"late"))
    assert restored(second) == restored(files_of(tmp_path, None)) == (2, b"second")
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "attempt-000002-step-000000025",
        "step-000000020",
        "step-000000030",
    ]
    assert files_of(tmp_path, None).complete_steps() == [25, 20]
    second.write(encoded(27))
    assert second.names() == [SavedStep(2, 27), SavedStep(2, 25)], "what older attempts left is deleted"


def test_same_step_of_two_attempts_stays_apart(tmp_path: Path) -> None:
    first, second = files_of(tmp_path, 1), files_of(tmp_path, 2)
    second.write(encoded(20, b"second"))
    first.write(encoded(20, b"late"))
    assert restored(second) == (2, b"second")
    assert bytes(files_of(tmp_path, None).read(20).shards[0]) == b"second"
    assert bytes(first.read(20).shards[0]) == b"late"


def test_older_attempt_deletes_nothing_of_a_later_one(tmp_path: Path) -> None:
    first, second = files_of(tmp_path, 1, keep_last=1), files_of(tmp_path, 2)
    for step in (21, 22):
        second.write(encoded(step))
    for step in (30, 31, 32):
        first.write(encoded(step))
    assert second.names()[:2] == [SavedStep(2, 22), SavedStep(2, 21)]
    assert first.names() == [SavedStep(1, 32)], "an attempt sees no later one"


def test_attempt_keeps_what_it_continued_from(tmp_path: Path) -> None:
    files_of(tmp_path, 1, keep_last=9).write(encoded(10))
    files_of(tmp_path, 1, keep_last=9).write(encoded(20))
    third = files_of(tmp_path, 3, keep_every=10)
    third.write(encoded(22))
    assert third.names() == [SavedStep(3, 22), SavedStep(1, 20), SavedStep(1, 10)]
    third.write(encoded(23))
    third.write(encoded(24))
    assert third.names() == [SavedStep(3, 24), SavedStep(3, 23), SavedStep(1, 20), SavedStep(1, 10)]


def test_parts_are_found_where_an_older_attempt_left_them(tmp_path: Path) -> None:
    files_of(tmp_path, 1).write_part(5, 1, b"part of one")
    files_of(tmp_path, 2).write_part(5, 1, b"part of two")
    found = [bytes(reader(0, 7)) for reader in files_of(tmp_path, 2).part_readers(5, 1)]
    assert found == [b"part of", b"part of"]
    assert len(files_of(tmp_path, 1).part_readers(5, 1)) == 1


def test_lineage_leaves_abandoned_steps_out() -> None:
    names = [SavedStep(1, 10), SavedStep(1, 30), SavedStep(2, 25), SavedStep(2, 35), SavedStep(3, 28)]
    assert lineage(names) == [SavedStep(3, 28), SavedStep(2, 25), SavedStep(1, 10)]


@pytest.fixture
def fenced_config(tmp_path: Path) -> CheckpointConfig:
    claim = tmp_path / "attempts" / "000002.json"
    claim.parent.mkdir()
    config = CheckpointConfig(uri=str(tmp_path / "checkpoints"), attempt=1, next_claim=str(claim), storage_every_s=0)
    CheckpointFiles(config).check_fence()
    claim.write_text("{}")
    return config


def test_fenced_attempt_saves_no_checkpoint(fenced_config: CheckpointConfig) -> None:
    with pytest.raises(Fenced, match=r"a later attempt has taken over this run \(.*000002.json\): attempt 1 ends"):
        open_local_checkpoints(fenced_config).save(SimpleNamespace(step=6, shards={}))  # type: ignore[arg-type] # nothing else is read


def test_attempt_whose_folder_a_later_one_removed_is_fenced(
    fenced_config: CheckpointConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was suspended between its question and its write's end."""
    store = open_local_checkpoints(fenced_config)
    ask, asked = CheckpointFiles.check_fence, list[int]()

    def ask_from_the_second_time(files: CheckpointFiles) -> None:
        asked.append(1)
        if len(asked) > 1:
            ask(files)

    monkeypatch.setattr(CheckpointFiles, "check_fence", ask_from_the_second_time)

    def removed(*_: object) -> None:
        raise FileNotFoundError("step-000000006/shard-00000.pt")

    monkeypatch.setattr(CheckpointFiles, "write", removed)
    cursor = Cursor(plan_id="9c02", epoch=1, position=60, global_batch=10)
    checkpoint = Checkpoint(step=6, cursor=cursor, world=World(), shards={0: {}})
    with pytest.raises(Fenced):
        store.save(checkpoint)


def test_fenced_attempt_uploads_nothing(fenced_config: CheckpointConfig) -> None:
    uploader = Uploader(fenced_config)
    uploader.offer(encoded(1))
    uploader.close()
    with pytest.raises(Fenced):
        uploader.flush()
    assert uploader.files.names() == []


@pytest.mark.parametrize(
    "content", ["", "[1]", "null", '{"restorable": 5}', '{"restorable": ["step-1"]}', '{"restorable": "a"}']
)
def test_a_reader_refuses_a_damaged_claim(tmp_path: Path, content: str) -> None:
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "000002.json").write_text(content)
    with pytest.raises(InvalidOption, match=r"000002\.json is not a claim .* remove the file"):
        readable_checkpoints(str(tmp_path))
