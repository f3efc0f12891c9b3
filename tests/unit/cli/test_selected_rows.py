"""`forebay rows` shows one line per row.

Names that other commands take, and the values in the files.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from tests.unit.cli.conftest import TRAINING

import forebay as fb
from forebay.data.manifest.file_rows import FileRows

Cli = Callable[..., Any]
Folder = Callable[..., Path]
COLUMNS = ["id", "x0", "x1", "x2", "x3", "c0", "c1", "s", "tags", "clicked", "day"]
MIXED = """
def job(web: str, code: str) -> fb.Job:
    plans = {name: fb.build_plan(fb.scan(path), lanes=4) for name, path in (("web", web), ("code", code))}
    transform = fb.Transform(x=fb.Dense(["x1", "x2"]), label=fb.Label("clicked"))
    mix = fb.Mixture(plans, {"web": 0.5, "code": 0.5})
    print("a job may print")
    data = fb.Data(plan=mix, transform=transform, global_batch=16)
    return fb.Job(train=train, data=data, storage="runs", name="mixed")
"""


def id_of(root: Path, name: str) -> int:
    """Id of the row `name`, read by pyarrow."""
    file, group, row = name.rsplit(":", 2)
    value: int = pq.ParquetFile(root / file).read_row_group(int(group))["id"][int(row)].as_py()
    return value


def lines_of(shown: str) -> dict[str, list[str]]:
    """Cells of a table's lines, by row name."""
    words = [line.split() for line in shown.splitlines()]
    return {line[0]: line[1:] for line in words if line and re.fullmatch(r".+:\d+:\d+", line[0])}


def test_names_are_those_of_the_rows_that_are_shown_and_of_a_skip_list(forebay: Cli, parquet_folder: Folder) -> None:
    root = parquet_folder({"day=1/a.parquet": [9, 4], "day=2/b.parquet": [20]})
    shown = lines_of(forebay("rows", root, "--rows", 11, "--columns", "x1,id").out)
    assert len(shown) == 11
    for name, (_, number) in shown.items():
        assert id_of(root, name) == int(number)
    facts = json.loads(forebay("rows", root, "--rows", 11, "--json").out)
    assert [row["name"] for row in facts["rows"]] == list(shown) and facts["total"] == 33
    assert list(facts["rows"][0]["values"]) == COLUMNS
    with fb.Loader(fb.build_plan(fb.scan(root)), fb.Transform(x=fb.Dense("x1")), global_batch=11) as loader:
        assert [str(row) for row in next(iter(loader)).rows()] == list(shown)
    assert fb.scan(root, skip=list(shown)).num_rows == 22
    other = json.loads(forebay("rows", root, "--rows", 99, "--seed", 1, "--json").out)
    assert len(other["rows"]) == 33 and other["rows"] != facts["rows"]


