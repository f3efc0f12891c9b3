"""Real object stores on this machine.

Each server is its own process, started once and ended after the tests.
"""

from __future__ import annotations

import getpass
import hashlib
import importlib.util
import json
import os
import secrets
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from tests.storage.servers.hdfs import HdfsServers, NoHadoop, running

import forebay as fb
from forebay.runtime.metrics import Counters
from forebay.storage import credentials
from forebay.storage.filesystem import resolve
from forebay.storage.retry import ReadPolicy

SERVERS = Path(__file__).parent / "servers"
STARTS_WITHIN_S = 30.0
AZURITE = "azurite@3.35.0"
# Outside the repository, so that it is installed once. What Azurite's own documentation gives as account and key.
NPM_FOLDER = Path("~/.cache/forebay-tests/azurite").expanduser()
AZURITE_ACCOUNT = "devstoreaccount1"
AZURITE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
TOKEN = "delegation-token-of-the-tests"


@dataclass(frozen=True)
class ObjectStore:
    """A bucket (container, folder) of one server.

    `uri("x")` holds the credentials, `shown("x")` does not.
    """

    name: str
    base: str
    options: str
    secrets: tuple[str, ...] = ()

    def uri(self, path: str) -> str:
        return f"{self.base}/{path}" + (f"?{self.options}" if self.options else "")

    def shown(self, path: str) -> str:
        return resolve(self.uri(path)).uri

    def upload(self, folder: Path, path: str) -> str:
        """Copy a local folder below `path`. Returns its URI."""
        for file in sorted(folder.rglob("*.parquet")):
            self.write(f"{path}/{file.relative_to(folder)}", file.read_bytes())
        return self.uri(path)

    def write(self, path: str, content: bytes) -> None:
        place = resolve(self.uri(path))
        place.fs.create_dir(place.path.rpartition("/")[0], recursive=True)
        with place.fs.open_output_stream(place.path) as stream:
            stream.write(content)

    def delete(self, path: str) -> None:
        place = resolve(self.uri(path))
        place.fs.delete_file(place.path)


def free_port() -> int:
    """Port below the range of the system's automatic ports.

    So no other process gets it before the server does.
    """
    while True:
        with suppress(OSError), socket.create_server(("127.0.0.1", 20_000 + secrets.randbelow(12_000))) as listening:
            return int(listening.getsockname()[1])


@contextmanager
def serving(command: Sequence[str], port: int, log: Path) -> Iterator[int]:
    """Run a server in its own process.

    pyarrow must be able to wait for it without blocking its threads.
    """
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT) as process:
        try:
            deadline = time.monotonic() + STARTS_WITHIN_S
            while process.poll() is None and not _answers(port):
                if time.monotonic() > deadline:
                    break
                time.sleep(0.05)
            if process.poll() is not None or not _answers(port):
                pytest.skip(f"{Path(command[0]).name} {command[-1]} does not start here: {log.read_text()[-300:]}")
            yield port
        finally:
            process.terminate()


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def needs(module: str, extra: str) -> None:
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{extra} is not installed: pip install '.[test]'")


