"""The journal keeps jobs, their states and every reason."""

from __future__ import annotations

import dataclasses
import sqlite3
from pathlib import Path

import pytest

import forebay as fb
from forebay.errors import InvalidOption, WriteFailed
from forebay.fleet.lifecycle import journal
from forebay.fleet.lifecycle.journal import JobJournal
from forebay.fleet.lifecycle.states import AttemptPlacing, JobQueued, JobSucceeded, Target, state_from_facts
from forebay.storage.private_folder import MountPoint


def job(name: str) -> fb.JobSpec:
    return fb.JobSpec(name=name, storage="s3://a/b", task=(fb.fleet.Task(run="a.py", args={"x": [1, "b"]}),))


def test_jobs_survive_the_process(tmp_path: Path) -> None:
    placing = AttemptPlacing(number=1, failures=0, target=Target(cluster="a", sku="s", market="spot", workers=2))
    journal = JobJournal(tmp_path / "jobs.db")
    for number, name in enumerate(("one", "two", "one")):
        journal.add(job(name), at=float(number))
    journal.record("one", placing, 5.0, "room")
    journal.record("two", JobSucceeded(number=1), 6.0, "its result is there")
    journal.close()
    again = JobJournal(tmp_path / "jobs.db")
    (one,) = again.entries(live=True)
    assert (one.spec, one.state, one.submitted_at) == (job("one"), placing, 0.0)
    assert [each.name for each in again.entries()] == ["one", "two"]
    assert [(each.at, each.state, each.why) for each in again.reasons("one")] == [(5.0, "AttemptPlacing", "room")]
    assert again.entry("three") is None
    again.close()


def test_a_journal_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    journal = JobJournal(tmp_path / "jobs.db")
    blocker = sqlite3.connect(tmp_path / "jobs.db", isolation_level=None)
    blocker.execute("DROP TABLE reasons")
    with pytest.raises(WriteFailed, match="made again from storage"):
        journal.record("one", JobQueued(since=0.0), 1.0, "why")
    blocker.close()
    journal.close()


def test_a_file_that_is_no_journal_is_named(tmp_path: Path) -> None:
    for name, content in (("garbage", b"x" * 9000), ("torn", b"SQLite format 3\0" + b"x" * 9000)):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(InvalidOption, match=f"{name} is not a journal of this release .* Remove the file"):
            JobJournal(tmp_path / name)
    with pytest.raises(WriteFailed, match="a folder that is there"):
        JobJournal(tmp_path / "nothing" / "jobs.db")


@pytest.mark.parametrize("text", ["{", "{}", '{"name": "a", "field_of_a_later_release": 1}'])
def test_a_job_that_this_release_cannot_read_names_the_journal(tmp_path: Path, text: str) -> None:
    journal = JobJournal(tmp_path / "jobs.db")
    journal.add(job("one"), at=0.0)
    journal._database.execute("UPDATE jobs SET spec = ?", (text,))
    with pytest.raises(InvalidOption, match="jobs.db is not a journal of this release"):
        list(journal.entries())
    journal.close()


def test_a_full_disk_keeps_what_was_written(tmp_path: Path) -> None:
    journal = JobJournal(tmp_path / "jobs.db")
    journal.add(job("one"), at=0.0)
    journal._database.execute("PRAGMA max_page_count = 1")  # as a disk without room for another page
    large = dataclasses.replace(job("two"), task=(fb.fleet.Task(command=("x" * 100_000,)),))
    with pytest.raises(WriteFailed, match="database or disk is full"):
        journal.add(large, at=1.0)
    assert journal.entry("one") is not None
    journal.close()


def test_a_state_of_another_version_is_refused() -> None:
    with pytest.raises(InvalidOption, match="Rebuild the journal"):
        state_from_facts({"state": "Vanished"})


def test_a_journal_that_machines_would_share_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a real server of NFS: tests/storage/nfs."""
    share = MountPoint(device="0:50", point=str(tmp_path), kind="nfs4", source="server:/export", options=("rw",))
    monkeypatch.setattr(journal, "mount_of", lambda _: share)
    with pytest.raises(InvalidOption, match=r"jobs.db is on nfs4 \(server:/export on .*Name a file on a local disk"):
        JobJournal(tmp_path / "jobs.db")
    assert not any(tmp_path.iterdir())
