"""Prepared datasets.

Folders of Parquet files under a seal, which is written last.

A folder without its seal, `prepared.json`, is never read. The seal names every file with a hash of its content, so
that the manifest's id depends on content alone. A dataset that was lost and prepared again is the same one.
"""

from __future__ import annotations

import decimal
import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from pyarrow import fs

from forebay.data.manifest.manifest import CONTENT_HASH, Field, File, Manifest
from forebay.errors import InvalidOption
from forebay.storage.boundary import is_name_below
from forebay.storage.credentials import Access
from forebay.storage.filesystem import below, resolve
from forebay.storage.globs import children
from forebay.storage.json_file import from_json, numbers, read_json_file, to_json, write_json_file
from forebay.storage.retry import NotAFile

SEAL = "prepared.json"
SEAL_VERSION = 1
_OWNER = "prepared dataset"


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedFile:
    """One file of a prepared dataset.

    `rows`, `bytes` and `source_bytes` have one entry per row group.

    `bytes` are uncompressed, `source_bytes` compressed. `content_hash` is XXH3 (128 bits, hex) of the whole file.
    """

    path: str
    size: int
    content_hash: str
    rows: tuple[int, ...]
    bytes: tuple[int, ...]
    source_bytes: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedOrigin:
    """Origin of a prepared dataset.

    Digests by name. Equal origins give equal fingerprints.

    `function` is the digest of the function's code and what it reads. `inputs` maps URIs to versions. `options` are
    those of the preparation: key, rows of a row group, fits, layout.
    """

    name: str
    function: str
    arguments: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)

    def differences(self, other: PreparedOrigin) -> list[str]:
        """Phrases for the changes from `other` to this dataset.

        Such as `the function`, `argument days`, `input a.csv`.
        """
        found = ["the function"] if self.function != other.function else []
        for kind in ("arguments", "inputs", "options"):
            mine, others = getattr(self, kind), getattr(other, kind)
            changed = sorted(name for name in mine.keys() | others.keys() if mine.get(name) != others.get(name))
            found += [f"{kind[:-1]} {name}" for name in changed]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FittedColumn:
    """Statistics of one column.

    They are exact and independent of the order of rows.

    `count` is the number of finite values, and the others are over these. `nulls` counts nulls, NaN and infinities.
    `std` is the standard deviation of the population. `quantiles` maps a probability to the value at that rank of the
    sorted column. Statistics of no values are NaN.
    """

    count: int = 0
    nulls: int = 0
    mean: float = float("nan")
    std: float = float("nan")
    min: float = float("nan")
    max: float = float("nan")
    quantiles: Mapping[float, float] = field(default_factory=dict)

    def quantile(self, probability: float) -> float:
        """Value at `probability`. Raises `InvalidOption` if it was not fitted."""
        if probability not in self.quantiles:
            raise InvalidOption(
                f"quantile({probability}) was not fitted; fitted are {sorted(self.quantiles)}. Add it to "
                "fb.preparation.Quantiles(columns, probabilities)."
            )
        return self.quantiles[probability]


# Without slots: `cached_property` needs the instance's __dict__.
@dataclass(frozen=True, kw_only=True, eq=False)
class Prepared:
    """Sealed dataset, with vocabularies and statistics fitted on it.

    Made by `fb.prepare` and `from_ray_data`, or loaded.

    `folder` is its path or URI. `fingerprint` is the SHA-256 (hex) of its origin. `key` names the columns that order
    its rows; without any, the files are in order of arrival. `files` are in the order of their rows, which is that of
    their paths. `statistics` has an entry per column of `Moments` and `Quantiles`, `vocabularies` per column of
    `fb.Vocabulary`. `preprocessors` are Ray Data's, as the function returned them: their class, their options and what
    they fitted. `facts` are counts and other facts of a source of spans.
    """

    folder: str
    fingerprint: str
    origin: PreparedOrigin
    key: tuple[str, ...]
    fields: tuple[Field, ...]
    files: tuple[PreparedFile, ...]
    statistics: Mapping[str, FittedColumn] = field(default_factory=dict)
    vocabularies: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    preprocessors: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    sealed_at: float = field(default_factory=time.time)

    @staticmethod
    def load(folder: str) -> Prepared:
        """Load a prepared dataset from its folder.

        One small file is read.

        Raises `InvalidOption` if the folder has no seal, or one that is damaged.
        """
        found = find_prepared(folder)
        if found is None:
            raise InvalidOption(
                f"{resolve(folder).uri} has no {SEAL}: it is not a prepared dataset, or its preparation did not end. "
                "`forebay prepare ls` lists those that are whole.",
                path=folder,
            )
        return found

    @cached_property
    def manifest(self) -> Manifest:
        """Manifest of the files.

        Its id depends on their content, not on times or the folder.
        """
        return manifest_of(self.folder, self.fields, self.files)

    @property
    def content_id(self) -> str:
        """Id of the rows, and of what was fitted on them.

        The id of the manifest if nothing was fitted.
        """
        fitted = _fitted_facts(self)
        if not any(fitted.values()):
            return self.manifest.id
        return hashlib.sha256(to_json([self.manifest.id, fitted]).encode()).hexdigest()

    @property
    def rows(self) -> int:
        """Number of rows."""
        return sum(sum(file.rows) for file in self.files)

    @property
    def num_bytes(self) -> int:
        """Size of the files."""
        return sum(file.size for file in self.files)

    def __repr__(self) -> str:
        return f"Prepared({self.origin.name} {self.fingerprint[:8]}: {self.rows} rows, folder={self.folder!r})"


