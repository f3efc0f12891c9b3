"""Damaged Parquet files, through `scan` and `RowGroupReader`."""

from __future__ import annotations

import dataclasses
import os
import warnings
import zlib
from functools import partial
from pathlib import Path

import bytewise
import files
import numpy as np
import pyarrow as pa
import structural

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet import page_kernels as kernels
from forebay.data.parquet.reading import RowGroupReader
from forebay.data.sources.scan import scan
from forebay.errors import ForebayError
from forebay.storage.retry import ReadPolicy

QUICK = ReadPolicy(attempts=2, first_wait_s=0.0, max_wait_s=0.0, deadline_s=600.0)
SELECTIONS = (None, None, ["id", "x"], ["tags", "text"], ["both", "kind", "names"], ["flag"])


class Parquet:
    """One file of many forms is damaged, then scanned or read with a manifest from before the damage."""

    def __init__(self, folder: Path) -> None:
        kernels.load()  # with them, columns of numbers are decoded by the project's own code
        self._originals = files.write_all(folder)
        self._path = folder / "damaged.parquet"
        self._manifests = {original.name: scan(original.path) for original in self._originals}
        self._damages = [*bytewise.ALL, *structural.ALL]

    def names(self) -> list[str]:
        return [damage.__name__ for damage in self._damages]

    def run(self, rng: np.random.Generator) -> tuple[str, str]:
        """Name of the damage and outcome."""
        original, other = (self._originals[int(rng.integers(len(self._originals)))] for _ in range(2))
        damage = self._damages[int(rng.integers(len(self._damages)))]
        arguments = (original.content,) if damage in bytewise.ALL else (original, other)
        content = damage(rng, *arguments)
        self._path.write_bytes(content)
        scanned = rng.random() < 0.5
        attempt = partial(self._scan, rng) if scanned else partial(self._forge, original)
        name = f"{damage.__name__}, {'scanned' if scanned else 'read'}"
        try:
            manifest = attempt()
        except ForebayError as error:
            return name, f"refused by the scan: {_reason(error)}"
        return name, self._read(manifest, original, content)

    def _scan(self, rng: np.random.Generator) -> Manifest:
        columns = SELECTIONS[int(rng.integers(len(SELECTIONS)))]
        filters = (None, "id >= 100", "text == 'prefix é 3'", "x < 0.5")
        return scan(self._path, columns, where=filters[int(rng.integers(4))], policy=QUICK)

    def _forge(self, original: files.Original) -> Manifest:
        """Manifest of the whole file, as if storage reported no change of the file."""
        found = self._path.stat()
        file = dataclasses.replace(
            self._manifests[original.name].files[0],
            path=self._path.name,
            size=found.st_size,
            mtime_ns=found.st_mtime_ns,
        )
        return dataclasses.replace(self._manifests[original.name], root=str(self._path.parent), files=(file,))

    def _read(self, manifest: Manifest, original: files.Original, content: bytes) -> str:
        reader, outcomes = RowGroupReader(manifest, QUICK), set()
        must_equal = original.checked and _only_pages_differ(original, content)
        for number in range(min(len(manifest), 4)):
            row_group = manifest[number]
            try:
                table = reader.decode(reader.fetch(number))
            except ForebayError as error:
                outcomes.add(f"refused by the read: {_reason(error)}")
                continue
            _check_form(table, manifest, row_group.rows)
            # An untouched page may have moved, and the footer may have swapped row groups.
            expected = original.groups[row_group.index] if row_group.index < len(original.groups) else None
            same = expected is not None and set(manifest.columns) <= set(expected.column_names) and table.equals(
                expected.select(list(manifest.columns)))  # fmt: skip
            assert same or not must_equal, f"row group {row_group.index} differs in spite of checksums"
            outcomes.add("same data" if same else f"other data, {'with' if original.checked else 'without'} checksums")
        return " + ".join(sorted(outcomes)) or "no row groups"


def _check_form(table: pa.Table, manifest: Manifest, rows: int) -> None:
    table.validate(full=True)
    assert table.column_names == list(manifest.columns), f"columns {table.column_names}"
    types = [str(field.type) for field in table.schema]
    assert types == [field.type for field in manifest.fields], f"{types} but the manifest has {manifest.fields}"
    assert table.num_rows == rows, f"{table.num_rows} rows instead of {rows}"


def _only_pages_differ(original: files.Original, content: bytes) -> bool:
    """Whether all damage lies in the content of pages, and breaks their checksums.

    Damage need not break them. The checksum of a page that gzip could not compress depends on its length alone: a
    gzip stream ends in the CRC of its content, and a CRC over data and its CRC is a constant. So two such pages can
    be swapped.
    """
    if len(content) != len(original.content):
        return False
    before, after = (np.frombuffer(each, np.uint8) for each in (original.content, content))
    touched = before != after
    for page in original.pages:
        if touched[page.start : page.stop].any():
            touched[page.start : page.stop] = (
                zlib.crc32(content[page.start : page.stop]) == page.header.get(4) & 0xFFFFFFFF
            )
    return not touched.any()


def _reason(error: ForebayError) -> str:
    """Name of the error, and whether a page that claims to be huge caused it: this process may lack the memory."""
    cause = error.__cause__
    return f"{type(error).__name__}{' (memory)' if isinstance(cause, MemoryError) else ''}"


warnings.simplefilter("ignore")
os.environ["ARROW_DEFAULT_MEMORY_POOL"] = "system"
