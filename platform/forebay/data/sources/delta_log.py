"""Files that the log of a Delta Lake table makes deltalake read.

deltalake opens checkpoints' sidecars and files of deletion vectors wherever they are. Its Python interface does not
name them before.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import fs

from forebay.errors import InvalidOption
from forebay.runtime.threads import each_in_threads
from forebay.storage.boundary import Boundary
from forebay.storage.filesystem import Location, resolve_source
from forebay.storage.globs import children
from forebay.storage.retry import ReadPolicy, read

_LOG = "_delta_log"
_SIDECARS = "_sidecars"
_VERSION = re.compile(r"(\d{20})\.(?:(\d{20})\.compacted\.|checkpoint\.(?:[^/]*\.)?)?(json|parquet)")
_WHOLE = re.compile(r"(\d{20})\.checkpoint\.parquet")
_FOLDER = re.compile(r"[A-Za-z0-9_-]*")
_ABSOLUTE = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:)?/")
_LETTER = re.compile(r"\S")
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]*")
_ODD = re.compile(r"^//|[\\\x00-\x20]|\.\.|%(2e|2f|5c|0)", re.IGNORECASE)
"""What a reader of URLs may take for another host or a way up."""
_UUID_LETTERS = 20
_COLUMNS = ("add.deletionVector.storageType", "add.deletionVector.pathOrInlineDv", "sidecar.path")
_MOST_THREADS = 16

_Pairs = tuple[tuple[str, Any], ...]


def check_log(location: Location, version: int | None, boundary: Boundary, policy: ReadPolicy) -> None:
    """Check the files that deltalake reads besides the log itself.

    Raises:
        InvalidOption: A sidecar of a checkpoint or a file of deletion vectors is outside of the boundary, or the log
            cannot be decoded.
        ReadFailed: Storage kept failing.
    """
    folder = location.child(_LOG)
    infos = read(folder.uri, partial(children, location.fs, folder.path), policy)
    files = [
        folder.child(name) for name in _read_for([info for info in infos if info.type == fs.FileType.File], version)
    ]
    found = _check_files(files, boundary, policy)
    sidecars = [folder.child(_SIDECARS).child(name) if "/" not in name else resolve_source(name) for name in found]
    _check_files(sidecars, boundary, policy)


def _check_files(files: Sequence[Location], boundary: Boundary, policy: ReadPolicy) -> list[str]:
    """Check files of the log in parallel. Returns the sidecars that they name."""
    check = partial(_check_file, boundary=boundary, policy=policy)
    return [
        name for _, names in each_in_threads(check, files, most=_MOST_THREADS, name="forebay-log") for name in names
    ]


def _read_for(infos: list[fs.FileInfo], version: int | None) -> Iterator[str]:
    """Names of the files that deltalake may read for a version.

    It begins at a checkpoint that is not older than the newest one in a single file.
    """
    wanted = float("inf") if version is None else version
    whole = [int(match[1]) for info in infos if info.size and (match := _WHOLE.fullmatch(info.base_name))]
    oldest = max((number for number in whole if number <= wanted), default=0)
    for info in infos:
        match = _VERSION.fullmatch(info.base_name)
        if match and oldest <= int(match[2] or match[1]) and int(match[1]) <= wanted:
            yield info.base_name


def _check_file(file: Location, boundary: Boundary, policy: ReadPolicy) -> list[str]:
    """Check one file of the log. Returns the sidecars that it names."""
    is_parquet = file.path.endswith(".parquet")
    try:
        rows = read(file.uri, partial(_of_parquet if is_parquet else _of_json, file), policy)
    except FileNotFoundError:
        return []  # removed since by its table, as deltalake will see
    except (ValueError, RecursionError, pa.ArrowException) as error:
        raise InvalidOption(
            f"{file.uri} is not a file of a Delta Lake log ({error}). Repair the table, or choose another version.",
            uri=file.uri,
        ) from error
    sidecars = []
    for kind, path in rows:
        if kind == "sidecar":
            sidecars.append(path if _NAME.fullmatch(path) else _checked(path, boundary))
        elif kind == "p":
            _checked(path, boundary)
        elif kind == "u" and not _FOLDER.fullmatch(path[:-_UUID_LETTERS]):
            raise boundary.refusal(path, "which is no prefix of a deletion vector")
    return sidecars


def _checked(path: str, boundary: Boundary) -> str:
    # deltalake opens the path itself, by its own rules for URLs: only a plain one means the same to both.
    if _ODD.search(path) or not _ABSOLUTE.match(path):
        raise boundary.refusal(path, "which is no plain absolute URI")
    return boundary.uri_of(path, is_encoded=True)


def _of_parquet(file: Location) -> list[tuple[str, str]]:
    with file.fs.open_input_file(file.path) as opened, pq.ParquetFile(opened) as parquet:
        there = {parquet.schema.column(number).path for number in range(len(parquet.schema))}
        table = parquet.read(columns=[name for name in _COLUMNS if name in there])
    for _ in range(2):
        table = table.flatten()
    kinds, paths, sidecars = (table[name] if name in table.column_names else pa.nulls(len(table)) for name in _COLUMNS)
    vectors = pa.table([kinds, paths], ["kind", "path"]).filter(pc.and_(kinds.is_valid(), paths.is_valid()))
    found = [(str(row["kind"]), str(row["path"])) for row in vectors.to_pylist()]
    return found + [("sidecar", str(path)) for path in sidecars.drop_null().to_pylist()]


def _of_json(file: Location) -> list[tuple[str, str]]:
    with file.fs.open_input_stream(file.path) as opened:
        text = opened.read().decode()
    if not re.search(r"deletionVector|sidecar|\\u", text):
        return []
    return [each for action in _actions(text) for each in _named(action)]


def _actions(text: str) -> Iterator[_Pairs]:
    # With all pairs of an object: which one of two equal names counts differs between readers.
    decoder = json.JSONDecoder(object_pairs_hook=tuple, strict=False)
    position = 0
    while begin := _LETTER.search(text, position):
        action, position = decoder.raw_decode(text, begin.start())
        if not isinstance(action, tuple):
            raise ValueError("an action is no object")  # noqa: TRY004 - of the file's content
        yield action


def _named(action: _Pairs) -> Iterator[tuple[str, str]]:
    for name, facts in action:
        if name == "sidecar":
            yield from (("sidecar", str(path)) for path in _all(facts, "path"))
        elif name == "add":
            for vector in _all(facts, "deletionVector"):
                for kind in _all(vector, "storageType"):
                    yield from ((str(kind), str(path)) for path in _all(vector, "pathOrInlineDv"))


def _all(pairs: object, name: str) -> list[Any]:
    return [value for key, value in pairs if key == name] if isinstance(pairs, tuple) else []
