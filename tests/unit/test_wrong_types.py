"""Values of a wrong type at the front door are refused by name, with what to give."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import forebay as fb
from forebay.errors import InvalidOption


def job(data: str = "clicks") -> fb.Job:
    raise AssertionError(data)


def name_of(given: object) -> str:
    """Text without an address, equal in all processes of the tests."""
    return getattr(given, "__name__", repr(given))


GIVEN: list[Any] = [None, 3, "my_job.py", job, [], {}, fb.Dense("x")]


@pytest.mark.parametrize("given", GIVEN, ids=name_of)
@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda given: fb.run(given, "local"), r"job=.*fb\.run\(job\(\.\.\.\)\); a sweep goes to fb\.run_sweep"),
        (fb.run_sweep, r"sweep=.*give an fb\.Sweep"),
    ],
    ids=["run", "run_sweep"],
)
def test_what_is_run_is_a_job_or_a_sweep(call: Callable[[Any], object], words: str, given: Any) -> None:
    with pytest.raises(InvalidOption, match=words):
        call(given)


@pytest.mark.parametrize("given", [None, 3, 2.5, job, True], ids=name_of)
def test_what_is_scanned_names_files(given: Any) -> None:
    with pytest.raises(InvalidOption, match="uri=.*give a file, a folder, a pattern, or a sequence of these"):
        fb.scan(given)
