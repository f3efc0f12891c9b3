"""The rows of any past step are those that its batches had, after resizes, other batch sizes, skips and restarts."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import forebay as fb
from forebay.cli.app import main
from forebay.data.plan.order import Order
from forebay.errors import ForebayError, InvalidOption, RunFailed, SourceChanged
from forebay.events import BatchesCut, EpochEnded, Event, Finished, RolledBack, Warned
from forebay.training.runs.rows.order_record import FILE_NAME
from forebay.training.runs.rows.step_rows import rows_of_step
from forebay.training.runs.timeline.recorder import MAX_CUTS, TimelineRecorder
from forebay.training.runs.timeline.timeline import RunStart, StartOrigin

pytestmark = pytest.mark.usefixtures("kept_fork_server")

TRANSFORM = fb.Transform(id=fb.Label("id", dtype="int64"), x=fb.Dense(["x1", "x2"]))
ROWS = [30, 1, 50, 9]
Trained = dict[int, dict[int, list[str]]]
Folder = Callable[..., Path]


def train(log: Path, accumulate: int, bad_ids: tuple[int, ...], raise_at: int, worker: fb.Worker) -> None:
    """Train, and write the rows of each step of this rank into `log`."""
    model, optimizer = worker.setup(nn.Linear(2, 1), partial(torch.optim.SGD, lr=1e-3))
    names: list[str] = []
    for number, batch in enumerate(worker.loader(), 1):
        x = batch["x"] if "x" in batch else batch["past"][:, -1]
        bad = bad_ids and set(bad_ids) & set(batch["id"].tolist())
        loss = model(x).square().mean() * (float("nan") if bad else 1.0)
        (loss * batch.weight).backward()
        names += [f"{row.source}/{row}" for row in batch.rows()] if batch.weight else []
        if number % accumulate and not batch.ends_epoch:
            continue
        optimizer.step()
        optimizer.zero_grad()
        with (log / f"{worker.world.rank}").open("a") as file:
            file.write(json.dumps([worker.step + 1, worker.world.size, names]) + "\n")
        names = []
        worker.commit(loss=loss)
        if worker.step == raise_at:
            raise ValueError("a mistake")


def trained_rows(log: Path) -> Trained:
    """Rows by step and rank, of the last time that a step was trained."""
    found: Trained = {}
    for path in sorted(log.iterdir()):
        for line in path.read_text().splitlines():
            step, size, names = json.loads(line)
            ranks = found.setdefault(step, {})
            ranks[int(path.name)] = names
            for gone in [rank for rank in ranks if rank >= size]:
                del ranks[gone]
    return found


def recorded_rows(run: str, step: int) -> dict[int, list[str]]:
    found = rows_of_step(run, step)
    parts = {rank: found.of_rank(rank).rows for rank in range(found.trained.world_size)}
    assert sum(map(len, parts.values())) == len(found.rows)
    return {rank: [f"{row.source}/{row}" for row in rows] for rank, rows in parts.items()}


class RowsBench:
    """Runs a job whose rows are logged."""

    def __init__(self, folder: Path, order: Order, transform: Any = TRANSFORM) -> None:
        self.folder, self.order, self.transform = folder, order, transform
        self.log = folder / "log"
        self.log.mkdir()

    def run(
        self,
        *callbacks: Any,
        accumulate: int = 1,
        bad_ids: tuple[int, ...] = (),
        raise_at: int = 0,
        global_batch: int = 8,
        last: Any = "balance",
        **options: Any,
    ) -> fb.Result:
        job = fb.Job(
            train=partial(train, self.log, accumulate, bad_ids, raise_at),
            data=fb.Data(plan=self.order, transform=self.transform, global_batch=global_batch, last=last),
            storage=str(self.folder / "runs"),
            name="run",
            **{"epochs": 2, "workers": 1} | options,
        )
        return fb.run(job, driver="local", callbacks=callbacks)

    @property
    def path(self) -> str:
        return str(self.folder / "runs" / "run")

    def assert_known(self, result: fb.Result) -> Trained:
        """Check every step of the run. Returns what was trained."""
        # The batch of the last step may have been skipped, and none followed.
        trained = {step: ranks for step, ranks in trained_rows(self.log).items() if step <= result.epochs[-1].step}
        for step, ranks in trained.items():
            assert recorded_rows(self.path, step) == ranks, step
        with pytest.raises(InvalidOption, match=rf"step={len(trained) + 1} is beyond the run.*trained {len(trained)}"):
            rows_of_step(self.path, len(trained) + 1)
        return trained


def plain(folder: Folder) -> Order:
    return fb.build_plan(fb.scan(folder({"day=1/a.parquet": ROWS}), where="c1 < 900"), seed=3, lanes=6)


def sampled(folder: Folder) -> Order:
    return fb.Sampled(fb.build_plan(fb.scan(folder({"a.parquet": ROWS})), lanes=6), balance="c0", rows=77)


def mixed(folder: Folder) -> Order:
    other = fb.build_plan(fb.scan(folder({"a.parquet": [20, 25]}, seed=1, folder="code")), lanes=8)
    return fb.Mixture(
        {"web": plain(folder), "code": other}, [(0, {"web": 1}), (50, {"web": 0.5, "code": 0.5})], rows=90
    )


def series(write: Folder, **options: Any) -> Any:
    """Windows of ten series, whose steps are interleaved."""
    manifest = fb.scan(write({"day=1/a.parquet": ROWS}, **options))
    past = fb.History(["x1", "x2"], steps=4)
    return fb.Sequences(manifest, past=past, entity="c0", time="id", shift=True, stride=2).whole


def windows(folder: Folder) -> tuple[Order, Any]:
    part = series(folder)
    return fb.build_plan(part, seed=3, lanes=6), part.transform


def mixed_windows(folder: Folder) -> tuple[Order, Any]:
    parts = {"web": series(folder), "code": series(folder, seed=1, folder="code")}
    plans = {name: fb.build_plan(part, lanes=4) for name, part in parts.items()}
    return fb.Mixture(plans, {"web": 0.5, "code": 0.5}, rows=60), {name: part.transform for name, part in parts.items()}


@pytest.fixture(params=[plain])
def bench(request: pytest.FixtureRequest, parquet_folder: Folder, tmp_path: Path) -> RowsBench:
    made = request.param(parquet_folder)
    return RowsBench(tmp_path, *made) if isinstance(made, tuple) else RowsBench(tmp_path, made)


kinds = pytest.mark.parametrize(
    "bench",
    [
        mixed,
        *(pytest.param(each, marks=pytest.mark.variation) for each in (windows, plain, sampled, mixed_windows)),
    ],
    indirect=True,
)


@kinds
def test_every_step_of_a_run_that_is_resized_and_gets_larger_batches(bench: RowsBench) -> None:
    def steer(event: Event, control: fb.Control) -> None:
        if isinstance(event, EpochEnded):
            control.resize([3, 2, 2][event.epoch])
            control.global_batch([8, 20, 20][event.epoch])

    elastic = fb.Elastic(min_workers=1, max_workers=3, start=1)
    result = bench.run(steer, epochs=3, elastic=elastic, checkpoint_every=1000)
    trained = bench.assert_known(result)
    assert {len(ranks) for ranks in trained.values()} == {1, 2, 3}
    with pytest.raises(InvalidOption, match=r"rank=1: step 1 was trained by 1 worker\. Give 0\."):
        rows_of_step(bench.path, 1).of_rank(1)


@pytest.mark.parametrize("last", ["balance", "drop"])
@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_step_of_several_batches_with_skipped_ones_and_a_restart(
    bench: RowsBench, accumulate: int, last: str
) -> None:
    options = {"accumulate": accumulate, "last": last, "monitors": (fb.monitors.NanGuard(),), "checkpoint_every": 2}
    with suppress(RunFailed):
        bench.run(bad_ids=(40,), raise_at=3, **options)
    # Ends in mid-epoch, and goes on with another batch.
    trained = bench.assert_known(bench.run(bad_ids=(40,), global_batch=13, **options))
    timeline = json.loads((Path(bench.path) / "timeline.json").read_text())
    backs = [each["facts"] for start in timeline["starts"] for each in start["events"] if each["kind"] == "RolledBack"]
    assert backs and len(trained) > 3
    for back in backs:
        names = [str(row) for row in rows_of_step(bench.path, back["from_step"], is_skipped=True).rows]
        assert len(names) == back["skipped_rows"]
        values = rows_of_step(bench.path, back["from_step"], is_skipped=True).values()
        assert 40 in [value["id"] for value in values]
    with pytest.raises(InvalidOption, match="no batch was skipped there. Steps with a skipped batch: "):
        rows_of_step(bench.path, 999, is_skipped=True)


@pytest.mark.parametrize(
    "action", ["skip", "stop", *(pytest.param(each, marks=pytest.mark.variation) for each in ("warn", "roll back"))]
)
def test_a_monitor_names_rows_and_the_command_that_prints_all(
    bench: RowsBench, action: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    heard: list[Event] = []
    monitors = (fb.monitors.NanGuard(action=action),)
    with suppress(ForebayError):
        # Saved at every step: a step of NaN spoils all later ones.
        bench.run(lambda event, _: heard.append(event), bad_ids=(40,), monitors=monitors, workers=2, checkpoint_every=1)
    texts = [event.reason for event in heard if isinstance(event, RolledBack | Warned)]
    texts += [event.stopped for event in heard if isinstance(event, Finished) and event.stopped]
    text = texts[0]
    form = r"NanGuard: loss.* of step (\d+) not finite\. Rows on rank (.): (.*) and .* \(all: (.*)\)"
    found = re.fullmatch(form, text)
    assert found is not None, text
    words = shlex.split(found[4])
    assert words[:2] == ["forebay", "rows"] and words[2] == bench.path and words[4] == found[1]
    assert ("--skipped" in words) == (action == "skip")
    capsys.readouterr()
    with pytest.raises(SystemExit):
        main([*words[1:], "--json"])
    rows = json.loads(capsys.readouterr().out)["rows"]
    assert 40 in [row["values"]["id"] for row in rows] and {row["rank"] for row in rows} == {int(found[2])}
    assert [row["name"] for row in rows[:3]] == found[3].split(", ")


def test_values_are_those_of_the_files_and_changed_files_are_refused(bench: RowsBench, tmp_path: Path) -> None:
    bench.run()
    found = rows_of_step(bench.path, 5)
    with fb.Loader(bench.order, TRANSFORM, global_batch=8) as loader:
        batch = next(batch for batch in loader if batch.position == found.trained.spans[0][1])
    values = found.values()
    assert [value["id"] for value in values] == batch["id"].tolist()
    assert [[value["x1"], value["x2"]] for value in values] == batch["x"].tolist()
    assert found.values(3, ["id"]) == [{"id": value["id"]} for value in values[:3]]
    file = tmp_path / "data" / "day=1" / "a.parquet"
    file.write_bytes(file.read_bytes())
    with pytest.raises(SourceChanged, match="changed since the scan"):
        found.values()
    file.unlink()
    with pytest.raises(SourceChanged, match="no longer exists"):
        found.values()
    assert [str(row) for row in rows_of_step(bench.path, 5).rows] == [str(row) for row in found.rows]


def test_values_of_windows_are_lists_of_those_that_the_batch_has(parquet_folder: Folder, tmp_path: Path) -> None:
    bench = RowsBench(tmp_path, *windows(parquet_folder))
    bench.run(epochs=1)
    found = rows_of_step(bench.path, 3)
    with fb.Loader(bench.order, bench.transform, global_batch=8) as loader:
        batch = next(batch for batch in loader if batch.position == found.trained.spans[0][1])
    values = found.values(columns=["x1", "x2"])
    assert [[*zip(each["x1"], each["x2"], strict=True)] for each in values] == [
        [tuple(step) for step in window] for window in batch["past"].tolist()
    ]
    assert [str(row) for row in found.rows] == [str(row) for row in batch.rows()]
    assert found.values(2) == found.located.take(slice(2)).values()
    (index,) = (Path(bench.path) / "_manifests").glob("*.windows.parquet")
    content = index.read_bytes()
    for wrong in (b"", content[: len(content) // 2], (Path(bench.path) / "_manifests").glob("*[0-9a-f].parquet")):
        index.write_bytes(wrong if isinstance(wrong, bytes) else next(wrong).read_bytes())
        with pytest.raises(InvalidOption, match=r"The index of windows .* cannot be read .* with all files"):
            rows_of_step(bench.path, 3)
    # The record of an order of another class.
    record = Path(bench.path) / FILE_NAME
    record.write_text(json.dumps(json.loads(record.read_text()) | {"order": {"kind": "other"}}))
    with pytest.raises(InvalidOption, match="an order of another class than Plan, Sampled and Mixture"):
        rows_of_step(bench.path, 1)


def test_steps_that_are_not_recorded_say_why(bench: RowsBench) -> None:
    bench.run(epochs=1)
    timeline, record = Path(bench.path) / "timeline.json", Path(bench.path) / FILE_NAME
    facts = json.loads(timeline.read_text())
    (cut,) = facts["starts"][0]["cuts"]
    for cuts, step, text in (
        ([], 1, "not recorded: the record begins with step"),
        ([cut | {"batches": 0}, cut | {"step": 5, "position": 40}], 3, "the record begins with step 5"),
        ([cut, cut | {"step": 5, "position": 50}], 3, "batches of steps 1 to 4 are not all recorded"),
    ):
        facts["starts"][0]["cuts"] = cuts
        timeline.write_text(json.dumps(facts))
        with pytest.raises(InvalidOption, match=text):
            rows_of_step(bench.path, step)
    record.write_text(record.read_text().replace('"seed": 3', '"seed": 4'))
    with pytest.raises(InvalidOption, match=r"was trained with plan .* and this release builds plan"):
        rows_of_step(bench.path, 1)
    record.unlink()
    with pytest.raises(InvalidOption, match=r"has no order\.json.*Runs of earlier releases have none"):
        rows_of_step(bench.path, 1)


def test_what_a_stopping_monitor_saw_is_a_trained_step(bench: RowsBench) -> None:
    result = bench.run(bad_ids=(7,), monitors=(fb.monitors.NanGuard(action="stop"),), checkpoint_every=1)
    assert result.stopped
    step = max(trained_rows(bench.log))
    assert 7 in [value["id"] for value in rows_of_step(bench.path, step).values()]


def test_the_record_survives_an_event_for_every_step() -> None:
    recorder = TimelineRecorder("unused", RunStart(at=0.0, attempt=1, origin=StartOrigin()), None)
    steps = range(1, 2 * MAX_CUTS)
    for step in steps:
        recorder.record(BatchesCut(step=step, epoch=0, position=step, global_batch=1, batches=1, world_size=1))
    cuts = recorder.timeline.cuts
    assert MAX_CUTS // 2 <= len(cuts) <= MAX_CUTS and cuts[0].batches == 0 and cuts[-1].step == steps[-1]
    assert [cut.step for cut in cuts[1:]] == list(range(cuts[1].step, len(steps) + 1))
    recorder.record(BatchesCut(step=5, epoch=0, position=5, global_batch=1, batches=1, world_size=2))
    assert [cut.step for cut in recorder.timeline.cuts] == [1, 5]
