"""The cache as data."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from forebay.cache.spec import CacheSpec
from forebay.errors import CacheUnusable, InvalidOption


def test_home_is_resolved_where_it_is_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = pickle.loads(pickle.dumps(CacheSpec(path="~/blocks", quota_bytes=1 << 20)))
    monkeypatch.setenv("HOME", str(tmp_path))
    assert spec.directory == str(tmp_path / "blocks")
    cache = spec.open()
    assert (cache.path, cache.quota_bytes, cache.min_free_bytes) == (tmp_path / "blocks", 1 << 20, 2 << 30)


def test_bad_options_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidOption, match="num_data_workers=0"):
        CacheSpec(num_data_workers=0)
    with pytest.raises(CacheUnusable, match="quota_bytes=0"):
        CacheSpec(path=str(tmp_path), quota_bytes=0).open()
