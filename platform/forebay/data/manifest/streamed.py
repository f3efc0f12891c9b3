"""Manifest of a dataset whose files are still being written: its rows are known, the names of its files are not."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike

from forebay.data.manifest.manifest import Field, File, Manifest
from forebay.errors import InvalidOption

STREAM_VERSION = 1
"""Part of the id. Raised whenever any row would come at another position."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class StreamedManifest(Manifest):
    """Manifest of a prepared dataset whose files appear one after the other, in the order of their rows.

    Every row group has `row_group_rows` rows, and every file `row_groups_per_file` row groups, except the last ones. So
    the number of rows decides the row groups before they are written. The entries of `files` have no size and no
    version, and `bytes` repeats what the first file has.

    Its id depends on `fingerprint`, the origin of the data, because the content is not known yet. `attempt` names the
    call that prepares it: readers end with that call. The id does not depend on it.
    """

    fingerprint: str = ""
    attempt: str = ""

    @cached_property
    def id(self) -> str:
        facts = {
            "stream": STREAM_VERSION,
            "fingerprint": self.fingerprint,
            "columns": [[field.name, field.type] for field in self.fields],
        }
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True, separators=(",", ":")).encode())
        for name, dtype in (("file_of", "<i4"), ("group_of", "<i4"), ("rows", "<i8")):
            digest.update(getattr(self, name).astype(dtype).data)
        return digest.hexdigest()

    @property
    def layout(self) -> StreamLayout:
        """Layout that this manifest was made of."""
        return StreamLayout(
            rows=self.num_rows,
            row_group_rows=int(self.rows[0]),
            row_groups_per_file=int((self.file_of == 0).sum()),
            row_group_bytes=(int(self.bytes[0]), int(self.source_bytes[0])),
            fingerprint=self.fingerprint,
        )

    def take(self, indices: Sequence[int] | ArrayLike) -> Manifest:  # noqa: ARG002 - it takes none
        raise InvalidOption(
            "The row groups of a stream cannot be chosen or split: they are still being prepared. Hold out rows by "
            "preparing them as a dataset of their own, with fb.prepare."
        )


def require_named_files(manifest: Manifest) -> None:
    """Raise `InvalidOption` for a stream: the names of its files are known when they are finished."""
    if isinstance(manifest, StreamedManifest):
        raise InvalidOption(
            f"{manifest} is being prepared, and its files have no names yet. Wait for them, and give "
            "stream.wait().manifest."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamLayout:
    """Row groups and files of a stream, known before its content.

    `row_group_bytes` are the uncompressed and the compressed bytes that a full row group is assumed to have.
    `fingerprint` is that of the data's origin.
    """

    rows: int
    row_group_rows: int
    row_groups_per_file: int
    row_group_bytes: tuple[int, int]
    fingerprint: str

    def manifest(
        self, root: str, fields: Sequence[Field], access: object = None, *, attempt: str = ""
    ) -> StreamedManifest:
        """Manifest of the dataset in the folder `root`."""
        groups = -(-self.rows // self.row_group_rows)
        number = np.arange(groups, dtype=np.int32)
        counts = np.full(groups, self.row_group_rows)
        counts[-1] = self.rows - (groups - 1) * self.row_group_rows
        files = range(-(-groups // self.row_groups_per_file))
        return StreamedManifest(
            root=root,
            files=tuple(File(path=file_name(place), size=0, mtime_ns=0) for place in files),
            fields=tuple(fields),
            columns=tuple(field.name for field in fields),
            file_of=number // self.row_groups_per_file,
            group_of=number % self.row_groups_per_file,
            rows=counts,
            bytes=np.full(groups, self.row_group_bytes[0]),
            source_bytes=np.full(groups, self.row_group_bytes[1]),
            access=access,
            fingerprint=self.fingerprint,
            attempt=attempt,
        )


def stream_path(path: str) -> str:
    """Beginning of the path of a prepared file, by which a stream names it. Another path as it is.

    >>> stream_path("part-000003-0123456789abcdef.parquet"), stream_path("a-b.parquet")
    ('part-000003', 'a-b.parquet')
    """
    found = re.fullmatch(r"(.*part-\d{6})-[0-9a-f]{16}\.parquet", path)
    return path if found is None else found[1]


def file_name(number: int) -> str:
    """Beginning of the name of file `number` of a prepared dataset."""
    return f"part-{number:06d}"
