from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from forebay.errors import WriteFailed
from forebay.storage import writer_lease
from forebay.storage.atomic import find_small, read_small, write_atomically
from forebay.storage.file_lock import try_lock
from forebay.storage.filesystem import Location, below, resolve
from forebay.storage.private_folder import MountPoint
from forebay.storage.writer_lease import LEASE_NAME, LeaseTimes, hold_lease

QUICK = LeaseTimes(renew_s=0.02, expires_s=0.3, settle_s=0.02)
# Two that wait may both find the lease free. A busy machine can stop one of them for longer than a quick one settles.
BUSY = LeaseTimes(renew_s=0.1, expires_s=30.0, settle_s=2.0)


@pytest.fixture(params=["local", "remote"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return str(tmp_path / "f") if request.param == "local" else f"memory://{tmp_path.name}-{time.time_ns()}/f"


def ignore(_: str) -> None:
    pass


def test_one_holder_at_a_time(folder: str) -> None:
    inside: list[int] = []
    most: list[int] = []

    def work(number: int) -> None:
        with hold_lease(folder, ignore, BUSY) as lease:
            inside.append(number)
            most.append(len(inside))
            time.sleep(0.1)
            lease.check()
            inside.remove(number)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
    place = resolve(below(folder, LEASE_NAME))
    assert place.fs.get_file_info(place.path).is_file is False


def test_the_holder_is_named(folder: str) -> None:
    said: list[str] = []
    with hold_lease(folder, ignore, QUICK):
        thread = threading.Thread(target=lambda: hold_lease(folder, said.append, QUICK).__enter__(), daemon=True)
        thread.start()
        while not said:
            time.sleep(0.01)
    thread.join()
    assert said[0].startswith("pid ")


def test_a_lease_in_a_store_expires_and_its_holder_notices() -> None:
    folder = f"memory://{time.time_ns()}/f"
    slow = LeaseTimes(renew_s=0.1, expires_s=0.3, settle_s=0.01)
    with hold_lease(folder, ignore, slow) as lease:
        lease.check()
        write_atomically(below(folder, LEASE_NAME), b"another-1 pid 7 on far")
        time.sleep(0.4)
        with pytest.raises(WriteFailed, match="took over this preparation"):
            lease.check()
    with hold_lease(folder, ignore, slow) as lease:
        lease.check()


def test_a_holder_that_was_suspended_leaves_the_lease_of_another() -> None:
    folder, name = f"memory://{time.time_ns()}/f", LEASE_NAME
    slow = LeaseTimes(renew_s=60.0, expires_s=120.0, settle_s=0.0)
    with hold_lease(folder, ignore, slow):  # it ends before it renews
        write_atomically(below(folder, name), b"another-1 pid 7 on far")
    assert read_small(resolve(below(folder, name))) == b"another-1 pid 7 on far"


def test_a_suspended_look_takes_no_lease_that_is_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    lease, now = resolve(below(f"memory://{time.time_ns()}/f", LEASE_NAME)), [0.0]
    write_atomically(lease, b"another-1 pid 7 on far")
    looks = iter(range(4))

    def look(_: Location) -> bytes | None:
        found = find_small(lease)
        now[0] += 600.0  # while the answer is on its way
        if next(looks) % 2:  # each renewal is seen twice
            write_atomically(lease, b"another-%d pid 7 on far" % now[0])
        return found

    monkeypatch.setattr(writer_lease, "find_small", look)
    monkeypatch.setattr(writer_lease, "time", SimpleNamespace(monotonic=lambda: now[0], sleep=lambda _: None))
    with pytest.raises(StopIteration):
        writer_lease._Renewal(lease, QUICK).acquire(ignore)


def test_locks_that_reach_no_other_machine_are_not_trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two writers of NFS with `nolock` would both get the lock."""
    share = MountPoint(device="0:50", point="/share", kind="nfs", source="server:/x", options=("nolock",))
    monkeypatch.setattr(writer_lease, "mount_of", lambda _: share)
    folder, times = str(tmp_path), LeaseTimes(renew_s=0.02, expires_s=0.2, settle_s=0.01)
    with hold_lease(folder, print, times):
        name = tmp_path / LEASE_NAME
        assert name.read_text().partition(" ")[2].startswith("pid ")
        elsewhere = try_lock(name)  # of another machine, whose server knows of no lock
        assert elsewhere is not None
        elsewhere.release()
        said: list[str] = []
        with pytest.raises(TimeoutError), hold_lease(folder, _give_up(said), times):
            pass
    assert said


def _give_up(said: list[str]) -> Callable[[str], None]:
    def on_wait(holder: str) -> None:
        said.append(holder)
        raise TimeoutError

    return on_wait
