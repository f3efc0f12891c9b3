"""A result is equal after its file is read back, whatever its numbers are."""

from __future__ import annotations

import errno
import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.errors import InvalidOption, WriteFailed
from forebay.events import EpochEnded, Reported
from forebay.storage.filesystem import below
from forebay.training.runs.result import Result, load_result, save_result

NUMBERS = st.floats(allow_nan=False)
METRICS = st.dictionaries(st.sampled_from(["loss", "auc"]), NUMBERS)
EPOCHS = st.builds(
    EpochEnded,
    epoch=st.integers(0, 5),
    step=st.integers(0, 99),
    metrics=METRICS,
    rows=st.integers(0, 10**9),
    seconds=NUMBERS,
    wait_s=NUMBERS,
    eval_s=NUMBERS,
    checkpoint_s=NUMBERS,
    counters=METRICS,
)
STEPS = st.builds(
    Reported,
    step=st.integers(0, 99),
    epoch=st.integers(0, 5),
    position=st.integers(0, 99),
    metrics=METRICS,
    rows=st.integers(0, 10**9),
    wait_s=NUMBERS,
)


@given(epochs=st.lists(EPOCHS, max_size=3), steps=st.lists(STEPS, max_size=3), stopped=st.none() | st.text())
def test_json_round_trip(epochs: list[EpochEnded], steps: list[Reported], stopped: str | None) -> None:
    result = Result(
        name="a",
        path="/runs/a",
        plan_id="p",
        num_epochs=3,
        epochs=tuple(epochs),
        steps=tuple(steps),
        failures=1,
        stopped=stopped,
    )
    assert Result.from_json(result.to_json()) == result


def test_diverged_run_is_json_for_everybody() -> None:
    """RFC 8259 knows no NaN: browsers, jq and most databases refuse a file with one."""
    numbers = {"loss": float("nan"), "max": float("inf"), "min": float("-inf"), "auc": 0.5}
    epoch = EpochEnded(
        epoch=0,
        step=1,
        metrics=numbers,
        rows=1,
        seconds=1.0,
        wait_s=0.0,
        eval_s=0.0,
        checkpoint_s=0.0,
        counters=numbers,
    )
    step = Reported(step=1, epoch=0, position=1, metrics=numbers, rows=1)
    result = Result(name="a", path="/a", plan_id="p", num_epochs=1, epochs=(epoch,), steps=(step,), stopped="NaN")

    def refuse(constant: str) -> float:
        raise AssertionError(f"{constant} is no JSON")

    text = result.to_json()
    assert json.loads(text, parse_constant=refuse)["steps"][0]["metrics"]["loss"] == "NaN"
    found = Result.from_json(text)
    assert (repr(found.epochs), repr(found.steps), found.stopped) == (repr(result.epochs), repr(result.steps), "NaN")


def test_run_folder_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(InvalidOption, match=r"a is a file.* another name"):
        load_result(str(tmp_path / "a"))


def test_file_round_trip_and_replacement(tmp_path: Path) -> None:
    folder = str(tmp_path / "runs" / "a")
    assert load_result(folder) is None
    for failures in (0, 2):
        result = Result(name="a", path=folder, plan_id="p", num_epochs=1, failures=failures)
        save_result(result)
        assert load_result(folder) == result
    assert [path.name for path in Path(folder).iterdir()] == ["result.json"]


def full_disk(_: int) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_storage_that_refuses_is_named_and_the_result_before_stays(tmp_path: Path) -> None:
    result = Result(name="a", path=str(tmp_path), plan_id="p", num_epochs=1)
    save_result(result)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", full_disk)
        with pytest.raises(WriteFailed, match=rf"result of run 'a' could not be written to {tmp_path} .*has room"):
            save_result(replace(result, failures=1))
    assert load_result(str(tmp_path)) == result
    assert [path.name for path in tmp_path.iterdir()] == ["result.json"]


def test_a_result_is_on_disk_before_it_takes_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr(os, "fsync", lambda _: synced.append((tmp_path / "result.json").exists()))
    save_result(Result(name="a", path=str(tmp_path), plan_id="p", num_epochs=1))
    assert synced == [False]
    assert (tmp_path / "result.json").exists()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 7}', '{"version": 1, "epochs": [], "steps": []}'])
def test_foreign_file_is_refused_with_the_remedy(tmp_path: Path, text: str) -> None:
    (tmp_path / "result.json").write_text(text)
    with pytest.raises(InvalidOption, match=r"Remove result\.json"):
        load_result(str(tmp_path))


def test_finished_and_metrics() -> None:
    empty = Result(name="a", path="/runs/a", plan_id="p", num_epochs=1)
    assert not empty.is_finished
    assert empty.metrics == {}
    second = EpochEnded(epoch=1, step=2, metrics={}, rows=1, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0)
    assert replace(empty, num_epochs=2, epochs=(second,)).is_finished, "a missing account is no missing epoch"
    assert not replace(empty, num_epochs=3, epochs=(second,)).is_finished


def test_below_keeps_options_of_a_uri() -> None:
    assert below("/runs/what?", "a") == "/runs/what?/a"
    assert below("s3://bucket/runs?endpoint_override=localhost:9000", "a") == (
        "s3://bucket/runs/a?endpoint_override=localhost:9000"
    )
