"""Price of what was counted, and its scale to a lake."""

from __future__ import annotations

from collections.abc import Mapping

PRICES_ON = "2026-11"
"""Month for which the prices below were taken: S3 Standard, us-east-1. They change."""
READ_REQUEST = 0.0004 / 1000
"""Dollars of a GET, a HEAD and any other request that is not named below."""
WRITE_REQUEST = 0.005 / 1000
"""Dollars of a PUT, COPY, POST or LIST. A DELETE is free."""
OTHER_REGION_GB = 0.02
"""Dollars of a GB that is read from another region. Within the region it is free."""
STORED_GB_MONTH = 0.023
"""Dollars of a GB kept for a month, up to 50 TB."""
_WRITES = ("PUT", "POST", "LIST")


def requests(counts: Mapping[str, float]) -> float:
    """Requests that are paid for."""
    return sum(counts.get(kind, 0) for kind in ("GET", "HEAD", *_WRITES))


def dollars(counts: Mapping[str, float], *, other_region: bool = False) -> float:
    """Price of requests, and with `other_region` of the bytes that were sent."""
    writes = sum(counts.get(kind, 0) for kind in _WRITES)
    sent = counts.get("sent", 0) / 1e9 * OTHER_REGION_GB if other_region else 0.0
    return writes * WRITE_REQUEST + (requests(counts) - writes) * READ_REQUEST + sent


def scaled(counts: Mapping[str, float], data_bytes: int, num_files: int, lake_bytes: float = 1e12) -> dict[str, float]:
    """Counts for a lake of files, row groups and shards of the measured size.

    All grow with its bytes, but a listing by one request per 1,000 files.
    """
    times = lake_bytes / data_bytes
    more = {"LIST": counts["LIST"] + num_files * times // 1000} if "LIST" in counts else {}
    return {name: count * times for name, count in counts.items()} | more
