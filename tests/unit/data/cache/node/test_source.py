"""Requests for a block that kills the actor are repeated a limited number of times."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from forebay.data.cache.disk.disk_cache import DiskCache
from forebay.data.cache.node.source import NodeSource
from forebay.data.cache.requests import StoredBlock
from forebay.data.cache.spec import CacheSpec
from forebay.data.manifest.manifest import Manifest
from forebay.data.sources.scan import scan
from forebay.data.transform.dataset import Dataset
from forebay.data.transform.features.groups import Dense
from forebay.data.transform.transform import Transform
from forebay.errors import CacheUnusable
from forebay.runtime.metrics import Counters
from forebay.storage.credentials import Access, without_credentials

TRANSFORM = Transform(id=Dense("id", dtype="float64"))


@dataclass
class MortalLine:
    """Transport to an actor that dies at its first `deaths` requests. Each new actor has no dataset registered."""

    spec: CacheSpec
    deaths: int
    is_here: bool = False
    is_registered: bool = False
    calls: list[str] = field(default_factory=list)

    def disk(self) -> DiskCache:
        return self.spec.open()

    def call(self, cancelled: threading.Event, method: str, *arguments: Any) -> Any:
        self.calls.append(method)
        if method == "register":
            self.is_registered = True
            return None
        if self.is_registered and self.deaths:
            self.is_registered, self.deaths = False, self.deaths - 1
        return StoredBlock(sums={}) if self.is_registered else "unknown"


@pytest.fixture
def manifest(parquet_folder: Callable[..., Path]) -> Manifest:
    return scan(parquet_folder({"a.parquet": [30, 20]}))


def ask(line: MortalLine, manifest: Manifest) -> int:
    with closing(NodeSource(line, Dataset(manifest, TRANSFORM), Counters())) as source:
        return source.request(1).result(30).rows


def test_a_new_actor_gets_the_data_set_registered_again(manifest: Manifest, tmp_path: Path) -> None:
    line = MortalLine(CacheSpec(path=str(tmp_path / "cache")), deaths=4)
    assert ask(line, manifest) == 20
    assert line.calls.count("register") == 5


def test_a_block_that_always_ends_the_actor_is_given_up(manifest: Manifest, tmp_path: Path) -> None:
    line = MortalLine(CacheSpec(path=str(tmp_path / "cache")), deaths=1000)
    with pytest.raises(CacheUnusable, match=r"row group 1 of .*a\.parquet .*out of memory.*cache=None") as raised:
        ask(line, manifest)
    assert raised.value.row_group == 1 and str(raised.value.uri).endswith("a.parquet")
    assert line.calls.count("fetch") < 10


def test_renewed_credentials_register_the_data_set_again(manifest: Manifest, tmp_path: Path) -> None:
    line, ids = MortalLine(CacheSpec(path=str(tmp_path / "cache")), deaths=0), []
    for secret in ("first-secret", "second-secret", "second-secret"):
        place = without_credentials(f"s3://AKIAKEY:{secret}@bucket/renewed")
        with closing(
            NodeSource(line, Dataset(replace(manifest, access=Access([place])), TRANSFORM), Counters())
        ) as source:
            ids.append(source._id)
    assert ids[0] != ids[1] == ids[2]
    assert "secret" not in "".join(ids)
