"""Listing of Parquet files and their versions.

A URI, a folder or a pattern names them.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import takewhile
from pathlib import Path

import pyarrow as pa
from pyarrow import fs

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.other_formats import advice
from forebay.data.sources.left_out import LeftOut, RealPaths, suffix_counts
from forebay.data.sources.table_formats import TableSearch
from forebay.errors import ForebayError, InvalidOption, NoFiles, ReadFailed, validate_type
from forebay.runtime.formatting import did_you_mean_file
from forebay.runtime.uris import has_local_name, split_options, with_options
from forebay.storage.credentials import has_credentials, redact
from forebay.storage.filesystem import Location, below, path_below, resolve_source, uri_below
from forebay.storage.globs import children, everything, expand, fixed_part, is_hidden_path, is_pattern, visible, walk
from forebay.storage.hugging_face.location import RevisionPins
from forebay.storage.retry import DEFAULT_POLICY, REMEDY, NotAFile, ReadPolicy, read
from forebay.storage.versions import FoundFile, found

SUFFIXES = (".parquet", ".parq", ".pq")
"""Suffixes of Parquet files, taken from a folder. A file that is named itself, or by a pattern, may have any suffix."""

ANY_SUFFIX = ("",)
"""Suffix of every file."""

# The deadline covers one call, but listing a folder of a million objects takes a thousand requests.
_PATIENCE = 10

Uri = str | os.PathLike[str]

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """Files in the order of their URIs.

    `root` is the folder that was searched. Empty: no common folder. `left_out` is what was not taken, and why.
    """

    root: str
    files: tuple[FoundFile, ...]
    left_out: LeftOut = field(default_factory=LeftOut)


def find_parquet(uri: Uri | Sequence[Uri], policy: ReadPolicy = DEFAULT_POLICY) -> Listing:
    """Find Parquet files, each once. See `find_files`."""
    return find_files(uri, policy)


def find_files(
    uri: Uri | Sequence[Uri], policy: ReadPolicy = DEFAULT_POLICY, *, suffixes: tuple[str, ...] = SUFFIXES
) -> Listing:
    """Find files, each once.

    Args:
        uri: A file, a folder, a pattern with `*`, `?`, `[...]` or `**`, or a sequence of these. A folder is searched
            recursively for `suffixes`, without names that begin with `_` or `.` (but `_key=value` of a folder). Local
            links are followed. What they show twice is taken once.
        policy: Read policy for the listing of each.
        suffixes: Ends of the names of files that are taken from a folder.

    Raises:
        NoFiles: One of them names no file.
        NotPlainParquet: A folder or a pattern reads from a Delta Lake, Iceberg or Hudi table. Files of a table that are
            named one by one are accepted.
        ReadFailed: Storage did not answer, or did not permit it. Or a link leads nowhere.
        InvalidOption: A name is no UTF-8, or a name of an object store is both an object and a folder.
    """
    if isinstance(uri, Manifest):
        raise InvalidOption("a Manifest was given, which is what a scan returns. Use it as it is, or scan its files.")
    if hasattr(uri, "columns"):  # of pandas, Polars or pyarrow
        raise InvalidOption(
            f"a {type(uri).__name__} in memory was given, and a scan reads files. Write it as Parquet with several row "
            "groups (row_group_size=...), and scan the file."
        )
    validate_type("uri", uri, str | os.PathLike | Iterable, "a file, a folder, a pattern, or a sequence of these")
    uris = [uri] if isinstance(uri, str | os.PathLike) else list(uri)
    if not uris:
        raise NoFiles("The list of URIs is empty. Name at least one file, folder or pattern.")
    tables, pins = TableSearch(), RevisionPins(policy)
    locations = [resolve_source(pins.pin(one)) for one in uris]
    _refuse_one_name(uris, locations)
    listings = [_find_one(location, tables, policy, suffixes) for location in locations]
    files = {file.uri: file for listing in listings for file in listing.files}
    root, left_out = _common_root([listing.root for listing in listings]), LeftOut()
    for listing in listings:
        left_out.update(listing.left_out, taken=files)
    _remove_twins(files, root, left_out)
    (log.warning if left_out.twins else log.info)(
        "%s: %s", root or locations[0].uri, "; ".join(left_out.notes()) or "all taken"
    )
    return Listing(root=root, files=tuple(files[name] for name in sorted(files)), left_out=left_out)


def lists_folder(uri: Uri, folder: str) -> bool:
    """Whether `find_files` of `uri` would find the files of `folder`."""
    # A catalog's table has no folder, so a URI is compared as it is.
    root, name = (
        split_options(each if "://" in each.removeprefix("file://") else resolve_source(each).uri)[0].rstrip("/")
        for each in (str(uri), folder)
    )
    root = fixed_part(root) if is_pattern(root) else root
    return f"{name}/".startswith(f"{root}/") and not is_hidden_path(f"{path_below(name, root)}/part.parquet")


def _refuse_one_name(uris: Sequence[Uri], locations: Sequence[Location]) -> None:
    """Refuse URIs that differ in credentials alone: one name would stand for several files."""
    given: dict[str, str] = {}
    for uri, location in zip(uris, locations, strict=True):
        text = os.fspath(uri)
        other = given.setdefault(location.uri, text)
        if other != text and (has_credentials(text) or has_credentials(other)):
            raise InvalidOption(
                f"Two URIs differ in their credentials alone, and are both {location.uri}: a manifest could not tell "
                "them apart. Name the file once.",
                uri=location.uri,
            )


def _find_one(location: Location, tables: TableSearch, policy: ReadPolicy, suffixes: tuple[str, ...]) -> Listing:
    patient = replace(policy, deadline_s=policy.deadline_s * _PATIENCE)
    try:
        listing = read(location.uri, partial(_list, location, tables, suffixes), patient)
        if not listing.files:
            raise NoFiles(_nothing_at(location, suffixes), uri=location.uri)
    except PermissionError as error:
        raise ReadFailed(f"{location.uri} may not be listed ({error}). {REMEDY}", what=location.uri) from error
    except ForebayError:
        raise
    except (OSError, ValueError, pa.ArrowException) as error:
        raise ReadFailed(
            f"{location.uri} cannot be listed ({type(error).__name__}: {redact(str(error))}). A name in it may be one "
            "that its storage client does not take: rename it, or name the other files one by one.",
            what=location.uri,
        ) from None
    return listing


def _remove_twins(files: dict[str, FoundFile], root: str, left_out: LeftOut) -> None:
    """Keep one path for each local file.

    The path without a link, or else the first.
    """
    real_paths = RealPaths(root if root and has_local_name(root) else "/")
    chosen: dict[str, str] = {}
    for uri in sorted(filter(has_local_name, files)):
        real = real_paths.of(uri)
        other = chosen.setdefault(real, uri)
        if other != uri:
            kept, twin = (uri, other) if real_paths.is_direct(uri) else (other, uri)
            chosen[real] = kept
            left_out.twins[twin] = kept
            del files[twin]
    left_out.followed.update((link, real) for link, real in real_paths.followed.items() if link not in left_out.twins)


def _list(location: Location, tables: TableSearch, suffixes: tuple[str, ...]) -> Listing:
    info = location.fs.get_file_info(location.path)
    if info.type == fs.FileType.File:
        _refuse_folder_of_the_name(location, info, suffixes)
        return Listing(root=_parent(location.uri), files=(found(location.uri, info),))
    if info.type == fs.FileType.Directory:
        tables.search_above(location, location.path)
        return _below(location, [location.path], tables, suffixes)
    if info.type == fs.FileType.Unknown:
        raise NotAFile(f"{location.uri} is a pipe or a device, and a file is expected")
    if not is_pattern(location.path):
        return Listing(root=location.uri, files=())
    tables.search_above(location, fixed_part(location.path))

    def on_listed(folder: str, infos: list[fs.FileInfo]) -> None:
        tables.search_level(location, folder, infos)
        _refuse_empty_parts(location, (info for info in infos if info.path.endswith(suffixes)))

    matches = expand(location.fs, location.path, on_listed)
    base = Location(location.fs, fixed_part(location.path), _fixed_uri(location))
    files = [match for match in matches if match.type == fs.FileType.File]
    folders = [match.path for match in matches if match.type == fs.FileType.Directory]
    _refuse_broken_links(matches)
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
    infos, left_out = [*files], LeftOut()
    for folder in folders:
        listed = list(everything(base.fs, folder, left_out.twins.__setitem__))
        tables.search_tree(base, folder, listed)
        seen = list(visible(listed, folder))
        _refuse_broken_links(seen)
        left_out.add(listed, folder, suffixes)
        infos += (info for info in seen if info.path.endswith(suffixes))
    _refuse_empty_parts(base, infos)
    files_found = (found(child_uri(base, info.path), info) for info in infos if info.type == fs.FileType.File)
    return Listing(root=base.uri.rstrip("/") or "/", files=tuple(files_found), left_out=left_out)


def _refuse_empty_parts(base: Location, infos: Iterable[fs.FileInfo]) -> None:
    for info in infos:
        if "//" in info.path and info.type == fs.FileType.File:
            raise InvalidOption(
                f"{base.uri} holds the key {info.path}, which has an empty part (//). Arrow opens no such key. Copy "
                "the object to another key, or name the other files one by one.",
                path=info.path,
            )


def _refuse_broken_links(infos: Iterable[fs.FileInfo]) -> None:
    for info in infos:
        if info.type == fs.FileType.NotFound and Path(info.path).is_symlink():
            raise ReadFailed(
                f"{info.path} is a link to {Path(info.path).readlink()}, where nothing is: is it mounted? Rows may be "
                "missing without it. Repair the link, or remove it.",
                what=info.path,
            )


def _refuse_folder_of_the_name(location: Location, info: fs.FileInfo, suffixes: tuple[str, ...]) -> None:
    """Refuse an object that shares its name with a folder.

    Costs a request, so only names that do not look like a file are asked for.
    """
    if location.is_local or (info.size and location.path.endswith(suffixes)):
        return
    below_it: list[str] = []
    with suppress(NotADirectoryError):  # so say fsspec's file systems of a file
        below_it = [each.path for each in children(location.fs, location.path) if each.path != location.path]
    if below_it:
        raise InvalidOption(
            f"{location.uri} is an object of {info.size} bytes, and also a folder, with {below_it[0]}. Name the files "
            f"of the folder by a pattern, {below(location.uri, f'**/*{suffixes[0]}')}, or rename the object.",
            uri=location.uri,
        )


def child_uri(base: Location, path: str) -> str:
    """URI of a file below the folder `base`.

    `path` is its path in the file system. Raises `InvalidOption` as `uri_below`.
    """
    return uri_below(base, path[len(base.path.rstrip("/")) :].strip("/"))


def _fixed_uri(location: Location) -> str:
    if location.is_local:
        return fixed_part(location.path)
    name, options = split_options(location.uri)
    # By the path: the wildcard ? is %3F in the URI.
    dropped = len(_parts(location.path)) - len(_parts(fixed_part(location.path)))
    return with_options(name.rstrip("/").rsplit("/", dropped)[0], options)


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part]


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
        return (
            f"No file matches {location.uri}. Check the pattern: * stays within one folder, ** enters folders, and a "
            f"name that holds *, ? or [ itself is written [*], [?] or [[].{_encoding_hint(location)}"
        )
    info = location.fs.get_file_info(location.path)
    if info.type == fs.FileType.Directory and suffixes == ANY_SUFFIX:
        return f"{location.uri} holds no file, or only hidden ones (_name, .name). Name a folder with files."
    if info.type == fs.FileType.Directory:
        others = [other.base_name for other in walk(location.fs, location.path) if other.type == fs.FileType.File]
        seen = "no files at all"
        if others:
            files = "files" if len(others) > 1 else "file"
            seen = f"{len(others)} {files} of other names, e.g. {others[0]} ({suffix_counts(others)})"
        return (
            f"{location.uri} holds no file ending in {', '.join(suffixes)}, but {seen}. "
            + (f"{advice(others[0])} ".lstrip() if others and suffixes == SUFFIXES else "")
            + f"Parquet files of another suffix are taken by a pattern: {location.uri.rstrip('/')}/*"
        )
    nearest = next((str(up) for up in Path(location.path).parents if up.is_dir()), "/") if location.is_local else ""
    hint = f" The nearest folder that exists is {nearest}." if nearest else ""
    hint += did_you_mean_file(Path(location.path)) if location.is_local else ""
    kinds = {SUFFIXES: "Parquet file", ANY_SUFFIX: "file"}
    kind = kinds.get(suffixes, f"file ({', '.join(suffixes)})")
    return (
        f"{location.uri} does not exist.{hint}{_encoding_hint(location)} "
        f"Name a {kind}, a folder of them, or a pattern: data/*{suffixes[0]}."
    )


def _encoding_hint(location: Location) -> str:
    """Hint for a name with a percent sign that may be encoded."""
    if location.is_local or isinstance(location.fs, fs.PyFileSystem) or "%" not in split_options(location.uri)[0]:
        return ""
    return f" Its %XX are decoded, to {location.path}: write a percent sign itself as %25."
