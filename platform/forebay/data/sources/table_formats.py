"""Detect tables of Delta Lake, Iceberg and Hudi.

Their folders hold more Parquet files than the rows of the table.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from pyarrow import fs

from forebay.errors import NotPlainParquet
from forebay.runtime.uris import split_options
from forebay.storage.filesystem import Location
from forebay.storage.globs import children, is_hidden_folder
from forebay.storage.retry import as_refusal


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFormat:
    """A table format.

    The folder of its log within a table, and the pattern of the log files that prove it.
    """

    name: str
    log_folder: str
    log_file: re.Pattern[str]
    reader: str


FORMATS = (
    TableFormat(
        name="Delta Lake",
        log_folder="_delta_log",
        # Protocol.md of delta-io/delta: commits have 20 digits, and a checkpoint has a name of more parts.
        log_file=re.compile(r"\d{20}\..*(json|parquet)|_last_checkpoint"),
        reader="deltalake: DeltaTable(uri).file_uris()",
    ),
    TableFormat(
        name="Iceberg",
        log_folder="metadata",
        # `v3.metadata.json` in file-system catalogs, `00003-<uuid>.metadata.json` in all others. Either may be gzipped.
        log_file=re.compile(r"(v\d+|\d+-[0-9a-fA-F-]{36})(\.gz)?\.metadata\.json(\.gz)?"),
        reader="pyiceberg: table.scan().plan_files()",
    ),
    TableFormat(
        name="Hudi",
        log_folder=".hoodie",
        log_file=re.compile(r"hoodie\.properties"),
        reader="Spark or hudi-rs",
    ),
)
_NOTHING_TO_SEE = (PermissionError, FileNotFoundError, NotADirectoryError)
_FORMAT_OF = {one.log_folder: one for one in FORMATS}


class FoundTable(NamedTuple):
    """Table, and the log file that proves it."""

    format: TableFormat
    root: str
    log_file: str


class TableSearch:
    """Search for tables around the listed folders.

    Above, at and below them. Sends requests for each folder above only once.

    The methods raise `NotPlainParquet` when they find a table.
    """

    def __init__(self) -> None:
        self._above: set[tuple[str, str]] = set()

    def search_above(self, location: Location, folder: str) -> None:
        """Search a folder and all folders above it.

        At most 3 requests per new folder.
        """
        store = _store(location.uri)
        for up in _upwards(folder):
            if (store, up) in self._above:
                return
            for table_format in FORMATS:
                _refuse(location, _with_log(location.fs, up, table_format))
            self._above.add((store, up))

    def search_level(self, location: Location, folder: str, infos: Iterable[fs.FileInfo]) -> None:
        """Search the entries that a pattern listed in `folder`.

        Sends requests only for folders with the name of a log.
        """
        for info in infos:
            table_format, root = _FORMAT_OF.get(info.base_name), _parent(info.path)
            if table_format and info.type == fs.FileType.Directory and not _is_hidden_below(folder, root):
                _refuse(location, _with_log(location.fs, root, table_format))

    def search_tree(self, location: Location, folder: str, infos: Iterable[fs.FileInfo]) -> None:
        """Search everything below a folder.

        Sends no requests to storage. Tables in hidden folders do not count.
        """
        for info in infos:
            log_folder = _parent(info.path)
            table_format, root = _FORMAT_OF.get(log_folder.rpartition("/")[2]), _parent(log_folder)
            if table_format is None or not table_format.log_file.fullmatch(info.base_name):
                continue
            if not _is_hidden_below(folder, root):
                _refuse(location, FoundTable(table_format, root, info.path))


def _with_log(filesystem: fs.FileSystem, root: str, table_format: TableFormat) -> FoundTable | None:
    try:
        infos = children(filesystem, f"{root.rstrip('/')}/{table_format.log_folder}")
    except OSError as error:
        # A folder above may not be listable, as in a bucket with rights per folder. That is no reason to refuse.
        if isinstance(error, _NOTHING_TO_SEE) or as_refusal(error) is not None:
            return None
        raise
    logs = (info.path for info in infos if table_format.log_file.fullmatch(info.base_name))
    return next((FoundTable(table_format, root, log) for log in logs), None)


def _refuse(location: Location, found: FoundTable | None) -> None:
    if found is None:
        return
    table_format = found.format
    raise NotPlainParquet(
        f"{location.uri} reads from a {table_format.name} table at {found.root}: {found.log_file} is there. The "
        "folder of such a table also keeps files of deleted and replaced rows, which would come back. Write the table "
        "as plain Parquet into another folder, or, if no row of its current files is marked as deleted, pass the list "
        f"of these files ({table_format.reader}).",
        uri=location.uri,
        table=found.root,
        format=table_format.name,
    )


def _is_hidden_below(folder: str, path: str) -> bool:
    return any(is_hidden_folder(name) for name in path[len(folder.rstrip("/")) + 1 :].split("/"))


def _upwards(folder: str) -> Iterator[str]:
    """A folder and all folders above it.

    Without the root of the file system: `a/b`, `a`.
    """
    folder = folder.rstrip("/")
    while folder:
        yield folder
        folder = _parent(folder)


def _store(uri: str) -> str:
    """Identity of a store.

    Scheme, host and options of a URI. Empty for local paths.
    """
    plain, options = split_options(uri)
    return "/".join(plain.split("/", 3)[:3]) + options if "://" in uri else ""


def _parent(path: str) -> str:
    return path.rpartition("/")[0]
