"""Manifest of a lake that does not exist: 10,000 rows and 8 MB a row group, 10 row groups a file."""

from __future__ import annotations

import numpy as np

from forebay.data.manifest.manifest import Field, File, Manifest

GROUPS_PER_FILE = 10
GROUP_BYTES = 8 << 20
ROWS = 10_000


def lake(num_groups: int, groups_per_file: int = GROUPS_PER_FILE) -> Manifest:
    """Manifest of `num_groups` row groups in folders by day on S3."""
    num_files = num_groups // groups_per_file
    paths = sorted(f"day=2026-01-{number % 31:02d}/part-{number:07d}-c000.parquet" for number in range(num_files))
    files = tuple(
        File(path=path, size=128 << 20, mtime_ns=(1_767_225_600 + number) * 10**9, etag=f"{number * 7919:032x}-16")
        for number, path in enumerate(paths)
    )
    fields = tuple(Field(name=f"f{number}", type="float") for number in range(40))
    return Manifest(
        root="s3://lake/clicks",
        files=files,
        fields=fields,
        columns=tuple(field.name for field in fields),
        file_of=np.repeat(np.arange(num_files), groups_per_file),
        group_of=np.tile(np.arange(groups_per_file), num_files),
        rows=np.full(num_files * groups_per_file, ROWS),
        bytes=np.full(num_files * groups_per_file, 2 * GROUP_BYTES),
        source_bytes=np.full(num_files * groups_per_file, GROUP_BYTES),
    )
