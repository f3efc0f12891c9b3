"""A real control plane on loopback ports.

It has etcd, API servers, scheduler and controllers. No nodes, no Docker. kube-apiserver, scheduler and controller
manager are 1.20. The CRDs of KubeRay are served by an apiextensions-apiserver 0.36 through aggregation, with strict
validation and CEL as in Kubernetes 1.36.
"""

from __future__ import annotations

import base64
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import yaml
from tests.k8s.pki import kubeconfig, kubeconfig_of, make_pki

from forebay.fleet.kube.api import KubeApi
from forebay.fleet.kube.api_errors import KubeError
from forebay.fleet.kube.connection import by_context

T = TypeVar("T")

BINARIES = ("etcd", "kube-apiserver", "kube-scheduler", "kube-controller-manager", "apiextensions-apiserver")
BINARY_DIR = Path(os.environ.get("FOREBAY_CONTROL_PLANE", "~/.cache/forebay/control-plane")).expanduser()
CRD_DIR = Path(os.environ.get("KUBERAY_CRD_DIR", Path(__file__).parents[3] / "shared" / "kuberay-crds"))
# They want resources that a core of 1.20 does not serve.
OFF = "MutatingAdmissionWebhook,ValidatingAdmissionWebhook,ValidatingAdmissionPolicy,MutatingAdmissionPolicy"


def what_is_missing() -> str | None:
    """Reason why no control plane can run here, or None."""
    missing = [name for name in BINARIES if not (BINARY_DIR / name).exists()]
    if missing:
        return f"{BINARY_DIR} lacks {', '.join(missing)}: set FOREBAY_CONTROL_PLANE to a folder that has them"
    if not list(CRD_DIR.glob("ray.io_*.yaml")):
        return f"{CRD_DIR} has no CRDs of KubeRay: set KUBERAY_CRD_DIR"
    return None


