"""petastorm 0.13.1 in each trial: `make_batch_reader`, a thread pool and a `TransformSpec` into `BatchedDataLoader`.

Its Python cannot hold Ray as well. So two processes take one trial after the other, which is less work than a process
per trial. It reads S3 through s3fs. With the newest pyarrow that it runs with, s3fs must be wrapped as one of pyarrow's
old file systems. s3fs keeps blocks of a file. Its default would read 50 MB ahead, and so read most of each file for
every row group. Variant "cache": its "local-disk" cache for each trial, so that later epochs neither read nor
transform.

https://petastorm.readthedocs.io/en/latest/api.html#module-petastorm.reader
https://petastorm.readthedocs.io/en/latest/api.html#module-petastorm.transform
https://petastorm.readthedocs.io/en/latest/api.html#module-petastorm.pytorch
"""

from __future__ import annotations

import multiprocessing
import shutil
import time
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import numpy as np
import pandas as pd
import torch
from petastorm import make_batch_reader
from petastorm.pytorch import BatchedDataLoader
from petastorm.transform import TransformSpec
from pyarrow.filesystem import S3FSWrapper
from s3fs import S3FileSystem

from bench.sweep.setting import SweepFacts, SweepSetting
from bench.sweep.work import COLUMNS, LEARNING_RATES, BenchTrainer, WorkTotals, arrays

_CACHE_BYTES = 20 << 30
_BLOCKS = 8
"""Number of blocks into which a row group is read. Columns come in no order: reading ahead would read them again."""


def facts(setting: SweepSetting) -> SweepFacts:
    """Facts of this variant."""
    return SweepFacts(
        version="petastorm 0.13.1, pyarrow 14.0.2",
        shares="nothing",
        shuffled="row groups, and rows within each",
        resumes="a trial begins again",
        note="disk cache of each trial's own, in which row groups are pickled; removed with the trial"
        if setting.variant == "cache"
        else "each trial reads and transforms in every epoch",
    )


def sweep(setting: SweepSetting) -> dict[str, Any]:
    """Run the sweep. Returns its times, among them when trials could begin."""
    began = time.time()
    low, high = np.log10(LEARNING_RATES)
    rates = 10 ** np.random.default_rng(setting.seed).uniform(low, high, setting.trials)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(setting.concurrent, mp_context=context) as pool:
        losses = list(pool.map(partial(trial, setting), rates, range(setting.trials)))
    return {"began": began, "ended": time.time(), "best": min(losses)}


def trial(setting: SweepSetting, lr: float, number: int) -> float:
    """Run one trial. One reader serves all its epochs, as the loader resets it."""
    warnings.filterwarnings("ignore")
    account, trainer, loss = WorkTotals(str(number)), BenchTrainer(lr, setting.seed), 0.0
    cache = f"{setting.folder}/cache-{number}"
    with BatchedDataLoader(_reader(setting, cache), batch_size=setting.batch) as loader:
        for _ in range(setting.epochs):
            numbers, losses = [], []
            for batch in loader:
                # Columns arrive separately.
                x = torch.stack([batch[column] for column in COLUMNS[1:]], dim=1)
                losses.append(trainer.step({"x": x, "label": batch["label"]}))
                numbers.append(batch[COLUMNS[0]].numpy())
            account.take(numbers, setting.rows)
            loss = float(np.mean(losses))
    shutil.rmtree(cache, ignore_errors=True)
    account.write(setting.trials_log, loss)
    return loss


def _reader(setting: SweepSetting, cache: str) -> Any:
    options: dict[str, Any] = {}
    if setting.variant == "cache":
        options = {
            "cache_type": "local-disk",
            "cache_location": cache,
            "cache_size_limit": _CACHE_BYTES,
            "cache_row_size_estimate": 4 * len(COLUMNS),
        }
    store = S3FileSystem(
        anon=True,
        client_kwargs={"endpoint_url": f"http://{setting.endpoint}", "region_name": "us-east-1"},
        default_block_size=setting.row_group_bytes // _BLOCKS,
        default_cache_type="blockcache",
    )
    return make_batch_reader(
        [f"s3://bucket/{setting.prefix}/{name}" for name in setting.files],
        schema_fields=[*COLUMNS, "label"],
        reader_pool_type="thread",
        workers_count=setting.threads,
        shuffle_row_groups=True,
        shuffle_rows=True,
        seed=setting.seed,
        transform_spec=TransformSpec(partial(_transform, log=setting.transforms_log)),
        convert_early_to_numpy=True,
        filesystem=S3FSWrapper(store),
        **options,
    )


def _transform(frame: pd.DataFrame, log: str) -> pd.DataFrame:
    made = arrays(frame[COLUMNS].to_numpy(), frame["label"].to_numpy(), log)
    # One array per row is slow to split again, so columns stay columns.
    columns = dict(zip(COLUMNS, [made["number"], *made["x"].T], strict=True))
    return pd.DataFrame(columns | {"label": made["label"]})
