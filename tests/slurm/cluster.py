"""A SLURM cluster of real daemons, each node with a network, host name and process table of its own."""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self, TypeVar

T = TypeVar("T")
DAEMONS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "unshare", "ip")
CONTROLLER = "ctl"
WAIT_S = 240.0
CPUS = 2
_PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
_CONFIG = """\
ClusterName=forebay-tests
SlurmctldHost=ctl({net}.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/ctl.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/ctl.log
SlurmdLogFile={folder}/%n.log
SlurmctldDebug=info
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=batch_sched_delay=0,sched_interval=2
SlurmctldParameters=preempt_send_user_signal
SlurmctldTimeout=60
SlurmdTimeout={lost_s}
KillWait={kill_wait_s}
MinJobAge=300
InactiveLimit=0
OverTimeLimit=0
CompleteWait=0
NodeName={nodes} CPUs={cpus} Boards=1 SocketsPerBoard=1 CoresPerSocket={cpus} ThreadsPerCore=1 RealMemory=4000
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def what_is_missing() -> str:
    """Why no cluster can be started here. Empty if one can."""
    absent = [name for name in DAEMONS if shutil.which(name, path=_PATH) is None]
    if absent:
        return f"{', '.join(absent)} not found; scripts/install_slurm.sh installs them on Debian"
    if os.geteuid() != 0:
        return "only root may start nodes with networks of their own"
    tried = subprocess.run(
        ["unshare", "-n", "-m", "-p", "-u", "-f", "ip", "link", "add", "a0", "type", "veth", "peer", "name", "a1"],
        capture_output=True, text=True, check=False, env={"PATH": _PATH},
    )  # fmt: skip
    return f"no networks of their own: {tried.stderr.strip()}" if tried.returncode else ""


def until(look: Callable[[], T | None], what: str, limit_s: float = WAIT_S) -> T:
    """Return the first answer of `look` that is true."""
    end = time.monotonic() + limit_s
    while not (found := look()):
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.2)
    return found


class SlurmCluster:
    """munged, slurmctld and a slurmd for each node, which end with the block.

    A node is a process namespace: its end is the end of everything on it. All share the disk.
    """

    def __init__(self, folder: Path, nodes: tuple[str, ...] = ("n1", "n2"), *, lost_s: int = 20, kill_wait_s: int = 30):
        self.folder, self.nodes = folder, nodes
        self._roots: dict[str, int] = {}
        self._processes: list[subprocess.Popen[bytes]] = []
        self._times = {"lost_s": lost_s, "kill_wait_s": kill_wait_s}
        self._net = f"10.{200 + os.getpid() % 50}.{secrets.randbelow(250)}"
        self._bridge = f"fb{os.getpid()}"[:15]

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def call(self, *words: str, check: bool = True) -> str:
        """Output of a command on this machine, which is the cluster's login node."""
        done = subprocess.run(words, capture_output=True, text=True, check=False, env=self.environment)
        if check and done.returncode:
            raise AssertionError(f"{' '.join(words)}: {done.stderr or done.stdout}")
        return done.stdout

    @property
    def environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "RAY_"))}
        return kept | {"SLURM_CONF": str(self.folder / "slurm.conf"), "PATH": _PATH}

    def kill_node(self, name: str) -> None:
        """End all processes of a node at once, as a machine without power does."""
        os.kill(self._roots.pop(name), signal.SIGKILL)

    def restart_node(self, name: str) -> None:
        """Start the machine again."""
        self._start_node(name, ["slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf")])
        self.call("scontrol", "update", f"NodeName={name}", "State=RESUME", check=False)
        self.wait_idle()

    def state(self, job: str) -> str:
        return self.call("squeue", "--noheader", "--states=all", f"--jobs={job}", "--format=%T", check=False).strip()

    def wait_idle(self) -> None:
        """Wait until every node takes jobs."""
        states = lambda: self.call("sinfo", "--noheader", "--Node", "--format=%T", check=False).split()  # noqa: E731
        until(lambda: states() == ["idle"] * len(self.nodes), "idle nodes")

    def close(self) -> None:
        for pid in self._roots.values():
            os.kill(pid, signal.SIGKILL)
        self._roots.clear()
        for process in self._processes:
            process.kill()
            process.wait()
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False, env={"PATH": _PATH})

    def _start(self) -> None:
        self.folder.chmod(0o755)
        for name in ("state", *(f"spool-{name}" for name in self.nodes)):
            (self.folder / name).mkdir()
        (self.folder / "slurm.conf").write_text(
            _CONFIG.format(net=self._net, folder=self.folder, cpus=CPUS, nodes=self._node_names(), **self._times)
        )
        self._write_nodes()
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        self._ip("link", "add", self._bridge, "type", "bridge")
        self._ip("addr", "add", f"{self._net}.254/24", "dev", self._bridge)
        self._ip("link", "set", self._bridge, "up")
        socket = self.folder / "munge.socket"
        self._start_process(
            ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={socket}",
             f"--pid-file={self.folder}/munged.pid", f"--log-file={self.folder}/munged.log",
             f"--seed-file={self.folder}/munged.seed"],
            self.folder / "munged.out",
        )  # fmt: skip
        until(socket.exists, "munged")
        self._start_node(CONTROLLER, ["slurmctld", "-D", "-f", str(self.folder / "slurm.conf")])
        for name in self.nodes:
            self._start_node(name, ["slurmd", "-D", "-N", name, "-f", str(self.folder / "slurm.conf")])
        self.wait_idle()

    def _node_names(self) -> str:
        return ",".join(self.nodes)

    def _write_nodes(self) -> None:
        names = {CONTROLLER: 1} | {name: number for number, name in enumerate(self.nodes, start=2)}
        lines = [f"{self._net}.{number} {name}" for name, number in names.items()]
        (self.folder / "hosts").write_text("\n".join(["127.0.0.1 localhost", *lines, ""]))

    def _start_node(self, name: str, daemon: list[str]) -> None:
        number = 1 if name == CONTROLLER else self.nodes.index(name) + 2
        ready = self.folder / f"{name}.network"
        ready.unlink(missing_ok=True)
        script = (
            f"hostname {name}; mount --bind {self.folder}/hosts /etc/hosts; mount -t tmpfs tmpfs /dev/shm; "
            f"ip link set lo up; while [ ! -e {ready} ]; do sleep 0.05; done; "
            f"ip addr add {self._net}.{number}/24 dev eth0; ip link set eth0 up; exec {' '.join(daemon)}"
        )
        process = self._start_process(
            ["unshare", "--net", "--mount", "--pid", "--uts", "--ipc", "--fork", "--kill-child", "--mount-proc",
             "sh", "-c", script],
            self.folder / f"{name}.out",
        )  # fmt: skip
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        root = int(until(lambda: children.read_text().strip(), "the node's first process").split()[0])
        self._roots[name] = root
        ends = f"{self._bridge}-{number}"[-15:]
        subprocess.run(["ip", "link", "del", ends], capture_output=True, check=False, env={"PATH": _PATH})
        own_net = Path("/proc/self/ns/net").readlink()
        until(lambda: Path(f"/proc/{root}/ns/net").readlink() != own_net, "the node's network")
        self._ip("link", "add", ends, "type", "veth", "peer", "name", "eth0", "netns", str(root))
        self._ip("link", "set", ends, "master", self._bridge, "up")
        ready.touch()

    def _start_process(self, words: list[str], log: Path) -> subprocess.Popen[bytes]:
        with log.open("ab") as file:
            process = subprocess.Popen(words, env=self.environment, stdout=file, stderr=file, stdin=subprocess.DEVNULL)
        self._processes.append(process)
        return process

    def _ip(self, *words: str) -> None:
        subprocess.run(["ip", *words], check=True, capture_output=True, env={"PATH": _PATH})
