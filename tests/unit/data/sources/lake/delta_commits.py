"""Deletion vectors, which deltalake reads but does not write."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"


def commit_deletion_vector(table: Path, number: int, rows: Sequence[int], version: int, kind: str = "i") -> None:
    """Commit a deletion vector for an even number of rows of a file."""
    content = _serialized(rows)
    commit_vector(table, number, version, storageType=kind, pathOrInlineDv=z85(content), sizeInBytes=len(content))


def commit_vector(table: Path, number: int, version: int, **vector: object) -> None:
    """Commit a deletion vector of two rows, as the log names it."""
    log = table / "_delta_log"
    commits = [line for commit in sorted(log.glob("*.json")) for line in commit.read_text().splitlines()]
    add = [json.loads(line)["add"] for line in commits if '"add"' in line][number]
    features = {"readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    remove = {name: add[name] for name in ("path", "partitionValues", "size", "deletionVector") if name in add}
    entries = [
        {"protocol": {"minReaderVersion": 3, "minWriterVersion": 7} | features},
        {"remove": {"deletionTimestamp": 1, "dataChange": True} | remove},
        {"add": add | {"deletionVector": {"cardinality": 2} | vector}},
    ]
    (log / f"{version:020}.json").write_text("\n".join(map(json.dumps, entries)))


def _serialized(rows: Sequence[int]) -> bytes:
    """Roaring bitmap array of the Delta protocol: one bitmap with one array container."""
    assert len(rows) % 2 == 0, "Z85 encodes multiples of 4 bytes"
    container = b"".join(struct.pack("<H", row) for row in rows)
    bitmap = struct.pack("<IIHHI", 12346, 1, 0, len(rows) - 1, 16) + container
    return struct.pack("<IQI", 1681511377, 1, 0) + bitmap


def z85(content: bytes) -> str:
    text = ""
    for start in range(0, len(content), 4):
        value, digits = int.from_bytes(content[start : start + 4], "big"), ""
        for _ in range(5):
            value, digit = divmod(value, 85)
            digits = _Z85[digit] + digits
        text += digits
    return text
