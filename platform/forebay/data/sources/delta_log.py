"""What the log of a Delta Lake table says, and deltalake does not show.

deltalake opens the sidecars of checkpoints wherever they are, and its Python interface does not name them before. It
does not name deletion vectors either, and expands all rows of one: of 30 bytes, into any amount of memory.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from forebay.data.sources.lake_table import errors_of_content
from forebay.errors import InvalidOption
from forebay.runtime.threads import each_in_threads
from forebay.storage.atomic import read_small
from forebay.storage.boundary import Boundary
from forebay.storage.filesystem import Location, resolve_source
from forebay.storage.globs import children
from forebay.storage.json_file import LARGEST_BYTES
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
_VECTOR = ("storageType", "pathOrInlineDv", "offset", "sizeInBytes", "cardinality")
_NAMES = {"add", "sidecar", "path", "deletionVector", *_VECTOR}
_MATTERS = re.compile(r"deletionVector|sidecar|\\u")
_COLUMNS = {"sidecar.path", "add.path", *(f"add.deletionVector.{name}" for name in _VECTOR)}
_MOST_THREADS = 16


class Vector(NamedTuple):
    """Deletion vector of a file, as the log names it."""

    storage_type: str
    path: str
    offset: int
    size: int
    num_rows: int


class _Facts(NamedTuple):
    """Sidecars that a file of the log names, and the files that it adds.

    In `added`, each with its vector, or None.
    """

    sidecars: list[str]
    added: dict[str, Vector | None]


class _LogFile(NamedTuple):
    """File of the log. Its last action is of `version`."""

    version: int
    location: Location


def read_log(
    location: Location, version: int | None, boundary: Boundary, policy: ReadPolicy
) -> tuple[int | None, Mapping[str, Vector | None]]:
    """Check the files that deltalake reads besides the log, and find deletion vectors.

    Returns the version, which is the newest one in the log if `version` is None, and the vector of each file that the
    log has added, by its path there. The mapping is empty if no file has a vector.

    Raises:
        InvalidOption: A sidecar of a checkpoint or a file of deletion vectors is outside of the boundary, or the log
            cannot be decoded.
        ReadFailed: Storage kept failing.
    """
    folder = location.child(_LOG)
    infos = read(folder.uri, partial(children, location.fs, folder.path), policy)
    _refuse_odd(folder, infos)
    files = [
        _LogFile(number, folder.child(name))
        for number, name in _read_for([info for info in infos if info.type == fs.FileType.File], version)
    ]
    if version is None:
        version = max((file.version for file in files), default=None)
    for is_needed in (False, True):
        found = _read_files(files, boundary, policy, is_needed=is_needed)
        sidecars = [
            _LogFile(file.version, folder.child(_SIDECARS).child(name) if "/" not in name else resolve_source(name))
            for file, facts in zip(files, found, strict=True)
            for name in facts.sidecars
        ]
        found += _read_files(sidecars, boundary, policy, is_needed=is_needed)
        if not any(vector for facts in found for vector in facts.added.values()):
            return version, {}
    # A later action of a path counts more. Files of one version say the same about it.
    order = sorted(zip([*files, *sidecars], found, strict=True), key=lambda pair: pair[0].version)
    return version, {path: vector for _, facts in order for path, vector in facts.added.items()}


def _refuse_odd(folder: Location, infos: Sequence[fs.FileInfo]) -> None:
    """Refuse a pipe or a device among the files of the log: deltalake would wait for it."""
    for info in infos:
        if info.type == fs.FileType.Unknown:
            raise InvalidOption(
                f"{folder.uri} holds {info.base_name}, which is a pipe or a device. The log of a table has files "
                "alone: remove it.",
                path=info.path,
            )


def _read_files(files: Sequence[_LogFile], boundary: Boundary, policy: ReadPolicy, *, is_needed: bool) -> list[_Facts]:
    """Read and check files of the log in parallel.

    Unless `is_needed`, what adds no vector is not parsed.
    """
    check = partial(_read_file, boundary=boundary, policy=policy, is_needed=is_needed)
    found = dict(each_in_threads(check, files, most=_MOST_THREADS, name="forebay-log"))
    return [found[number] for number in range(len(files))]


def _read_for(infos: list[fs.FileInfo], version: int | None) -> Iterator[tuple[int, str]]:
    """Names of the files that deltalake may read for a version, and theirs.

    It begins at a checkpoint that is not older than the newest one in a single file.
    """
    wanted = float("inf") if version is None else version
    whole = [int(match[1]) for info in infos if info.size and (match := _WHOLE.fullmatch(info.base_name))]
    oldest = max((number for number in whole if number <= wanted), default=0)
    for info in infos:
        match = _VERSION.fullmatch(info.base_name)
        if match and oldest <= (last := int(match[2] or match[1])) <= wanted:
            yield last, info.base_name


def _read_file(file: _LogFile, boundary: Boundary, policy: ReadPolicy, *, is_needed: bool) -> _Facts:
    location = file.location
    of_kind = _of_parquet if location.path.endswith(".parquet") else _of_json
    try:
        found = read(location.uri, partial(of_kind, location, is_needed=is_needed), policy)
    except FileNotFoundError:
        return _Facts([], {})  # removed since by its table, as deltalake will see
    except (
        ValueError,
        TypeError,
        LookupError,
        AttributeError,
        RecursionError,
        MemoryError,
        pa.ArrowException,
    ) as error:
        raise InvalidOption(
            f"{location.uri} is not a file of a Delta Lake log ({error}). Repair the table, or choose another version.",
            uri=location.uri,
        ) from error
    for vector in found.added.values():
        if vector is not None:
            _check_vector(vector, boundary)
    sidecars = [path if _NAME.fullmatch(path) else _checked(path, boundary) for path in found.sidecars]
    return found._replace(sidecars=sidecars)


def _check_vector(vector: Vector, boundary: Boundary) -> None:
    if vector.storage_type == "p":
        _checked(vector.path, boundary)
    elif vector.storage_type == "u" and not _FOLDER.fullmatch(vector.path[:-_UUID_LETTERS]):
        raise boundary.refusal(vector.path, "which is no prefix of a deletion vector")


def _checked(path: str, boundary: Boundary) -> str:
    # deltalake opens the path itself, by its own rules for URLs: only a plain one means the same to both.
    if _ODD.search(path) or not _ABSOLUTE.match(path):
        raise boundary.refusal(path, "which is no plain absolute URI")
    return boundary.uri_of(path, is_encoded=True)


def _of_parquet(file: Location, *, is_needed: bool) -> _Facts:
    content = pa.BufferReader(read_small(file))
    with errors_of_content(), pq.ParquetFile(content) as parquet:
        there = {parquet.schema.column(number).path for number in range(len(parquet.schema))}
        table = parquet.read(columns=sorted(_COLUMNS & there))
    for _ in range(2):
        table = table.flatten()
    columns = {name: table[name] if name in table.column_names else pa.nulls(len(table)) for name in _COLUMNS}
    facts = pa.table(columns)
    sidecars = [str(path) for path in facts["sidecar.path"].drop_null().to_pylist()]
    added = facts.filter(facts["add.path"].is_valid())
    vectors = added.filter(added["add.deletionVector.storageType"].is_valid()).to_pylist()
    found: dict[str, Vector | None] = {}
    if vectors or is_needed:
        found = dict.fromkeys(map(str, added["add.path"].to_pylist()))
    for row in vectors:
        _add(found, row["add.path"], _vector({name: row[f"add.deletionVector.{name}"] for name in _VECTOR}))
    return _Facts(sidecars, found)


def _of_json(file: Location, *, is_needed: bool) -> _Facts:
    found, text = _Facts([], {}), read_small(file, LARGEST_BYTES).decode()
    if not is_needed and not _MATTERS.search(text):
        return found
    for action in _actions(text):
        if sidecar := action.get("sidecar"):
            found.sidecars.append(str(sidecar["path"]))
        if add := action.get("add"):
            facts = add.get("deletionVector")
            _add(found.added, add["path"], _vector(facts) if facts else None)
    return found


def _add(added: dict[str, Vector | None], path: object, vector: Vector | None) -> None:
    if added.setdefault(str(path), vector) not in (None, vector):
        raise ValueError(f"it adds the file {path!r:.200} with two deletion vectors")
    added[str(path)] = vector


def _vector(facts: Mapping[str, Any]) -> Vector:
    kind, path, offset, size, rows = (facts.get(name) for name in _VECTOR)
    numbers: list[Any] = [0 if offset is None else offset, size, rows]
    if not (isinstance(kind, str) and isinstance(path, str)) or not all(type(each) is int for each in numbers):
        raise ValueError(f"it has the deletion vector {dict(facts)!r:.200}")
    return Vector(kind, path, *numbers)


def _actions(text: str) -> Iterator[dict[str, Any]]:
    decoder = json.JSONDecoder(object_pairs_hook=_object, strict=False)
    position = 0
    while begin := _LETTER.search(text, position):
        action, position = decoder.raw_decode(text, begin.start())
        if not isinstance(action, dict):
            raise ValueError("an action is no object")  # noqa: TRY004 - of the file's content
        yield action


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):  # which one of two counts differs between readers
        names = [name for name, _ in pairs]
        if twice := sorted(name for name in _NAMES if names.count(name) > 1):
            raise ValueError(f"an object has two values for {twice[0]}")
    return found
