"""Two real NameNodes with common edits, and one DataNode.

`make_active` decides, without ZooKeeper.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path

from tests.storage.servers.hdfs import DATA_NODE, JVM, NAME_NODE, free_port, java, settings_of, xml

ADMIN = "org.apache.hadoop.hdfs.tools.DFSHAAdmin"
NAMES = ("nn1", "nn2")
PROVIDER = "org.apache.hadoop.hdfs.server.namenode.ha.ConfiguredFailoverProxyProvider"


class NameNodePair:
    """Name service `ns`.

    Its files of settings are in `folder`. Both NameNodes are standby after `start`.
    """

    def __init__(self, jars: Path, folder: Path) -> None:
        self.folder, self._http = folder, {name: free_port() for name in NAMES}
        self._command = [*java(), *JVM, "-cp", f"{folder}:{jars}:{jars}/*"]
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        settings = settings_of(folder) | {
            "dfs.nameservices": "ns",
            "dfs.ha.namenodes.ns": ",".join(NAMES),
            "dfs.namenode.shared.edits.dir": f"file://{folder}/shared",
            "dfs.ha.fencing.methods": "shell(/bin/true)",
            "dfs.ha.tail-edits.period": "1",
            "dfs.ha.standby.checkpoints": "false",
            "dfs.client.failover.proxy.provider.ns": PROVIDER,
        }
        for name in NAMES:
            settings[f"dfs.namenode.rpc-address.ns.{name}"] = f"127.0.0.1:{free_port()}"
            settings[f"dfs.namenode.http-address.ns.{name}"] = f"127.0.0.1:{self._http[name]}"
        (folder / "hdfs-site.xml").write_text(xml(settings))
        (folder / "core-site.xml").write_text(xml({"fs.defaultFS": "hdfs://ns", "hadoop.tmp.dir": f"{folder}/tmp"}))
        (folder / "shared").mkdir()

    def start(self) -> None:
        self._call(NAME_NODE, *self._of("nn1"), "-format", "-nonInteractive")
        shutil.copytree(self.folder / "nn1", self.folder / "nn2")  # what `-bootstrapStandby` would fetch from the first
        for name, command in (*((name, [NAME_NODE, *self._of(name)]) for name in NAMES), ("datanode", [DATA_NODE])):
            with (self.folder / f"{name}.log").open("ab") as log:
                self._processes[name] = subprocess.Popen(
                    [*self._command, *command], stdout=log, stderr=log, start_new_session=True
                )
        for name in NAMES:
            self._wait_until_up(name)

    def make_active(self, name: str) -> None:
        """Hand over to `name`: the other one is standby first."""
        other = next(one for one in NAMES if one != name)
        self._call(ADMIN, "-transitionToStandby", other)
        self._call(ADMIN, "-transitionToActive", name)
        self._wait_until_up(name, state="Operational")

    def stop(self) -> None:
        for process in self._processes.values():
            process.kill()
            process.wait()

    def _wait_until_up(self, name: str, state: str | None = None, within_s: float = 60.0) -> None:
        """Wait until a NameNode knows the DataNode and its space.

        With `state`, until it has left safe mode too.
        """
        end = time.monotonic() + within_s
        while True:
            bean = self._bean(name)
            if bean.get("NumLiveDataNodes") == 1 and bean["CapacityRemaining"] and state in (None, bean["FSState"]):
                return
            if time.monotonic() > end:
                raise RuntimeError(f"{name} is not up within {within_s:g} s: {bean}")
            time.sleep(0.1)

    def _bean(self, name: str) -> dict[str, object]:
        query = f"http://127.0.0.1:{self._http[name]}/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"
        with suppress(OSError, ValueError, IndexError), urllib.request.urlopen(query, timeout=2) as answer:
            return dict(json.load(answer)["beans"][0])
        return {}

    def _of(self, name: str) -> list[str]:
        """Settings of one NameNode.

        Both share an address, so Hadoop cannot find out which one it starts.
        """
        return ["-D", f"dfs.ha.namenode.id={name}", "-D", f"dfs.namenode.name.dir=file://{self.folder}/{name}"]

    def _call(self, *command: str) -> None:
        with (self.folder / "commands.log").open("ab") as output:
            subprocess.run([*self._command, *command], stdout=output, stderr=output, check=True, timeout=90)
