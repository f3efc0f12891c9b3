"""Forebay as in its tutorial: scan, plan, a disk cache, one loader. The footers of a node lie beside its cache."""

from __future__ import annotations

from collections.abc import Iterator

from bench.storage.s3_epoch.setting import SOURCE, S3Setting
from bench.storage.s3_epoch.store import BUCKET
from forebay import CacheSpec, Dense, Loader, Transform, build_plan, scan
from forebay.data.cache.source import LocalCache
from forebay.data.parquet import page_kernels

_QUOTA_BYTES = 20 << 30

page_kernels.load()  # Imports count in no system's time.


class ForebayOnS3:
    """One loader for all epochs of the process."""

    version = "forebay"

    def __init__(self, setting: S3Setting) -> None:
        options = f"endpoint_override={setting.endpoint}&scheme=http&region=us-east-1"
        cache = CacheSpec(path=str(setting.work / "blocks"), quota_bytes=setting.cache_bytes or _QUOTA_BYTES)
        manifest = scan(f"s3://{BUCKET}/{SOURCE}?{options}", footers=cache.path)
        transform = Transform(x=Dense(setting.names))
        self._loader = Loader(
            build_plan(manifest, seed=setting.seed), transform, LocalCache(cache), global_batch=setting.batch
        )

    def epoch(self) -> Iterator[int]:
        for batch in self._loader:
            yield len(batch["x"])


def convert(setting: S3Setting) -> None:
    """Do nothing: Forebay reads Parquet as it is."""


open_system = ForebayOnS3
