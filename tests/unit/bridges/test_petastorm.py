from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import forebay as fb
from forebay.errors import InvalidOption, WrongType


def doubled(frame: Any) -> Any:
    frame["twice"] = frame["x0"] * 2
    return frame


def test_columns_of_numbers_come_as_they_are(folder: str, tmp_path: Path) -> None:
    cache = {"cache_type": "local-disk", "cache_location": str(tmp_path / "cache"), "cache_size_limit": 64 << 20}
    with fb.bridges.petastorm.make_batch_reader(folder, ["id", "x0"], num_epochs=2, workers_count=4, **cache) as reader:
        batches = list(reader)
    ids = np.concatenate([batch.id for batch in batches])
    assert batches[0]._fields == ("id", "x0") and ids.dtype == np.int64 and batches[0].x0.dtype == np.float32
    assert np.bincount(ids).tolist() == [2] * 400


def test_a_transform_spec_gets_frames(folder: str) -> None:
    spec = SimpleNamespace(func=doubled, selected_fields=["id", "twice"], removed_fields=[])
    with fb.bridges.petastorm.make_batch_reader(folder, ["id", "x0"], transform_spec=spec) as reader:
        for batch in reader:
            assert batch.twice.tolist() == [2.0 * row_id for row_id in batch.id]


@pytest.mark.parametrize(
    ("options", "kind", "said"),
    [
        ({"predicate": object()}, InvalidOption, "predicate=.*no counterpart"),
        ({"schema_fields": ["id", "s"]}, WrongType, r"\['s'\] hold no numbers"),
        ({"cache_type": "local-disk"}, InvalidOption, "its limit in bytes"),
        ({"cur_shard": 0, "shard_count": 3}, InvalidOption, "parts of different sizes"),
    ],
)
def test_what_has_no_counterpart_is_refused(folder: str, options: dict[str, Any], kind: type, said: str) -> None:
    with pytest.raises(kind, match=said):
        fb.bridges.petastorm.make_batch_reader(folder, **({"schema_fields": ["id"]} | options))
