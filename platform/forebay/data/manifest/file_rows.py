"""Rows by file, row group, and index."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from forebay.data.manifest.manifest import Manifest


class FileRow(NamedTuple):
    """One row of a file. As text `day=1/a.parquet:3:128`.

    `file` is its path below the root of the scan, as in `Manifest.files`. `row_group` is counted in the file and `row`
    in the row group, both from 0, with rows that a filter leaves out. `source` is the dataset's name in a mixture.
    """

    file: str
    row_group: int
    row: int
    source: str = ""

    def __str__(self) -> str:
        return f"{self.file}:{self.row_group}:{self.row}"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileRows(Sequence[FileRow]):
    """Rows of files, as columns.

    Of one or several datasets. Indexing gives a `FileRow`.

    Attributes:
        files: Paths of files, relative to the root of their dataset.
        names: Names of the datasets of a mixture, else empty.
        file: Place of each row's file in `files`, int64 [n].
        row_group: Row group in the file, int64 [n].
        row: Number in the row group, int64 [n].
        source: Place of each row's dataset in `names`, int64 [n]. 0 without names.
    """

    files: tuple[str, ...]
    names: tuple[str, ...]
    file: NDArray[np.int64]
    row_group: NDArray[np.int64]
    row: NDArray[np.int64]
    source: NDArray[np.int64]

    @classmethod
    def of(
        cls,
        manifests: Sequence[Manifest],
        block: NDArray[np.int64],
        row: NDArray[np.int64],
        names: Sequence[str] = (),
    ) -> FileRows:
        """Rows `row` of the row groups `block`.

        Row groups are numbered over all manifests, one after the other.
        """
        ends = np.cumsum([len(manifest) for manifest in manifests])
        source = np.searchsorted(ends, block, side="right").astype(np.int64)
        files: list[str] = []
        file, row_group = np.empty((2, len(block)), dtype=np.int64)
        for number, manifest in enumerate(manifests):
            own = source == number
            index = block[own] - (int(ends[number]) - len(manifest))
            used, inverse = np.unique(manifest.file_of[index], return_inverse=True)
            file[own], row_group[own] = inverse + len(files), manifest.group_of[index]
            files += [manifest.files[each].path for each in used.tolist()]
        return cls(files=tuple(files), names=tuple(names), file=file, row_group=row_group, row=row, source=source)

    def take(self, numbers: NDArray[np.int64]) -> FileRows:
        """Rows at `numbers`, in that order."""
        columns = {name: getattr(self, name)[numbers] for name in ("file", "row_group", "row", "source")}
        return FileRows(files=self.files, names=self.names, **columns)

    def __len__(self) -> int:
        return len(self.row)

    @overload
    def __getitem__(self, index: int) -> FileRow: ...
    @overload
    def __getitem__(self, index: slice) -> FileRows: ...
    def __getitem__(self, index: int | slice) -> FileRow | FileRows:
        if isinstance(index, slice):
            return self.take(np.arange(len(self))[index])
        return FileRow(
            self.files[self.file[index]],
            int(self.row_group[index]),
            int(self.row[index]),
            self.names[self.source[index]] if self.names else "",
        )

    def __repr__(self) -> str:
        shown = ", ".join(str(each) for each in self[:3])
        return f"FileRows({len(self)}: {shown}{', ...' if len(self) > 3 else ''})"