@pytest.mark.parametrize("width", [34, 50, 80, 120])
@pytest.mark.parametrize("folder", ["", "country=de/part-00000-0e8a2f6c-7c1d-4d5e-9c1b-c000.snappy/"])
def test_columns_are_shown_where_they_have_room_and_the_others_are_named(
    folder: str, width: int, forebay: Cli, parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    root = parquet_folder({f"{folder}day=1/a.parquet": [9, 4]})
    said = forebay("rows", root, "--rows", 4).out
    apart = [line for line in said.splitlines() if re.match(r"#\d+ ", line)]
    table = [line for line in said.splitlines() if line not in apart]
    assert max(map(len, table)) <= width
    is_apart = len(f"{folder}day=1/a.parquet:0:0") > width // 2
    assert len(apart) == (4 if is_apart else 0)
    header = next(line.split() for line in table if line.split()[:1] == ["row"])
    assert sum(line.split()[:1] == ["row"] for line in table) == 1
    left_out = re.search(
        r"No room for \d+ columns?: (.*)\. --columns chooses, --json has all\.", " ".join(said.split())
    )
    names = [] if left_out is None else left_out[1].split(", ")
    expected = ["country", *COLUMNS] if folder else COLUMNS
    assert sorted([*header[1:], *names]) == sorted(expected) and "id" in header
    numbers = [line.split()[header.index("id")] for line in table if re.match(r" (#|.*:\d+:\d+)", line)]
    rows = [line.split()[1] for line in apart] if is_apart else list(lines_of(said))
    assert [int(number) for number in numbers] == [id_of(root, name) for name in rows] and len(rows) == 4


def test_many_columns_are_counted_and_chosen_ones_all_shown(
    forebay: Cli, parquet_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    root = parquet_folder({"a.parquet": [3]})
    table = pq.read_table(root / "a.parquet")
    for number in range(30):
        table = table.append_column(f"feature_{number}", table["x1"])
    pq.write_table(table, root / "a.parquet")
    said = " ".join(forebay("rows", root).out.split())
    assert re.search(r"No room for \d\d columns: .*, feature_\d+ and \d\d more\. --columns chooses", said), said
    chosen = [f"feature_{number}" for number in range(0, 30, 3)]
    said = forebay("rows", root, "--columns", ",".join(chosen)).out
    assert set(chosen) <= set(said.split()) and "feature_1 " not in said and "No room" not in said


def test_a_manifest_keeps_its_filter_and_its_skip_list(forebay: Cli, parquet_folder: Folder, tmp_path: Path) -> None:
    root, path = parquet_folder({"a.parquet": [9, 4]}), tmp_path / "clicks.json"
    (tmp_path / "skip.txt").write_text("a.parquet:0:8\n")
    forebay("scan", root, "--where", "id > 6", "--skip", tmp_path / "skip.txt", "--out", path)
    shown = lines_of(forebay("rows", path, "--columns", "id").out)
    assert {name: int(cells[0]) for name, cells in shown.items()} == {
        "a.parquet:0:7": 7,
        **{f"a.parquet:1:{row}": 9 + row for row in range(4)},
    }


def test_rows_of_a_job_are_those_of_its_mixture(forebay: Cli, parquet_folder: Folder, tmp_path: Path) -> None:
    roots = {
        name: parquet_folder({"a.parquet": [9, 4]}, folder=name, seed=seed) for seed, name in enumerate(["web", "code"])
    }
    (tmp_path / "job.py").write_text(TRAINING + MIXED)
    words = [tmp_path / "job.py", *(f"{name}={root}" for name, root in roots.items())]
    facts = json.loads(forebay("rows", *words, "--json").out)
    assert {row["source"] for row in facts["rows"]} == {"web", "code"}
    for row in facts["rows"]:
        assert row["values"]["id"] == id_of(roots[row["source"]], row["name"])
    lines = forebay("rows", *words, "--columns", "x1").out.splitlines()
    shown = [line.split() for line in lines if re.search(r":\d+:\d+ ", line)]
    assert [(name, source) for name, source, _ in shown] == [(row["name"], row["source"]) for row in facts["rows"]]
    assert any(line.split() == ["row", "dataset", "x1"] for line in lines)


def test_rows_of_a_step_are_cut(forebay: Cli, run: str) -> None:
    expected = json.loads(forebay("rows", run, "--step", 2, "--json").out)["rows"]
    facts = json.loads(forebay("rows", run, "--step", 2, "--rows", 5, "--json").out)
    assert facts["total"] == 32 and facts["of"] == "step 2 (epoch 0, rows 32 to 64) on 1 worker"
    assert facts["rows"] == expected[:5]
    assert list(lines_of(forebay("rows", run).out)) != list(lines_of(forebay("rows", run, "--step", 2).out))
    assert "on rank 0 of 1: 3 of 32 rows" in forebay("rows", run, "--rank", 0, "--rows", 3).out


def test_rows_of_a_global_batch_are_those_that_its_ranks_read(forebay: Cli, parquet_folder: Folder) -> None:
    root = parquet_folder({"a.parquet": [30, 20], "b.parquet": [14]})
    words = [root, "--seed", 5, "--lanes", 4, "--epoch", 1, "--batch", 16, "--step", 3]
    whole = json.loads(forebay("rows", *words, "--json").out)
    parts = [json.loads(forebay("rows", *words, "--world", 3, "--rank", rank, "--json").out) for rank in range(3)]
    assert sorted(row["name"] for part in parts for row in part["rows"]) == sorted(row["name"] for row in whole["rows"])
    plan = fb.build_plan(fb.scan(root), seed=5, lanes=4)
    block, row = plan.batch(1, 32, 16)
    rows = FileRows.of(plan.manifests, block, row)
    assert [str(each) for each in rows] == [each["name"] for each in whole["rows"]]
    said = forebay("rows", *words, "--world", 3, "--rank", 1).out
    assert said.startswith("global batch 3 of 4 of epoch 1 with seed 5, rank 1 of 3: ")
    said = forebay("rows", root, "--step", 1)
    assert said.code == 2 and "a dataset has no batches. Correct it, or add --batch" in said.err


def test_options_that_the_source_does_not_have_are_errors(
    forebay: Cli, run: str, parquet_folder: Folder, tmp_path: Path
) -> None:
    root = parquet_folder({"a.parquet": [3]}, folder="few")
    (tmp_path / "job.py").write_text(TRAINING + MIXED)
    for code, words, text in (
        (3, [root, "--rank", "1"], "--rank=1: "),
        (3, [root, "--epoch", "-1"], "--epoch=-1: it must be a whole number of 0 or more."),
        (3, [root, "--world", "17"], "TooManyRanks: "),
        (3, [root, "--batch", "0"], "--batch=0: it must be a whole number of 1 or more."),
        (2, [root, "--skipped"], "--skipped is of no use for a dataset."),
        (2, [run, "--seed", "1"], "--seed is of no use for a run."),
        (2, [tmp_path / "job.py", "--batch", "8"], "--batch is of no use for a job file."),
        (2, [root, "epochs=3"], f"'epochs=3' is a parameter of a job file (.py), and {root} is something else."),
        (2, [root, "--rows", "0"], "--rows=0: it must be a whole number of 1 or more."),
        (3, [root, "--columns", "nope"], "MissingColumn: "),
        (3, [run, "--step", "3"], "step=3 is beyond the run, which has trained 2 steps."),
        (3, [root / "nothing"], "NoFiles: "),
    ):
        said = forebay("rows", *words)
        assert said.code == code and text in said.err, words
