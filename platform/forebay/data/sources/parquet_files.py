"""Listing of Parquet files and their versions.

A URI, a folder or a pattern names them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

from pyarrow import fs

from forebay.data.sources.table_formats import TableSearch
from forebay.errors import NoFiles, ReadFailed
from forebay.runtime.uris import split_options, with_options
from forebay.storage.filesystem import Location, resolve_source, uri_below
from forebay.storage.globs import everything, expand, fixed_part, is_pattern, visible, walk
from forebay.storage.hugging_face.location import RevisionPins
from forebay.storage.retry import DEFAULT_POLICY, REMEDY, ReadPolicy, read
from forebay.storage.versions import FoundFile, found

SUFFIXES = (".parquet", ".parq", ".pq")
"""Suffixes of Parquet files, taken from a folder. A file that is named itself, or by a pattern, may have any suffix."""

# The deadline covers one call, but listing a folder of a million objects takes a thousand requests.
_PATIENCE = 10

Uri = str | os.PathLike[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files in the order of their URIs.

    `root` is the folder that was searched. Empty: no common folder.
    """

    root: str
    files: tuple[FoundFile, ...]


def list_parquet(uri: Uri | Sequence[Uri], policy: ReadPolicy = DEFAULT_POLICY) -> list[FoundFile]:
    """Files found by `find_parquet`, sorted by URI."""
    return list(find_parquet(uri, policy).files)


def find_parquet(uri: Uri | Sequence[Uri], policy: ReadPolicy = DEFAULT_POLICY) -> Listing:
    """Find Parquet files, each once. See `find_files`."""
    return find_files(uri, policy)


def find_files(
    uri: Uri | Sequence[Uri], policy: ReadPolicy = DEFAULT_POLICY, *, suffixes: tuple[str, ...] = SUFFIXES
) -> Listing:
    """Find files, each once.

    Args:
        uri: A file, a folder, a pattern with `*`, `?`, `[...]` or `**`, or a sequence of these. A folder is searched
            recursively for `suffixes`, without names that begin with `_` or `.`.
        policy: Read policy for the listing of each.
        suffixes: Ends of the names of files that are taken from a folder.

    Raises:
        NoFiles: One of them names no file.
        NotPlainParquet: A folder or a pattern reads from a Delta Lake, Iceberg or Hudi table. Files of a table that are
            named one by one are accepted.
        ReadFailed: Storage did not answer, or did not permit it.
    """
    uris = [uri] if isinstance(uri, str | os.PathLike) else list(uri)
    if not uris:
        raise NoFiles("The list of URIs is empty. Name at least one file, folder or pattern.")
    tables, pins = TableSearch(), RevisionPins(policy)
    listings = [_find_one(resolve_source(pins.pin(one)), tables, policy, suffixes) for one in uris]
    files = {file.uri: file for listing in listings for file in listing.files}
    return Listing(
        root=_common_root([listing.root for listing in listings]),
        files=tuple(files[name] for name in sorted(files)),
    )


def _find_one(location: Location, tables: TableSearch, policy: ReadPolicy, suffixes: tuple[str, ...]) -> Listing:
    patient = replace(policy, deadline_s=policy.deadline_s * _PATIENCE)
    try:
        listing = read(location.uri, partial(_list, location, tables, suffixes), patient)
    except PermissionError as error:
        raise ReadFailed(f"{location.uri} may not be listed ({error}). {REMEDY}", what=location.uri) from error
    if not listing.files:
        raise NoFiles(_nothing_at(location, suffixes), uri=location.uri)
    return listing


def _list(location: Location, tables: TableSearch, suffixes: tuple[str, ...]) -> Listing:
    info = location.fs.get_file_info(location.path)
    if info.type == fs.FileType.File:
        return Listing(root=_parent(location.uri), files=(found(location.uri, info),))
    if info.type == fs.FileType.Directory:
        tables.search_above(location, location.path)
        return _below(location, [location.path], tables, suffixes)
    if not is_pattern(location.path):
        return Listing(root=location.uri, files=())
    tables.search_above(location, fixed_part(location.path))
    matches = expand(location.fs, location.path, partial(tables.search_level, location))
    base = Location(location.fs, fixed_part(location.path), _fixed_uri(location))
    files = [match for match in matches if match.type == fs.FileType.File]
    folders = [match.path for match in matches if match.type == fs.FileType.Directory]
    return _below(base, folders, tables, suffixes, files)


def _below(
    base: Location,
    folders: list[str],
    tables: TableSearch,
    suffixes: tuple[str, ...],
    files: Sequence[fs.FileInfo] = (),
) -> Listing:
    """List the files in `folders`, and add `files`.

    Files in folders have one of `suffixes`, `files` may have any. All are below `base`.
    """
    infos = [*files]
    for folder in folders:
        listed = list(everything(base.fs, folder))
        tables.search_tree(base, folder, listed)
        infos += (info for info in visible(listed, folder) if info.path.endswith(suffixes))
    files_found = (found(child_uri(base, info.path), info) for info in infos if info.type == fs.FileType.File)
    return Listing(root=base.uri.rstrip("/") or "/", files=tuple(files_found))


def child_uri(base: Location, path: str) -> str:
    """URI of a file below the folder `base`.

    `path` is its path in the file system. Raises `InvalidOption` as `uri_below`.
    """
    return uri_below(base, path[len(base.path.rstrip("/")) :].strip("/"))


def _fixed_uri(location: Location) -> str:
    if location.is_local:
        return fixed_part(location.path)
    name, options = split_options(location.uri)
    return with_options(fixed_part(name), options)


def _parent(uri: str) -> str:
    name, options = split_options(uri)
    return with_options(name.rpartition("/")[0] or "/", options)


def _common_root(roots: list[str]) -> str:
    """Deepest common folder of `roots`.

    Empty if they differ in file system, bucket or options.

    >>> _common_root(["s3://b/data/2024", "s3://b/data/2025"])
    's3://b/data'
    """
    split = [split_options(root) for root in roots]
    options = {marked for _, marked in split}
    folders = [folder.rstrip("/").split("/") for folder, _ in split]
    levels = takewhile(lambda level: len(set(level)) == 1, zip(*folders, strict=False))
    shared = [level[0] for level in levels]
    is_remote = "://" in roots[0]
    if len(options) > 1 or len(shared) < (3 if is_remote else 1):
        return ""
    return with_options("/".join(shared) or "/", options.pop())


def _nothing_at(location: Location, suffixes: tuple[str, ...]) -> str:
    if is_pattern(location.path):
        return f"No file matches {location.uri}. Check the pattern: * stays within one folder, ** enters folders."
    info = location.fs.get_file_info(location.path)
    if info.type == fs.FileType.Directory:
        others = [other.base_name for other in walk(location.fs, location.path) if other.type == fs.FileType.File]
        seen = f"{len(others)} files of other names, e.g. {others[0]}" if others else "no files at all"
        return (
            f"{location.uri} holds no file ending in {', '.join(suffixes)}, but {seen}. Files of another suffix are "
            f"taken by a pattern: {location.uri.rstrip('/')}/*"
        )
    nearest = next((str(up) for up in Path(location.path).parents if up.is_dir()), "/") if location.is_local else ""
    hint = f" The nearest folder that exists is {nearest}." if nearest else ""
    kind = "Parquet file" if suffixes == SUFFIXES else f"file ({', '.join(suffixes)})"
    return f"{location.uri} does not exist.{hint} Name a {kind}, a folder of them, or a pattern: data/*{suffixes[0]}."
