"""One number for the order of an epoch, to compare runs, worlds and machines."""

from __future__ import annotations

import hashlib

import numpy as np

from forebay.plan.plan import Last, Plan


def order_digest(plan: Plan, *, epoch: int, global_batch: int, last: Last = "balance") -> str:
    """SHA-256 (hex) over the global batches of an epoch in position order.

    Each batch adds its size (int64, little-endian), then its rows sorted, each as three little-endian int64: number of the
    file in the manifest, row group within the file, row within the row group. Sorting makes it a digest of what is in
    each batch: any world size gives the same one.
    """
    digest = hashlib.sha256()
    files, groups = np.asarray(plan.manifest.file_of), np.asarray(plan.manifest.group_of)
    position = 0
    while size := plan.batch_size(position, global_batch, last=last):
        block, row = plan.batch(epoch, position, global_batch, last=last)
        order = np.lexsort((row, block))  # manifests are sorted by (file, row group), and so are block numbers
        block, row = block[order], row[order]
        digest.update(np.int64(size).astype("<i8").tobytes())
        digest.update(np.stack([files[block], groups[block], row], axis=1).astype("<i8").tobytes())
        position += size
    return digest.hexdigest()
