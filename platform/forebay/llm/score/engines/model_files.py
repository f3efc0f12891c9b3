"""Identity of a model's folder."""

from __future__ import annotations

from pyarrow import fs

from forebay.data.transform.fingerprint.values import Identity, canonical, digest
from forebay.storage.atomic import read_small
from forebay.storage.filesystem import below, resolve
from forebay.storage.globs import children
from forebay.storage.versions import stat_etag

_SMALL_BYTES = 16 << 20
_NOT_THE_MODEL = (".md", ".txt", ".gitattributes", ".png", ".jpg", ".html")


def model_identity(folder: str) -> str:
    """Digest of a model's files.

    Contents up to 16 MiB, and size, time and etag of larger files.
    """
    location = resolve(folder)
    files = sorted((info for info in children(location.fs, location.path) if info.type == fs.FileType.File), key=_name)
    facts: list[Identity] = []
    for info in files:
        if info.base_name.startswith(".") or info.base_name.endswith(_NOT_THE_MODEL):
            continue
        if info.size <= _SMALL_BYTES:
            facts.append([info.base_name, digest(read_small(location.child(info.base_name)))])
        else:
            facts.append(
                [info.base_name, info.size, info.mtime_ns or 0, stat_etag(below(location.uri, info.base_name))]
            )
    return digest(canonical(facts).encode())[:32]


def _name(info: fs.FileInfo) -> str:
    return str(info.base_name)
