"""Ray on one node of a SLURM job, with a folder and ports of its own."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

LONGEST_ROOT = 18
"""Bytes of a folder that leave room for the names of Ray's sockets."""
LOOKS = 40
LOOK_EVERY_S = 0.5
_TMP = Path("/tmp")  # noqa: S108 - the node's own disk
_STARTED = "Ray runtime started"


def start_words(role: str, address: str, folder: Path, environment: Mapping[str, str]) -> list[str]:
    """Return the words that start Ray on this node.

    No port is Ray's default: several jobs may share a node.
    """
    words = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block", "--disable-usage-stats"]
    words += [f"--temp-dir={folder}", f"--num-cpus={environment.get('SLURM_CPUS_ON_NODE') or os.cpu_count()}"]
    words += [f"--num-gpus={num_gpus(environment)}", f"--dashboard-agent-listen-port={_free_port()}"]
    words += ["--min-worker-port=0", "--max-worker-port=0"]
    host, _, port = address.rpartition(":")
    if role == "worker":
        return [*words, f"--address={address}"]
    head = ["--head", f"--node-ip-address={host}", f"--port={port}", "--include-dashboard=false"]
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

    `name` has the numbers of the job and of its start. Folders of earlier starts on this node are removed. The path is
    short: a socket's may have 107 bytes. It differs between nodes, because TMPDIR may be on a shared disk, where two
    nodes would answer at one socket.
    """
    root = Path(environment.get("TMPDIR") or _TMP)
    if len(str(root)) > LONGEST_ROOT:
        root = _TMP
    job, node = name.partition("-")[0], hashlib.sha256(socket.gethostname().encode()).hexdigest()[:4]
    for earlier in root.glob(f"fb-{job}-*-{node}"):
        shutil.rmtree(earlier, ignore_errors=True)
    folder = root / f"fb-{name}-{node}"
    folder.mkdir(mode=0o700)
    # Ray opens its own folder to all users.
    inner = folder / "r"
    inner.mkdir()
    return inner


def main(words: Sequence[str]) -> int:
    """Start Ray, say so, and wait for its end."""
    name, mark, role = words
    # A requeue sends SIGTERM to all processes: Ray has to outlive it until the run has saved its checkpoint.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    host = socket.gethostname()
    if mark and not _sees(Path(mark)):
        _say(f"the node {host} does not see {Path(mark).parent}: give a folder that all nodes share as the storage.")
        return 1
    try:
        folder = temporary_folder(name, os.environ)
    except OSError as error:
        _say(f"{host}: Ray has no folder ({error}). Set TMPDIR to a folder on the node's disk.")
        return 1
    log = folder / "start.log"
    with log.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - words of this file
            start_words(role, os.environ["RAY_ADDRESS"], folder, os.environ),
            stdin=subprocess.DEVNULL, stdout=file, stderr=file,
        )  # fmt: skip
    while _STARTED not in log.read_text(errors="replace"):
        if process.poll() is not None:
            _say(f"{host}: Ray ended with code {process.returncode}: {log.read_text(errors='replace')[-1500:]}")
            return 1
        time.sleep(0.1)
    _say(f"forebay-node-is-ready {os.environ.get('SLURM_STEP_ID', '')} {host}")
    return process.wait()


def _sees(mark: Path) -> bool:
    for _ in range(LOOKS):
        # Opening the folder makes NFS ask its server again.
        if mark.parent.is_dir() and mark in mark.parent.iterdir():
            return True
        time.sleep(LOOK_EVERY_S)
    return False


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("", 0))
        return int(probe.getsockname()[1])


def _say(text: str) -> None:
    os.write(1, f"{text}\n".encode())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
