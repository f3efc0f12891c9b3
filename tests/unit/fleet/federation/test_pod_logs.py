"""Copies of attempts' logs: nothing is lost or doubled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

import forebay as fb
from forebay.cli.app import main
from forebay.fleet.client.submission import JobFiles, Submission
from forebay.fleet.client.submitted_job import SubmittedJob
from forebay.fleet.federation import pod_logs
from forebay.fleet.federation.pod_logs import FleetLogs, LogFollower
from forebay.fleet.kube.api_errors import ApiUnreachable

TIMES = [f"2026-11-23T17:00:0{second}.{part}00000000Z" for second in range(3) for part in range(3)]


class PlayedPod:
    """Pod with nine lines, three a second.

    Each connection breaks after four of them, until the last two.
    """

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.there = 9

    def __call__(self, since: str, *, follow: bool) -> Iterator[str]:
        self.asked.append(since)
        lines = [f"{at} line {number}" for number, at in enumerate(TIMES[: self.there]) if at >= since.rstrip("Z")]
        yield "unable to retrieve container logs"
        yield from lines[:4]
        if len(lines) > 4:
            raise ApiUnreachable("cut off")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "AGAIN_S", 0.01)


def copied(uri: Path, pod: PlayedPod) -> list[str]:
    """Return the file's lines after the follower ended."""
    follower = LogFollower(str(uri), pod)
    follower.start()
    follower.finish()
    follower.join(30)
    return uri.read_text().splitlines()


def test_a_log_goes_on_behind_its_last_line_after_each_loss(tmp_path: Path) -> None:
    pod = PlayedPod()
    lines = copied(tmp_path / "a.log", pod)
    assert lines == [f"{at} line {number}" for number, at in enumerate(TIMES)]
    assert pod.asked == ["", "2026-11-23T17:00:01Z", "2026-11-23T17:00:02Z"]


def test_the_next_controller_goes_on_where_the_first_ended(tmp_path: Path) -> None:
    first = PlayedPod()
    first.there = 3
    assert len(copied(tmp_path / "a.log", first)) == 3
    second = PlayedPod()
    assert copied(tmp_path / "a.log", second) == [f"{at} line {number}" for number, at in enumerate(TIMES)]
    assert second.asked[0] == "2026-11-23T17:00:00Z"


def test_a_silent_cluster_ends_the_copy_of_an_ended_attempt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_logs, "GIVE_UP_S", 0.0)

    def silent(since: str, *, follow: bool) -> Iterator[str]:
        raise ApiUnreachable("no answer")

    logs = FleetLogs()
    logs.follow("fb-a-1", str(tmp_path / "a.log"), silent)
    logs._followers["fb-a-1"].finish()
    logs._followers["fb-a-1"].join(30)
    assert logs.finish("fb-a-1")


def test_logs_of_a_fleet_are_read_by_attempt(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    spec = fb.JobSpec(name="job", storage=str(tmp_path), task=(fb.fleet.Task(command=("true",)),))
    submission = Submission(spec=spec, number=1, backend="fleet", token="x")
    files = JobFiles(storage=spec.storage, name=spec.name)
    files.create(submission)
    prefix = submission.id.removesuffix("-1")
    for number, texts in ((10, ["third"]), (2, ["\x1b[31msecond", "and more"]), (1, ["first"])):
        path = Path(files.attempt_log_uri(f"{prefix}-{number}"))
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"{TIMES[0]} {text}\n" for text in texts))
    name = spec.task[0].name
    heads = [f"== {name}, attempt {number} ==" for number in (1, 2, 10)]
    read = [heads[0], "first", heads[1], "\x1b[31msecond", "and more", heads[2], "third"]
    assert list(SubmittedJob(str(tmp_path), "job").logs()) == read
    with pytest.raises(SystemExit):
        main(["logs", "job", "--storage", str(tmp_path)])
    assert capfd.readouterr().out.splitlines() == [line.replace("\x1b", "\\x1b") for line in read]
    with pytest.raises(SystemExit):
        main(["logs", "job", "--storage", str(tmp_path), "--json"])
    printed = capfd.readouterr().out
    assert printed.isascii() and "\x1b" not in printed
    shown = [json.loads(line) for line in printed.splitlines()]
    assert shown[1] == {"part": f"{name}, attempt 2", "line": "\x1b[31msecond"}
    assert [each["line"] for each in shown] == ["first", "\x1b[31msecond", "and more", "third"]
