"""Code of jobs in storage: one archive per content, under its digest."""

from __future__ import annotations

import os

from pyarrow import fs

from forebay.errors import InvalidOption
from forebay.fleet.code.archive import CodeArchive, unpack
from forebay.storage.atomic import write_atomically
from forebay.storage.filesystem import resolve
from forebay.storage.small_files import read_small

FOLDER = ".code"


def code_uri(storage: str, digest: str) -> str:
    """URI of an archive."""
    return f"{storage.rstrip('/')}/{FOLDER}/{digest}.zip"


def store_code(storage: str, archive: CodeArchive) -> str:
    """Write an archive below `storage`, unless it is there, and return its URI. Raises `OSError` if storage refuses."""
    uri = code_uri(storage, archive.digest)
    place = resolve(uri)
    if place.fs.get_file_info(place.path).size != len(archive.content):
        write_atomically(uri, archive.content)
    return uri


def fetch_code(storage: str, digest: str, into: str | os.PathLike[str]) -> None:
    """Read an archive and write its files into the folder `into`. Raises `InvalidOption` if it is not there."""
    uri = code_uri(storage, digest)
    place = resolve(uri)
    if place.fs.get_file_info(place.path).type != fs.FileType.File:
        raise InvalidOption(f"{place.uri} is not there. Submit the job again: that stores its code.", uri=place.uri)
    unpack(read_small(place), digest, into)
