"""A Ray that cannot start here is one sentence with what to look at, and is tried twice only where that helps."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
import ray

from forebay.errors import RayNotStarted
from forebay.ray_cluster import local_start
from forebay.ray_cluster.local_start import start_ray

LATE = "The current node timed out during startup. This could happen because the GCS has become overloaded."
STORE = "Failed to start GCS.  Last 2 lines of error files:\n C x: Address already in use\n.Please check /tmp/ray"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    short = tmp_path / "r"
    monkeypatch.setenv("RAY_TMPDIR", "/tmp")
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    return short


@pytest.mark.parametrize(
    ("error", "said", "tries"),
    [
        (
            Exception(LATE),
            r".*timed out during startup.*a load of \d+: end other programs, look at Ray's logs in /tmp",
            2,
        ),
        (TimeoutError("deadline exceeded"), r"deadline exceeded.*a load of", 2),
        (RuntimeError(STORE), r"Failed to start GCS\)\. A port is in use: unset", 2),
        (RuntimeError("The current node has not been updated"), r".*updated\)\. Ray's logs have the cause", 2),
        (ConnectionError("ray has died"), r".*died\)\. Ray's logs have the cause", 2),
        (OSError(28, "No space left on device"), r".*No space left on device\)\. Look at the disk", 1),
        (PermissionError(13, "Permission denied", "/dev/shm"), r".*/dev/shm'\)\. Look at the disk", 1),
        (OSError("AF_UNIX path length cannot exceed 107 bytes: /x"), r"AF_UNIX.*short folder", 1),
        (ValueError("object_store_memory is too small"), r".*too small\)\. Ray's logs have the cause: /tmp/ray", 1),
        (KeyError(), r"KeyError\)\. Ray's logs", 1),
    ],
)
def test_each_failure_is_one_sentence(monkeypatch: pytest.MonkeyPatch, error: Exception, said: str, tries: int) -> None:
    asked = list[int]()

    def init(**_options: object) -> None:
        asked.append(1)
        raise error

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(RayNotStarted, match=r"^Ray cannot start on this machine \(" + said) as caught:
        start_ray(1)
    assert len(asked) == tries
    assert "\n" not in str(caught.value)
    assert caught.value.exit_status == 1


def test_second_try_may_succeed(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([Exception(LATE), None])

    def init(**_options: object) -> None:
        if (answer := next(answers)) is not None:
            raise answer

    monkeypatch.setattr(ray, "init", init)
    start_ray(1)
    assert list(answers) == []


def test_folder_that_cannot_hold_a_session_is_named_before_anything_starts(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    file = Path("/proc/forebay")
    for folder, said in (
        ("/tmp/" + "long" * 20, r"RAY_TMPDIR='/tmp/long.* is 85 bytes long.*at most 3\d bytes\.$"),
        (str(file), r"folder RAY_TMPDIR='/proc/forebay' cannot be written \(.*\)\. Set RAY_TMPDIR to a short folder"),
    ):
        monkeypatch.setenv("RAY_TMPDIR", folder)
        with pytest.raises(RayNotStarted, match=said):
            start_ray(1)
    monkeypatch.delenv("RAY_TMPDIR")
    monkeypatch.setenv("TMPDIR", str(tmp_path / ("long" * 20)))
    with pytest.raises(RayNotStarted, match=r"TMPDIR='.* bytes long.*Set RAY_TMPDIR"):
        start_ray(1)


@pytest.mark.parametrize("what", ["folder", "memory"])
def test_read_only_file_system_is_named(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """/proc cannot be written, not even by root."""
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    if what == "memory":
        monkeypatch.setattr(local_start, "_MEMORY", Path("/proc"))
    else:
        monkeypatch.setenv("RAY_TMPDIR", "/proc")
    said = r"objects in /proc, .*shm-size" if what == "memory" else "RAY_TMPDIR='/proc' cannot be written"
    with pytest.raises(RayNotStarted, match=said):
        start_ray(1)


def test_busy_port_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray, "init", lambda **_: pytest.fail("Ray was started"))
    with socket.create_server(("", 0)) as server:
        monkeypatch.setenv("RAY_GCS_SERVER_PORT", str(server.getsockname()[1]))
        with pytest.raises(RayNotStarted, match=r"RAY_GCS_SERVER_PORT=\d+ is not free .*in use.* Unset"):
            start_ray(1)
    monkeypatch.setenv("RAY_GCS_SERVER_PORT", "99999")
    with pytest.raises(RayNotStarted, match=r"RAY_GCS_SERVER_PORT=99999 is not free"):
        start_ray(1)


def test_interrupt_is_no_failure_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_options: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(ray, "init", init)
    with pytest.raises(KeyboardInterrupt):
        start_ray(1)
