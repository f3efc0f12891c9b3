"""A file of another format is named, and never called corrupt Parquet."""

from __future__ import annotations

import gzip
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe
import pytest
from pyarrow import csv, feather, json, orc

import forebay as fb
from forebay.errors import CorruptFile, NotParquet

TABLE = pa.table({"x": [1, 2]})


def write(path: Path, kind: str) -> None:
    match kind:
        case "CSV":
            csv.write_csv(TABLE, path)
        case "JSON Lines":
            path.write_text('{"x": 1}\n{"x": 2}\n')
        case "ORC":
            orc.write_table(TABLE, path)
        case "Arrow IPC":
            feather.write_feather(TABLE, path)
        case "gzip":
            pq.write_table(TABLE, path)
            path.write_bytes(gzip.compress(path.read_bytes()))


@pytest.mark.parametrize(
    ("name", "kind"),
    [("a.csv", "CSV"), ("a.CSV", "CSV"), ("a.jsonl", "JSON Lines"), ("a.orc", "ORC"), ("a.parquet", "ORC"),
     ("a.feather", "Arrow IPC"), ("a.parquet", "Arrow IPC"), ("a.parquet.gz", "gzip"), ("a.parquet", "gzip")],
)  # fmt: skip
def test_it_is_named_with_the_way_to_parquet(tmp_path: Path, name: str, kind: str) -> None:
    path = tmp_path / name
    write(path, kind)
    for uri in (path, f"{tmp_path}/a.*"):
        with pytest.raises(
            NotParquet, match=rf"{name} is no Parquet file.*holds {kind}, and Forebay reads Parquet"
        ) as found:
            fb.scan(uri)
        assert "corrupt" not in str(found.value)


def test_a_manifest_is_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "a.parquet")
    fb.scan(tmp_path / "a.parquet").save(tmp_path / "clicks.json")
    with pytest.raises(NotParquet, match=r"It is a manifest, .*: fb\.Manifest\.load\(NAME\) reads it"):
        fb.scan(tmp_path / "clicks.json")


@pytest.mark.parametrize(
    ("reader", "name", "kind"),
    [(csv.read_csv, "a.csv", "CSV"), (json.read_json, "a.jsonl", "JSON Lines"), (orc.read_table, "a.orc", "ORC"),
     (feather.read_table, "a.feather", "Arrow IPC")],
)  # fmt: skip
def test_the_advice_works(tmp_path: Path, reader: object, name: str, kind: str) -> None:
    write(tmp_path / name, kind)
    with pytest.raises(NotParquet, match="write_table") as found:
        fb.scan(tmp_path / name)
    assert f"{reader.__name__}(NAME)" in str(found.value)  # type: ignore[attr-defined]
    pq.write_table(reader(tmp_path / name), tmp_path / "made.parquet")  # type: ignore[operator]
    assert fb.scan(tmp_path / "made.parquet").num_rows == 2


class Keys(pe.KmsClient):  # type: ignore[misc]
    """Keys that are not kept anywhere."""

    def __init__(self, _config: object) -> None:
        super().__init__()

    def wrap_key(self, key_bytes: bytes, _master: str) -> bytes:
        return key_bytes.hex().encode()

    def unwrap_key(self, wrapped: bytes, _master: str) -> bytes:
        return bytes.fromhex(wrapped.decode())


@pytest.mark.parametrize("has_plain_footer", [False, True])
def test_an_encrypted_file_is_called_that(tmp_path: Path, has_plain_footer: bool) -> None:
    options = pe.EncryptionConfiguration(footer_key="f", column_keys={"c": ["x"]}, plaintext_footer=has_plain_footer)
    properties = pe.CryptoFactory(Keys).file_encryption_properties(pe.KmsConnectionConfig(), options)
    with pq.ParquetWriter(tmp_path / "a.parquet", TABLE.schema, encryption_properties=properties) as writer:
        writer.write_table(TABLE)
    with pytest.raises(NotParquet, match=r"a\.parquet is encrypted.*Write it decrypted"):
        fb.scan(tmp_path)


@pytest.mark.parametrize("content", [b"", b"P", b"PAR1", b"PAR1" + bytes(100), bytes(100)])
def test_a_file_that_was_cut_off_stays_corrupt(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.parquet").write_bytes(content)
    with pytest.raises(CorruptFile, match="cut off") as found:
        fb.scan(tmp_path)
    assert not isinstance(found.value, NotParquet)
