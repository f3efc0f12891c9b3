"""Whatever path a table, a manifest or a prepared set names: no file and no host of others is asked."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.unit.data.sources.lake.iceberg_commits import catalog_at, commit_files, delete_file
from tests.unit.data.sources.lake.watched import Watch, watching

import forebay as fb
from forebay.data.parquet.reading import RowGroupReader
from forebay.errors import ForebayError
from forebay.storage.retry import ReadPolicy

ROWS = pa.table({"a": [1, 2]})
ONCE = ReadPolicy(attempts=1, deadline_s=20)

FILES = (
    "CANARY", "file:CANARY", "file://CANARY", "file://localhostCANARY", "local://CANARY", "../other/secret.parquet",
    "data/../../other/secret.parquet", "out/secret.parquet", "data/../out/secret.parquet", "./../other/secret.parquet",
)  # fmt: skip
HOSTS = (
    "http://HOST/x.parquet", "gs://b/x.parquet?endpoint_override=HOST&scheme=http&retry_limit_seconds=1",
    "gs://b?endpoint_override=HOST&scheme=http&x=/x.parquet", "s3://b/x.parquet?endpoint_override=HOST&scheme=http&region=r",
    "s3a://b?endpoint_override=HOST&scheme=http&region=r/x.parquet", "s3://HOST/x.parquet", "abfs://a@HOST/c/x.parquet",
    "hdfs://HOST/x.parquet", "webhdfs://HOST/x.parquet", "ftp://HOST/x.parquet", "sftp://u:p@HOST/x.parquet",
    "reference://x.parquet?fo=http://HOST/r", "reference://x.parquet?fo=CANARY", "filecache://HOST/x?target_protocol=http",
    "simplecache::http://HOST/x.parquet", "zip://x.parquet::http://HOST/a.zip", "dask://HOST/x", "//HOST/x.parquet",
    "http:/HOST/x.parquet", "hf://datasets/o/n/x.parquet", "github://o:r@HOST/x.parquet", "smb://HOST/x",
    "data:;base64,AA==",
)  # fmt: skip


def _percent(path: str) -> str:
    scheme, mark, rest = path.rpartition("://")
    return scheme + mark + quote(rest).replace(".", "%2e").replace("/", "%2F", 1)


# Of a manifest, whose root may be any local folder. The Hub's address is in the environment of the user.
_CHOSEN = re.compile(r"\s*(CANARY|file:|hf:)", re.IGNORECASE)
SPELLINGS: dict[str, Callable[[str], str]] = {
    "as it is": str,
    "upper case": lambda path: path.partition(":")[0].upper() + path[len(path.partition(":")[0]) :],
    "percent": _percent,
    "twice": lambda path: quote(_percent(path)),
    "fragment": lambda path: f"{path}#x.parquet",
    "behind the root": lambda path: f"ROOT/{path}",
    "up from the root": lambda path: f"ROOT/../{path}",
    "backslashes": lambda path: path.replace("/", "\\"),
    "space": lambda path: f" {path}",
    "tab": lambda path: path.replace("..", ".\t.").replace("://", ":\t//"),
}
paths = st.builds(
    lambda path, spell: SPELLINGS[spell](path), st.sampled_from(FILES + HOSTS), st.sampled_from(sorted(SPELLINGS))
)


@pytest.fixture(scope="module")
def watch(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watch]:
    folder = tmp_path_factory.mktemp("watched")
    (folder / "other").mkdir()
    for name in ("secret.parquet", "part-0.parquet"):
        pq.write_table(pa.table({"a": [666]}), folder / "other" / name)
    with watching(folder) as found:
        for path in (folder / "other").iterdir():
            found.add(path)
        yield found


@pytest.fixture(autouse=True)
def credentials_to_send(watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    facts = {"type": "authorized_user", "client_id": "c", "client_secret": "s", "refresh_token": "r"}
    (tmp_path / "google.json").write_text(json.dumps(facts | {"token_uri": f"http://{watch.host}/token"}))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "google.json"))
    for name, value in {"ACCESS_KEY_ID": "AKIA", "SECRET_ACCESS_KEY": "s" * 40, "SESSION_TOKEN": "CANARY"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    for name in ("AWS_ENDPOINT_URL", "HF_ENDPOINT"):  # whatever asks is seen
        monkeypatch.setenv(name, f"http://{watch.host}")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


class Delta:
    """Tables with one path in place of another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "delta"
        write = pytest.importorskip("deltalake").write_deltalake
        write(str(self.folder), ROWS)
        self._log = self.folder / "_delta_log" / f"{0:020}.json"
        self._actions = [json.loads(line) for line in self._log.read_text().splitlines()]
        self.uri = str(self.folder)

    def add(self, path: str) -> None:
        self._commit({"path": path, "stats": None}, ())

    def vector(self, path: str) -> None:
        self._vector("p", path)

    def prefix_of_a_vector(self, path: str) -> None:
        self._vector("u", path + "0" * 20)

    def _vector(self, kind: str, path: str) -> None:
        vector = {"storageType": kind, "pathOrInlineDv": path, "offset": 1, "sizeInBytes": 30, "cardinality": 1}
        self._commit({"deletionVector": vector}, ("deletionVectors",))

    def _commit(self, change: dict[str, Any], features: tuple[str, ...]) -> None:
        protocol = {
            "minReaderVersion": 3,
            "minWriterVersion": 7,
            "readerFeatures": features,
            "writerFeatures": features,
        }
        lines = [one | {"add": one["add"] | change} if "add" in one else one for one in self._actions]
        lines = [{"protocol": protocol} if "protocol" in one and features else one for one in lines]
        self._log.write_text("\n".join(map(json.dumps, lines)))


