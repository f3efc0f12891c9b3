"""A damaged record of a run is set aside if only reports read it, and refused by its name otherwise."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from forebay.errors import ForebayError, InvalidOption
from forebay.testing.drivers.bench import DriverBench
from forebay.training.driver.driver import run
from forebay.training.job.job import Job
from forebay.training.run_report.recorded_run import load_run
from forebay.training.run_report.report_page import report_of
from forebay.training.runs.attempts.stored_request import load_request, send_request
from forebay.training.runs.result import load_result
from forebay.training.runs.rows.step_rows import rows_of_step

REFUSED = ("job.json", "result.json", "attempts/000001.json", "attempts/000001.ended.json")
"""They say what the run is, and who trains it."""
IGNORED = ("timeline.json", "order.json", "request.json", "report.html", "attempts/000001.heartbeat.json")
"""Reports read them, or the next start writes them again."""
TYPED = ("timeline.json", "result.json", "order.json", "job.json", "request.json", "attempts/000001.json")
DEEP = "[" * 200_000
TEXTS = {
    "empty": b"",
    "open": b"{",
    "null": b"null",
    "list": b"[]",
    "number": b"1",
    "deep": DEEP.encode(),
    "bytes": b"\x00\xff\xfe{}",
    "version": b'{"version": 99}',
    "only-version": b'{"version": 1}',
}
OTHERS: tuple[Any, ...] = (None, "x", 3, [], {}, [[]], [{}], {"a": []})


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    return DriverBench(tmp_path_factory.mktemp("damaged")).job("ctr", epochs=1, identity={"model": "a"})


@pytest.fixture(scope="module")
def trained(job: Job) -> Path:
    """Folder of a run of one epoch, with each record that a run may have."""
    path = Path(run(job, "local").path)
    (path / "attempts" / "000001.heartbeat.json").write_text('{"number": 1}')
    facts = {"version": 1, "attempt": 2, "request": {"stop": None, "target": None, "global_batch": None}}
    (path / "request.json").write_text(json.dumps(facts))
    (path / "report.html").write_text("<body>report</body>")
    return path


@pytest.fixture
def copy(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "runs" / "ctr"))


def wrong_values(facts: Any) -> Iterator[Any]:
    """`facts` with one value replaced by one of another type, for each value and type."""
    if isinstance(facts, dict | list):
        for key in list(facts) if isinstance(facts, dict) else range(min(len(facts), 1)):
            for other in [*OTHERS, *wrong_values(facts[key])]:
                changed = facts.copy()
                changed[key] = other
                yield changed


def continued(job: Job, copy: Path) -> None:
    run(replace(job, storage=str(copy.parent), epochs=2), "local")


def read_all(copy: Path) -> None:
    """Read a run as every reader does: each reads it, or refuses it by an error of Forebay."""
    for read in (
        lambda: load_result(str(copy)),
        lambda: report_of([load_run(str(copy))]),
        lambda: rows_of_step(str(copy), 3),
        lambda: load_request(str(copy), 1),
        lambda: send_request(str(copy.parent), copy.name, stop="now"),
    ):
        with suppress(ForebayError):
            read()


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("record", REFUSED)
def test_records_that_matter_are_refused_by_name(record: str, text: str, job: Job, copy: Path) -> None:
    (copy / record).write_bytes(TEXTS[text])
    with pytest.raises(InvalidOption, match=record.rpartition("/")[2]):
        continued(job, copy)
    assert (copy / record).read_bytes() == TEXTS[text]
    read_all(copy)


@pytest.mark.parametrize("text", TEXTS)
def test_others_do_not_hold_up_the_run(text: str, job: Job, copy: Path, caplog: pytest.LogCaptureFixture) -> None:
    for record in IGNORED:
        (copy / record).write_bytes(TEXTS[text])
    read_all(copy)
    with caplog.at_level(logging.WARNING):
        continued(job, copy)
    said = [record for record in caplog.records if "timeline.damaged-1.json" in record.getMessage()]
    assert len(said) == 1 and (copy / "timeline.damaged-1.json").read_bytes() == TEXTS[text]
    timeline = load_run(str(copy)).timeline
    assert (timeline.damaged, len(timeline.starts), timeline.starts[0].how) == (1, 1, "finished")
    assert "timeline.damaged-1.json" in report_of([load_run(str(copy))])
    with pytest.raises(InvalidOption, match=r"timeline\.damaged-1\.json"):
        rows_of_step(str(copy), 12)


def test_each_damaged_timeline_is_kept_and_counted(job: Job, copy: Path) -> None:
    for number, text in enumerate(("{", "[]"), 1):
        (copy / "timeline.json").write_text(text)
        run(replace(job, storage=str(copy.parent), epochs=1 + number), "local")
        assert (copy / f"timeline.damaged-{number}.json").read_text() == text
        assert load_run(str(copy)).timeline.damaged == number
    run(replace(job, storage=str(copy.parent), epochs=4), "local")
    assert load_run(str(copy)).timeline.damaged == 2


@pytest.mark.parametrize("every", [61, pytest.param(1, marks=pytest.mark.variation("all of them"))])
@pytest.mark.parametrize("record", TYPED)
def test_values_of_other_types_are_refused_or_read_by_all(record: str, every: int, copy: Path) -> None:
    facts = json.loads((copy / record).read_text())
    for changed in islice(wrong_values(facts), 0, None, every):
        (copy / record).write_text(json.dumps(changed))
        read_all(copy)
