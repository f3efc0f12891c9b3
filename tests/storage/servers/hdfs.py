"""A real HDFS on 127.0.0.1.

One NameNode and one DataNode of Hadoop 2.7.4, each a process that can be killed or frozen.

The jars come from PyPI (pyspark) and Debian, once, into ~/.cache/forebay-tests. Needs Java 17 or 21.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

CACHE = Path("~/.cache/forebay-tests").expanduser()

# 3.0.1 is the newest that holds the servers of HDFS (3.0.2 has Hadoop 3.2 without them), and builds with today's pip;
# 2.4.x has 2.7.3, but its setup.py fails with today's pypandoc.
PYSPARK = "pyspark==3.0.1"
SPARK_JARS = [
    "hadoop-common-2.7.4",
    "hadoop-hdfs-2.7.4",
    "hadoop-auth-2.7.4",
    "jetty-6.1.26",
    "jetty-util-6.1.26",
    "jetty-sslengine-6.1.26",
    "javax.servlet-api-3.1.0",
    "commons-cli-1.2",
    "commons-codec-1.10",
    "commons-collections-3.2.2",
    "commons-configuration-1.6",
    "commons-io-2.4",
    "commons-lang-2.6",
    "commons-logging-1.1.3",
    "guava-14.0.1",
    "htrace-core-3.1.0-incubating",
    "httpclient-4.5.6",
    "httpcore-4.4.12",
    "jackson-core-asl-1.9.13",
    "jackson-mapper-asl-1.9.13",
    "jakarta.xml.bind-api-2.3.2",
    "log4j-1.2.17",
    "netty-all-4.1.47.Final",
    "protobuf-java-2.5.0",
    "slf4j-api-1.7.30",
    "slf4j-log4j12-1.7.30",
    "xmlenc-0.52",
]
DEBIAN = {  # package: jar
    "libjersey1-core-java": "jersey1-core",
    "libjersey1-server-java": "jersey1-server",
    "libjersey1-servlet-java": "jersey1-servlet",
    "libjsr311-api-java": "jsr311-api",
}
JVM = [
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xms32m",
    "-Xmx160m",
    "-Xss512k",
    "-Djava.net.preferIPv4Stack=true",
    "-Djava.awt.headless=true",
]
NAME_NODE = "org.apache.hadoop.hdfs.server.namenode.NameNode"
DATA_NODE = "org.apache.hadoop.hdfs.server.datanode.DataNode"
LOG4J = """log4j.rootLogger=INFO,err
log4j.appender.err=org.apache.log4j.ConsoleAppender
log4j.appender.err.target=System.err
log4j.appender.err.layout=org.apache.log4j.PatternLayout
log4j.appender.err.layout.ConversionPattern=%d{ISO8601} %p %c{1}: %m%n
"""


class NoHadoop(RuntimeError):
    """This machine cannot run HDFS. The text says why."""


def install(cache: Path = CACHE) -> Path:
    """Folder of the jars.

    All of them or none, once for all processes that ask.
    """
    jars = cache / "hadoop-2.7.4"
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / "hadoop.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not jars.exists():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                _collect(Path(scratch)).rename(jars)
    return jars


def _collect(work: Path) -> Path:
    whole = work / "jars"
    # Its own jars hold no web pages, and the servers refuse to start without the folders.
    for name in ("hdfs", "datanode", "static"):
        (whole / "webapps" / name / "WEB-INF").mkdir(parents=True)
    (whole / "log4j.properties").write_text(LOG4J)
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "--dest",
        str(work),
        PYSPARK,
    ]
    subprocess.run(pip, check=True, timeout=240)
    with tarfile.open(next(work.glob("pyspark-*.tar.gz"))) as packed:
        for member in packed:
            name = Path(member.name)
            if name.parent.name == "jars" and name.stem in SPARK_JARS:
                content = packed.extractfile(member)
                assert content is not None
                (whole / name.name).write_bytes(content.read())
    download = ["apt-get", "download", "-qq", "-o", "APT::Sandbox::User=root", *DEBIAN]
    if subprocess.run(download, cwd=work, check=False).returncode:  # no lists of packages yet
        subprocess.run(["apt-get", "update", "-qq"], check=True)
        subprocess.run(download, cwd=work, check=True)
    for package, jar in DEBIAN.items():
        subprocess.run(["dpkg-deb", "-x", str(next(work.glob(f"{package}_*.deb"))), str(work)], check=True)
        shutil.copyfile((work / f"usr/share/java/{jar}.jar").resolve(), whole / f"{jar}.jar")
    missing = {*SPARK_JARS, *DEBIAN.values()} - {jar.stem for jar in whole.glob("*.jar")}
    assert not missing, missing
    return whole


def free_port() -> int:
    """Free port below the range of the system's automatic ports."""
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", 20_000 + secrets.randbelow(12_000))) as listening:
            return int(listening.getsockname()[1])


