"""What a cached block is called: a hash over everything its bytes depend on."""

from __future__ import annotations

import hashlib
import json
import re

from forebay.cache.block_file import FILE_VERSION
from forebay.manifest.manifest import Manifest, RowGroup
from forebay.transform.dataset import Dataset

KEY = re.compile(r"[0-9a-f]{40}")
"""The form of every block key."""


def block_key(row_group: RowGroup, fingerprint: str) -> str:
    """Name of the transformed `row_group`: 40 hex digits.

    Covers the file's URI and version (size, mtime, etag), the row group, the transform and the block file's version, so
    a rewritten source, another transform or another release of Forebay never finds an old block.
    """
    return _digest(
        [
            FILE_VERSION,
            row_group.uri,
            row_group.index,
            row_group.rows,
            row_group.file_size,
            row_group.file_mtime_ns,
            row_group.file_etag,
            fingerprint,
        ]
    )[:40]


def dataset_key(manifest: Manifest, fingerprint: str) -> str:
    """Name of all blocks of one place under one transform, e.g. `clicks-3fa19c0be2d4`: the unit of eviction.

    Covers the root and not the manifest's id: yesterday's scan of a growing folder, a split of it and today's scan
    share blocks, so they must be in use, and be evicted, together.
    """
    last = manifest.root.rstrip("/").rpartition("/")[2]
    readable = re.sub(r"[^A-Za-z0-9._]+", "-", last).strip("-.")[:32] or "data"
    return f"{readable}-{_digest([manifest.root, fingerprint])[:12]}"


class BlockNames:
    """What the blocks of one (manifest, transform) are called."""

    def __init__(self, dataset: Dataset) -> None:
        self._manifest = dataset.manifest
        self._fingerprint = dataset.fingerprint
        self.dataset = dataset_key(dataset.manifest, self._fingerprint)

    @property
    def id(self) -> str:
        """Equal for equal manifests of one place under equal transforms, in all processes."""
        return _digest([self._manifest.root, self._manifest.id, self._fingerprint])

    def key(self, index: int) -> str:
        """The key of the block that `manifest[index]` becomes."""
        return block_key(self._manifest[index], self._fingerprint)


def _digest(facts: list[object]) -> str:
    return hashlib.sha256(json.dumps(facts, separators=(",", ":")).encode()).hexdigest()