class DeltaCheckpoint(Delta):
    """A checkpoint of version 2, whose sidecar is elsewhere."""

    def sidecar(self, path: str) -> None:
        features = {"readerFeatures": ["v2Checkpoint"], "writerFeatures": ["v2Checkpoint"]}
        protocol = {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features}
        kept = [one for one in self._actions if "metaData" in one]
        sidecar = {"sidecar": {"path": path, "sizeInBytes": 300, "modificationTime": 1}}
        lines = [{"checkpointMetadata": {"version": 0}}, protocol, *kept, sidecar]
        name = f"{0:020}.checkpoint.80a083e8-7026-4e79-81be-64bd76c43a11.json"
        (self._log.parent / name).write_text("\n".join(map(json.dumps, lines)))


class Iceberg:
    """Snapshots with one path in place of another."""

    def __init__(self, folder: Path) -> None:
        self._catalog = catalog_at(folder)
        self._table = self._catalog.create_table("db.t", ROWS.schema)
        self._table.append(ROWS)
        self._file = next(iter(self._table.scan().plan_files())).file
        self.folder = Path(self._table.location().removeprefix("file://"))
        self._text = Path(self._table.metadata_location.removeprefix("file://")).read_text()
        self.uri = f"{self.folder}/metadata/v9.metadata.json"

    def data_file(self, path: str) -> None:
        self._commit(path, are_deletes=False)

    def delete_file(self, path: str) -> None:
        self._commit(path, are_deletes=True)

    def _commit(self, path: str, *, are_deletes: bool) -> None:
        from pyiceberg.manifest import DataFileContent

        content = {} if are_deletes else {"content": DataFileContent.DATA}
        file = delete_file(self._file, path, "PARQUET", 1, **content)
        commit_files(self._catalog, "db.t", [file], are_deletes=are_deletes)
        text = Path(self._catalog.load_table("db.t").metadata_location.removeprefix("file://")).read_text()
        Path(self.uri).write_text(text)

    def manifest_list(self, path: str) -> None:
        facts = json.loads(self._text)
        facts["snapshots"][-1]["manifest-list"] = path
        Path(self.uri).write_text(json.dumps(facts))

    def hint(self, path: str) -> None:
        self.uri = str(self.folder)
        (self.folder / "metadata/version-hint.text").write_text(path)


SETTINGS = {"suppress_health_check": [HealthCheck.function_scoped_fixture, HealthCheck.too_slow], "deadline": None}
CASES = [
    (Delta, "add", 40), (Delta, "vector", 25), (Delta, "prefix_of_a_vector", 10), (DeltaCheckpoint, "sidecar", 25),
    (Iceberg, "data_file", 12), (Iceberg, "delete_file", 12), (Iceberg, "manifest_list", 25), (Iceberg, "hint", 15),
]  # fmt: skip
FEW = [pytest.param(*case, id=f"{case[0].__name__}-{case[1]}") for case in CASES]
MANY = [
    pytest.param(*case[:2], 300, id=f"{case[0].__name__}-{case[1]}-many", marks=pytest.mark.variation) for case in CASES
]


