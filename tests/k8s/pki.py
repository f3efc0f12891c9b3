"""Certificates and kubeconfigs of a control plane for tests."""

from __future__ import annotations

import base64
import datetime
import ipaddress
import json
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

MASTERS = "system:masters"
CLIENTS = {
    "admin": ("admin", MASTERS),
    "extensions": ("extensions", MASTERS),
    "scheduler": ("system:kube-scheduler", None),
    "controllers": ("system:kube-controller-manager", None),
    "aggregator": ("aggregator", None),
}


def make_pki(folder: Path) -> None:
    """Write an authority and its certificates.

    They are the server's and all clients', and there is the key of service accounts.
    """
    folder.mkdir(parents=True)
    authority = Authority(folder)
    authority.sign("server", "127.0.0.1", is_server=True)
    for file, (name, group) in CLIENTS.items():
        authority.sign(file, name, group)
    key = write_key(folder / "sa.key")
    form = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / "sa.pub").write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, form))


class Authority:
    def __init__(self, folder: Path) -> None:
        self.folder, self.key = folder, write_key(folder / "ca.key")
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test-ca")])
        builder = self._builder(self.name, self.key.public_key(), is_authority=True)
        self._write("ca", builder.sign(self.key, hashes.SHA256()))

    def sign(self, file: str, name: str, group: str | None = None, *, is_server: bool = False) -> None:
        key = write_key(self.folder / f"{file}.key")
        parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group)] if group else []
        subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
        use = ExtendedKeyUsageOID.SERVER_AUTH if is_server else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = self._builder(subject, key.public_key()).add_extension(x509.ExtendedKeyUsage([use]), critical=False)
        if is_server:
            hosts = [x509.DNSName("localhost"), x509.DNSName("extensions.kube-system.svc")]
            address = x509.IPAddress(ipaddress.ip_address("127.0.0.1"))
            builder = builder.add_extension(x509.SubjectAlternativeName([*hosts, address]), critical=False)
        self._write(file, builder.sign(self.key, hashes.SHA256()))

    def _builder(self, subject, key, *, is_authority=False):
        now = datetime.datetime.now(datetime.UTC)
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(minutes=5))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
        )

    def _write(self, file: str, certificate: x509.Certificate) -> None:
        (self.folder / f"{file}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))


def write_key(path: Path) -> ec.EllipticCurvePrivateKey:
    key = ec.generate_private_key(ec.SECP256R1())
    form = serialization.PrivateFormat.TraditionalOpenSSL
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    path.chmod(0o600)
    return key


def kubeconfig(pki: Path, user: str, port: int, context: str) -> str:
    """Kubeconfig of a client with a certificate."""

    def data(file: str) -> str:
        return base64.b64encode((pki / file).read_bytes()).decode()

    return kubeconfig_of(
        pki, port, context, {"client-certificate-data": data(f"{user}.crt"), "client-key-data": data(f"{user}.key")}
    )


def kubeconfig_of(pki: Path, port: int, context: str, user: dict[str, str]) -> str:
    authority = base64.b64encode((pki / "ca.crt").read_bytes()).decode()
    server = {"server": f"https://127.0.0.1:{port}", "certificate-authority-data": authority}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": context,
            "clusters": [{"name": context, "cluster": server}],
            "users": [{"name": f"user-of-{context}", "user": user}],
            "contexts": [{"name": context, "context": {"cluster": context, "user": f"user-of-{context}"}}],
        }
    )
