"""Manifest of a dataset.

It lists every row group, with the file version it was found in. Pure data, no file access.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise
from numbers import Real
from operator import eq
from typing import Any, overload

import numpy as np
from numpy.typing import ArrayLike, NDArray

from forebay.data.manifest.row_mask import KeptRows
from forebay.errors import InvalidOption, LimitReached
from forebay.runtime.late_import import late
from forebay.runtime.uris import split_options, with_options

MANIFEST_VERSION = 1
"""Part of every manifest id and of every saved manifest."""

MOST_ROWS = 1 << 44
"""Limit for the rows of a dataset. A plan takes 8 bytes for each 65,536 of them."""

CONTENT_HASH = "xxh3:"
"""Beginning of an `etag` that names the file's content, in a dataset that Forebay wrote itself. Its time is 0."""

_COLUMNS: dict[str, np.dtype[Any]] = {
    "file_of": np.dtype(np.int32),
    "group_of": np.dtype(np.int32),
    "rows": np.dtype(np.int64),
    "bytes": np.dtype(np.int64),
    "source_bytes": np.dtype(np.int64),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class File:
    """One version of one file.

    `path` is the part of the file's URI after the manifest's root.

    With an `etag` that begins with `CONTENT_HASH`, every copy of equal content is the same version. `constants` are
    columns that the file does not hold, with the text of their value: partition columns, and columns that a table got
    later. None is null. `stored` are columns that the file holds under another name or type: name in the table, name
    and type in the file. `stamp` is the inode of a local file and the time of its last change, as in
    `forebay.storage.versions.FoundFile`. Empty if any file of this size and time will do.
    """

    path: str
    size: int
    mtime_ns: int
    etag: str = ""
    stamp: str = ""
    constants: tuple[tuple[str, str | None], ...] = ()
    stored: tuple[tuple[str, str, str], ...] = ()


class _Texts:
    """Texts one after another in one buffer."""

    def __init__(self, texts: Iterable[str]) -> None:
        parts = [text.encode(errors="surrogatepass") for text in texts]
        self._content = b"".join(parts)
        self._ends = np.fromiter(accumulate(map(len, parts), initial=0), np.int64, len(parts) + 1)

    def __getitem__(self, index: int) -> str:
        start, stop = self._ends[index : index + 2].tolist()
        return self._content[start:stop].decode(errors="surrogatepass")

    def __iter__(self) -> Iterator[str]:
        ends, content = self._ends.tolist(), self._content
        return (content[start:stop].decode(errors="surrogatepass") for start, stop in pairwise(ends))


class FileTable(Sequence[File]):
    """Files in the order of a manifest.

    Some 100 bytes each, in memory and in a pickle. `File` objects are made when they are asked for.
    """

    def __init__(self, files: Iterable[File]) -> None:
        files = list(files)
        self._paths, self._etags = _Texts(file.path for file in files), _Texts(file.etag for file in files)
        self._stamps = _Texts(file.stamp for file in files)
        self._sizes = _numbers([file.size for file in files])
        self._times = _numbers([file.mtime_ns for file in files])
        kinds: dict[tuple[object, object], int] = {}
        number_of = [kinds.setdefault((file.constants, file.stored), len(kinds)) for file in files]
        self._kinds = list(kinds)
        self._kind_of = np.array(number_of, dtype=np.int32) if len(kinds) > 1 else None

    def __len__(self) -> int:
        return len(self._sizes)

    @overload
    def __getitem__(self, index: int) -> File: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[File, ...]: ...
    def __getitem__(self, index: int | slice) -> File | tuple[File, ...]:
        if isinstance(index, slice):
            return tuple(self[each] for each in range(len(self))[index])
        index = range(len(self))[index]
        constants, stored = self._kinds[0 if self._kind_of is None else self._kind_of[index]]
        return File(
            path=self._paths[index],
            size=int(self._sizes[index]),
            mtime_ns=int(self._times[index]),
            etag=self._etags[index],
            stamp=self._stamps[index],
            constants=constants,  # type: ignore[arg-type]
            stored=stored,  # type: ignore[arg-type]
        )

    def __iter__(self) -> Iterator[File]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    def __hash__(self) -> int:
        return hash(tuple(self))  # equal to the tuple of its files

    def __repr__(self) -> str:
        return f"FileTable({len(self)} files)" if len(self) > 3 else repr(tuple(self))

    def paths(self) -> Iterator[str]:
        """Path of each file."""
        return iter(self._paths)


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One column.

    `type` is the text that Arrow prints, such as `int64` or `list<item: string>`.
    """

    name: str
    type: str
    nullable: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RowGroup:
    """Everything that identifies a row group's content.

    `bytes` counts the selected columns, uncompressed.

    `constants` are name, type and value of the columns that the file does not hold. `stored` are those that it holds
    under another name or type: name, type, name in the file, type in the file.
    """

    uri: str
    index: int
    rows: int
    bytes: int
    file_size: int
    file_mtime_ns: int
    file_etag: str = ""
    file_stamp: str = ""
    constants: tuple[tuple[str, str, str | None], ...] = ()
    stored: tuple[tuple[str, str, str, str], ...] = ()


# Without slots: `cached_property` needs the instance's __dict__.
@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Manifest:
    """Row groups of a dataset, made by `scan`.

    They are in (path, row group) order.

    Columnar, so that a million row groups take 32 MB, and a million files 100 to 150 MB (`FileTable`). The arrays have
    one entry per row group and are read-only:
    - `file_of`, int32 [n]: row group `i` is in file `files[file_of[i]]`.
    - `group_of`, int32 [n]: its number within that file.
    - `rows`, int64 [n]: its number of rows in the file. `kept_rows` counts those that belong to the dataset.
    - `bytes` and `source_bytes`, int64 [n]: its uncompressed and compressed bytes, of the selected columns.

    `root` is an absolute local path or a URI. With an empty root every path is a whole URI. `fields` describes the
    selected columns. Two manifests are equal if their ids are. `kept` masks rows that a table has deleted or a filter
    leaves out. None keeps all rows. `snapshot` names the version of a lake table, such as `delta 7`.

    `notes` say what the scan left out of a folder, and which links it followed. Not saved, and not part of the id.

    `access` holds what another process needs to open the files: credentials that came in a URI. Only its pickle
    contains them. It is never saved, and does not count for equality.
    """

    root: str
    files: Sequence[File]
    fields: tuple[Field, ...]
    columns: tuple[str, ...]
    file_of: NDArray[np.int32]
    group_of: NDArray[np.int32]
    rows: NDArray[np.int64]
    bytes: NDArray[np.int64]
    source_bytes: NDArray[np.int64]
    access: object = None
    kept: KeptRows | None = None
    snapshot: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.files, FileTable):
            object.__setattr__(self, "files", FileTable(self.files))
        for name in ("fields", "columns"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        for name, dtype in _COLUMNS.items():
            column: NDArray[Any] = np.asarray(getattr(self, name))
            if column.dtype != dtype or column.flags.writeable or column.base is not None:
                column = column.astype(dtype)
            column.setflags(write=False)
            object.__setattr__(self, name, column)
        shapes = {getattr(self, name).shape for name in _COLUMNS}
        assert shapes == {(len(self.rows),)}, f"the columns must be equally long: {shapes}"
        self._assert_sorted()
        if self.kept:
            assert np.array_equal(self.kept.mask.rows, self.rows), "the mask must be that of the row groups"
            assert self.kept.mask.counts.all(), "a row group without a kept row must be left out"

    def _assert_sorted(self) -> None:
        assert isinstance(self.files, FileTable)
        assert all(left < right for left, right in pairwise(self.files.paths())), "files must be sorted by path"
        if len(self):
            step = np.diff(self.file_of)
            # A row group follows another one of its file, or begins the next file: no file has none.
            assert np.all((step == 1) | ((step == 0) & (np.diff(self.group_of) > 0))), "row groups must be sorted"
        used = (self.file_of[0], self.file_of[-1]) if len(self) else (0, -1)
        assert used == (0, len(self.files) - 1), "each file must have a row group"

    def __reduce__(self) -> tuple[Any, ...]:
        # Through the constructor: NumPy forgets that an array was read-only when it is pickled. With the id, if it is
        # known: each rank of a run needs it, and it takes seconds for a million files.
        values = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return _rebuild, (type(self), values, self.__dict__.get("id"))

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> RowGroup:
        file = self.files[self.file_of[index]]
        return RowGroup(
            uri=self.uri_of(file),
            index=int(self.group_of[index]),
            rows=int(self.rows[index]),
            bytes=int(self.bytes[index]),
            file_size=file.size,
            file_mtime_ns=file.mtime_ns,
            file_etag=file.etag,
            file_stamp=file.stamp,
            constants=tuple((name, self._types[name], text) for name, text in file.constants if name in self._types),
            stored=tuple((name, self._types[name], *in_file) for name, *in_file in file.stored if name in self._types),
        )

    def __iter__(self) -> Iterator[RowGroup]:
        return (self[index] for index in range(len(self)))

    def __eq__(self, other: object) -> bool:
        return self.id == other.id if isinstance(other, Manifest) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

    def __repr__(self) -> str:
        return (
            f"Manifest({self.id[:8]}: {self.num_rows} rows in {len(self)} row groups of {len(self.files)} files, "
            f"{len(self.columns)} columns, root={self.root!r})"
        )

    @cached_property
    def _types(self) -> dict[str, str]:
        return {field.name: field.type for field in self.fields}

    @cached_property
    def num_rows(self) -> int:
        """Number of rows of the dataset."""
        return int(self.kept_rows.sum())

    @property
    def kept_rows(self) -> NDArray[np.int64]:
        """Rows per row group in the dataset, int64 [n]."""
        return self.rows if self.kept is None else self.kept.mask.counts

    def keeps(self, index: int) -> NDArray[np.bool_]:
        """Mask of the dataset's rows, bool [rows].

        Of row group `index`.
        """
        if self.kept is None:
            try:
                return np.ones(int(self.rows[index]), dtype=np.bool_)
            except MemoryError as error:
                raise _too_many_rows(self, index, "whose mask exceeds the memory") from error
        return self.kept.mask.keeps(index)

    @cached_property
    def num_bytes(self) -> int:
        """Uncompressed bytes of the selected columns, over all row groups."""
        return int(self.bytes.sum())

    @cached_property
    def id(self) -> str:
        """SHA-256 (hex) of the dataset's identity.

        Of file versions, row groups, rows, and selected columns with their types.

        The root is left out: a copy of the folder that keeps the modification times has the same id. So are the inodes
        of local files: a run resumes after a `chmod`. `version` covers them.
        """
        types = self._types
        facts = {
            "version": MANIFEST_VERSION,
            "columns": [[name, types.get(name, "")] for name in self.columns],
            "files": [[file.path, file.size, file.mtime_ns, file.etag] for file in self.files],
            "row_groups": len(self),
        }
        if self.kept:
            facts |= {"where": self.kept.where, "kept": self.kept.mask.digest}
        constants = [[each for each in file.constants if each[0] in types] for file in self.files]
        if any(constants):
            facts["constants"] = constants
        stored = [[each for each in file.stored if each[0] in types] for file in self.files]
        if any(stored):
            facts["stored"] = stored
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())
        for name, dtype in (("file_of", "<i4"), ("group_of", "<i4"), ("rows", "<i8")):
            digest.update(getattr(self, name).astype(dtype).data)
        return digest.hexdigest()

    @cached_property
    def version(self) -> str:
        """Name of the exact files: `id` and inodes of local files."""
        stamps = [file.stamp for file in self.files]
        if not any(stamps):
            return self.id
        return hashlib.sha256(json.dumps([self.id, stamps]).encode()).hexdigest()

    def for_copies(self) -> Manifest:
        """Return the manifest for copies of its files, one on each node.

        A local file is then any file of the same path, size and time of the last change: a scan's manifest knows the
        inodes of the files, which copies do not share. A file that another one replaces under its old size and time is
        not noticed.
        """
        return replace(self, files=tuple(replace(file, stamp="") for file in self.files))

    def uri_of(self, file: File) -> str:
        """URI by which `forebay.storage` opens `file`.

        >>> location = "s3://bucket/clicks?region=eu-west-1"
        >>> manifest = Manifest(root=location, files=(), fields=(), columns=(), **{name: [] for name in _COLUMNS})
        >>> manifest.uri_of(File(path="day=1/a.parquet", size=1, mtime_ns=0))
        's3://bucket/clicks/day=1/a.parquet?region=eu-west-1'
        """
        if self.root in ("", "/"):
            return self.root + file.path
        root, options = split_options(self.root)
        return with_options(f"{root}/{file.path}", options)

    def take(self, indices: Sequence[int] | ArrayLike) -> Manifest:
        """Manifest of the row groups at `indices`, with their files only.

        The indices are in any order, or a boolean mask.

        Raises:
            InvalidOption: An index is out of range or given twice.
        """
        mask_or_indices = np.asarray(indices)
        chosen = np.flatnonzero(mask_or_indices) if mask_or_indices.dtype == bool else np.sort(mask_or_indices)
        if len(chosen) and (chosen[0] < 0 or chosen[-1] >= len(self) or np.any(np.diff(chosen) == 0)):
            raise InvalidOption(f"take() needs distinct row groups from 0 to {len(self) - 1}; got {indices!r}.")
        chosen = chosen.astype(np.int64)
        kept, file_of = np.unique(self.file_of[chosen], return_inverse=True)
        columns = {name: getattr(self, name)[chosen] for name in _COLUMNS} | {"file_of": file_of}
        rows = self.kept and replace(self.kept, mask=self.kept.mask.take(chosen))
        return replace(self, files=tuple(self.files[index] for index in kept), kept=rows, **columns)

    def split(self, fraction: float, seed: int = 0, *, stratify: str | None = None) -> tuple[Manifest, Manifest]:
        """Hold out whole row groups.

        Returns (rest, held out), the latter with about `fraction` of the rows.

        Row groups are taken in the order of a hash of (seed, index), until the share of rows is as close to `fraction`
        as possible. Each side keeps at least one row group. With `stratify`, a column or a path into a struct, row
        groups then move until the shares of its values are as equal as row groups allow; nulls count as a value.

        Raises:
            InvalidOption: `fraction` is outside (0, 1), there are fewer than two row groups, or each row has its own
                value of `stratify`.
            MissingColumn, SourceChanged: The column cannot be read.
        """
        if stratify is not None:
            parts: tuple[Manifest, Manifest] = late("forebay.data.filters.stratified_split:stratified_split")(
                self, fraction, by=stratify, seed=seed
            )
            return parts
        if not isinstance(fraction, Real) or not 0 < fraction < 1:
            raise InvalidOption(
                f"fraction={fraction!r}: hold out a share between 0 and 1, e.g. 0.1.", fraction=fraction
            )
        if len(self) < 2:
            where = self.uri_of(self.files[int(self.file_of[0])]) if len(self) else self.root
            raise InvalidOption(
                f"{where} has {len(self)} row group{'' if len(self) else 's'}, and a split holds out whole row groups. "
                "Write the data with smaller row groups (row_group_size=...), or hold out a file of its own.",
                row_groups=len(self),
            )
        order = np.argsort(_hashes(len(self), seed), kind="stable")
        share = np.cumsum(self.kept_rows[order])[:-1] / self.num_rows
        held_out = order[: int(np.argmin(np.abs(share - fraction))) + 1]
        rest = np.ones(len(self), dtype=bool)
        rest[held_out] = False
        return self.take(rest), self.take(held_out)

    def keep(
        self,
        rule: object,
        columns: str | Sequence[str] | None = None,
        *,
        version: str | None = None,
        progress: Callable[[int, int], None] | None = None,
    ) -> Manifest:
        """Keep the rows that `rule` accepts.

        Reads the rule's columns once, in this process, so all counts are exact. The result counts the other rows in
        `kept.rejected_rows`, and names the rule with its fingerprint in `kept.rules`. Rows left out before are not
        judged.

        Args:
            rule: A function from a `pyarrow.RecordBatch` of `columns` to one bool per row: a NumPy or Arrow array,
                whose nulls count as False. It judges each row by itself, and several threads call it at once. Or an
                `fb.Transform`, whose rejected rows are left out: null labels, images that cannot be decoded.
            columns: Columns and paths into structs that the function gets. All columns by default.
            version: Stands for what the function's fingerprint cannot see, as in `fb.Transform`.
            progress: Called with (row groups done, their number), from the calling thread.

        Raises:
            NoFiles: No row is left.
            TransformFailed: The function raised, or returned something else.
            Unfingerprintable: The function needs a `version`.
            InvalidOption: The rule is neither, or a transform is given with `columns` or `version`.
            MissingColumn, WrongType: A column does not exist, or does not suit the transform.
            CorruptFile, SourceChanged, ReadFailed: A row group cannot be read.
        """
        keep_rows = late("forebay.data.transform.row_rules:keep_rows")
        kept: Manifest = keep_rows(self, rule, columns, version=version, progress=progress)
        return kept

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the manifest atomically.

        To a path or URI that ends in `.json` or `.parquet`.

        Raises:
            InvalidOption: The path has another suffix.
            OSError: Storage refuses the write.
        """
        late("forebay.data.manifest.saved:save_manifest")(self, path)

    @staticmethod
    def load(
        path: str | os.PathLike[str],
        *,
        allow_locations: str | os.PathLike[str] | Sequence[str | os.PathLike[str]] = (),
    ) -> Manifest:
        """Load a manifest that `save` wrote.

        Its content shows whether it is JSON or Parquet.

        Args:
            path: A path or URI.
            allow_locations: Locations of its files that you trust, as `scan` printed them: stores with an own endpoint
                or other options, and stores of fsspec.

        Raises:
            InvalidOption: The file does not exist, is not a manifest, has another version, or was changed since. Or it
                names files of a store that its author must not choose: see `docs/deployment/security.md`.
        """
        manifest: Manifest = late("forebay.data.manifest.saved:load_manifest")(path, allow_locations)
        return manifest


def check_rows(manifest: Manifest) -> None:
    """Raise `LimitReached` for more rows than any plan holds.

    A manifest or a footer of others may claim any number.
    """
    if float(manifest.rows.sum(dtype=np.float64)) > MOST_ROWS:
        raise _too_many_rows(manifest, int(manifest.rows.argmax()), f"and a dataset has at most {MOST_ROWS}")


def _too_many_rows(manifest: Manifest, index: int, why: str) -> LimitReached:
    row_group = manifest[index]
    return LimitReached(
        f"Row group {row_group.index} of {row_group.uri} claims {row_group.rows} rows in a file of "
        f"{row_group.file_size} bytes, {why}. Leave the file out, or write and scan it again.",
        uri=row_group.uri,
        row_group=row_group.index,
        rows=row_group.rows,
    )


def _rebuild(kind: type[Manifest], values: dict[str, Any], known_id: str | None = None) -> Manifest:
    for name in _COLUMNS:
        values[name].setflags(write=False)  # it was made by this pickle, and needs no copy
    manifest = kind(**values)
    if known_id is not None:
        manifest.__dict__["id"] = known_id
    return manifest


def _hashes(count: int, seed: int) -> NDArray[np.uint64]:
    """One 64-bit hash per index.

    The finaliser of splitmix64 (Steele et al., OOPSLA 2014), seeded through SHA-256.
    """
    start = int.from_bytes(hashlib.sha256(f"split {seed}".encode()).digest()[:8], "little")
    value = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(start)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))


def _numbers(values: list[int]) -> NDArray[np.int64] | NDArray[np.object_]:
    """Column of integers. Of Python's own where one does not fit: a damaged manifest is refused by its id, not here."""
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        return np.array(values, dtype=object)
