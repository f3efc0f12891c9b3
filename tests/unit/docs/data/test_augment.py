"""The code of the page on augmentation runs as it stands, and its functions do what the page says."""

from __future__ import annotations

import re
import runpy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.data.transform.row_random import RowRandom

PAGE = Path(__file__).parents[4] / "docs" / "augment.md"
ROWS = np.arange(400)


@pytest.fixture
def page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Names that the page defines. Each block is a file: an augment needs its source."""
    (tmp_path / "clicks").mkdir()
    columns = {"age": ROWS + 1.0, "price": ROWS + 1.0, "country": ROWS % 7, "clicked": (ROWS % 2).astype(np.int8)}
    pq.write_table(pa.table(columns), tmp_path / "clicks" / "a.parquet")
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)):
        (tmp_path / f"block{number}.py").write_text(block)
        names |= runpy.run_path(f"block{number}.py")
    return names


def test_features_get_noise_and_are_dropped(page: dict[str, Any]) -> None:
    with fb.Loader(page["plan"], page["transform"], global_batch=400, augment=page["augment"], as_numpy=True) as loader:
        (batch,) = loader
    with fb.Loader(page["plan"], page["transform"], global_batch=400, as_numpy=True) as loader:
        (plain,) = loader
    dropped = batch["dense"] == 0
    assert 40 < dropped.sum() < 130
    noise = (batch["dense"] - plain["dense"])[~dropped]
    assert 0.08 < noise.std() < 0.12
    assert (batch["label"] == plain["label"]).all()


def test_crops_are_parts_of_their_images_and_half_are_flipped(page: dict[str, Any]) -> None:
    images = np.arange(400 * 3 * 32 * 32, dtype=np.int64).reshape(400, 3, 32, 32)
    cut = page["crop"]({"image": images}, RowRandom(1, ROWS.astype(np.uint64)))["image"]
    assert cut.shape == (400, 3, 24, 24)
    flipped = cut[:, 0, 0, 0] > cut[:, 0, 0, 1]
    assert 150 < flipped.sum() < 250
    upright = np.where(flipped[:, None, None, None], cut[..., ::-1], cut)
    first = upright[:, 0, 0, 0] - images[:, 0, 0, 0]
    top, left = first // 32, first % 32
    assert set(top) == set(left) == set(range(9))
    for image, whole, row, column in zip(upright, images, top, left, strict=True):
        assert (image == whole[:, row : row + 24, column : column + 24]).all()
