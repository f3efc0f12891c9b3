"""Answers of an API server, as errors with remedies.

The server is local and speaks HTTP.
"""

from __future__ import annotations

import contextlib
import datetime
import http.server
import ipaddress
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from forebay.errors import InvalidOption
from forebay.fleet.kube.api import KubeApi
from forebay.fleet.kube.api_errors import (
    AccessRefused,
    ApiUnreachable,
    NamespaceEnds,
    ObjectChanged,
    ObjectExists,
    ObjectInvalid,
    ObjectMissing,
    QuotaExceeded,
    TooManyRequests,
    VersionExpired,
)
from forebay.fleet.kube.connection import by_context, in_cluster
from forebay.fleet.kube.kuberay import KubeRay

pytest.importorskip("kubernetes")


class ApiServer(http.server.BaseHTTPRequestHandler):
    """Answers requests from the test's queue, and notes them."""

    answers: ClassVar[list[tuple[int, str, dict[str, str]]]] = []
    requests: ClassVar[list[tuple[str, str, str | None]]] = []
    bodies: ClassVar[list[bytes]] = []

    def answer(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers.get("Content-Length") or 0)))
        self.requests.append((self.command, self.path, self.headers.get("Authorization")))
        status, text, headers = self.answers.pop(0)
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815 - names of http.server

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[type[ApiServer]]:
    ApiServer.answers, ApiServer.requests, ApiServer.bodies = [], [], []
    httpd = http.server.ThreadingHTTPServer(("127.0.0.1", 0), ApiServer)
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    ApiServer.port = httpd.server_address[1]
    yield ApiServer
    httpd.shutdown()
    thread.join()
    httpd.server_close()


@pytest.fixture
def api(server: type[ApiServer], tmp_path) -> KubeApi:
    return KubeApi(by_context("here", kubeconfig(tmp_path, server.port, "first")), cluster="here", sleep=waits.append)


waits: list[float] = []


def kubeconfig(folder, port: int, token: str) -> str:
    path = folder / "kubeconfig"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "here",
                "clusters": [{"name": "c", "cluster": {"server": f"http://127.0.0.1:{port}"}}],
                "users": [{"name": "u", "user": {"token": token}}],
                "contexts": [{"name": "here", "context": {"cluster": "c", "user": "u"}}],
            }
        )
    )
    return str(path)


def status(code: int, message: str, **more: Any) -> tuple[int, str, dict[str, str]]:
    return code, json.dumps({"kind": "Status", "code": code, "message": message, **more}), {}


@pytest.mark.parametrize(
    ("answer", "kind", "says"),
    [
        (status(403, "rayjobs is forbidden: cannot create"), AccessRefused, "forebay-submitter"),
        (status(403, "exceeded quota: gpus, requested: 8"), QuotaExceeded, "choose another cluster"),
        (status(403, "ml: unable to create, because it is being terminated"), NamespaceEnds, "another cluster"),
        (
            status(400, 'strict decoding error: unknown field "spec.new"'),
            ObjectInvalid,
            "this cluster has older ones",
        ),
        (status(404, 'rayjobs "x" not found'), ObjectMissing, "name and namespace"),
        ((404, "404 page not found\n", {}), ObjectMissing, "install KubeRay 1.7"),
        (status(409, 'rayjobs "x" already exists', reason="AlreadyExists"), ObjectExists, "Choose another name"),
        (status(409, "the object has been modified", reason="Conflict"), ObjectChanged, "Read the object again"),
        (status(410, "too old resource version"), VersionExpired, "List the objects again"),
        (
            status(422, "invalid", details={"causes": [{"field": "spec.a", "message": "must be b"}]}),
            ObjectInvalid,
            "spec.a: must be b",
        ),
    ],
)
def test_refusal_is_an_error_by_what_to_do(server, api, answer, kind, says: str) -> None:
    server.answers = [answer]
    with pytest.raises(kind, match="cluster here answered") as caught:
        api.create("/apis/ray.io/v1/namespaces/ml/rayjobs", {})
    assert says in str(caught.value)
    assert caught.value.status == answer[0]
    assert len(server.requests) == 1


def test_server_error_is_repeated_for_reads_only(server, api) -> None:
    server.answers = [status(503, "starting"), status(500, "starting"), (200, '{"metadata": {}}', {})]
    assert api.get("/api/v1/nodes") == {"metadata": {}}
    assert len(server.requests) == 3
    server.answers = [status(503, "starting")]
    with pytest.raises(ApiUnreachable):
        api.create("/api/v1/nodes", {})
    assert len(server.requests) == 4


def test_html_of_a_proxy_is_no_answer(server, api) -> None:
    server.answers = [(200, "<html>Please log in</html>", {})] * 3
    with pytest.raises(ApiUnreachable, match="proxies on the way"):
        api.get("/api/v1/nodes")


def test_server_that_asks_to_wait_is_waited_for(server, api) -> None:
    waits.clear()
    slow = (429, "{}", {"Retry-After": "7"})
    server.answers = [slow, (200, '{"metadata": {}}', {})]
    api.get("/api/v1/nodes")
    assert waits == [7.0]
    server.answers = [(429, "{}", {"Retry-After": "3600"})]
    with pytest.raises(TooManyRequests):
        api.get("/api/v1/nodes")


def test_credentials_are_read_again_once(server, api, tmp_path) -> None:
    kubeconfig(tmp_path, server.port, "second")
    server.answers = [status(401, "Unauthorized"), (200, '{"metadata": {}}', {})]
    api.get("/api/v1/nodes")
    assert [token for _, _, token in server.requests] == ["Bearer first", "Bearer second"]
    server.answers = [status(401, "Unauthorized")] * 2
    with pytest.raises(AccessRefused, match="renew its kubeconfig"):
        api.get("/api/v1/nodes")