@pytest.fixture(scope="session")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("servers")


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Clear the credentials of a test before the next one."""
    yield
    credentials._granted.clear()
    credentials._secrets.clear()


@pytest.fixture(autouse=True)
def no_credentials_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the developer's own credentials.

    Switches off searches at addresses that do not answer.
    """
    for name in [name for name in os.environ if name.startswith(("AWS_", "AZURE_", "GOOGLE_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@pytest.fixture(scope="session")
def s3_port(logs: Path) -> Iterator[int]:
    needs("moto", "moto[s3]")
    needs("flask_cors", "flask-cors")
    port = free_port()
    command = [sys.executable, str(SERVERS / "s3.py"), "-H", "127.0.0.1", "-p", str(port)]
    with serving(command, port, logs / "moto.log"):
        yield port


def s3_store(port: int, name: str = "s3", user: str = "AKIATESTTEST:s3-secret-of-tests") -> ObjectStore:
    options = f"endpoint_override=127.0.0.1:{port}&scheme=http&region=us-east-1&allow_bucket_creation=true"
    return ObjectStore(name, f"s3://{user}@bucket", options, tuple(user.split(":")))


@pytest.fixture
def s3(s3_port: int) -> ObjectStore:
    store = s3_store(s3_port)
    resolve(store.uri("")).fs.create_dir("bucket")
    return store


def install_azurite(npm: str) -> None:
    """Install all of it or nothing."""
    NPM_FOLDER.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=NPM_FOLDER.parent) as folder:
        whole = Path(folder) / "azurite"
        install = [npm, "install", "--no-audit", "--no-fund", "--prefix", str(whole), AZURITE]
        whole.mkdir()
        try:
            subprocess.run(install, capture_output=True, text=True, timeout=240, check=True)
        except subprocess.SubprocessError as error:
            pytest.skip(f"npm cannot install {AZURITE} here: {error} {(error.stderr or '')[-300:]}")
        shutil.rmtree(NPM_FOLDER, ignore_errors=True)
        whole.rename(NPM_FOLDER)


@pytest.fixture(scope="session")
def azurite_port(logs: Path) -> Iterator[int]:
    main = NPM_FOLDER / "node_modules/azurite/dist/src/blob/main.js"
    npm, node = shutil.which("npm"), shutil.which("node")
    if npm is None or node is None:
        pytest.skip("Azurite needs npm and node, and they are not here")
    if not main.exists():
        install_azurite(npm)
    port = free_port()
    flags = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]
    with serving([node, str(main), "--blobPort", str(port), *flags], port, logs / "azurite.log"):
        # Once: pyarrow asks Azurite for what it does not know, and its client tries that for seconds.
        resolve(azure_store(port).uri("")).fs.create_dir("bucket")
        yield port


def azure_store(port: int) -> ObjectStore:
    key = quote(AZURITE_KEY, safe="")
    base = f"abfs://{AZURITE_ACCOUNT}@127.0.0.1:{port}/bucket"
    return ObjectStore("azure", base, f"enable_tls=false&account_key={key}", (AZURITE_KEY, key))


@pytest.fixture
def azure(azurite_port: int) -> ObjectStore:
    return azure_store(azurite_port)


@pytest.fixture(scope="session")
def gcs_port(logs: Path) -> Iterator[int]:
    needs("gcp_storage_emulator", "gcp-storage-emulator")
    port = free_port()
    flags = ["--host", "127.0.0.1", "--port", str(port), "--in-memory", "--default-bucket", "bucket"]
    with serving([sys.executable, "-m", "gcp_storage_emulator", "start", *flags], port, logs / "gcs.log"):
        yield port


@pytest.fixture
def gcs(gcs_port: int) -> ObjectStore:
    return ObjectStore("gcs", "gs://anonymous@bucket", f"endpoint_override=127.0.0.1:{gcs_port}&scheme=http")


@pytest.fixture(scope="session")
def webhdfs_port(logs: Path) -> Iterator[int]:
    port = free_port()
    (logs / "hdfs").mkdir()
    command = [sys.executable, str(SERVERS / "webhdfs.py"), str(port), str(logs / "hdfs"), TOKEN]
    with serving(command, port, logs / "webhdfs.log"):
        yield port


@pytest.fixture
def webhdfs(webhdfs_port: int) -> ObjectStore:
    return ObjectStore("webhdfs", f"webhdfs://127.0.0.1:{webhdfs_port}/bucket", f"token={TOKEN}", (TOKEN,))


@pytest.fixture(scope="session")
def hadoop() -> Iterator[HdfsServers]:
    """A NameNode and a DataNode."""
    needs("hdfs_native", "hdfs-native")
    with ExitStack() as servers:
        try:
            hadoop = servers.enter_context(running())
        except NoHadoop as error:
            pytest.skip(str(error))
        yield hadoop


@pytest.fixture
def hdfs(hadoop: HdfsServers) -> ObjectStore:
    return ObjectStore("hdfs", f"{hadoop.uri}/bucket", "")


@pytest.fixture
def real_webhdfs(hadoop: HdfsServers) -> ObjectStore:
    return ObjectStore("real_webhdfs", f"webhdfs://127.0.0.1:{hadoop.http_port}/web", f"user={getpass.getuser()}")


_REAL_HDFS = pytest.mark.variation("two JVMs")
STORES = [
    "s3",
    "azure",
    "gcs",
    "webhdfs",
    pytest.param("hdfs", marks=_REAL_HDFS),
    pytest.param("real_webhdfs", marks=_REAL_HDFS),
]


@pytest.fixture(params=STORES)
def store(request: pytest.FixtureRequest) -> ObjectStore:
    """Each kind of store in turn."""
    found: ObjectStore = request.getfixturevalue(request.param)
    return found


class Faults:
    """Faults of the proxy before the S3 server."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/-/faults"

    def set(self, *faults: Mapping[str, Any]) -> None:
        urllib.request.urlopen(urllib.request.Request(self._url, json.dumps(faults).encode(), method="POST")).close()

    def shown(self) -> list[int]:
        with urllib.request.urlopen(self._url) as answer:
            return [fault["shown"] for fault in json.load(answer)]


@pytest.fixture(scope="session")
def proxy_port(s3_port: int, logs: Path) -> Iterator[int]:
    port = free_port()
    with serving([sys.executable, str(SERVERS / "proxy.py"), str(port), str(s3_port)], port, logs / "proxy.log"):
        yield port


@pytest.fixture
def faults(proxy_port: int) -> Iterator[Faults]:
    made = Faults(proxy_port)
    yield made
    made.set()


@pytest.fixture
def faulty(proxy_port: int, s3: ObjectStore) -> ObjectStore:
    """The S3 bucket, seen through the proxy."""
    return s3_store(proxy_port, "faulty")


@pytest.fixture
def local_files(parquet_folder: Callable[..., Path]) -> Path:
    return parquet_folder({"day=1/a.parquet": [40, 30, 20], "day=1/b c.parquet": [25], "day=2/a.parquet": [15, 35]})


COLUMNS = ["id", "x0", "c0", "clicked"]
Epochs = tuple[list[str], list[Mapping[str, float]]]


def read_epochs(manifest: fb.Manifest, cache: fb.DiskCache | None, num_epochs: int = 2) -> Epochs:
    """Digest of each epoch's row order, and the final counters."""
    plan = fb.build_plan(manifest, seed=5, lanes=3, shuffle_rows=60)
    transform = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense(["x0", "c0"]))
    digests, sums, counters = [], [], Counters()
    with fb.Loader(plan, transform, cache, global_batch=16, as_numpy=True, counters=counters) as loader:
        for _ in range(num_epochs):
            rows = [np.asarray(batch[name]).tobytes() for batch in loader for name in ("id", "x")]
            digests.append(hashlib.sha256(b"".join(rows)).hexdigest())
            sums.append(counters.as_dict())
    return digests, sums


@pytest.fixture
def epochs_of() -> Callable[..., Epochs]:
    return read_epochs


@pytest.fixture
def cache(tmp_path: Path) -> fb.DiskCache:
    return fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)


@pytest.fixture
def quick() -> ReadPolicy:
    return ReadPolicy(attempts=4, deadline_s=20.0, first_wait_s=0.01, max_wait_s=0.05)