def java() -> list[str]:
    """Command of a server.

    It ends with the thread that started it, even if that is killed: use the main thread.
    """
    found = str(Path(os.environ["JAVA_HOME"], "bin/java")) if "JAVA_HOME" in os.environ else str(shutil.which("java"))
    return ["setpriv", "--pdeathsig", "KILL", found]


def xml(settings: Mapping[str, str]) -> str:
    rows = (
        f"<property><name>{name}</name><value>{escape(value)}</value></property>" for name, value in settings.items()
    )
    return f"<configuration>{''.join(rows)}</configuration>"


def settings_of(folder: Path) -> dict[str, str]:
    """Settings of the DataNode and the NameNode."""
    return {
        "dfs.datanode.data.dir": f"file://{folder}/data",
        "dfs.datanode.address": "127.0.0.1:0",
        "dfs.datanode.ipc.address": "127.0.0.1:0",
        "dfs.datanode.http.address": "127.0.0.1:0",
        "dfs.datanode.hostname": "127.0.0.1",
        "dfs.replication": "1",
        "dfs.blocksize": str(4 << 20),
        "dfs.namenode.safemode.extension": "0",
        "dfs.namenode.handler.count": "4",
        # A dead DataNode is known after 2 x recheck + 10 x heartbeat; by default that is 10.5 minutes.
        "dfs.heartbeat.interval": "1",
        "dfs.namenode.heartbeat.recheck-interval": "500",
        # The DataNode is started beside the NameNode and asks until it is there.
        "ipc.client.connect.retry.interval": "100",
        "ipc.client.connect.max.retries": "300",
    }


