"""Canary secrets are never written, printed or sent."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.k8s.control_plane import ControlPlane
from tests.k8s.fleet.conftest import fleet_file, make_namespace
from tests.k8s.fleet.controllers import ControllerFiles, command
from tests.k8s.objects import wait_for
from tests.k8s.player import Player
from tests.k8s.test_chart import token

from forebay.cli.app import main

pytestmark = pytest.mark.k8s

KUBECONFIG = "kubernetes.config.kube_config.KUBE_CONFIG_DEFAULT_LOCATION"

NAMESPACE = "canary"
CANARY = "k4n4ry"
SECRETS = {name: f"{CANARY}-{name}-0123456789" for name in ("hf", "s3", "krb", "pull")}
UNKNOWN = f"{CANARY}-unknown-0123456789"
JOB = """
name = "canary"
storage = "STORAGE"
[[task]]
command = ["sh", "-c", "login --token $HF_TOKEN"]
workers = {cpu = 1, memory = "1Gi", sku = "small"}
[launch]
setup = ["kinit -kt /secrets/krb/keytab train@CORP"]
env = {NCCL_DEBUG = "WARN"}
secret_env = {HF_TOKEN = "hf/token"}
mounts = [{secret = "krb", path = "/secrets/krb"}]
"""
RULES = [
    {"apiGroups": ["ray.io"], "resources": ["rayjobs"], "verbs": ["create", "get", "list", "watch", "delete"]},
    {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": ["get", "list"]},
    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"]},
]


@pytest.fixture
def account(fleet: dict[str, ControlPlane]) -> str:
    """Return the token of a submitter account of "west".

    The Secrets of the job are there.
    """
    api = fleet["west"].api()
    make_namespace({"west": fleet["west"]}, NAMESPACE)
    rbac, subject = (
        "/apis/rbac.authorization.k8s.io/v1",
        {"kind": "ServiceAccount", "name": "s", "namespace": NAMESPACE},
    )
    api.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts", {"metadata": {"name": "s"}})
    api.create(f"{rbac}/clusterroles", {"metadata": {"name": "canary"}, "rules": RULES})
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "canary"}
    api.create(f"{rbac}/clusterrolebindings", {"metadata": {"name": "canary"}, "roleRef": role, "subjects": [subject]})
    for name, value in SECRETS.items():
        data = {key: base64.b64encode(value.encode()).decode() for key in ("token", "keytab")}
        api.create(f"/api/v1/namespaces/{NAMESPACE}/secrets", {"metadata": {"name": name}, "data": data})
    return token(api, NAMESPACE, "s")


def test_no_secret_is_written_printed_or_sent(
    fleet: dict[str, ControlPlane],
    players: dict[str, Player],
    account: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plane, printed = fleet["west"], {}
    more = 'storage = {secretEnv = {AWS_SECRET_ACCESS_KEY = "s3/token"}}'
    files = ControllerFiles(
        fleet=fleet_file(tmp_path, ["west"], NAMESPACE, more, '["pull"]'),
        storage=str(tmp_path / "runs"),
        journal=str(tmp_path / "journal.sqlite"),
        trace="",
        output=str(tmp_path / "output"),
        kubeconfig=plane.kubeconfig_of(account),
    )
    job = tmp_path / "code" / "job.toml"
    job.parent.mkdir()
    job.write_text(JOB.replace("STORAGE", files.storage))
    # The package reads KUBECONFIG when it is imported.
    monkeypatch.setattr(KUBECONFIG, files.kubeconfig)
    players["west"].run_job = lambda _: "RUNNING"
    fleet_words, storage = ("--fleet", files.fleet), ("--storage", files.storage)
    with command(files):
        for words in (
            ("fleet", "explain", str(job), *fleet_words),
            ("fleet", "explain", str(job), *fleet_words, "--live", "--json"),
            ("submit", str(job), "--backend", "fleet", *fleet_words, "--json"),
            ("fleet", "clusters", *fleet_words),
            ("fleet", "clusters", *fleet_words, "--json"),
        ):
            printed[words] = run(*words)
        wait_for((Path(files.storage) / "canary" / "submissions" / "000001.started.json").exists, 120)
        stored = list(stored_objects(plane))
        journal = b"".join(each.read_bytes() for each in tmp_path.glob("journal.sqlite*"))
        for words in (
            ("jobs", *storage),
            ("jobs", *storage, "--json"),
            ("logs", "canary", *storage),
        ):
            printed[words] = run(*words)
        players["west"].run_job = lambda _: "SUCCEEDED"
        wait_for((Path(files.storage) / "canary" / "submissions" / "000001.ended.json").exists, 120)
    # An error of the API server, for a token that it does not know.
    monkeypatch.setattr(KUBECONFIG, plane.kubeconfig_of(UNKNOWN))
    refused = run("fleet", "clusters", *fleet_words)
    assert "401" in refused
    kinds = {each["kind"] for each in stored}
    assert kinds >= {"RayJob", "RayCluster", "Pod"}
    assert json.dumps(stored).count("hf") > 0  # the references are there
    outputs = {
        "objects": json.dumps(stored).encode(),
        "journal": journal + b"".join(each.read_bytes() for each in tmp_path.glob("journal.sqlite*")),
        "storage": b"".join(each.read_bytes() for each in Path(files.storage).rglob("*") if each.is_file()),
        "controller": Path(files.output).read_bytes(),
        "refused": refused.encode(),
        **{" ".join(words): text.encode() for words, text in printed.items()},
    }
    assert all(len(content) > 0 for what, content in outputs.items() if not what.startswith("logs")), outputs
    found = {what for what, content in outputs.items() for secret in spellings(account) if secret in content}
    assert found == set()
    print({what: len(content) for what, content in outputs.items()})


def run(*words: str) -> str:
    """Return the output of a command.

    It runs in this process.
    """
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown), contextlib.redirect_stderr(shown), contextlib.suppress(SystemExit):
        main(list(words))
    return shown.getvalue()


def stored_objects(plane: ControlPlane) -> Iterator[dict]:
    """Yield stored objects of the namespace, but for Secrets."""
    api = plane.api()
    for group, kinds in (
        ("/apis/ray.io/v1", ("rayjobs", "rayclusters")),
        ("/api/v1", ("pods", "events", "configmaps", "services", "serviceaccounts")),
    ):
        for kind in kinds:
            page = api.get(f"{group}/namespaces/{NAMESPACE}/{kind}")
            for each in page.get("items") or ():
                yield {"kind": page["kind"].removesuffix("List"), **each}


def spellings(account: str) -> Iterator[bytes]:
    """Every secret, as it is and in Base64."""
    for secret in (*SECRETS.values(), UNKNOWN, account):
        yield secret.encode()
        yield base64.b64encode(secret.encode()).rstrip(b"=")[:-1]
    yield os.fsencode(CANARY)
