"""A pod's container as local processes, with its log."""

from __future__ import annotations

import datetime
import http.server
import re
import ssl
import subprocess
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

from forebay.fleet.kube.api import Object
from forebay.testing.drivers.ray_processes import NodeProcesses


class PodProcess:
    """Container of `pod`, which runs `command` in a shell.

    Its mounts are folders below `folder`.
    """

    def __init__(self, pod: Object, command: str, folder: Path, environment: Mapping[str, str]) -> None:
        self.pod, self.folder = pod, folder
        (container,) = pod["spec"]["containers"]
        variables = {each["name"]: each["value"] for each in container.get("env") or () if "value" in each}
        if "FOREBAY_RUN_GPUS" in variables:
            # The GPUs of the played nodes are there for the scheduler alone.
            variables["FOREBAY_RUN_GPUS"] = "0"
        home = folder / "home"
        home.mkdir(parents=True)
        given = {name: self.here(unescaped(value)) for name, value in variables.items()}
        self.log: list[str] = []
        self.changed = threading.Condition()
        self.is_closed = False
        where = {"HOME": str(home), **environment, **given}
        self.processes = NodeProcesses(["/bin/bash", "-c", self.here(command)], where, subprocess.PIPE)
        threading.Thread(target=self._read, daemon=True).start()

    def here(self, text: str) -> str:
        """Text with the paths of mounts on this machine."""
        (container,) = self.pod["spec"]["containers"]
        for mount in container.get("volumeMounts") or ():
            target = self.folder / mount["name"]
            target.mkdir(parents=True, exist_ok=True)
            text = re.sub(rf"(?<![\w/.-]){re.escape(mount['mountPath'])}(?=[/\s'\"&;]|$)", str(target), text)
        return text

    @property
    def exit_code(self) -> int | None:
        """Exit code of the container, None while it runs."""
        return self.processes.command.poll()

    def text(self) -> str:
        """Log without times."""
        return "\n".join(line.partition(" ")[2] for line in self.log)

    def _read(self) -> None:
        output = self.processes.command.stdout
        assert output is not None
        for line in output:
            with (self.folder / "log").open("ab") as file:  # for who looks for the cause of a failure
                file.write(line)
            at = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%M:%S.%f000Z")
            with self.changed:
                self.log.append(f"{at} {line.decode(errors='replace').rstrip()}")
                self.changed.notify_all()
        with self.changed:
            self.is_closed = True
            self.changed.notify_all()


class LogServer:
    """Part of a kubelet that serves logs.

    `find` returns the container of a pod.
    """

    def __init__(self, pki: Path, find: Callable[[str], PodProcess | None]) -> None:
        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                parts = urlsplit(self.path)
                query = {name: values[0] for name, values in parse_qs(parts.query).items()}
                process = find(parts.path.split("/")[3])
                if process is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.end_headers()
                self._send(process, query)

            def _send(self, process: PodProcess, query: Mapping[str, str]) -> None:
                shown = 0
                while True:
                    with process.changed:
                        if query.get("follow") == "true" and not process.is_closed and shown == len(process.log):
                            process.changed.wait(0.5)
                        lines, is_last = process.log[shown:], process.is_closed or query.get("follow") != "true"
                    shown += len(lines)
                    for line in lines:
                        at, _, text = line.partition(" ")
                        if at >= query.get("sinceTime", ""):
                            self.wfile.write(f"{line if query.get('timestamps') == 'true' else text}\n".encode())
                    self.wfile.flush()
                    if is_last:
                        return

            def log_message(self, *words: object) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(pki / "server.crt", pki / "server.key")
        self._server.socket = context.wrap_socket(self._server.socket, server_side=True)
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def unescaped(text: str) -> str:
    """Text as Kubernetes passes it on."""
    return text.replace("$$", "$")