def test_list_is_read_in_pages(server, api) -> None:
    first = {"metadata": {"continue": "more"}, "items": [{"n": 1}]}
    server.answers = [
        (200, json.dumps(first), {}),
        (200, json.dumps({"metadata": {}, "items": [{"n": 2}]}), {}),
    ]
    assert [each["n"] for each in api.items("/api/v1/pods", labelSelector="a=b")] == [1, 2]
    assert "limit=500" in server.requests[0][1]
    assert "continue=more" in server.requests[1][1]


def test_watch_yields_changes_until_its_version_expired(server, api) -> None:
    def event(kind: str, version: str) -> str:
        return json.dumps({"type": kind, "object": {"metadata": {"resourceVersion": version}}})

    expired = json.dumps({"type": "ERROR", "object": {"code": 410, "message": "too old"}})
    server.answers = [(200, f"{event('MODIFIED', '6')}\n{event('BOOKMARK', '9')}\n{expired}\n", {})]
    found = api.watch("/api/v1/nodes", version="5")
    assert [(kind, each["metadata"]["resourceVersion"]) for kind, each in (next(found), next(found))] == [
        ("MODIFIED", "6"),
        ("BOOKMARK", "9"),
    ]
    with pytest.raises(VersionExpired):
        next(found)
    assert "resourceVersion=5" in server.requests[0][1]


def test_server_that_is_not_there(tmp_path) -> None:
    api = KubeApi(by_context("here", kubeconfig(tmp_path, 1, "t")), cluster="gone", sleep=lambda _: None)
    with pytest.raises(ApiUnreachable, match="cluster gone gave no answer to GET /version"):
        api.get("/version")


@pytest.mark.parametrize("what", ["expired", "wrong authority"])
def test_certificate_that_cannot_be_trusted(tmp_path, what: str) -> None:
    certificate(tmp_path, "server", ends_in_days=-1 if what == "expired" else 1)
    certificate(tmp_path, "other", ends_in_days=1)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.crt", tmp_path / "server.key")
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def shake_hands() -> None:
            with contextlib.suppress(OSError):
                context.wrap_socket(listener.accept()[0], server_side=True).close()

        thread = threading.Thread(target=shake_hands)
        thread.start()
        path = Path(kubeconfig(tmp_path, listener.getsockname()[1], "t"))
        config = json.loads(path.read_text().replace("http://", "https://"))
        trusted = "server.crt" if what == "expired" else "other.crt"
        config["clusters"][0]["cluster"]["certificate-authority"] = str(tmp_path / trusted)
        path.write_text(json.dumps(config))
        api = KubeApi(by_context("here", str(path)), cluster="here", sleep=lambda _: None)
        with pytest.raises(ApiUnreachable, match=r"SSLError.*(?s:.)*Check the certificate authority and the expiry"):
            api.create("/api/v1/nodes", {})
        thread.join()


def certificate(folder, name: str, *, ends_in_days: int) -> None:
    """Write a self-signed certificate and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=ends_in_days))
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    form = serialization.PrivateFormat.PKCS8
    text = key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
    (folder / f"{name}.key").write_bytes(text)


def test_unknown_context_and_no_pod(tmp_path) -> None:
    with pytest.raises(InvalidOption, match="no usable context 'nobody'"):
        by_context("nobody", kubeconfig(tmp_path, 1, "t"))()
    with pytest.raises(InvalidOption, match="no usable context"):
        by_context(None, str(tmp_path / "nothing"))()
    with pytest.raises(InvalidOption, match="runs in no pod"):
        in_cluster()


def ray_job(key: str, uid: str) -> tuple[int, str, dict[str, str]]:
    metadata = {"name": "fb-a-1", "uid": uid, "annotations": {"forebay.dev/key": key, "forebay.dev/attempt": "1"}}
    return 200, json.dumps({"metadata": metadata}), {}


@pytest.mark.parametrize(
    ("answers", "verbs"),
    [
        ([ray_job("theirs", "2")], ["GET"]),
        ([ray_job("ours", "1"), status(200, ""), status(404, "gone")], ["GET", "DELETE", "GET"]),
        ([ray_job("ours", "1"), status(409, "the UID in the precondition is 2")], ["GET", "DELETE"]),
        ([ray_job("ours", "1"), status(200, ""), ray_job("theirs", "2")], ["GET", "DELETE", "GET"]),
    ],
    ids=["of another job", "ours", "replaced before the request", "replaced after it"],
)
def test_only_the_ray_job_of_the_job_is_deleted(
    api: KubeApi, server: type[ApiServer], answers: list[tuple[int, str, dict[str, str]]], verbs: list[str]
) -> None:
    server.answers += answers
    KubeRay(api, "ml").delete_job("fb-a-1", key="ours", deadline_s=5.0)
    assert [verb for verb, *_ in server.requests] == verbs
    bodies = [json.loads(body) for body in server.bodies if body]
    assert [body["preconditions"] for body in bodies] == [{"uid": "1"}] * verbs.count("DELETE")


@pytest.mark.parametrize(
    "text", ["\tclusters: [a", "just text", "[]", "clusters: {a: b}", "contexts: 7", "clusters:\n- name: c"]
)
def test_a_damaged_kubeconfig_is_named(tmp_path: Path, text: str) -> None:
    """A command that renews it may be writing it now: a controller goes on with the other clusters."""
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    with pytest.raises(InvalidOption, match="the kubeconfig has no usable context 'here'"):
        by_context("here", str(path))()