class ControlPlane:
    """One cluster.

    `context` is its name in `kubeconfig`, which is an administrator's.
    """

    def __init__(self, name: str, folder: Path) -> None:
        self.context, self.folder, self.pki = name, folder / name, folder / name / "pki"
        self.port, self.extensions_port, self._etcd, self._peer, self._scheduler, self._controllers = free_ports(6)
        self.kubeconfig = str(self.folder / "admin.kubeconfig")
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        make_pki(self.pki)
        for user in ("admin", "scheduler", "controllers", "extensions"):
            self._write_kubeconfig(user)
        self._start_core()
        self._start_extensions()
        self._install_crds()
        # After the CRDs: the garbage collector looks for new kinds only every 30 s.
        self._start_scheduler()
        self._start_controller_manager()

    def start_scheduler(self) -> None:
        """Start an API server and a scheduler alone.

        There are no CRDs, and nodes need no heartbeat.
        """
        make_pki(self.pki)
        for user in ("admin", "scheduler"):
            self._write_kubeconfig(user)
        self._start_core()
        self._start_scheduler()
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        self._await(lambda: self.api().create("/api/v1/namespaces/default/serviceaccounts", account), "its account")

    def api(self, **options: object) -> KubeApi:
        return KubeApi(by_context(self.context, self.kubeconfig), cluster=self.context, **options)

    def kubeconfig_of(self, token: str) -> str:
        """Return a kubeconfig with a service account's token."""
        path = self.folder / f"token-{abs(hash(token))}.kubeconfig"
        path.write_text(kubeconfig_of(self.pki, self.port, self.context, {"token": token}))
        path.chmod(0o600)
        return str(path)

    def api_of(self, token: str) -> KubeApi:
        """API by the token of a service account."""
        return KubeApi(by_context(self.context, self.kubeconfig_of(token)), cluster=self.context)

    def freeze(self) -> None:
        """Cut the cluster off.

        Its API server keeps connections, and answers nothing.
        """
        self.processes["kube-apiserver"].send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.processes["kube-apiserver"].send_signal(signal.SIGCONT)

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
        for process in self.processes.values():
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _start_core(self) -> None:
        pki, etcd = self.pki, f"http://127.0.0.1:{self._etcd}"
        peer = f"http://127.0.0.1:{self._peer}"
        self._run("etcd", data_dir=self.folder / "etcd", listen_client_urls=etcd, advertise_client_urls=etcd,
                  listen_peer_urls=peer, initial_advertise_peer_urls=peer, initial_cluster=f"default={peer}",
                  log_level="error")  # fmt: skip
        self._run("kube-apiserver", etcd_servers=etcd, bind_address="127.0.0.1", secure_port=self.port,
                  **self._server_certificate(), service_account_issuer="https://kubernetes.default.svc",
                  service_account_key_file=pki / "sa.pub", service_account_signing_key_file=pki / "sa.key",
                  service_cluster_ip_range="10.0.0.0/24", authorization_mode="RBAC", allow_privileged="true",
                  endpoint_reconciler_type="none", requestheader_client_ca_file=pki / "ca.crt",
                  requestheader_allowed_names="aggregator", requestheader_username_headers="X-Remote-User",
                  requestheader_group_headers="X-Remote-Group",
                  requestheader_extra_headers_prefix="X-Remote-Extra-", proxy_client_cert_file=pki / "aggregator.crt",
                  proxy_client_key_file=pki / "aggregator.key", kubelet_client_certificate=pki / "admin.crt",
                  kubelet_client_key=pki / "admin.key", kubelet_preferred_address_types="InternalIP")  # fmt: skip
        self._await(lambda: self.api().get("/api/v1/namespaces/kube-system"), "kube-apiserver")

    def _start_extensions(self) -> None:
        own = self.folder / "extensions.kubeconfig"
        self._run("apiextensions-apiserver", etcd_servers=f"http://127.0.0.1:{self._etcd}", etcd_prefix="/extensions",
                  bind_address="127.0.0.1", secure_port=self.extensions_port, **self._server_certificate(),
                  kubeconfig=own, authentication_kubeconfig=own, authorization_kubeconfig=own,
                  disable_admission_plugins=OFF)  # fmt: skip

    def _start_scheduler(self) -> None:
        self._start_controller("scheduler", self._scheduler)

    def _start_controller_manager(self) -> None:
        self._start_controller("controller-manager", self._controllers, user="controllers",
                               service_account_private_key_file=self.pki / "sa.key", root_ca_file=self.pki / "ca.crt",
                               use_service_account_credentials="true", node_monitor_period="1s",
                               node_monitor_grace_period="5s")  # fmt: skip

    def _start_controller(self, name: str, port: int, *, user: str | None = None, **more: object) -> None:
        own = self.folder / f"{user or name}.kubeconfig"
        self._run(f"kube-{name}", kubeconfig=own, leader_elect="false", bind_address="127.0.0.1", port=0,
                  secure_port=port, authentication_kubeconfig=own, authorization_kubeconfig=own, **more)  # fmt: skip

    def _write_kubeconfig(self, user: str) -> None:
        path = self.folder / f"{user}.kubeconfig"
        path.write_text(kubeconfig(self.pki, user, self.port, self.context))
        path.chmod(0o600)

    def _install_crds(self) -> None:
        extensions = self.folder / "direct.kubeconfig"
        extensions.write_text(kubeconfig(self.pki, "admin", self.extensions_port, self.context))
        api = KubeApi(by_context(self.context, str(extensions)), cluster=self.context)
        for file in sorted(CRD_DIR.glob("ray.io_*.yaml")):
            body = yaml.load(file.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
            path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
            self._await(lambda path=path, body=body: api.apply(f"{path}/{body['metadata']['name']}", body), file.name)
        port = self.extensions_port
        service = {"type": "ExternalName", "externalName": "localhost", "ports": [{"port": port, "protocol": "TCP"}]}
        core = self.api()
        core.create("/api/v1/namespaces/kube-system/services", {"metadata": {"name": "extensions"}, "spec": service})
        spec = {
            "group": "ray.io",
            "version": "v1",
            "groupPriorityMinimum": 1000,
            "versionPriority": 100,
            "caBundle": base64.b64encode((self.pki / "ca.crt").read_bytes()).decode(),
            "service": {"namespace": "kube-system", "name": "extensions", "port": port},
        }
        core.create("/apis/apiregistration.k8s.io/v1/apiservices", {"metadata": {"name": "v1.ray.io"}, "spec": spec})
        self._await(lambda: core.get("/apis/ray.io/v1/rayjobs"), "ray.io/v1 through the aggregator")
        self._await(lambda: core.get("/apis/ray.io/v1/rayclusters"), "ray.io/v1 through the aggregator")

    def _server_certificate(self) -> dict[str, Path]:
        pki = self.pki
        return {
            "tls_cert_file": pki / "server.crt",
            "tls_private_key_file": pki / "server.key",
            "client_ca_file": pki / "ca.crt",
        }

    def _run(self, name: str, **flags: object) -> None:
        words = [f"--{flag.replace('_', '-')}={value}" for flag, value in flags.items()]
        with (self.folder / f"{name}.log").open("wb") as log:
            # A group of its own: Ctrl-C reaches the test session, which ends its children itself.
            self.processes[name] = subprocess.Popen(
                [str(BINARY_DIR / name), *words], stdout=log, stderr=log, start_new_session=True
            )

    def _await(self, done: Callable[[], T], what: str, seconds: float = 90.0) -> T:
        end = time.monotonic() + seconds
        while True:
            try:
                return done()
            except KubeError as error:
                dead = [name for name, process in self.processes.items() if process.poll() is not None]
                if dead:
                    log = (self.folder / f"{dead[0]}.log").read_text()[-1500:]
                    raise RuntimeError(f"{dead[0]} ended: {log}") from error
                if time.monotonic() > end:
                    raise
                time.sleep(0.1)


def free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports
