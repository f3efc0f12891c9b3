"""Submissions that somebody else wrote."""

from __future__ import annotations

from pathlib import Path

import pytest

from forebay.errors import InvalidOption
from forebay.fleet.client.job_rows import JobRows
from forebay.fleet.client.submission import JobFiles, Submission
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.storage.boundary import may_open
from forebay.storage.filesystem import resolve


def write(folder: Path, storage: str) -> JobFiles:
    files = JobFiles(storage=str(folder), name="words")
    spec = JobSpec(name="words", storage=storage, task=(Task(command=("true",)),))
    path = Path(files.uri(1))
    path.parent.mkdir(parents=True)
    path.write_text(Submission(spec=spec, number=1, backend="local", token="t").to_json())
    return files


@pytest.mark.parametrize(
    "storage",
    [
        "s3://bucket/runs?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1",
        "gs://bucket/runs?endpoint_override=host.example",
        "hdfs://host.example/runs",
        "webhdfs://host.example:9870/runs",
        "abfs://container@host.example/runs",
    ],
)
def test_a_submission_chooses_no_host_that_is_sent_credentials(tmp_path: Path, storage: str) -> None:
    files = write(tmp_path, storage)
    with pytest.raises(InvalidOption, match="must not choose where credentials are sent"):
        files.newest()
    (row,) = JobRows([str(tmp_path)]).read().rows
    assert row.state == "unreadable"
    assert storage in row.why


@pytest.mark.parametrize("storage", ["/mnt/runs", "s3://bucket/runs?region=us-east-1", "gs://bucket/runs"])
def test_a_submission_may_name_its_storage_otherwise(tmp_path: Path, storage: str) -> None:
    found = write(tmp_path, storage).newest()
    assert found is not None and found.spec.storage == storage


def test_a_storage_with_an_endpoint_is_read_by_the_same_endpoint() -> None:
    own = resolve("s3://bucket/runs?endpoint_override=127.0.0.1:1&scheme=http&region=us-east-1")
    assert may_open(own.uri, own)
    assert not may_open(own.uri.replace("127.0.0.1:1", "host.example"), own)
