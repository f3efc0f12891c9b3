from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.waiting import until

from forebay.errors import InvalidOption, WriteFailed
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.uploader import Uploader

PATIENCE_S = 60.0


def encoded_at(step: int) -> EncodedCheckpoint:
    return EncodedCheckpoint.build({"step": step}, {0: b"state of %d" % step})


def _holds(uploads: Uploader, step: int) -> bool:
    return step in [held.step for held in uploads.in_use()]


@pytest.fixture
def make_uploads(tmp_path: Path) -> Iterator[Callable[..., Uploader]]:
    made: list[Uploader] = []

    def make(**options: float) -> Uploader:
        made.append(
            Uploader(CheckpointConfig(uri=str(tmp_path / "checkpoints"), **{"storage_every_s": 1e6, **options}))
        )
        return made[-1]

    yield make
    for uploads in made:
        uploads.close()


class Storage:
    """Layer between `CheckpointFiles` and the disk.

    It holds writes up, or refuses them.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_open = threading.Event()
        self.is_open.set()
        self.error: Exception | None = None
        self.begun: list[int] = []
        original = CheckpointFiles.write

        def write(files: CheckpointFiles, encoded: EncodedCheckpoint) -> None:
            self.begun.append(encoded.step)
            assert self.is_open.wait(PATIENCE_S)
            if self.error is not None:
                raise self.error
            original(files, encoded)

        monkeypatch.setattr(CheckpointFiles, "write", write)


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> Storage:
    return Storage(monkeypatch)


def test_the_first_is_written_at_once_and_others_when_time_has_passed(make_uploads: Callable[..., Uploader]) -> None:
    uploads = make_uploads()
    uploads.offer(encoded_at(1))
    until(lambda: uploads.is_done)
    for step in (2, 3):
        uploads.offer(encoded_at(step))
    assert uploads.files.steps() == [1] and not uploads.is_done
    assert [held.step for held in uploads.in_use()] == [3]
    uploads.flush()
    assert uploads.is_done and uploads.files.steps() == [3, 1] and uploads.in_use() == []


def test_without_another_commit_the_newest_is_written_when_it_is_due(make_uploads: Callable[..., Uploader]) -> None:
    uploads = make_uploads(storage_every_s=0.2)
    uploads.offer(encoded_at(1))
    until(lambda: uploads.is_done)
    uploads.offer(encoded_at(2))
    until(lambda: uploads.files.steps() == [2, 1])


def test_only_the_newest_of_many_is_written(make_uploads: Callable[..., Uploader], storage: Storage) -> None:
    uploads = make_uploads(storage_every_s=0.0)
    storage.is_open.clear()
    uploads.offer(encoded_at(1))
    until(lambda: storage.begun == [1])
    for step in range(2, 9):
        uploads.offer(encoded_at(step))
    assert sorted(held.step for held in uploads.in_use()) == [1, 8]
    storage.is_open.set()
    until(lambda: uploads.is_done)
    assert storage.begun == [1, 8]


def test_all_that_are_kept_for_ever_are_written(make_uploads: Callable[..., Uploader], storage: Storage) -> None:
    uploads = make_uploads(keep_every=3)
    for step in range(1, 14):
        uploads.offer(encoded_at(step))
    uploads.flush()
    assert set(storage.begun) >= {3, 6, 9, 12, 13}
    assert set(uploads.files.steps()) >= {3, 6, 9, 12, 13}


def test_going_back_is_written_at_once(make_uploads: Callable[..., Uploader]) -> None:
    uploads = make_uploads(keep_every=10)
    for step in (10, 20):
        uploads.offer(encoded_at(step))
    uploads.flush()
    uploads.offer(encoded_at(15))
    assert uploads.files.steps() == [15, 10]
    uploads.offer(encoded_at(15))
    until(lambda: uploads.is_done)


def test_going_back_during_an_upload(make_uploads: Callable[..., Uploader], storage: Storage) -> None:
    uploads = make_uploads()
    storage.is_open.clear()
    uploads.offer(encoded_at(20))
    until(lambda: storage.begun == [20])
    back = threading.Thread(target=uploads.offer, args=(encoded_at(15),))
    back.start()
    assert back.is_alive(), "the later one might still be found"
    storage.is_open.set()
    back.join(PATIENCE_S)
    assert uploads.files.steps() == [15]


def test_a_failed_upload_is_told_and_tried_again(
    make_uploads: Callable[..., Uploader], storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    uploads = make_uploads(storage_every_s=0.0)
    storage.error = OSError("no space left")
    uploads.offer(encoded_at(1))
    until(lambda: "could not be written" in caplog.text and uploads.files.uri in caplog.text)
    with pytest.raises(WriteFailed, match=rf"{uploads.files.uri} \(OSError: no space left\).*has room"):
        uploads.flush()
    storage.error = None
    uploads.offer(encoded_at(2))
    until(lambda: uploads.is_done)
    assert uploads.files.steps()[0] == 2


def test_storage_that_fails_does_not_hold_up_training(
    make_uploads: Callable[..., Uploader], storage: Storage, caplog: pytest.LogCaptureFixture
) -> None:
    uploads = make_uploads(keep_every=1)
    storage.error = OSError("down")
    for step in range(1, 9):
        uploads.offer(encoded_at(step))
    assert "The checkpoint of step 1 is not kept" in caplog.text
    assert len(uploads.in_use()) <= 4
    storage.error = None
    uploads.flush()
    assert uploads.files.steps()[:2] == [8, 7]


def test_what_is_forgotten_is_not_written(make_uploads: Callable[..., Uploader], storage: Storage) -> None:
    uploads = make_uploads()
    uploads.offer(encoded_at(1))
    uploads.flush()
    uploads.offer(encoded_at(2))
    uploads.discard()
    uploads.flush()
    assert uploads.is_done and uploads.files.steps() == [1]


def test_what_waits_for_room_is_held_and_does_not_come_back_as_the_newest(
    make_uploads: Callable[..., Uploader], storage: Storage
) -> None:
    uploads = make_uploads(keep_every=10)
    storage.is_open.clear()
    for step in (10, 20):
        uploads.offer(encoded_at(step))
    slow = threading.Thread(target=uploads.offer, args=(encoded_at(30),))
    slow.start()
    until(lambda: _holds(uploads, 30))
    assert slow.is_alive()
    uploads.offer(encoded_at(31))
    assert _holds(uploads, 30)
    storage.is_open.set()
    slow.join(PATIENCE_S)
    uploads.flush()
    assert uploads.files.steps() == [31, 30, 20, 10]


def test_what_is_forgotten_waits_for_nothing_and_is_not_begun(
    make_uploads: Callable[..., Uploader], storage: Storage
) -> None:
    uploads = make_uploads(keep_every=10)
    uploads.offer(encoded_at(5))
    uploads.flush()
    storage.is_open.clear()
    uploads.offer(encoded_at(10))
    until(lambda: storage.begun[-1] == 10)
    uploads.offer(encoded_at(20))
    for step in (30, 9):
        slow = threading.Thread(target=uploads.offer, args=(encoded_at(step),))
        slow.start()
        until(partial(_holds, uploads, step))
        uploads.discard()
        slow.join(PATIENCE_S)
        assert not slow.is_alive() and not uploads._is_failing, "nor for the storage to give up"
    storage.is_open.set()
    until(lambda: uploads.in_use() == [])
    assert storage.begun == [5, 10] and uploads.is_done


def test_of_those_taken_together_none_is_begun_after_it_was_forgotten(
    make_uploads: Callable[..., Uploader], storage: Storage
) -> None:
    uploads = make_uploads(keep_every=10)
    storage.error = OSError("down")
    for step in (10, 20, 21):
        uploads.offer(encoded_at(step))
    until(lambda: uploads._is_failing)
    storage.error, storage.begun = None, []
    storage.is_open.clear()
    flushing = threading.Thread(target=uploads.flush)
    flushing.start()
    until(lambda: storage.begun == [10])
    uploads.discard()
    storage.is_open.set()
    flushing.join(PATIENCE_S)
    assert storage.begun == [10] and uploads.is_done


def test_nothing_is_left_to_do_after_one_was_forgotten_in_mid_upload(
    make_uploads: Callable[..., Uploader], storage: Storage
) -> None:
    uploads = make_uploads(storage_every_s=0.0)
    storage.is_open.clear()
    uploads.offer(encoded_at(1))
    until(lambda: storage.begun == [1])
    uploads.discard()
    storage.is_open.set()
    until(lambda: uploads.in_use() == [])
    assert uploads._due_in_s() is None, "its thread would spin"
    assert uploads.is_done


@pytest.mark.parametrize("options", [{"keep_last": 0}, {"keep_every": 0}, {"storage_every_s": -1.0}])
def test_bounds_that_cannot_work(options: dict[str, float]) -> None:
    with pytest.raises(InvalidOption, match=next(iter(options))):
        CheckpointConfig(uri="x", **options)  # type: ignore[arg-type]
