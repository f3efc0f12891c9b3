"""Ray Tune 2.60 over function trainables with a Ray Data pipeline in each trial, with all documented optimizations.

`read_parquet`, `map_batches` on Arrow batches, `iter_torch_batches` with four batches prefetched. Of four logical CPUs,
trials take one each and Ray Data the rest, as its guide recommends. Actors are reused for the next trial. Variants:
"materialized" keeps the transformed blocks of a trial in the object store for its later epochs. "shared" materializes
once before the sweep and passes the same blocks to all trials with `with_parameters`.

https://docs.ray.io/en/latest/data/data-internals.html#ray-data-and-tune
https://docs.ray.io/en/latest/tune/tutorials/tune_get_data_in_and_out.html
https://docs.ray.io/en/latest/data/iterating-over-data.html
https://docs.ray.io/en/latest/tune/api/doc/ray.tune.TuneConfig.html
"""

from __future__ import annotations

import logging
import time
import uuid
import warnings
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.fs
import ray
from ray import tune

from bench.sweep.setting import SweepFacts, SweepSetting
from bench.sweep.work import COLUMNS, LEARNING_RATES, BenchTrainer, WorkTotals, arrays

_PREFETCH = 4


def facts(setting: SweepSetting) -> SweepFacts:
    """Facts of this variant."""
    return SweepFacts(
        version=f"Ray Tune and Ray Data {ray.__version__}",
        shares="decoded and transformed blocks, in the object store" if setting.variant == "shared" else "nothing",
        shuffled="no",
        resumes="a trial begins again",
        note={
            "": "each trial reads and transforms in every epoch",
            "materialized": "each trial reads and transforms once, and keeps it in the object store",
            "shared": "read and transformed once, before the first trial; in the object store, deleted with the job",
        }[setting.variant],
    )


def sweep(setting: SweepSetting) -> dict[str, Any]:
    """Run the sweep. Returns its times, among them when trials could begin."""
    warnings.filterwarnings("ignore")
    ray.init(
        address="local",
        num_cpus=setting.concurrent + setting.threads,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
    )
    _quiet()
    began = time.time()
    shared = _open(setting).materialize() if setting.variant == "shared" else None
    tuner = tune.Tuner(
        tune.with_resources(tune.with_parameters(trial, setting=setting, shared=shared), {"CPU": 1}),
        param_space={"lr": tune.loguniform(*LEARNING_RATES)},
        tune_config=tune.TuneConfig(
            metric="loss",
            mode="min",
            num_samples=setting.trials,
            max_concurrent_trials=setting.concurrent,
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(name="sweep", storage_path=f"{setting.folder}/tune", verbose=0),
    )
    results = tuner.fit()
    if results.num_errors:
        raise RuntimeError(f"{results.num_errors} trials failed: {results.errors[0]}")
    return {"began": began, "ended": time.time(), "best": results.get_best_result().metrics["loss"]}


def trial(config: dict[str, Any], setting: SweepSetting, shared: Any) -> None:
    """Trial as a Tune user writes it."""
    _quiet()
    data = shared if shared is not None else _open(setting)
    if setting.variant == "materialized":
        data = data.materialize()
    account, trainer, loss = WorkTotals(uuid.uuid4().hex), BenchTrainer(config["lr"], setting.seed), 0.0
    for _ in range(setting.epochs):
        numbers, losses = [], []
        for batch in data.iter_torch_batches(batch_size=setting.batch, prefetch_batches=_PREFETCH):
            losses.append(trainer.step(batch))
            numbers.append(batch["number"].numpy())
        account.take(numbers, setting.rows)
        loss = float(np.mean(losses))
        if account.epochs == setting.epochs:
            account.write(setting.trials_log, loss)
        tune.report({"loss": loss})


def _open(setting: SweepSetting) -> Any:
    store = pa.fs.S3FileSystem(anonymous=True, endpoint_override=setting.endpoint, scheme="http", region="us-east-1")
    paths = [f"bucket/{setting.prefix}/{name}" for name in setting.files]
    data = ray.data.read_parquet(paths, filesystem=store, columns=[*COLUMNS, "label"])
    # Whole blocks as Arrow: nothing is copied to split them.
    return data.map_batches(
        _transform, batch_format="pyarrow", batch_size=None, fn_kwargs={"log": setting.transforms_log}
    )


def _transform(table: pa.Table, log: str) -> dict[str, np.ndarray]:
    table = table.combine_chunks()
    rows = table.select(COLUMNS).to_batches()[0].to_tensor(row_major=True).to_numpy()
    return arrays(rows, table["label"].to_numpy(), log)


def _quiet() -> None:
    ray.data.DataContext.get_current().enable_progress_bars = False
