"""Bad input on the command line.

An exit code by kind, one clear sentence, no traceback unless --debug.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections.abc import Callable
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cli.app import main
from forebay.cli.output import print_error
from forebay.errors import InvalidOption, MissingColumn, NoFiles

Call = Callable[..., Any]


CODES = {"BadUsage": 2, "BadParameter": 2, "TransformFailed": 1, "RowCountChanged": 1, "CacheUnusable": 74}
"""Exit codes by error. Other input is refused with 3."""


def check(said: Any, kind: str, *words: str) -> None:
    assert said.code == CODES.get(kind, 3)
    assert any(line.startswith(f"{kind}: ") for line in said.err.splitlines()), said.err
    assert "Traceback" not in said.err + said.out
    for word in words:
        assert word in said.err, f"{word!r} is not in {said.err!r}"


def run(forebay: Call, words: list[str]) -> Any:
    return forebay("run", "--driver", "local", *words)


def test_no_files(forebay: Call, tmp_path: Path, job_words: Call) -> None:
    (tmp_path / "empty").mkdir()
    check(forebay("scan", tmp_path / "empty"), "NoFiles", "empty")
    check(forebay("scan", tmp_path / "nowhere"), "NoFiles", "nowhere")
    check(run(forebay, job_words(data=tmp_path / "empty")), "NoFiles")


def test_a_table_that_is_not_read(forebay: Call, tmp_path: Path) -> None:
    (tmp_path / "table" / ".hoodie").mkdir(parents=True)
    (tmp_path / "table" / ".hoodie" / "hoodie.properties").write_text("{}")
    pq.write_table(pa.table({"x": [1]}), tmp_path / "table" / "part-0.parquet")
    check(forebay("scan", tmp_path / "table"), "NotPlainParquet", "Hudi", "hoodie.properties", "plain Parquet")


def test_a_folder_of_an_iceberg_table_of_a_catalog(forebay: Call, tmp_path: Path) -> None:
    pytest.importorskip("pyiceberg")
    (tmp_path / "table" / "metadata").mkdir(parents=True)
    (tmp_path / "table" / "metadata" / "v1.metadata.json").write_text("{}")
    check(forebay("scan", tmp_path / "table"), "InvalidOption", "iceberg://CATALOG", "v1.metadata.json")


def test_a_delta_table_without_versions(forebay: Call, tmp_path: Path) -> None:
    pytest.importorskip("deltalake")
    (tmp_path / "table" / "_delta_log").mkdir(parents=True)
    (tmp_path / "table" / "_delta_log" / "00000000000000000000.json").write_text("{}")
    check(forebay("scan", tmp_path / "table"), "InvalidOption", "Delta Lake", "cannot be opened", "version")


def test_mixed_schemas(forebay: Call, tmp_path: Path) -> None:
    (tmp_path / "mixed").mkdir()
    pq.write_table(pa.table({"x": [1]}), tmp_path / "mixed" / "a.parquet")
    pq.write_table(pa.table({"x": ["1"]}), tmp_path / "mixed" / "b.parquet")
    check(forebay("scan", tmp_path / "mixed"), "MixedSchemas", "a.parquet", "b.parquet", "int64", "string")


def test_missing_column(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    check(forebay("scan", tmp_path / "data", "--columns", "clickd"), "MissingColumn", "clickd", "clicked")
    check(run(forebay, job_words(label="clickd")), "MissingColumn", "clickd", "clicked")


def test_wrong_type(forebay: Call, job_words: Call) -> None:
    check(run(forebay, job_words(label="s")), "WrongType", "string")
    check(run(forebay, job_words(columns='["x1","tags"]')), "WrongType", "tags")


def test_corrupt_footer(forebay: Call, tmp_path: Path) -> None:
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "a.parquet").write_bytes(b"PAR1" + bytes(100))
    check(forebay("scan", tmp_path / "bad"), "CorruptFile", "a.parquet")


def test_corrupt_page(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    words = job_words()
    path = tmp_path / "data" / "a.parquet"
    stat, content = path.stat(), bytearray(path.read_bytes())
    content[4:-4000] = bytes(len(content) - 4004)
    path.write_bytes(content)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    check(run(forebay, words), "CorruptFile", "a.parquet")


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        ("raise ValueError('no such town')", "TransformFailed", ("broken", "no such town")),
        ("return {'x': batch.column('x1').to_numpy()[:-1]}", "RowCountChanged", ("rows",)),
        ("return {'x': batch.column('s').to_numpy(zero_copy_only=False)}", "TransformFailed", ("object",)),
    ],
)
def test_broken_transforms(
    forebay: Call, job_words: Call, tmp_path: Path, body: str, kind: str, words: tuple[str, ...]
) -> None:
    job = Path(job_words()[0])
    text = job.read_text().replace(
        "fb.Transform(x=fb.Dense(columns), label=fb.Label(label))", "fb.Transform(fn=broken)"
    )
    job.write_text(text + f"\n\ndef broken(batch):\n    {body}\n")
    check(run(forebay, job_words()), kind, *words)


def test_label_with_nulls(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    words = job_words()
    path = tmp_path / "data" / "a.parquet"
    table = pq.read_table(path)
    labels = pa.array([None, *table["clicked"].to_pylist()[1:]], pa.int8())
    pq.write_table(table.set_column(table.column_names.index("clicked"), "clicked", labels), path)
    check(run(forebay, words), "NullLabel", "clicked", "1")


def test_more_ranks_than_lanes(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    check(run(forebay, job_words(workers=5)), "TooManyRanks", "5 ranks", "4 lanes")
    forebay("scan", tmp_path / "data", "--out", tmp_path / "m.json")
    check(forebay("plan", tmp_path / "m.json", "--world", 17), "TooManyRanks", "17 ranks", "16 lanes")


def test_quotas_that_store_nothing_and_those_that_make_no_sense(forebay: Call, job_words: Call) -> None:
    assert run(forebay, job_words(quota=0)).code == 0
    check(run(forebay, job_words(quota=-1)), "InvalidOption", "quota_bytes=-1", "whole number of 0 or more")


def test_unwritable_cache(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check(run(forebay, job_words(cache=tmp_path / "file")), "CacheUnusable", "file")
    check(forebay("cache", "ls", "--path", tmp_path / "typo"), "InvalidOption", "typo", "no cache")
    assert not (tmp_path / "typo").exists()


def test_cursor_of_another_plan(forebay: Call, job_words: Call) -> None:
    assert run(forebay, job_words(epochs=1)).code == 0
    check(run(forebay, job_words(epochs=3, lanes=8)), "CursorMismatch", "plan", "name")


def test_unknown_data_set_is_not_cleared(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    forebay("warm", *job_words())
    check(
        forebay("cache", "clear", "--path", tmp_path / "cache", "--dataset", "nope"), "InvalidOption", "nope", "data-"
    )


def test_unknown_driver_is_refused_before_the_job_is_built(forebay: Call, tmp_path: Path) -> None:
    job = tmp_path / "slow_job.py"
    job.write_text("def job() -> None:\n    raise AssertionError('the job was built')\n")
    check(forebay("run", "--driver", "spark", job), "BadUsage", "spark", "local")


def test_bad_parameters(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    check(run(forebay, job_words(epoch=3)), "BadParameter", "epoch", "epochs")
    check(run(forebay, job_words(epochs="many")), "BadParameter", "epochs", "many")
    check(run(forebay, [*job_words(), "epochs"]), "BadParameter", "name=value")
    check(run(forebay, [*job_words(), "epochs=1", "epochs=2"]), "BadParameter", "twice")
    check(run(forebay, [str(tmp_path / "no_job.py")]), "BadJob", "no_job.py")


def test_what_is_no_manifest(forebay: Call, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_text("{}")
    check(forebay("plan", tmp_path / "m.json"), "InvalidOption", "m.json")
    check(forebay("plan", tmp_path / "none.json"), "InvalidOption", "none.json")


def test_json_errors_are_json(forebay: Call, tmp_path: Path) -> None:
    for option in ("--json", "-j"):
        said = forebay("scan", tmp_path / "nowhere", option)
        assert json.loads(said.err)["error"] == "NoFiles"


def test_json_errors_have_no_number_that_json_lacks(capsys: pytest.CaptureFixture[str]) -> None:
    print_error(InvalidOption("lr is not a number", lr=math.nan, path=Path("/a")), as_json=True)
    facts = json.loads(capsys.readouterr().err, parse_constant=pytest.fail)["facts"]
    assert facts == {"lr": None, "path": "/a"}


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(NoFiles):
        main(["scan", str(tmp_path / "nowhere"), "--debug"])


def test_errors_survive_pickling(tmp_path: Path) -> None:
    import pickle

    error = pickle.loads(pickle.dumps(MissingColumn("no x", column="x")))
    assert (type(error), str(error), error.column) == (MissingColumn, "no x", "x")


@given(words=st.lists(st.text(st.characters(codec="ascii", categories=["L", "N", "P"]), min_size=1), min_size=1))
def test_a_long_error_wraps_at_words_and_loses_none(words: list[str]) -> None:
    """On a terminal. Indented lines stay indented."""
    said = io.StringIO()
    text = "the job exists with another specification:\n  " + " ".join(words)
    with pytest.MonkeyPatch.context() as patch, redirect_stderr(said):
        patch.setenv("COLUMNS", "100")
        print_error(InvalidOption(text), as_json=False)
        whole = said.getvalue()
        patch.delenv("COLUMNS")
        print_error(InvalidOption(text), as_json=False)
    piped = said.getvalue().removeprefix(whole)
    assert piped == f"{InvalidOption.__name__}: {text}\n", "a pipe gets lines whole"
    assert whole.split() == piped.split()
    longest = max(map(len, words)) + 2
    assert all(len(line) <= max(80, longest) for line in whole.splitlines())
    assert all(line.startswith("  ") for line in whole.splitlines()[1:])


def test_a_name_of_no_run_is_not_taken_for_a_dataset_without_batches(forebay: Call, tmp_path: Path) -> None:
    said = forebay("rows", tmp_path / "nowhere", "--step", 1)
    assert said.code == 2 and f"{tmp_path / 'nowhere'} is not the folder of a run" in said.err


def test_no_metric_is_not_called_an_unknown_one(forebay: Call) -> None:
    assert "no metric was given. Choose one of metric=perplexity" in forebay("llm", "evaluate").err
