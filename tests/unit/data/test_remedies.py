"""Remedies in error texts are code that runs, for columns of any name."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.cli.fleet.submit import _after_interrupt
from forebay.data.filters.where import Where
from forebay.data.parquet.column_paths import operand_text
from forebay.errors import ForebayError
from forebay.fleet.client.submission import JobFiles

NAMES = (
    "my label",
    "it's",
    'a"b',
    "back\\slash",
    "new\nline",
    "from",
    "None",
    "é",
    "ﬁ",
    "col('x')",
    "1st",
    "a-b",
    "{x}",
)
PACKAGE = Path(fb.__file__).parent


def _table(folder: Path, name: str) -> str:
    pq.write_table(pa.table({name: pa.array([1, None, 2, 3]), "x": [1.0, 2.0, 3.0, 4.0]}), folder / "a.parquet")
    return str(folder)


def _label(data: str, name: str) -> object:
    plan = fb.build_plan(fb.scan(data))
    with fb.Loader(fb.Data(plan=plan, transform=fb.Transform(y=fb.Label(name)), global_batch=2), None) as loader:
        return list(loader)


def _balance(data: str, name: str) -> object:
    return fb.Sampled(fb.build_plan(fb.scan(data)), balance=name).class_rows


@pytest.mark.parametrize("act", [_label, _balance])
@pytest.mark.parametrize("name", NAMES)
def test_filter_of_a_remedy_leaves_the_nulls_out(tmp_path: Path, name: str, act: Callable[[str, str], object]) -> None:
    data = _table(tmp_path, name)
    with pytest.raises(ForebayError, match="where=") as caught:
        act(data, name)
    code = re.search(r"fb\.scan\(\.\.\., (where=.*)\)\. Or fill", str(caught.value))
    assert code is not None
    call = ast.parse(f"f({code[1]})", mode="eval").body
    assert isinstance(call, ast.Call)
    where = ast.literal_eval(call.keywords[0].value)
    assert fb.scan(data, where=where).num_rows == 3


@pytest.mark.parametrize("name", [*NAMES, "plain", "user.age", "a b.c"])
def test_operand_text_is_read_as_that_column(name: str) -> None:
    assert Where(f"{operand_text(name)} is not None").columns == (name,)


@pytest.mark.parametrize("folder", ["my runs", "it's", "a;b", "$HOME"])
def test_command_of_a_remedy_is_one_of_as_many_words(
    tmp_path: Path, folder: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(JobFiles, "newest", lambda _files: object())
    storage = str(tmp_path / folder)
    command = _after_interrupt(storage, "ctr").splitlines()[-1]
    assert shlex.split(command) == ["forebay", "logs", "ctr", "--follow", "--storage", storage]


def test_no_text_puts_a_name_between_quotes_of_code_itself() -> None:
    """As in `where='{column} is not None'`: a quote in the name ends the text."""
    found = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}: {_shape(node)}"
        for path in sorted(PACKAGE.rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.JoinedStr) and re.search(r"""[(=]\s*["'][^"'=]*<<""", _shape(node))
    ]
    assert [each for each in found if not each.startswith(ALLOWED)] == []


ALLOWED = (
    "report/",  # attributes of HTML, whose values are escaped
    "training/callbacks/mlflow.py",  # a query of MLflow, no text for people; a run's name has no quotes
    "training/batch_size/noise_scale.py",  # one of the package's own words
)


def _shape(node: ast.JoinedStr) -> str:
    """Text of an f-string, with `<<` for a value that is not quoted by `repr`."""
    return "".join(
        str(part.value) if isinstance(part, ast.Constant) else "" if getattr(part, "conversion", -1) == 114 else "<<"
        for part in node.values
    )
