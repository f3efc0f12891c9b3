"""Folders of runs as drivers write them: an elastic one with every kind of event, and a plain one."""

from __future__ import annotations

import math
from pathlib import Path

from tests.waiting import SetClock

from forebay.events import EpochEnded, Event, Failed, Finished, Reported, Resized, RolledBack, Started, Warned
from forebay.training.runs.result import Result, RunHistory, save_result
from forebay.training.runs.timeline.recorder import TimelineRecorder
from forebay.training.runs.timeline.timeline import RunStart, StartOrigin, load_timeline

EVIL = "<script>alert('x')</script>"
STEPS, EPOCHS, ROWS = 100, 3, 20_000


def origin(**config: str | float) -> StartOrigin:
    return StartOrigin(
        config={"data": "s3://lake/clicks", "lr": 0.01, "job.epochs": EPOCHS, "job.global_batch": ROWS, **config},
        data={"plan": "3fa1" * 3, "rows": 2_000_000, "source": "s3://lake/clicks", "row_groups": 120, "bytes": 9 << 28},
        code={"function": "train", "file": "train_ctr.py", "sha256": "12ab" * 3, "commit": "9e8d" * 3},
        packages={"python": "3.12.1", "torch": "2.13.0", "ray": "2.60.0"},
        machine={"host": "node-7", "cpus": 16},
    )


def write_run(folder: Path, name: str = "ctr", *, is_killed: bool = False, **config: str | float) -> str:
    """Folder of a run of 3 epochs that grew, lost a worker and was rolled back, or of one that was killed."""
    path = str(folder / name)
    clock = SetClock()
    start = RunStart(at=1.79e9, attempt=1, origin=origin(**config))
    recorder = TimelineRecorder(path, start, load_timeline(path), clock, lambda: start.at + clock.now)
    history = RunHistory(Result(name=name, path=path, plan_id="3fa1" * 16, num_epochs=EPOCHS))

    def tell(event: Event, seconds: float = 0.0) -> None:
        clock.now += seconds
        recorder.record(event)
        history.record(event)

    tell(Started(name=name, world_size=2, epochs=EPOCHS, num_batches=STEPS), 2.5)
    for number in range(1, STEPS * EPOCHS + 1):
        if number == 120:
            tell(Resized(old=2, new=4, step=119), 0.4)
            tell(Started(name=name, world_size=4, epochs=EPOCHS, num_batches=STEPS))
            clock.now += 1.2
        if number == 180:
            error = f"ActorDiedError: {EVIL}"
            tell(Failed(error=error, failures=1, will_retry=True), 0.5)
            tell(Started(name=name, world_size=3, epochs=EPOCHS, num_batches=STEPS), 2.0)
            for again in range(160, 180):
                tell(step(again), 0.06)
        if number == 230:
            tell(Warned(reason="norm of table 'ids' grew to 31.2", step=number))
        if number == 260:
            tell(RolledBack(reason="the loss is NaN", from_step=260, to_step=250, skipped_rows=ROWS))
        if is_killed and number == 150:
            recorder.save()
            return path
        tell(step(number), 0.1 if number < 120 else 0.05)
        if number % STEPS == 0:
            tell(ended(number // STEPS - 1))
    tell(Finished(name=name, path=path))
    recorder.save()
    save_result(history.result)
    return path


def step(number: int) -> Reported:
    loss = 0.45 + 0.3 * math.exp(-number / 60) + 0.02 * math.sin(7.0 * number)
    epoch = (number - 1) // STEPS
    return Reported(step=number, epoch=epoch, position=0, metrics={"loss": loss}, rows=ROWS * number, global_batch=ROWS)


def ended(epoch: int) -> EpochEnded:
    cold = {"stores": 120, "stored_bytes": 555 << 20, "parquet_opens": 120, "remote_read_s": 2.1, "decode_s": 11.8}
    cold |= {"transform_s": 4.2, "write_s": 3.0, "gather_s": 2.2, "wait_s": 3.0, "retries": 2.0}
    warm = {"hits": 120, "hit_bytes": 555 << 20, "map_s": 1.2, "gather_s": 2.1, "wait_s": 0.1}
    return EpochEnded(
        epoch=epoch,
        step=STEPS * (epoch + 1),
        metrics={"loss": 0.5 - 0.02 * epoch, "auc": 0.77 + 0.01 * epoch},
        rows=ROWS * STEPS,
        seconds=12.98 - 2.07 * epoch,
        wait_s=0.1 if epoch else 3.1,
        eval_s=0.9,
        checkpoint_s=0.4,
        counters=warm if epoch else cold,
    )
