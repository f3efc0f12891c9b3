"""Each verb works for people and, with --json, for programs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb

Call = Callable[..., Any]


@pytest.fixture
def manifest(forebay: Call, parquet_folder: Callable[..., Path], tmp_path: Path) -> Path:
    path = tmp_path / "m.json"
    assert forebay("scan", parquet_folder({"a.parquet": [40, 30], "b.parquet": [30]}), "--out", path).code == 0
    return path


def test_scan_writes_the_manifest(
    forebay: Call, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fb.Manifest.load(manifest) == fb.scan(str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    said = forebay("scan", "data", "--columns", "x0,clicked", "--json")
    facts = json.loads(said.out)
    assert (facts["rows"], facts["row_groups"], facts["files"]) == (100, 3, 2)
    assert {column["name"]: column["type"] for column in facts["schema"]} == {"x0": "float", "clicked": "int8"}
    assert fb.Manifest.load("data.manifest.json").columns == ("x0", "clicked")
    assert "row_groups" in forebay("scan", "data").out


def test_scan_takes_types_of_folders(forebay: Call, tmp_path: Path) -> None:
    (tmp_path / "sites" / "zip=1").mkdir(parents=True)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "sites" / "zip=1" / "a.parquet")
    given = ("scan", tmp_path / "sites", "--out", tmp_path / "m.json", "--json", "--partition-type")
    schema = json.loads(forebay(*given, "zip=string").out)["schema"]
    assert {column["name"]: column["type"] for column in schema} == {"x": "int64", "zip": "string"}
    assert "day=string" in forebay(*given, "zip").err


def test_rows_shows_what_a_rank_reads(forebay: Call, manifest: Path) -> None:
    plan = fb.build_plan(fb.Manifest.load(manifest), seed=3, lanes=4)
    parts = []
    for rank in range(3):
        options = ("--seed", 3, "--lanes", 4, "--world", 3, "--rank", rank, "--batch", 33, "--step", 3, "--epoch", 1)
        facts = json.loads(forebay("rows", manifest, *options, "--names", "--json").out)
        parts += [(row["file"], row["row_group"], row["row"]) for row in facts["rows"]]
    assert facts["plan"] == plan.id
    assert (facts["position"], facts["size"]) == (50, 25)
    block, row = plan.batch(1, 50, 33)
    groups = [plan.manifest[index] for index in block.tolist()]
    expected = [(Path(g.uri).name, g.index, r) for g, r in zip(groups, row.tolist(), strict=True)]
    assert sorted(parts) == sorted(expected)


def test_plan_says_how_many_ranks_it_can_have(forebay: Call, manifest: Path) -> None:
    facts = json.loads(forebay("plan", manifest, "--batch", 33, "--json").out)
    assert (facts["lanes"], facts["largest_world"], facts["shuffle_rows"]) == (16, 16, 65_536)
    facts = json.loads(forebay("plan", manifest, "--batch", 33, "--lanes", 64, "--json").out)
    assert (facts["lanes"], facts["largest_world"], facts["shuffle_rows"]) == (64, 64, 16_384)
    assert "largest_world" in forebay("plan", manifest, "--batch", 33).out


def test_plan_hash_is_the_same_for_every_world(forebay: Call, manifest: Path) -> None:
    hashes = {forebay("plan", manifest, "--hash", "--batch", 32, "--world", world).out for world in (1, 2, 5, 16)}
    assert len(hashes) == 1
    assert len(hashes.pop().strip()) == 64
    other = json.loads(forebay("plan", manifest, "--hash", "--batch", 32, "--epoch", 1, "--json").out)
    assert other["hash"] not in hashes


def test_warm_fills_the_cache_and_cache_tells(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    first = json.loads(forebay("warm", *job_words(), "--json").out)["this node"]
    assert (first["stores"], first["hits"], first["bypasses"]) == (3, 0, 0)
    again = json.loads(forebay("warm", *job_words(), "--json").out)["this node"]
    assert (again["stores"], again["hits"]) == (0, 3)
    where = ("--path", tmp_path / "cache")
    listed = json.loads(forebay("cache", "ls", *where, "--json").out)
    assert [use["blocks"] for use in listed["datasets"]] == [3]
    assert listed["datasets"][0]["dataset"] in forebay("cache", "ls", *where).out
    assert json.loads(forebay("cache", "verify", *where, "--json").out)["checked"] == 3
    block = next((tmp_path / "cache" / "blocks").rglob("*.block"))
    content = bytearray(block.read_bytes())
    content[-20] ^= 1
    block.write_bytes(content)
    damaged = forebay("cache", "verify", *where, "--json")
    assert (damaged.code, json.loads(damaged.out)["bad"]) == (1, 1)
    assert json.loads(forebay("cache", "clear", *where, "--json").out)["freed_bytes"] > 0
    assert json.loads(forebay("cache", "ls", *where, "--json").out)["datasets"] == []


def test_warm_says_when_blocks_do_not_fit(forebay: Call, job_words: Call) -> None:
    said = forebay("warm", *job_words(quota=1000), "--json")
    assert said.code == 1
    assert json.loads(said.out)["this node"]["bypasses"] == 3
    assert "did not fit" in said.err


def test_run_trains_and_reports(forebay: Call, job_words: Call, tmp_path: Path) -> None:
    said = forebay("run", "--driver", "local", *job_words())
    assert said.code == 0, said.err
    assert "loss" in said.out and "seconds by stage" in said.out and "by stage: read" in said.err
    cold = json.loads((tmp_path / "runs" / "small" / "result.json").read_text())["epochs"][0]["counters"]
    assert all(cold[stage] > 0 for stage in ("remote_read_s", "decode_s", "transform_s", "write_s", "map_s", "wait_s"))
    result = json.loads(forebay("run", "--driver", "local", *job_words(name="again"), "--json").out)
    assert [epoch["rows"] for epoch in result["epochs"]] == [100, 100]
    assert [epoch["counters"].get("parquet_opens", 0) for epoch in result["epochs"]] == [0, 0]
    # Preparing the second epoch while the first one ends counts as time of the first.
    for stage in ("map_s", "gather_s", "wait_s"):
        assert sum(epoch["counters"].get(stage, 0) for epoch in result["epochs"]) > 0
    assert Path(result["report"]).stat().st_size > 1000
    assert (tmp_path / "runs" / "small" / "report.html").exists()


def test_json_is_one_document_whatever_the_job_prints(job_words: Call) -> None:
    job = Path(job_words()[0])
    (job.parent / "beside.py").write_text("import os\nprint('on import')\nos.system('echo from a child')\n")
    text = job.read_text().replace("evaluate=None):", "evaluate=None):\n    print('in training')")
    job.write_text(text.replace("import forebay as fb", "import beside\nimport forebay as fb\nprint('loading')", 1))
    command = [sys.executable, "-m", "forebay", "run", "--driver", "local", *job_words(workers=2, epochs=1), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(told.stdout)["epochs"][0]["rows"] == 100
    assert all(line in told.stderr for line in ("on import", "from a child", "loading", "in training"))


def test_python_dash_m_is_the_same_command() -> None:
    told = subprocess.run([sys.executable, "-m", "forebay", "--version"], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == fb.__version__


def test_plan_shows_how_good_its_shuffle_is(forebay: Call, manifest: Path) -> None:
    facts = json.loads(forebay("plan", manifest, "--batch", 10, "--quality", "--label", "clicked", "--json").out)
    assert facts["travel"] == pytest.approx(facts["full_travel"], rel=0.4)
    assert facts["label_variance"] > 0
    assert 1 <= facts["row_groups"] <= 3
    said = forebay("plan", manifest, "--batch", 10, "--quality")
    assert "full shuffle" in said.out
    assert max(map(len, said.out.splitlines())) <= 80
    several = ("--batch", 10, "--label", "clicked", "--compare", "2:5", "--compare", "4:")
    table = forebay("plan", manifest, *several).out
    assert [line.split()[0] for line in table.split("\n") if "0.333" in line][-1] == "full"
    assert max(map(len, table.splitlines())) <= 80
    plans = json.loads(forebay("plan", manifest, *several, "--json").out)["plans"]
    assert [each["lanes"] for each in plans] == [facts["lanes"], 2, 4]
    assert plans[0]["label_autocorrelation"] == facts["label_autocorrelation"]
    wrong = forebay("plan", manifest, "--compare", "8")
    assert (wrong.code, "LANES:SHUFFLE_ROWS" in wrong.err) == (2, True)
    refused = forebay("plan", manifest, "--batch", 10, "--label", "nobody")
    assert refused.code == 3
    assert "nobody" in refused.err