@pytest.mark.parametrize(("kind", "place", "examples"), FEW + MANY)
def test_a_table_reads_nothing_but_its_own_files(
    watch: Watch, tmp_path_factory: pytest.TempPathFactory, kind: Any, place: str, examples: int
) -> None:
    folder = watch.folder / tmp_path_factory.mktemp("case").name
    folder.mkdir()
    table = kind(folder)
    own = fb.scan(table.uri, policy=ONCE, footers=False) if issubclass(kind, Delta) else None
    (table.folder / "out").symlink_to(watch.folder / "other")
    (watch.folder / "other").is_dir()
    relative = "../" * (len(table.folder.relative_to(watch.folder).parts))
    assert not watch.touched()

    @settings(max_examples=examples, **SETTINGS)  # type: ignore[arg-type]
    @given(path=paths)
    def law(path: str) -> None:
        path = path.replace("../other/", f"{relative}other/").replace("CANARY", f"{watch.folder}/other/secret.parquet")
        getattr(table, place)(path.replace("HOST", watch.host).replace("ROOT", f"file://{table.folder}"))
        try:
            manifest = fb.scan(table.uri, policy=ONCE, footers=False)
        except ForebayError:
            pass
        else:
            assert manifest == own, "the path is of no importance"
        assert not watch.touched()

    law()
    shutil.rmtree(folder)


def saved(folder: Path, **changes: Any) -> Path:
    """Return a manifest whose facts are changed, with the id of the changed facts."""
    (folder / "data").mkdir(exist_ok=True)
    pq.write_table(ROWS, folder / "data/a.parquet")
    manifest = fb.scan(folder / "data", footers=False)
    manifest.save(folder / "m.json")
    facts = json.loads((folder / "m.json").read_text())
    facts |= {name: value for name, value in changes.items() if name != "path"}
    if "path" in changes:
        facts["files"][0]["path"] = changes["path"]
    (folder / "m.json").write_text(json.dumps(facts))
    try:
        fb.Manifest.load(folder / "m.json")
    except ForebayError as error:
        found = str(error).partition("content has id ")[2].partition(",")[0]
        (folder / "m.json").write_text(json.dumps(facts | {"id": found or facts["id"]}))
    return folder / "m.json"


@pytest.mark.parametrize("examples", [40, pytest.param(400, marks=pytest.mark.variation)])
@pytest.mark.parametrize("place", ["path", "root", "path without a root"])
def test_a_manifest_chooses_no_host_and_no_folder_above(
    watch: Watch, tmp_path_factory: pytest.TempPathFactory, place: str, examples: int
) -> None:
    folder = tmp_path_factory.mktemp("saved")

    @settings(max_examples=examples, **SETTINGS)  # type: ignore[arg-type]
    @given(path=paths if place == "path" else paths.filter(lambda path: not _CHOSEN.match(path)))
    def law(path: str) -> None:
        path = path.replace("CANARY", f"{watch.folder}/other/secret.parquet").replace("ROOT", str(folder / "data"))
        path = path.replace("HOST", watch.host)
        changes = {"path": path, "root": ""} if place == "path without a root" else {place: path}
        try:
            manifest = fb.Manifest.load(saved(folder, **changes))
            RowGroupReader(manifest, policy=ONCE).read(0)
        except ForebayError:
            pass
        assert not watch.touched()

    law()


def test_a_prepared_set_has_no_files_elsewhere(watch: Watch, tmp_path: Path) -> None:
    def make() -> Iterator[pa.Table]:
        yield ROWS

    prepared = fb.prepare(make, into=str(tmp_path), inputs=[], version="1")
    seal = Path(prepared.folder) / "prepared.json"
    facts = json.loads(seal.read_text())
    for path in (*FILES, *HOSTS):
        named = path.replace("CANARY", f"{watch.folder}/other/secret.parquet").replace("HOST", watch.host)
        if path.startswith("out/") or named == path.replace("://", ""):
            continue
        facts["files"][0]["path"] = named
        seal.write_text(json.dumps(facts))
        with pytest.raises(ForebayError, match="not below|its manifest"):
            fb.Prepared.load(prepared.folder)
    assert not watch.touched()