def manifest_of(folder: str, fields: Sequence[Field], files: Sequence[PreparedFile]) -> Manifest:
    """Manifest of prepared files, in the order of their paths."""
    counts = [len(file.rows) for file in files]
    return Manifest(
        root=folder,
        files=tuple(
            File(path=file.path, size=file.size, mtime_ns=0, etag=CONTENT_HASH + file.content_hash) for file in files
        ),
        fields=tuple(fields),
        columns=tuple(each.name for each in fields),
        file_of=np.repeat(np.arange(len(files)), counts),
        group_of=np.concatenate([np.arange(count) for count in counts]),
        rows=np.concatenate([file.rows for file in files]),
        bytes=np.concatenate([file.bytes for file in files]),
        source_bytes=np.concatenate([file.source_bytes for file in files]),
        access=Access([folder]),
    )


def prepared_file(facts: Mapping[str, Any], folder: str) -> PreparedFile:
    """File from its facts in JSON.

    Raises `ValueError` for a path that is not below `folder`.
    """
    if not is_name_below(folder, facts["path"]):
        raise ValueError(f"the file {facts['path']!r:.300} is not below {folder}")
    lists: dict[str, tuple[int, ...]] = {name: tuple(facts[name]) for name in ("rows", "bytes", "source_bytes")}
    return PreparedFile(path=facts["path"], size=facts["size"], content_hash=facts["content_hash"], **lists)


def find_prepared(folder: str) -> Prepared | None:
    """Prepared dataset in `folder`, or None.

    None if it has no seal. Raises `InvalidOption` for a damaged one.
    """
    uri = resolve(folder).uri
    text = read_json_file(uri, SEAL, _OWNER)
    if not text:  # HDFS shows a file before its content
        return None
    return from_json(
        text, lambda facts: _from_facts(uri, facts), version=SEAL_VERSION, owner=_OWNER, file_name=f"{uri}/{SEAL}"
    )


def write_seal(prepared: Prepared) -> None:
    """Write the seal after all files.

    Raises `OSError`.
    """
    names = ("fingerprint", "key", "seconds", "sealed_at")
    facts: dict[str, Any] = {name: getattr(prepared, name) for name in names}
    facts |= {
        "version": SEAL_VERSION,
        "manifest": prepared.manifest.id,
        "origin": asdict(prepared.origin),
        "fields": [asdict(each) for each in prepared.fields],
        "files": [asdict(file) for file in prepared.files],
    }
    write_json_file(prepared.folder, SEAL, to_json(facts | _fitted_facts(prepared)))


def _fitted_facts(prepared: Prepared) -> dict[str, Mapping[str, Any]]:
    """Everything in a seal besides files that a reader of the dataset may use."""
    return {
        "statistics": {name: asdict(found) for name, found in prepared.statistics.items()},
        "vocabularies": {name: [_to_plain(value) for value in kept] for name, kept in prepared.vocabularies.items()},
        "preprocessors": prepared.preprocessors,
        "facts": prepared.facts,
    }


def list_prepared(into: str) -> Iterator[tuple[str, Prepared | None]]:
    """Folders below `into`, with their datasets.

    None for a folder without a seal, or with one that is damaged or of others.
    """
    location = resolve(into)
    if location.fs.get_file_info(location.path).type != fs.FileType.Directory:
        return
    for info in sorted(children(location.fs, location.path), key=lambda info: str(info.path)):
        if info.type == fs.FileType.Directory and not info.base_name.startswith(("_", ".")):
            folder = below(location.uri, info.base_name)
            found = None
            with suppress(InvalidOption, NotAFile, PermissionError):
                found = find_prepared(folder)
            yield folder, found


def remove_prepared(folder: str) -> None:
    """Remove a prepared dataset.

    The seal goes first, so that a half removed one is never read. Raises `OSError`.
    """
    location = resolve(folder)
    seal = f"{location.path}/{SEAL}"
    if location.fs.get_file_info(seal).type == fs.FileType.File:
        location.fs.delete_file(seal)
    location.fs.delete_dir(location.path)


def _from_facts(folder: str, facts: dict[str, Any]) -> Prepared:
    expected = facts.pop("manifest")
    prepared = Prepared(
        folder=folder,
        fingerprint=facts["fingerprint"],
        origin=PreparedOrigin(**facts["origin"]),
        key=tuple(facts["key"]),
        fields=tuple(Field(**each) for each in facts["fields"]),
        files=tuple(prepared_file(each, folder) for each in facts["files"]),
        statistics={name: _fitted(found) for name, found in facts["statistics"].items()},
        vocabularies={name: tuple(map(_from_plain, kept)) for name, kept in facts["vocabularies"].items()},
        preprocessors=facts["preprocessors"],
        facts=facts.get("facts", {}),
        seconds=facts["seconds"],
        sealed_at=facts["sealed_at"],
    )
    if prepared.manifest.id != expected:
        raise ValueError("its files are not those of its manifest")
    return prepared


def _fitted(facts: Mapping[str, Any]) -> FittedColumn:
    quantiles = {float(name): value for name, value in numbers(facts["quantiles"]).items()}
    return FittedColumn(**numbers({**facts, "quantiles": {}}) | {"quantiles": quantiles})


def _to_plain(value: object) -> object:
    """Vocabulary value as JSON.

    Bytes and decimals become objects.
    """
    if isinstance(value, bytes):
        return {"bytes": value.hex()}
    return {"decimal": str(value)} if isinstance(value, decimal.Decimal) else value


def _from_plain(value: Any) -> Any:
    match value:
        case {"bytes": text}:
            return bytes.fromhex(text)
        case {"decimal": text}:
            return decimal.Decimal(text)
    return value
