"""Machines that share a folder by NFS, in one virtual machine.

Linux's own server and client. Each machine is a process with a network, a mount and a boot id of its own, so that
nothing is cached in common. Runs as the first process of the virtual machine, and prints a line of JSON for each case.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import shutil
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.errors import CacheUnusable, Fenced
from forebay.storage.atomic import find_small, write_atomically
from forebay.storage.file_lock import FileLock, try_lock
from forebay.storage.filesystem import resolve
from forebay.storage.private_folder import mount_of
from forebay.training.checkpoint.files.claim import Claim, ClaimGone
from forebay.training.job.start_policy import StartPolicy
from forebay.training.runs.attempts import fence as fences
from forebay.training.runs.attempts import start as starts
from forebay.training.runs.attempts.fence import Fence
from forebay.training.runs.attempts.files import AttemptFiles, AttemptHeartbeat

EXPORT = Path("/srv/export")
SHARE = Path("/share")
NEWNS, NEWUTS, NEWNET = 0x00020000, 0x04000000, 0x40000000
ROUNDS = 100

libc = ctypes.CDLL(None, use_errno=True)


def shell(command: str) -> str:
    done = subprocess.run(command, shell=True, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"{command}: {done.returncode}: {done.stdout} {done.stderr}")
    return done.stdout


def start_server() -> None:
    for folder in (EXPORT, SHARE, Path("/var/lib/nfs")):
        folder.mkdir(parents=True, exist_ok=True)
    shell("mount -t tmpfs state /var/lib/nfs && mkdir -p /var/lib/nfs/v4recovery")
    shell("touch /var/lib/nfs/etab /var/lib/nfs/rmtab")
    shell(f"mount -t tmpfs export {EXPORT} && mount -t nfsd nfsd /proc/fs/nfsd")
    Path("/proc/fs/nfsd/nfsv4gracetime").write_text("10")
    Path("/proc/fs/nfsd/nfsv4leasetime").write_text("10")
    shell("rpcbind -w || rpcbind")
    shell(f"exportfs -o rw,no_root_squash,no_subtree_check,fsid=0,insecure '*:{EXPORT}' && rpc.mountd -p 20048")
    serve()


def serve() -> None:
    shell("rpc.nfsd -V 3 -V 4.2 4")


def silence() -> None:
    shell("rpc.nfsd 0")


class NfsClient:
    """A process with its own mount of the share. `call` runs a function there."""

    def __init__(self, name: str, options: str = "vers=4.2") -> None:
        self.name, self.number = name, NfsClient.number
        NfsClient.number += 1
        self._end, theirs = multiprocessing.Pipe()
        ready, go = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            status = 1
            try:
                if libc.unshare(NEWNS | NEWUTS | NEWNET):
                    raise OSError(ctypes.get_errno(), "unshare")
                os.write(ready[1], b"1")
                os.read(go[0], 1)
                self._live(theirs, options)
                status = 0
            except BaseException:  # noqa: BLE001 - shown on the console
                traceback.print_exc()
            finally:
                os._exit(status)
        theirs.close()
        os.read(ready[0], 1)
        n, here = self.number, f"v{self.number}"
        shell(
            f"ip link add {here} type veth peer name eth0 netns {self.pid} && ip addr add 10.9.{n}.1/24 dev {here} && "
            f"ip link set {here} up"
        )
        os.write(go[1], b"1")
        self.call(os.getpid)

    number = 1

    def _live(self, line: Connection, options: str) -> None:
        n = self.number
        # A server of NFS knows its clients by their host names: of two with one name, it drops the locks of the first.
        socket.sethostname(self.name)
        shell(
            f"mount --make-rprivate / && ip link set lo up && ip addr add 10.9.{n}.2/24 dev eth0 && ip link set eth0 up"
        )
        boot = Path(f"/run/boot-{self.name}")
        boot.write_text(f"boot-of-{self.name}\n")
        shell(f"mount --bind {boot} /proc/sys/kernel/random/boot_id")
        self.mount(options)
        while True:
            function, words = line.recv()
            try:
                line.send((True, function(*words)))
            except BaseException as error:  # noqa: BLE001 - the answer says it
                line.send((False, f"{type(error).__name__}: {error}"))

    def mount(self, options: str) -> None:
        n = self.number
        four = "vers=4" in options
        kind, path = ("nfs4", "/") if four else ("nfs", EXPORT)
        own = (
            f"addr=10.9.{n}.1,clientaddr=10.9.{n}.2"
            if four
            else f"addr=10.9.{n}.1,nolock,mountport=20048,mountproto=tcp"
        )
        shell(f"mount -i -t {kind} -o {options},proto=tcp,{own} 10.9.{n}.1:{path} {SHARE}")

    def call(self, function: Callable[..., Any], *words: Any, within_s: float = 120.0) -> Any:
        self.begin(function, *words)
        return self.answer(within_s)

    def begin(self, function: Callable[..., Any], *words: Any) -> None:
        self._end.send((function, words))

    def answer(self, within_s: float = 120.0) -> Any:
        if not self._end.poll(within_s):
            raise TimeoutError(f"no answer of {self.name} within {within_s} s")
        is_good, found = self._end.recv()
        if not is_good:
            raise CallFailed(found)
        return found

    def has_answer(self) -> bool:
        return self._end.poll(0)


class CallFailed(Exception):
    pass


KEPT: dict[str, Any] = {}
TOGETHER = multiprocessing.Barrier(2)


def run_of(name: str) -> AttemptFiles:
    return AttemptFiles(str(SHARE / name))


def claim(name: str, number: int) -> bool:
    created = run_of(name).create(Claim.of_this_process(number))
    KEPT[f"{name}/{number}"] = created
    return bool(created)


def race(name: str, rounds: int) -> list[int]:
    won = []
    for number in range(1, rounds + 1):
        files = run_of(f"{name}-{number}")
        TOGETHER.wait(60)
        created = files.create(Claim.of_this_process(1))
        if created:
            won.append(number)
        if isinstance(created, FileLock):
            created.release()
    return won


def own(name: str) -> int:
    files = run_of(name)
    mine = Claim.of_this_process(1)
    lock = files.create(mine)
    assert lock, "the claim was another's"
    KEPT["fence"] = Fence(files, mine, lock if isinstance(lock, FileLock) else None)
    KEPT["fence"].ask()
    return 1


def ask() -> str:
    try:
        KEPT["fence"].ask()
    except Fenced:
        return "fenced"
    except ClaimGone:
        return "gone"
    except OSError as error:
        return f"silent: {error.errno}"
    return "alive"


def seen_after(path: str, limit_s: float) -> float:
    since = time.monotonic()
    while time.monotonic() - since < limit_s:
        if os.path.exists(path):  # noqa: PTH110 - the plain call
            return time.monotonic() - since
        time.sleep(0.5)
    return -1.0


def beat(name: str, number: int) -> None:
    run_of(name).beat(1, AttemptHeartbeat(number=number))


def heard(name: str) -> int:
    found = run_of(name).heartbeat(1)
    return found.number if found else 0


def write(name: str, content: bytes) -> None:
    write_atomically(str(SHARE / name), content)


def read(name: str) -> bytes | None:
    return find_small(resolve(str(SHARE / name)))


def watch(ask_s: float) -> None:
    fences.ASK_S = ask_s
    KEPT["fence"].watch()


def follow(name: str, takeover_s: float) -> tuple[str, float]:
    since = time.monotonic()
    try:
        found = starts.start_attempt(str(SHARE / name), StartPolicy(follow=True, takeover_s=takeover_s), lambda _: None)
    except BaseException as error:  # noqa: BLE001 - the answer says it
        return f"{type(error).__name__}: {error}", time.monotonic() - since
    if isinstance(found, Fence):
        KEPT["fence"] = found
        return f"attempt {found.number}", time.monotonic() - since
    return f"end {found.end}", time.monotonic() - since


def lock(name: str) -> bool:
    KEPT["lock"] = try_lock(SHARE / name)
    return KEPT["lock"] is not None


def cache(path: str) -> str:
    try:
        DiskCache(path, quota_bytes=1 << 20, min_free_bytes=0)
    except CacheUnusable as error:
        return str(error)
    return "accepted"


def has_own_locks() -> bool:
    mount = mount_of(SHARE)
    assert mount is not None
    return mount.has_own_locks


def unmount() -> None:
    shell(f"umount -l {SHARE}")


def listed() -> list[str]:
    return sorted(str(path.relative_to(SHARE)) for path in SHARE.rglob("*"))


def mounted() -> str:
    return next(line for line in Path("/proc/mounts").read_text().splitlines() if f" {SHARE} " in line)


def report(case: str, **facts: Any) -> None:
    print("CASE " + json.dumps({"case": case, **facts}), flush=True)


def tried(case: Callable[..., dict[str, Any]], *words: Any) -> None:
    since = time.monotonic()
    try:
        facts = case(*words)
    except BaseException as error:  # noqa: BLE001 - the answer says it
        facts = {"error": f"{type(error).__name__}: {error}"}
        traceback.print_exc()
    report(case.__name__, **facts)
    print(f"{case.__name__}: {time.monotonic() - since:.0f} s", flush=True)


def main() -> None:
    start_server()
    options = f"vers={os.environ['VERSION']}"
    first, second = NfsClient("first", options), NfsClient("second", options)
    report("mounted", first=first.call(mounted), second=second.call(mounted))
    for case in (one_wins, claim_is_seen, plain_look, heartbeats_are_heard, files_are_read, alive_is_not_taken):
        tried(case, first, second)
    for case in (locks_reach, server_restarts, folder_is_remade):
        tried(case, first, second)
    tried(cache_is_refused, first)
    tried(share_is_unmounted, second)
    tried(nocto_is_refused, NfsClient("nocto", f"{options},nocto"))
    tried(soft_is_silent, NfsClient("soft", f"{options},soft,timeo=10,retrans=1"))


def one_wins(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    a.begin(race, "race", ROUNDS)
    b.begin(race, "race", ROUNDS)
    first, second = set(a.answer(300)), set(b.answer(300))
    return {
        "rounds": ROUNDS,
        "first": len(first),
        "second": len(second),
        "both": len(first & second),
        "any": len(first | second),
    }


def claim_is_seen(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    a.call(own, "seen")
    time.sleep(0.2)
    asked = a.call(ask)
    created = b.call(claim, "seen", 2)
    return {"before": asked, "created": created, "after": a.call(ask)}


def plain_look(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    """How late a plain `stat` sees a file of another machine."""
    b.call(write, "raw/x", b"x")
    path = str(SHARE / "raw" / "y")
    assert not a.call(os.path.exists, path)
    assert not a.call(os.path.exists, path)
    b.call(write, "raw/y", b"y")
    return {"late_s": a.call(seen_after, path, 100.0)}


def heartbeats_are_heard(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    a.call(claim, "beats", 1)
    wrong = []
    for number in range(1, 21):
        a.call(beat, "beats", number)
        if (found := b.call(heard, "beats")) != number:
            wrong.append((number, found))
    return {"wrong": wrong}


def files_are_read(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    missing = a.call(read, "files/request.json")
    b.call(write, "files/request.json", b"0")
    wrong = []
    for number in range(20):
        b.call(write, "files/request.json", str(number).encode())
        if (found := a.call(read, "files/request.json")) != str(number).encode():
            wrong.append((number, str(found)))
    return {"missing": missing is None, "wrong": wrong}


def alive_is_not_taken(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    a.call(own, "alive")
    a.call(watch, 1.5)
    b.begin(follow, "alive", 8.0)
    time.sleep(40)
    early = b.has_answer()
    if early:
        return {"taken": b.answer()}
    os.kill(a.pid, 19)
    found, after_s = b.answer(60)
    os.kill(a.pid, 18)
    time.sleep(4)
    return {"taken": False, "then": found, "after_s": after_s, "first": a.call(ask)}


def locks_reach(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    a.call(write, "locks/x", b"")
    own = a.call(has_own_locks)
    return {"first": a.call(lock, "locks/x"), "second": b.call(lock, "locks/x"), "has_own_locks": own}


def cache_is_refused(a: NfsClient) -> dict[str, Any]:
    return {"said": a.call(cache, str(SHARE / "cache"))}


def server_restarts(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    a.call(own, "restarts")
    silence()
    a.begin(ask)
    time.sleep(30)
    hung = not a.has_answer()
    serve()
    since = time.monotonic()
    answer = a.answer(120)
    return {"hung": hung, "answer": answer, "after_s": time.monotonic() - since, "second": b.call(claim, "restarts", 1)}


def folder_is_remade(a: NfsClient, b: NfsClient) -> dict[str, Any]:
    a.call(own, "remade")
    a.call(ask)
    b.call(shutil.rmtree, str(SHARE / "remade"), True)
    removed = a.call(ask)
    b.call(claim, "remade", 1)
    return {"removed": removed, "remade": a.call(ask)}


def share_is_unmounted(b: NfsClient) -> dict[str, Any]:
    b.call(own, "unmounted")
    before = b.call(ask)
    b.call(unmount)
    after = b.call(ask)
    beats = "written"
    try:
        b.call(beat, "unmounted", 5)
    except CallFailed as error:
        beats = str(error)
    return {"before": before, "after": after, "beat": beats, "left": b.call(listed)}


def soft_is_silent(soft: NfsClient) -> dict[str, Any]:
    """The server is away for as long as the first question needs, and half a minute."""
    soft.call(own, "soft")
    silence()
    try:
        since = time.monotonic()
        answer = soft.call(ask, within_s=300)
        silent_s = time.monotonic() - since
        soft.begin(claim, "soft", 2)
        time.sleep(30)
    finally:
        serve()
    try:
        made = soft.answer(300)
    except CallFailed as error:
        made = str(error)
    until = time.monotonic() + 120
    answers = [soft.call(ask, within_s=300)]
    while answers[-1] not in {"alive", "fenced"} and time.monotonic() < until:
        time.sleep(1)
        answers.append(soft.call(ask, within_s=300))
    found = soft.call(listed, within_s=300)
    return {
        "answer": answer,
        "silent_s": silent_s,
        "claimed": made,
        "is_there": "soft/attempts/000002.json" in found,
        "then": answers[-1],
    }


def nocto_is_refused(nocto: NfsClient) -> dict[str, Any]:
    return {"said": nocto.call(follow, "nocto", 60.0)[0]}


if __name__ == "__main__":
    try:
        main()
    except BaseException:  # noqa: BLE001 - shown on the console
        traceback.print_exc()
    report("end")
    sys.stdout.flush()
