"""Ray on one node of a SLURM job, with a folder and ports of its own."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from pathlib import Path

from forebay.storage.file_lock import FileLock, try_lock

LONGEST_ROOT = 18
"""Bytes of a folder that leave room for the names of Ray's sockets."""
KEPT_S = 86_400.0
"""Time for which the logs of an ended job can be read, from when another start finds it ended."""
LOOKS = 40
LOOK_EVERY_S = 0.5
TRIES = 3
"""Starts of Ray. It gives up where its own processes take half a minute, as on a busy node."""
_FIRST_PORT, _PORTS = 20_000, 12_000
_TMP = Path("/tmp")  # noqa: S108 - the node's own disk
_LOG = "start.log"
_LOCK = "lock"
_ENDED = "ended"
"""File that is made when the job is first found ended."""
_ADDRESS = "ray_current_cluster"
"""File in the folder of a Ray that has started, with the address of its cluster."""

_held: list[FileLock | None] = []
"""Locks on the folders of this process, as long as it lives."""


def start_words(role: str, address: str, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the words that start Ray on this node.

    No port is Ray's default: several jobs may share a node. Ray chooses those that it can choose, so that no other
    process takes one in between.
    """
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    words += [f"--temp-dir={folder}", f"--num-cpus={environment.get('SLURM_CPUS_ON_NODE') or os.cpu_count()}"]
    words += [f"--num-gpus={num_gpus(environment)}", "--dashboard-agent-listen-port=0"]
    words += ["--min-worker-port=0", "--max-worker-port=0"]
    if role == "worker":
        return [*words, f"--address={address}"]
    head = ["--head", f"--node-ip-address={address}", "--port=0", "--include-dashboard=false"]
    return [*words, *head, f"--ray-client-server-port={_free_port()}"]


def num_gpus(environment: Mapping[str, str]) -> int:
    """Number of GPUs of this node that SLURM gave to the job.

    Without any, Ray would take all that it finds.
    """
    for name in ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"):
        if devices := environment.get(name, "").strip():
            return 0 if devices == "NoDevFiles" else len(devices.split(","))
    return int(environment.get("SLURM_GPUS_ON_NODE") or 0)


def temporary_folder(name: str, environment: Mapping[str, str]) -> Path:
    """Make the folder of Ray's sockets and logs, for this user alone.

    `name` has the numbers of the job and of its start. Removes folders of earlier starts on this node, and of
    other jobs that ended more than a day ago: SLURM kills all processes of a job, so none removes its own.

    The path is short: a socket's may have 107 bytes. It differs between nodes, because TMPDIR may be on a shared disk,
    where two nodes would answer at one socket.
    """
    root = Path(environment.get("TMPDIR") or _TMP)
    if len(str(root)) > LONGEST_ROOT:
        root = _TMP
    job, node = name.partition("-")[0], hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]
    for earlier in root.glob(f"fb-*-*-{node}"):
        if earlier.name.startswith(f"fb-{job}-") or _has_long_ended(earlier):
            shutil.rmtree(earlier, ignore_errors=True)
    folder = root / f"fb-{name}-{node}"
    folder.mkdir(mode=0o700)
    with suppress(OSError):  # TMPDIR is on a file system without locks: its folders stay
        _held.append(try_lock(folder / _LOCK))
    # Ray opens its own folder to all users.
    inner = folder / "r"
    inner.mkdir()
    return inner


def _has_long_ended(folder: Path) -> bool:
    """Whether a folder of this user belongs to a job that was found ended more than a day ago.

    Notes the first time that it is found so.
    """
    try:
        if any(each.lstat().st_uid != os.geteuid() for each in (folder, folder / _LOCK)):
            return False
        if (lock := try_lock(folder / _LOCK, flags=0)) is None:
            return False
        lock.release()
        with suppress(FileExistsError):
            (folder / _ENDED).open("xb").close()
        return time.time() - (folder / _ENDED).lstat().st_mtime >= KEPT_S
    except OSError:
        return False


def main(words: Sequence[str]) -> int:
    """Start Ray, say where it runs, and wait for its end."""
    name, mark, role, address = words
    # A requeue sends SIGTERM to all processes: Ray has to outlive it until the run has saved its checkpoint.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    host = socket.gethostname()
    if mark and not _sees(Path(mark)):
        _say(f"the node {host} does not see {Path(mark).parent}: give a folder that all nodes share as the storage.")
        return 1
    said = ""
    for _ in range(TRIES):
        try:
            folder = temporary_folder(name, os.environ)
        except OSError as error:
            _say(f"{host}: Ray has no folder ({error}). Set TMPDIR to a folder on the node's disk.")
            return 1
        process = _start(start_words(role, address, folder, os.environ), folder)
        while process.poll() is None:
            if cluster := _read(folder / _ADDRESS):
                _say(f"forebay-node-is-ready {os.environ.get('SLURM_STEP_ID', '')} {host} {cluster}")
                return process.wait()
            time.sleep(0.1)
        log = _read(folder / _LOG)
        os.write(2, f"{log}\n".encode())
        said = f"{host}: Ray ended with code {process.returncode}: {log.splitlines()[-1] if log else ''}"
    _say(said)
    return 1


def _start(words: Sequence[str], folder: Path) -> subprocess.Popen[bytes]:
    with (folder / _LOG).open("wb") as log:
        return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=log, stderr=log)  # noqa: S603 - of this file


def _sees(mark: Path) -> bool:
    for _ in range(LOOKS):
        # Opening the folder makes NFS ask its server again.
        if mark.parent.is_dir() and mark in mark.parent.iterdir():
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except FileNotFoundError:
        return ""


def _free_port() -> int:
    """Return a port that no process listens at.

    Not one of those that the system gives to connections, which begin all the time.
    """
    first = _FIRST_PORT + secrets.randbelow(_PORTS)
    for port in chain(range(first, _FIRST_PORT + _PORTS), range(_FIRST_PORT, first)):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("", port))
            return port
    return first


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
