"""From words on the command line to a job."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from forebay.errors import BadJob
from forebay.job.job import Job
from forebay.job.recipe import call_recipe, load_recipe


def job_of(path: str, words: Sequence[str]) -> Job:
    """Call the job file's function with `name=value` words. Raises `BadJob` for a word that is none."""
    values: dict[str, str] = {}
    for word in words:
        name, sign, value = word.partition("=")
        if not sign or not name:
            raise BadJob(f"{word!r} is no parameter. Write name=value, for example epochs=3.", word=word)
        if name in values:
            raise BadJob(f"{name} is given twice: {values[name]!r} and {value!r}. Give it once.", parameter=name)
        values[name] = value
    # As `python job.py` does it: a job file may import what lies beside it.
    folder = str(Path(path).absolute().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return call_recipe(load_recipe(path), values)
