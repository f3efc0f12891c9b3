"""Names of cached blocks.

A name is a hash of everything that the bytes of the block depend on.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence

from forebay.data.cache.block_file import FILE_VERSION
from forebay.data.manifest.manifest import Manifest, RowGroup
from forebay.data.parquet.column_paths import top_column
from forebay.data.transform.dataset import Dataset

KEY = re.compile(r"[0-9a-f]{40}")
"""Form of every block key."""


def block_key(row_group: RowGroup, fingerprint: str, columns: Sequence[str] = ()) -> str:
    """Name of the transformed `row_group`: 40 hex digits.

    Covers the file's URI and version (size, mtime, etag, and of local files inode and time of its last change), the row
    group, the transform and the block file's version.
    Also covers `columns` that the file does not hold, with their types and values, and `columns` that it holds under
    another name or type.
    So a rewritten source, another transform or another release of Forebay never finds an old block.
    """
    facts: list[object] = [
        FILE_VERSION,
        row_group.uri,
        row_group.index,
        row_group.rows,
        row_group.file_size,
        row_group.file_mtime_ns,
        row_group.file_etag,
        fingerprint,
    ]
    if row_group.file_stamp:
        facts.append({"stamp": row_group.file_stamp})
    elsewhere = {name for name, *_ in row_group.constants} | {name for name, *_ in row_group.stored}
    used = {top_column(column, elsewhere) for column in columns} if elsewhere else set()
    constants = [each for each in row_group.constants if each[0] in used]
    stored = [each for each in row_group.stored if each[0] in used]
    if stored:
        facts += [constants, stored]
    elif constants:
        facts += [constants]
    return _digest(facts)[:40]


def dataset_key(manifest: Manifest, fingerprint: str) -> str:
    """Name of all blocks of one root and transform.

    The unit of eviction, e.g. `clicks-3fa19c0be2d4`.

    Covers the root, not the manifest's id: yesterday's scan of a growing folder, a split of it and today's scan share
    blocks. So they are protected and evicted together.
    """
    last = manifest.root.rstrip("/").rpartition("/")[2]
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", last).strip("-.")[:32] or "data"
    return f"{readable}-{_digest([manifest.root, fingerprint])[:12]}"


_MOST_KEPT = 1024


class BlockNames:
    """Keys of the blocks of one dataset."""

    def __init__(self, dataset: Dataset) -> None:
        self._manifest = dataset.manifest
        self._fingerprint = dataset.fingerprint
        self._columns = dataset.columns
        self.dataset = dataset_key(dataset.manifest, self._fingerprint)
        self._keys: dict[int, str] = {}

    @property
    def id(self) -> str:
        """Id of the dataset.

        Equal for equal versions of one root under equal transforms, in all processes.
        """
        return _digest([self._manifest.root, self._manifest.version, self._fingerprint])

    def key(self, index: int) -> str:
        """Key of the block of `manifest[index]`."""
        if (found := self._keys.get(index)) is None:  # asked for several times for each block, 20 us each
            if len(self._keys) >= _MOST_KEPT:
                self._keys.clear()
            self._keys[index] = found = block_key(self._manifest[index], self._fingerprint, self._columns)
        return found


def _digest(facts: list[object]) -> str:
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()
