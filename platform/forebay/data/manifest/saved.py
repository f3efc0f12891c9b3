"""Saved manifests.

JSON for people and diffs, Parquet for many row groups.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from forebay.data.manifest.manifest import MANIFEST_VERSION, Field, File, Manifest, check_rows
from forebay.data.manifest.row_mask import KeptRows, RowMask
from forebay.errors import InvalidOption
from forebay.runtime.uris import has_local_name
from forebay.storage.atomic import read_small, write_atomically
from forebay.storage.boundary import Uri, allowed_locations, check_stored_uri, is_name_below
from forebay.storage.credentials import Access
from forebay.storage.filesystem import Location, resolve

_COUNTS = ("rows", "bytes", "source_bytes")
_RARE = ("constants", "stored")
"""Facts that few files have: saved only where they are."""
_METADATA = b"forebay"
_PARQUET = b"PAR1"  # first bytes of a Parquet file


def save_manifest(manifest: Manifest, path: str | os.PathLike[str]) -> None:
    """Write `manifest` atomically.

    To a path or URI that ends in `.json` or `.parquet`.

    Raises:
        InvalidOption: The path has another suffix.
        OSError: Storage refuses the write.
    """
    uri = os.fspath(path)
    location = resolve(uri)
    if location.path.endswith(".json"):
        content = json.dumps(_facts(manifest) | _row_groups_as_lists(manifest), indent=1).encode()
    elif location.path.endswith(".parquet"):
        content = _as_parquet(manifest)
    else:
        raise InvalidOption(
            f"A manifest is saved as .json or .parquet; {location.uri} has neither suffix. Rename it.",
            path=location.uri,
        )
    write_atomically(uri, content)


def load_manifest(path: str | os.PathLike[str], allow_locations: Uri | Sequence[Uri] = ()) -> Manifest:
    """Load a manifest that `save_manifest` wrote.

    The content shows whether it is JSON or Parquet.

    Raises:
        InvalidOption: The file does not exist, is not a manifest, is of another version, or was changed since. Or it
            names files of a store that its author must not choose.
    """
    location, allowed = resolve(path), allowed_locations(allow_locations)
    try:
        content = read_small(location)
    except (OSError, MemoryError) as error:
        raise InvalidOption(
            f"The manifest {location.uri} cannot be read ({error or 'out of memory'}). Make one with: forebay scan URI",
            path=location.uri,
        ) from error
    try:
        facts = _parquet_facts(content) if content.startswith(_PARQUET) else json.loads(content)
        version = facts["forebay_manifest"]
    except (ValueError, KeyError, TypeError, OSError, RecursionError, pa.ArrowException) as error:
        raise InvalidOption(
            f"{location.uri} is not a manifest. Make one with: forebay scan URI", path=location.uri
        ) from error
    if version != MANIFEST_VERSION:
        raise InvalidOption(
            f"{location.uri} is a manifest of version {version!r}; this Forebay reads version {MANIFEST_VERSION}. "
            "Scan again.",
            path=location.uri,
            version=version,
        )
    manifest = _checked(location.uri, facts)
    _check_locations(manifest, location, allowed)
    return manifest


def _check_locations(manifest: Manifest, own: Location, allowed: Sequence[Location]) -> None:
    """Refuse files outside of the root, and stores left to the user."""
    what = f"The manifest {own.uri}"
    for file in manifest.files:
        if not manifest.root:
            check_stored_uri(file.path, what, own, allowed)
        elif not is_name_below(manifest.root, file.path):
            raise InvalidOption(
                f"{what} names the file {file.path!r:.300}, which is not below its root {manifest.root}. Scan again.",
                path=own.uri,
            )
    if manifest.root:
        check_stored_uri(manifest.root, what, own, allowed)


def _checked(uri: str, facts: dict[str, Any]) -> Manifest:
    damaged = f"The manifest {uri} is damaged or was edited: {{}}. Scan again."
    try:
        if not isinstance(facts["root"], str):
            raise TypeError(f"its root is {facts['root']!r}")
        rows = facts["row_groups"]["rows"]
        manifest = Manifest(
            kept=_kept(facts["kept"], rows) if facts.get("kept") else None,
            snapshot=facts.get("snapshot", ""),
            root=facts["root"],
            files=tuple(_file(file) for file in facts["files"]),
            fields=tuple(Field(**field) for field in facts["fields"]),
            columns=tuple(facts["columns"]),
            access=Access([facts["root"]] if facts["root"] else [file["path"] for file in facts["files"]]),
            **facts["row_groups"],
        )
        _check_what_has_no_id(manifest)
        found = manifest.id
    except (AttributeError, KeyError, TypeError, ValueError, ArithmeticError, AssertionError, MemoryError) as error:
        raise InvalidOption(damaged.format(f"{error!r:.200}"), path=uri) from error
    if found != facts.get("id"):
        raise InvalidOption(damaged.format(f"its content has id {found}, not {facts.get('id')!r:.100}"), path=uri)
    check_rows(manifest)
    _require_stamps(uri, facts["files"], manifest)
    return manifest


def _require_stamps(uri: str, files: Sequence[dict[str, Any]], manifest: Manifest) -> None:
    """Refuse a manifest of local files without their inodes.

    A file that replaced one of them under its old size and time would pass for it.
    """
    for facts, file in zip(files, manifest.files, strict=True):
        if "stamp" not in facts and not file.etag and has_local_name(manifest.uri_of(file)):
            raise InvalidOption(
                f"{uri} was saved by an earlier release: it does not have the inode of {manifest.uri_of(file)}, and a "
                "file that replaced it under its old size and time would pass for it. Scan again; the new manifest has "
                "the same id, so a run that was started with this one resumes.",
                path=uri,
            )


def _check_what_has_no_id(manifest: Manifest) -> None:
    """Check values that the id does not cover.

    Raises `ValueError`.
    """
    for field in manifest.fields:
        if not (isinstance(field.name, str) and isinstance(field.type, str) and isinstance(field.nullable, bool)):
            raise ValueError(f"{field} is not a column")  # noqa: TRY004 - of the file's content, not of an argument
    if not all(isinstance(file.stamp, str) for file in manifest.files):
        raise ValueError("a stamp of a file is not text")
    if not isinstance(manifest.snapshot, str):
        raise ValueError(f"its snapshot is {manifest.snapshot!r}")  # noqa: TRY004 - of the file's content
    if kept := manifest.kept:
        if min(kept.deleted_rows, kept.filtered_rows, kept.skipped_rows, kept.rejected_rows) < 0:
            raise ValueError("a number of rows below 0")
        if not all(isinstance(rule, str) for rule in kept.rules):
            raise ValueError(f"its rules are {kept.rules!r:.100}")
    for name in ("rows", "bytes", "source_bytes"):
        if len(manifest) and getattr(manifest, name).min() < 0:
            raise ValueError(f"{name} below 0")


def _file(facts: dict[str, Any]) -> File:
    constants = tuple((name, text) for name, text in facts.get("constants", ()))
    if not all(isinstance(name, str) and isinstance(text, str | None) for name, text in constants):
        raise ValueError(f"{constants!r:.100} are not columns with texts")
    stored = tuple((name, name_there, type_there) for name, name_there, type_there in facts.get("stored", ()))
    if not all(isinstance(part, str) for each in stored for part in each):
        raise ValueError(f"{stored!r:.100} are not columns with their names and types in a file")
    return File(**facts | {"constants": constants, "stored": stored})


def _file_facts(file: File) -> dict[str, Any]:
    facts = asdict(file)
    for name in _RARE:
        if not facts[name]:
            del facts[name]
    return facts


def _kept(facts: dict[str, Any], rows: Any) -> KeptRows:
    mask = RowMask.from_text(facts["mask"], np.asarray(rows, dtype=np.int64))
    counts = {name: facts[name] for name in ("where", "deleted_rows", "filtered_rows")}
    rare = {name: facts.get(name, 0) for name in ("skipped_rows", "rejected_rows")}
    return KeptRows(mask=mask, **counts, **rare, rules=tuple(facts.get("rules", ())))


def _facts(manifest: Manifest) -> dict[str, Any]:
    facts = _facts_of_files(manifest)
    if manifest.snapshot:
        facts["snapshot"] = manifest.snapshot
    if kept := manifest.kept:
        facts["kept"] = {
            "where": kept.where,
            "deleted_rows": kept.deleted_rows,
            "filtered_rows": kept.filtered_rows,
            "skipped_rows": kept.skipped_rows,
            "rejected_rows": kept.rejected_rows,
            "rules": kept.rules,
            "mask": kept.mask.to_text(),
        }
    return facts


def _facts_of_files(manifest: Manifest) -> dict[str, Any]:
    return {
        "forebay_manifest": MANIFEST_VERSION,
        "id": manifest.id,
        "root": manifest.root,
        "columns": manifest.columns,
        "fields": [asdict(field) for field in manifest.fields],
        "files": [_file_facts(file) for file in manifest.files],
    }


def _row_groups_as_lists(manifest: Manifest) -> dict[str, Any]:
    names = ("file_of", "group_of", *_COUNTS)
    return {"row_groups": {name: getattr(manifest, name).tolist() for name in names}}


def _as_parquet(manifest: Manifest) -> bytes:
    """Parquet file with one row per row group.

    Any tool can read it. All other facts are in the file's metadata.
    """
    facts = _facts(manifest)
    files = facts.pop("files")
    columns: dict[str, Any] = {
        "path": pa.DictionaryArray.from_arrays(
            manifest.file_of, pa.array([file["path"] for file in files], pa.string())
        ),
        "row_group": manifest.group_of,
    }
    columns |= {name: getattr(manifest, name) for name in _COUNTS}
    for name, dtype in (("size", np.int64), ("mtime_ns", np.int64)):
        columns[f"file_{name}"] = np.array([file[name] for file in files], dtype=dtype)[manifest.file_of]
    for name in ("etag", "stamp"):
        texts = pa.array([file[name] for file in files], pa.string())
        columns[f"file_{name}"] = pa.DictionaryArray.from_arrays(manifest.file_of, texts)
    for name in _RARE:
        if any(name in file for file in files):
            texts = pa.array([json.dumps(file.get(name, [])) for file in files], pa.string())
            columns[f"file_{name}"] = pa.DictionaryArray.from_arrays(manifest.file_of, texts)
    table = pa.table(columns).replace_schema_metadata({_METADATA: json.dumps(facts)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="zstd")
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _parquet_facts(content: bytes) -> dict[str, Any]:
    table = pq.read_table(pa.BufferReader(content))
    facts: dict[str, Any] = json.loads((table.schema.metadata or {})[_METADATA])
    paths = table["path"].cast(pa.string()).to_numpy()
    begins = np.flatnonzero(np.concatenate([[True], paths[1:] != paths[:-1]])) if len(paths) else np.empty(0, np.int64)
    firsts = table.take(begins).to_pylist()
    facts["files"] = [
        {"path": row["path"], "size": row["file_size"], "mtime_ns": row["file_mtime_ns"], "etag": row["file_etag"]}
        | ({"stamp": row["file_stamp"]} if "file_stamp" in row else {})
        | {name: json.loads(row.get(f"file_{name}", "[]")) for name in _RARE}
        for row in firsts
    ]
    file_of = np.repeat(np.arange(len(begins)), np.diff(begins, append=len(paths)))
    row_groups = {name: table[name].to_numpy() for name in _COUNTS}
    return facts | {"row_groups": row_groups | {"file_of": file_of, "group_of": table["row_group"].to_numpy()}}
