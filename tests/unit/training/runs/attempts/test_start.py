"""Starts of one run: one claims it, others are refused or follow, and a silent or dead attempt is taken over."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from types import SimpleNamespace

import pytest

from forebay.errors import Fenced, InvalidOption, UnderWay
from forebay.storage.private_folder import MountPoint
from forebay.training.checkpoint.files.claim import Claim, ClaimGone
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts import start
from forebay.training.runs.attempts.fence import Fence
from forebay.training.runs.attempts.files import AttemptEnd, AttemptFiles, AttemptHeartbeat
from forebay.training.runs.attempts.start import FollowedEnd, create_attempt, newest_attempt, start_attempt

FOLLOW = StartPolicy(follow=True)
HOLDER = """
import sys
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts.start import start_attempt
print(start_attempt(sys.argv[1], StartPolicy(), print).number, flush=True)
sys.stdin.read()
"""
# The child, such as a worker of a user's DataLoader, lives on. It reports: before it runs, it is still a copy.
FORKING_HOLDER = HOLDER.replace("print(start_attempt", "import os; fence = (start_attempt").replace(
    ".number, flush=True)", "); os.fork() or print(fence.number, flush=True)"
)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(start, "POLL_S", 0.01)
    monkeypatch.setattr("forebay.training.job.start_policy.LEAST_S", 0.0)


@pytest.fixture
def run(tmp_path: Path) -> str:
    return str(tmp_path / "ctr")


def begin(run: str, policy: StartPolicy | None = None, said: list[str] | None = None) -> Fence:
    fence = start_attempt(run, policy or StartPolicy(), (said if said is not None else []).append)
    assert isinstance(fence, Fence)
    return fence


def on_another_machine(run: str, number: int = 1) -> AttemptFiles:
    """Claim the run as a process of another machine would."""
    files = AttemptFiles(run)
    created = files.create(replace(Claim.of_this_process(number), host="elsewhere", kernel="another"))
    created.release()  # type: ignore[union-attr] # locks of another machine are not seen here
    return files


def test_one_of_many_starts_wins_and_the_next_continues(run: str) -> None:
    def race(_: int) -> Fence | None:
        try:
            return begin(run)
        except UnderWay:
            return None

    with ThreadPoolExecutor(16) as pool:
        fences = [fence for fence in pool.map(race, range(16)) if fence is not None]
    assert [fence.number for fence in fences] == [1]
    fences[0].release(AttemptEnd(how="stopped", why="enough"))
    second = begin(run)
    assert second.number == 2
    second.release(None)


def test_refusal_names_the_process(run: str) -> None:
    first = begin(run)
    with pytest.raises(UnderWay, match=r"a run named 'ctr' is under way: attempt 1 \(process \d+ on .*follow it"):
        begin(run)
    first.release(None)


@pytest.mark.parametrize("code", [HOLDER, FORKING_HOLDER], ids=["alone", "with a forked child"])
def test_killed_process_is_taken_over_at_once(run: str, code: str) -> None:
    with subprocess.Popen([sys.executable, "-c", code, run], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"1\n"
        with pytest.raises(UnderWay):
            begin(run)
        holder.kill()
        holder.wait()
        second = begin(run)
    assert second.number == 2
    second.release(None)


def test_killed_process_is_known_by_its_number_where_nothing_can_be_locked(run: str) -> None:
    claim = Claim.of_this_process(1)
    assert claim.is_dead() is False
    assert replace(claim, started=claim.started + 1).is_dead(), "another process has the same number"
    assert replace(claim, kernel="another").is_dead() is None
    assert replace(claim, namespace="of a container").is_dead() is None


def test_attempt_elsewhere_is_taken_over_when_it_gives_no_sign(run: str) -> None:
    on_another_machine(run)
    said: list[str] = []
    second = begin(run, StartPolicy(takeover_s=0.1), said)
    assert second.number == 2
    assert said == ["following attempt 1 (process " + said[0].partition("(process ")[2]]
    second.release(None)


def test_attempt_elsewhere_that_gives_signs_is_under_way(run: str) -> None:
    files = on_another_machine(run)
    timer = threading.Timer(0.1, lambda: files.beat(1, AttemptHeartbeat(number=1, epoch=1, epochs=3, step=70)))
    timer.start()
    with pytest.raises(UnderWay, match="on elsewhere"):
        begin(run, StartPolicy(takeover_s=30.0))
    timer.join()


def test_follower_shows_progress_and_returns_the_end(run: str) -> None:
    files = on_another_machine(run)
    files.beat(1, AttemptHeartbeat(number=1, epoch=1, epochs=3, step=70))
    said: list[str] = []

    def on_progress(text: str) -> None:
        said.append(text)
        files.end(1, AttemptEnd(how="stopped", why="enough"))

    ended = start_attempt(run, FOLLOW, on_progress)
    assert isinstance(ended, FollowedEnd)
    assert ended.end == AttemptEnd(how="stopped", why="enough")
    assert said[0].endswith("on elsewhere): epoch 2 of 3, step 70")


def test_follower_waits_for_storage_that_does_not_answer(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = on_another_machine(run)
    said: list[str] = []
    read, failures = AttemptFiles.newest, iter([OSError("away"), TimeoutError("away"), None, OSError("again")])

    def newest(self: AttemptFiles) -> Claim | None:
        if said and (error := next(failures, None)) is not None:
            raise error
        return read(self)

    def on_progress(text: str) -> None:
        said.append(text)
        if "(again)" in text:
            files.end(1, AttemptEnd(how="finished"))

    monkeypatch.setattr(AttemptFiles, "newest", newest)
    ended = start_attempt(run, StartPolicy(follow=True, takeover_s=30.0), on_progress)
    assert isinstance(ended, FollowedEnd)
    assert [text.partition(": ")[2] for text in said] == [
        "",
        "its storage does not answer (away)",
        "",
        "its storage does not answer (again)",
    ]


def test_silence_counts_only_while_storage_answers(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files = on_another_machine(run)
    clock = iter(range(0, 10_000, 20))
    monkeypatch.setattr(start.time, "monotonic", lambda: float(next(clock)))
    read, num_reads = AttemptFiles.heartbeat, 0

    def heartbeat(self: AttemptFiles, number: int) -> AttemptHeartbeat | None:
        nonlocal num_reads
        num_reads += 1
        if 1 < num_reads < 20:
            raise OSError("away")
        if num_reads == 21:
            files.end(1, AttemptEnd(how="finished"))
        return read(self, number)

    monkeypatch.setattr(AttemptFiles, "heartbeat", heartbeat)
    ended = start_attempt(run, StartPolicy(follow=True, takeover_s=100.0), lambda _: None)
    assert isinstance(ended, FollowedEnd), "the attempt was taken over for the silence of storage"


def test_a_follower_that_was_suspended_takes_over_no_living_attempt(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    files, now = on_another_machine(run), [0.0]
    monkeypatch.setattr(start, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    read = AttemptFiles.heartbeat

    def suspended(asked: AttemptFiles, number: int) -> AttemptHeartbeat | None:
        found = read(asked, number)
        now[0] += 300.0  # while the answer is on its way
        if now[0] > 1500.0:
            files.end(1, AttemptEnd(how="finished"))
        files.beat(1, AttemptHeartbeat(number=1 + int(now[0] // 600.0)))  # each is seen twice
        return found

    monkeypatch.setattr(AttemptFiles, "heartbeat", suspended)
    assert isinstance(start_attempt(run, FOLLOW, lambda _: None), FollowedEnd)


def test_a_run_that_is_followed_and_goes_is_not_begun_anew(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    on_another_machine(run)
    monkeypatch.setattr(start, "GONE_S", 0.05)
    with pytest.raises(ClaimGone, match="its share is not mounted"):
        start_attempt(run, StartPolicy(follow=True, takeover_s=30.0), lambda _: rmtree(run, ignore_errors=True))
    assert not Path(run).exists()


def test_attempt_of_a_submitter_is_adopted_once(run: str) -> None:
    made = create_attempt(run, 1, key="abc", cluster="a")
    assert made is not None
    assert create_attempt(run, 1, cluster="b") is None
    found = newest_attempt(str(Path(run).parent), "ctr")
    assert found == made and found.key == "abc"
    adopted = begin(run, StartPolicy(attempt=f"1/{made.token}"))
    assert adopted.number == 1
    with pytest.raises(Fenced, match="was started before"):
        begin(run, StartPolicy(attempt=f"1/{made.token}"))
    with pytest.raises(Fenced, match="a later attempt has taken over"):
        begin(run, StartPolicy(attempt="1/another"))
    create_attempt(run, 2, cluster="b")
    with pytest.raises(Fenced):
        adopted.ask()
    with pytest.raises(Fenced):
        begin(run, StartPolicy(attempt=f"1/{made.token}"))
    with pytest.raises(InvalidOption, match="attempt='7/x' is not in"):
        begin(run, StartPolicy(attempt="7/x"))
    adopted.release(AttemptEnd(how="finished"))
    assert AttemptFiles(run).ended(1) is None, "a fenced attempt recorded its end"


def test_store_that_cannot_decide_guards_nothing_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        first, second = begin("memory://unguarded/ctr"), begin("memory://unguarded/ctr")
    assert first.number is second.number is None
    assert "cannot create a file exclusively" in caplog.text and "one machine at a time" in caplog.text
    first.ask()
    first.release(None)


def test_file_that_is_no_claim_is_named(run: str) -> None:
    files = AttemptFiles(run)
    Path(run, "attempts").mkdir(parents=True)
    Path(run, "attempts", "000001.json").write_text(json.dumps({"x": 1}))
    with pytest.raises(InvalidOption, match=r"000001.json is not a claim of a Forebay run"):
        files.newest()


def test_takeover_needs_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    with pytest.raises(InvalidOption, match=r"takeover_s=0.5 would take over attempts that are alive"):
        StartPolicy(takeover_s=0.5)


@pytest.mark.parametrize(("options", "least_s"), [("nocto", 105), ("nocto,acdirmax=120", 165), ("acdirmax=600", 0)])
def test_a_limit_within_which_heartbeats_are_not_seen_is_refused(
    run: str, monkeypatch: pytest.MonkeyPatch, options: str, least_s: float
) -> None:
    share = MountPoint(
        device="0:50", point="/share", kind="nfs4", source="server:/x", options=tuple(options.split(","))
    )
    monkeypatch.setattr("forebay.storage.private_folder.mount_of", lambda _: share)
    if least_s:
        with pytest.raises(InvalidOption, match=rf"mounted with `nocto`.* or wait for {least_s:g} s"):
            begin(run, StartPolicy(takeover_s=least_s - 1))
        assert newest_attempt(str(Path(run).parent), "ctr") is None
    begin(run, StartPolicy(takeover_s=least_s or 60.0)).release(None)
