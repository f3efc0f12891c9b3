"""Options of a cache."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from forebay.data.cache.builders.data_workers import DEFAULT_WORKERS, DataWorkers
from forebay.data.cache.spec import CacheSpec
from forebay.errors import InvalidOption


def test_home_is_resolved_where_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pickle.loads(pickle.dumps(CacheSpec(path="~/blocks", quota_bytes=1 << 20)))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert spec.directory == str(tmp_path / "blocks")
    cache = spec.open()
    assert (cache.path, cache.quota_bytes, cache.min_free_bytes) == (tmp_path / "blocks", 1 << 20, 2 << 30)


def test_data_workers_follow_the_options_and_a_plain_cache_has_the_defaults() -> None:
    assert CacheSpec().data_workers == DEFAULT_WORKERS
    for num_reads in (32, "auto"):
        spec = pickle.loads(pickle.dumps(CacheSpec(core_share=0.25, num_reads=num_reads)))
        assert spec.data_workers == DataWorkers(core_share=0.25, num_reads=num_reads)


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="num_reads=0"):
        CacheSpec(num_reads=0)
    with pytest.raises(InvalidOption, match=r"num_reads='fast'.*\"auto\""):
        CacheSpec(num_reads="fast")  # type: ignore[arg-type]
    with pytest.raises(InvalidOption, match=r"core_share=40\b.*e\.g\. 0\.4"):
        CacheSpec(core_share=40)
    with pytest.raises(InvalidOption, match="quota_bytes=-1"):
        CacheSpec(path=str(tmp_path), quota_bytes=-1).open()


@pytest.mark.parametrize("data_nodes", ["", 3, True])
def test_bad_data_nodes_are_refused(data_nodes: object) -> None:
    with pytest.raises(InvalidOption, match="data_nodes=.*cpu_only"):
        CacheSpec(data_nodes=data_nodes)  # type: ignore[arg-type]