class HdfsServers:
    """One NameNode and one DataNode.

    Each is a process of its own that can be killed, frozen and started again.
    """

    def __init__(self, jars: Path, folder: Path, **settings: str) -> None:
        self.folder, self.port, self.http_port = folder, free_port(), free_port()
        self.uri = f"hdfs://127.0.0.1:{self.port}"
        self._jars = jars
        self._command = [*java(), *JVM, "-cp", f"{folder}:{jars}:{jars}/*"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        name_node = {
            "dfs.namenode.http-address": f"127.0.0.1:{self.http_port}",
            "dfs.namenode.name.dir": f"file://{folder}/name",
        }
        (folder / "hdfs-site.xml").write_text(xml(settings_of(folder) | name_node | settings))
        (folder / "core-site.xml").write_text(xml({"fs.defaultFS": self.uri, "hadoop.tmp.dir": f"{folder}/tmp"}))

    def format(self) -> None:
        """Make an empty name space.

        A JVM makes it once; later it is copied.
        """
        kept = self._jars.parent / "formatted-2.7.4"
        if not kept.exists():
            with (self.folder / "format.log").open("wb") as log:
                command = [*self._command, NAME_NODE, "-format", "-nonInteractive"]
                subprocess.run(command, stdout=log, stderr=log, check=True)
            shutil.copytree(self.folder / "name", Path(draft := tempfile.mkdtemp(dir=kept.parent)) / "name")
            with suppress(OSError):  # another was faster
                Path(draft, "name").rename(kept)
            shutil.rmtree(draft)
        shutil.copytree(kept, self.folder / "name", dirs_exist_ok=True)

    def start(self, name: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            main = NAME_NODE if name == "namenode" else DATA_NODE
            # A session of its own: Ctrl-C reaches the tests alone, which then end it.
            self._processes[name] = subprocess.Popen(
                [*self._command, main], stdout=log, stderr=log, start_new_session=True
            )

    def wait(self, within_s: float = 60.0) -> None:
        """Wait until the NameNode knows the DataNode's blocks.

        Writes are then allowed.
        """
        end = time.monotonic() + within_s
        while not self._is_up():
            for name, process in self._processes.items():
                if process.poll() is not None:
                    raise RuntimeError(f"{name} ended: {(self.folder / f'{name}.log').read_text()[-2000:]}")
            if time.monotonic() > end:
                raise RuntimeError(f"not up within {within_s:g} s: {self.state()}")
            time.sleep(0.05)

    def _is_up(self) -> bool:
        state = self.state()
        # Live comes before its report of blocks; until then reads find no place and fail.
        names = ("FSState", "NumLiveDataNodes", "NumStaleStorages", "NumberOfMissingBlocks")
        # Its space comes with its second heartbeat; until then writes are "replicated to 0 nodes".
        has_space = state.get("CapacityRemaining", 0) > 0
        is_whole = [state.get(name) for name in names] == ["Operational", 1, 0, 0]
        return has_space and is_whole and _data_node_answers(state)

    def state(self) -> dict[str, Any]:
        """State that the NameNode reports. Empty while it is down."""
        found: dict[str, Any] = {}
        for name in ("FSNamesystemState", "NameNodeInfo"):
            query = f"http://127.0.0.1:{self.http_port}/jmx?qry=Hadoop:service=NameNode,name={name}"
            with suppress(OSError, ValueError, IndexError), urllib.request.urlopen(query, timeout=2) as answer:
                found |= json.load(answer)["beans"][0]
        return found

    def is_running(self, name: str) -> bool:
        return name in self._processes

    def signal(self, name: str, number: signal.Signals) -> None:
        self._processes[name].send_signal(number)
        if number in (signal.SIGKILL, signal.SIGTERM):
            self._processes.pop(name).wait()

    def stop(self) -> None:
        for name in [*self._processes]:
            self.signal(name, signal.SIGKILL)


def _data_node_answers(state: Mapping[str, Any]) -> bool:
    """Whether the NameNode knows the DataNode's present address.

    One that was killed counts as live for 10 s.
    """
    nodes = list(json.loads(state.get("LiveNodes", "{}")).values())
    address, _, port = nodes[0]["xferaddr"].partition(":") if nodes else ("", "", "")
    with socket.socket() as probe:
        return bool(port) and probe.connect_ex((address, int(port))) == 0


def installed_jars() -> Path:
    """Folder of the jars. Raises `NoHadoop`."""
    for command in ("setpriv", "java"):
        if shutil.which(command) is None:
            raise NoHadoop(f"{command} is not here")
    try:
        return install()
    except (OSError, subprocess.SubprocessError, StopIteration) as error:
        raise NoHadoop(f"the jars of Hadoop cannot be had: {error}") from error


@contextmanager
def running(**settings: str) -> Iterator[HdfsServers]:
    """Run both servers in the block.

    With further settings of Hadoop. Raises `NoHadoop`.
    """
    jars = installed_jars()
    with tempfile.TemporaryDirectory(prefix="hdfs-") as folder:
        hdfs = HdfsServers(jars, Path(folder), **settings)
        try:
            hdfs.format()
            hdfs.start("namenode")
            hdfs.start("datanode")
            hdfs.wait()
            yield hdfs
        finally:
            hdfs.stop()
