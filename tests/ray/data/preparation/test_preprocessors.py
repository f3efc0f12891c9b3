"""What preprocessors fitted, through the JSON of a seal."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from forebay.data.preparation.preprocessors import _from_plain, _to_plain
from forebay.storage.json_file import to_json

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    "value",
    [
        {"mean(x)": NAN, "max(x)": -INF, "NaN": 1, 3: "Infinity"},
        (np.float32(INF), [NAN, "NaN", None, True]),
        np.array([1.0, NAN, -INF], np.float32),
        pa.array([1.0, NAN, None]),
    ],
    ids=lambda value: type(value).__name__,
)
def test_numbers_that_json_does_not_have_come_back(value: Any) -> None:
    found = _from_plain(json.loads(to_json(_to_plain(value))))
    assert str(found) == str(value).replace("np.float32(inf)", "inf")
