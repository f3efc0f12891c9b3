"""Digest of the order of an epoch, to compare runs, worlds and machines."""

from __future__ import annotations

import hashlib

import numpy as np

from forebay.data.plan.order import Last, Order
from forebay.world import World


def order_digest(plan: Order, *, epoch: int, global_batch: int, last: Last = "balance", world_size: int = 1) -> str:
    """SHA-256 (hex) over the global batches of an epoch in position order.

    Each batch adds its size (int64, little-endian), then its sorted rows. A row is three little-endian int64: number of
    the file in the manifest, row group within the file, row within the row group. Files of several datasets are
    numbered one dataset after the other. Sorting makes it a digest of the rows of each batch: every `world_size` gives
    the same one, although ranks read different parts of a batch.
    """
    digest = hashlib.sha256()
    first_files = np.cumsum([0, *(len(manifest.files) for manifest in plan.manifests)])
    files = np.concatenate([first + each.file_of for first, each in zip(first_files, plan.manifests, strict=False)])
    groups = np.concatenate([manifest.group_of for manifest in plan.manifests])
    worlds = [World(rank=rank, size=world_size) for rank in range(world_size)]
    position = 0
    while size := plan.batch_size(position, global_batch, last=last):
        parts = [plan.batch(epoch, position, global_batch, world, last=last) for world in worlds]
        block, row = (np.concatenate(column) for column in zip(*parts, strict=True))
        order = np.lexsort((row, block))  # Manifests are sorted by (file, row group), and so are block numbers.
        block, row = block[order], row[order]
        digest.update(np.int64(size).astype("<i8").tobytes())
        digest.update(np.stack([files[block], groups[block], row], axis=1).astype("<i8").tobytes())
        position += size
    return digest.hexdigest()
