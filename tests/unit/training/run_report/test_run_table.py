"""The tables of a run: complete, and right for unusual numbers."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from forebay.events import EpochEnded, Reported
from forebay.report.fitted_table import FittedTable
from forebay.training.run_report.epoch_columns import metric_names
from forebay.training.run_report.run_table import epoch_table, show_report, stage_table
from forebay.training.run_report.stages import STAGES
from forebay.training.runs.result import Result, save_result

COLD = {"hits": 0, "stores": 120, "stored_bytes": 555 << 20, "parquet_opens": 120}
WARM = {"hits": 120, "hit_bytes": 555 << 20}
STAGES_S = {"remote_read_s": 2.1, "decode_s": 11.83, "transform_s": 4.2, "write_s": 3.05}
STAGES_S |= {"map_s": 0.3, "gather_s": 2.2, "copy_s": 0.042, "wait_s": 8.0}


def result(folder: Path, *, epochs: int = 2, **options: object) -> Result:
    steps = [Reported(step=s, epoch=0, position=0, metrics={"loss": 1 / s}, rows=s) for s in range(1, 200)]
    ended = [
        EpochEnded(
            epoch=number,
            step=100 * (number + 1),
            metrics={"auc": 0.7 + 0.01 * number, "loss": 0.5},
            rows=2_000_000,
            seconds=20.0,
            wait_s=4.0,
            eval_s=1.0,
            checkpoint_s=0.5,
            counters=WARM if number else COLD,
        )
        for number in range(epochs)
    ]
    facts = {"name": "ctr", "path": str(folder), "plan_id": "p", "num_epochs": epochs, "steps": tuple(steps)}
    return Result(**(facts | {"epochs": tuple(ended)} | options))  # type: ignore[arg-type]


def with_stages(folder: Path, **more_s: float) -> Result:
    """A cold epoch whose stages were timed, and a warm one."""
    run = result(folder)
    cold, warm = run.epochs
    warm_s = {"map_s": 1.2, "gather_s": 2.2, "wait_s": 0.04}
    return replace(run, epochs=(replace(cold, counters=STAGES_S | more_s), replace(warm, counters=warm_s)))


def printed(run: Result, width: int = 80, table: Callable[[Result], FittedTable] = epoch_table) -> list[str]:
    screen = io.StringIO()
    Console(file=screen, width=width).print(table(run))
    return screen.getvalue().splitlines()


def test_table_fits_80_columns_and_tells_what_the_cache_did(tmp_path: Path) -> None:
    title, _, head, _, cold, warm, *_ = printed(result(tmp_path))
    assert title.strip() == "ctr"
    assert head.split() == ["epoch", "loss", "auc", "rows/s", "time", "wait", "hits", "cached", "stored", "opens"]
    assert " ".join(cold.split()) == "1 0.5000 0.7000 100k 0:20 20 % 0/120 0 B 555 MiB 120"
    assert " ".join(warm.split()) == "2 0.5000 0.7100 100k 0:20 20 % 120/120 555 MiB 0 B 0"


def test_table_shows_what_did_not_fit_in_the_cache(tmp_path: Path) -> None:
    run = result(tmp_path, epochs=1)
    counters = COLD | {"bypasses": 5, "bypass_bytes": 3 << 20}
    epoch = EpochEnded(
        epoch=0, step=1, metrics={}, rows=1, seconds=1.0, wait_s=0.0, eval_s=0.0, checkpoint_s=0.0, counters=counters
    )
    lines = printed(Result(name="ctr", path=run.path, plan_id="p", num_epochs=1, epochs=(epoch,)))
    assert lines[2].split()[-1] == "uncached"
    assert lines[4].split()[-2:] == ["3.00", "MiB"]


def test_a_table_of_many_metrics_goes_on_below(tmp_path: Path) -> None:
    run = result(tmp_path)
    metrics = {f"auc_of_country_{number}": 0.5 for number in range(9)}
    lines = printed(replace(run, epochs=tuple(replace(epoch, metrics=metrics) for epoch in run.epochs)))
    assert all(len(line) <= 80 for line in lines)
    heads = [line.split() for line in lines if line.strip().startswith("epoch")]
    assert len(heads) > 1 and all(head[0] == "epoch" for head in heads)
    assert [name for head in heads for name in head[1:]][:9] == list(metrics)
    assert "…" not in "".join(lines) and "ctr" in lines[0]


def test_stages_of_every_epoch_fit_80_columns(tmp_path: Path) -> None:
    title, _, head, _, cold, warm, _, *caption = printed(with_stages(tmp_path), table=stage_table)
    assert title.strip() == "seconds by stage, summed over workers"
    assert head.split() == ["epoch", "read", "decode", "transform", "write", "map", "gather", "copy", "wait"]
    assert cold.split() == ["1", "2.10", "11.8", "4.20", "3.05", "0.30", "2.20", "0.04", "8.00"]
    assert warm.split() == ["2", "0", "0", "0", "0", "1.20", "2.20", "0", "0.04"]
    said = " ".join(" ".join(caption).split())
    assert "beside training" in said and "copy, wait: training stood still" in said


def test_peers_have_a_column_where_they_were_asked(tmp_path: Path) -> None:
    lines = printed(with_stages(tmp_path, peer_s=0.5), table=stage_table)
    assert lines[2].split()[:4] == ["epoch", "read", "peers", "decode"]
    assert lines[4].split()[2] == "0.50" and lines[5].split()[2] == "0"


@pytest.mark.parametrize("rare", [set(), {"peer_s"}, {"augment_s"}, {"peer_s", "augment_s"}])
def test_all_stages_of_a_day_fit_80_columns(tmp_path: Path, rare: set[str]) -> None:
    """Columns of peers and augments together go on in a table below."""
    run = with_stages(tmp_path)
    counted = {stage: counter for stage, counter in STAGES.items() if counter in STAGES_S.keys() | rare}
    most = dict.fromkeys(counted.values(), 86_400.0 * 16)
    lines = printed(replace(run, epochs=(replace(run.epochs[0], epoch=99_998, counters=most),)), table=stage_table)
    assert all(len(line) <= 80 for line in lines)
    heads = [line.split()[1:] for line in lines if line.split()[:1] == ["epoch"]]
    assert sum(heads, []) == [*counted] and len(heads) == 1 + (len(rare) > 1)
    assert "".join(lines).count("1.38M") == len(counted)


def test_report_fits_the_columns_of_the_terminal(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom forebay.training.runs.result import *\nfrom forebay.training.run_report.run_table import *\n"
    )
    save_result(with_stages(tmp_path, peer_s=0.5))
    done = subprocess.run(
        [sys.executable, "-c", f"{script}show_report(load_result(sys.argv[1]))", str(tmp_path)],
        check=True,
        capture_output=True,
        text=True,
        env=os.environ | {"COLUMNS": "80"},
    )
    table = [line.rstrip() for line in done.stdout.splitlines() if "report.html" not in line]
    assert max(map(len, table)) <= 80
    assert any(line.split()[-2:] == ["copy", "wait"] for line in table), done.stdout


def test_report_shows_stages_only_where_they_were_timed(tmp_path: Path) -> None:
    for run, shown in ((with_stages(tmp_path), True), (result(tmp_path), False)):
        screen = io.StringIO()
        show_report(run, Console(file=screen, width=100))
        assert ("by stage" in screen.getvalue()) == shown


def test_result_file_carries_the_stages(tmp_path: Path) -> None:
    facts = json.loads(with_stages(tmp_path).to_json())
    assert facts["epochs"][0]["counters"] == STAGES_S


def test_reason_to_stop_is_in_the_title(tmp_path: Path) -> None:
    assert "stopped: enough" in printed(result(tmp_path, stopped="enough"))[0]


def test_loss_comes_first_among_metrics(tmp_path: Path) -> None:
    assert metric_names(result(tmp_path)) == ["loss", "auc"]


def test_the_report_lies_beside_the_result(tmp_path: Path) -> None:
    screen = io.StringIO()
    show_report(result(tmp_path), Console(file=screen, width=200))
    assert f"{tmp_path}/report.html" in screen.getvalue()
    assert "epoch 2" in (tmp_path / "report.html").read_text()


def test_columns_of_a_language_model_have_units(tmp_path: Path) -> None:
    measured = {"tokens_per_s": 12_345.0, "peak_memory_bytes": 3 << 30}
    run = result(tmp_path)
    run = replace(run, epochs=tuple(replace(each, metrics=each.metrics | measured) for each in run.epochs))
    assert "3.00 GiB" in "".join(printed(run)) and "12.3k" in "".join(printed(run))
