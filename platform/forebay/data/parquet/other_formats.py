"""Files of other formats that are given in place of Parquet."""

from __future__ import annotations

from pathlib import PurePath

from forebay.errors import CorruptFile, NotParquet

MAGIC = b"PAR1"
_ENCRYPTED = b"PARE"
"""Begins and ends a file whose footer is encrypted (Encryption.md of apache/parquet-format)."""
_SUFFIXES = {
    ".csv": "CSV",
    ".tsv": "CSV",
    ".json": "JSON",
    ".jsonl": "JSON Lines",
    ".ndjson": "JSON Lines",
    ".orc": "ORC",
    ".avro": "Avro",
    ".arrow": "Arrow IPC",
    ".feather": "Arrow IPC",
    ".gz": "gzip",
    ".zst": "Zstandard",
    ".zip": "ZIP",
}
_MAGICS = {
    b"ORC": "ORC",
    b"Obj\x01": "Avro",
    b"ARROW1": "Arrow IPC",
    b"\x1f\x8b": "gzip",
    b"\x28\xb5\x2f\xfd": "Zstandard",
    b"PK\x03\x04": "ZIP",
    b"SQLite": "SQLite",
    b"\x89HDF": "HDF5",
}
_READERS = {
    "CSV": "pyarrow.csv.read_csv",
    "JSON Lines": "pyarrow.json.read_json",
    "ORC": "pyarrow.orc.read_table",
    "Arrow IPC": "pyarrow.feather.read_table",
}
_MANIFEST = b'{\n "fore'
_PACKED = ("gzip", "Zstandard", "ZIP")
HEAD_BYTES = 8


def advice(name: str, head: bytes = b"") -> str:
    """Name of the format, and how to make Parquet of it.

    By the suffix of `name` and the first bytes. Empty if neither is known.
    """
    if head.startswith(_MANIFEST):
        return "It is a manifest, which a scan has written: fb.Manifest.load(NAME) reads it."
    suffix = PurePath(name).suffix.lower()
    kind = next((kind for magic, kind in _MAGICS.items() if head.startswith(magic)), _SUFFIXES.get(suffix, ""))
    if not kind:
        return ""
    text = f"It holds {kind}, and Forebay reads Parquet"
    if kind in _PACKED:
        return f"{text}: unpack it. Parquet compresses its own pages."
    if kind in _READERS:
        return f"{text}: pyarrow.parquet.write_table({_READERS[kind]}(NAME), 'NAME.parquet') makes it."
    return f"{text}: write it as Parquet first."


def footer_missing(uri: str, size: int, head: bytes, end: bytes) -> CorruptFile:
    """Error of a file that does not end as Parquet does.

    `head` are its first `HEAD_BYTES` bytes, `end` its last four.
    """
    if _ENCRYPTED in (head[:4], end):
        return encrypted(uri)
    name = uri.partition("?")[0] if "://" in uri else uri
    if not head.startswith(MAGIC) and (text := advice(name, head)):
        return NotParquet(f"{uri} is no Parquet file: it begins with {head!r}, not with PAR1. {text}", uri=uri)
    return CorruptFile(
        f"{uri} is corrupt: it has {size} bytes and does not end in {MAGIC.decode()}: it was cut off or is not a "
        "Parquet file. Write or copy the file again, or leave it out.",
        uri=uri,
    )


def encrypted(uri: str) -> NotParquet:
    """Error of an encrypted file."""
    return NotParquet(
        f"{uri} is encrypted (Parquet modular encryption), and Forebay has no keys for it. Write it decrypted, or "
        "leave it out.",
        uri=uri,
    )
