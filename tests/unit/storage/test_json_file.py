"""Small JSON files of runs and sweeps.

Some hold numbers that JSON does not know.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from forebay.errors import InvalidOption
from forebay.storage.json_file import from_json, numbers, read_json_file, to_json, write_json_file


def test_numbers_come_back_as_they_were() -> None:
    facts = {"loss": math.nan, "max": math.inf, "min": -math.inf, "auc": 0.5, "deep": {"loss": math.nan}, "rows": 3}
    text = to_json(facts)
    assert json.loads(text)["deep"] == {"loss": "NaN"}
    assert repr(numbers(json.loads(text))) == repr(facts)


def test_text_that_is_no_number_stays_text() -> None:
    assert numbers({"stopped": "Infinity war", "name": None}) == {"stopped": "Infinity war", "name": None}


def test_scalars_are_numbers_and_all_else_is_text() -> None:
    facts = {"rows": np.int64(3), "loss": np.float32(0.5), 7: (Path("/a"), True), "bad": np.float64("nan")}
    assert json.loads(to_json(facts)) == {"rows": 3, "loss": 0.5, "7": ["/a", True], "bad": "NaN"}
    assert json.loads(to_json({"bad": math.inf}, not_finite=lambda _: None)) == {"bad": None}


@pytest.mark.parametrize("text", ["[", "[]", "{}", '{"version": 2}', '{"version": 1, "b": 0}', "[" * 100_000])
def test_text_of_another_version_or_content_is_refused(text: str) -> None:
    facts: list[dict[str, int]] = []
    assert from_json('{"version": 1, "a": 0}', facts.append, version=1, owner="run", file_name="a.json") is None
    assert facts == [{"a": 0}]
    with pytest.raises(InvalidOption, match=r"not the a.json of a Forebay run of version 1 .*\. Remove a.json"):
        from_json(text, lambda facts: facts["a"], version=1, owner="run", file_name="a.json")


def test_a_file_is_written_read_and_replaced(tmp_path: Path) -> None:
    folder = str(tmp_path / "runs" / "a")
    assert read_json_file(folder, "a.json", "run") is None
    for text in ("{}", "[]"):
        write_json_file(folder, "a.json", text)
        assert read_json_file(folder, "a.json", "run") == text.encode()
    assert [path.name for path in Path(folder).iterdir()] == ["a.json"]


def test_a_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(InvalidOption, match=r"a is a file, and a sweep .* Name its folder, or give it another name"):
        read_json_file(str(tmp_path / "a"), "sweep.json", "sweep")
    with pytest.raises(OSError, match="a"):
        write_json_file(str(tmp_path / "a"), "sweep.json", "{}")
