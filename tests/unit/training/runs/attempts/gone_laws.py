"""Laws of an attempt whose own claim is missing: it keeps nothing, restores nothing, and ends after its limit."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

import pytest
from pyarrow.fs import FileSelector, FileType

from forebay.errors import Fenced, ForebayError, ReadFailed, WriteFailed
from forebay.storage.filesystem import below, resolve
from forebay.storage.json_file import read_json_content
from forebay.training.checkpoint.config import CheckpointConfig
from forebay.training.checkpoint.encoded import EncodedCheckpoint
from forebay.training.checkpoint.files import claim as claim_module
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles
from forebay.training.checkpoint.files.claim import Claim, ClaimGone
from forebay.training.checkpoint.uploader import Uploader
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts import fence as fence_module
from forebay.training.runs.attempts.fence import Fence
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles
from forebay.training.runs.attempts.start import create_attempt, start_attempt

WAIT_S = 10.0


def begin(run: str) -> Fence:
    fence = start_attempt(run, StartPolicy(), print)
    assert isinstance(fence, Fence)
    return fence


def config_of(run: str, fence: Fence) -> CheckpointConfig:
    """Options of the checkpoints of an attempt, as its driver makes them."""
    return CheckpointConfig(
        uri=below(run, "checkpoints"),
        attempt=fence.number,
        next_claim=fence.next_claim_uri,
        own_claim=fence.claim_uri,
        token=fence.token,
        storage_every_s=1e6,
    )


def encoded(step: int) -> EncodedCheckpoint:
    return EncodedCheckpoint.build({"step": step}, {0: b"state"})


def write(uri: str, content: bytes) -> None:
    location = resolve(uri)
    with location.fs.open_output_stream(location.path, compression=None) as stream:
        stream.write(content)


def remove_folder(run: str) -> None:
    location = resolve(run)
    location.fs.delete_dir(location.path)


def remove_claim(run: str) -> None:
    location = resolve(AttemptFiles(run).claim_uri(1))
    location.fs.delete_file(location.path)


def cut_claim(run: str) -> None:
    uri = AttemptFiles(run).claim_uri(1)
    write(uri, read_json_content(resolve(uri))[:-9])


def empty_claim(run: str) -> None:
    write(AttemptFiles(run).claim_uri(1), b"")


def garble_claim(run: str) -> None:
    write(AttemptFiles(run).claim_uri(1), b"\xff\x00[[")


def replace_claim(run: str) -> None:
    write(AttemptFiles(run).claim_uri(1), replace(Claim.of_this_process(1), host="elsewhere").to_json())


def make_again(run: str) -> None:
    """A second start finds no folder, and makes it again."""
    remove_folder(run)
    assert create_attempt(run, 1) is not None


def take_over_after_removal(run: str) -> None:
    remove_claim(run)
    assert create_attempt(run, 2) is not None


Strike = Callable[[str], None]
GONE: tuple[Strike, ...] = (remove_folder, remove_claim, cut_claim, empty_claim, garble_claim)
TAKEN: tuple[Strike, ...] = (replace_claim, make_again, take_over_after_removal)


def content_of(storage: str) -> dict[str, bytes | None]:
    """All files and folders below `storage`."""
    location = resolve(storage)
    found = location.fs.get_file_info(FileSelector(location.path, recursive=True, allow_not_found=True))
    held = dict[str, bytes | None]()
    for info in found:
        if info.type == FileType.File:
            with location.fs.open_input_stream(info.path, compression=None) as stream:
                held[info.path] = stream.read()
        else:
            held[info.path] = None
    return held


class GoneClaimLaws:
    """Laws of a store with exclusive creation. `storage` is a folder of its own."""

    @pytest.fixture
    def storage(self) -> str:
        raise NotImplementedError

    @pytest.fixture(autouse=True)
    def soon(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(claim_module, "GONE_S", 0.0)
        monkeypatch.setattr(fence_module, "AGAIN_S", 0.0)

    @pytest.mark.parametrize("strike", [*GONE, *TAKEN])
    def test_nothing_is_written_any_more(self, storage: str, strike: Strike) -> None:
        run = below(storage, strike.__name__)
        fence = begin(run)
        files, uploader = CheckpointFiles(config_of(run, fence)), Uploader(config_of(run, fence))
        files.write(encoded(10))
        strike(run)
        before = content_of(storage)
        with pytest.raises(Fenced if strike in TAKEN else ClaimGone):
            fence.ask()
        for act in (lambda: files.write(encoded(20)), lambda: files.write_part(30, 1, b"part"), files.check_fence):
            with pytest.raises((Fenced, ClaimGone)):
                act()
        uploader.enqueue(encoded(40))
        with pytest.raises(ForebayError):
            uploader.flush()
        uploader.close()
        with pytest.raises(Fenced if strike in TAKEN else WriteFailed):
            fence.confirm()
        fence.release(AttemptEnd(how="finished"))
        assert content_of(storage) == before

    @pytest.mark.parametrize("strike", GONE)
    def test_a_claim_that_is_back_lets_the_attempt_go_on(self, storage: str, strike: Strike) -> None:
        run = below(storage, strike.__name__)
        fence = begin(run)
        uri = AttemptFiles(run).claim_uri(1)
        kept = read_json_content(resolve(uri))
        strike(run)
        with pytest.raises(ClaimGone):
            fence.ask()
        location = resolve(AttemptFiles(run).uri)
        location.fs.create_dir(location.path, recursive=True)
        write(uri, kept)
        fence.confirm()
        CheckpointFiles(config_of(run, fence)).write(encoded(20))
        fence.release(AttemptEnd(how="finished"))
        ended = AttemptFiles(run).ended(1)
        assert ended is not None and ended.how == "finished"

    @pytest.mark.parametrize("strike", [remove_folder, make_again])
    def test_a_folder_that_looks_empty_is_no_beginning(self, storage: str, strike: Strike) -> None:
        run = below(storage, strike.__name__)
        fence = begin(run)
        files = CheckpointFiles(config_of(run, fence))
        files.write(encoded(10))
        strike(run)
        with pytest.raises((ReadFailed, Fenced)):
            files.complete_names()
        fence.release(None)

    @pytest.mark.parametrize("strike", [remove_folder, replace_claim])
    def test_the_thread_ends_the_attempt(self, storage: str, strike: Strike, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(fence_module, "ASK_S", 0.01)
        # An object that is replaced during a read looks damaged, once.
        monkeypatch.setattr(claim_module, "GONE_S", 0.3)
        run = below(storage, f"thread-{strike.__name__}")
        fence = begin(run)
        fence.watch()
        strike(run)
        end = Fenced if strike in TAKEN else WriteFailed
        with pytest.raises(end, match="taken over" if strike in TAKEN else "is not there: the folder of the run"):
            until_raised(fence.check)
        fence.release(AttemptEnd(how="failed"))
        # In an object store, a heartbeat may be on its way when the files are removed.
        left = [path for path, content in content_of(storage).items() if content is not None]
        assert strike in TAKEN or all(path.endswith(".heartbeat.json") for path in left), left


def until_raised(check: Callable[[], None]) -> None:
    deadline = time.monotonic() + WAIT_S
    while time.monotonic() < deadline:
        check()
        time.sleep(0.01)
