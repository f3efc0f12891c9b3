"""Nixtla's neuralforecast: its `TimeSeriesDataset`, its loader, and the windows that its models cut in each step.

A batch of the loader holds 32 whole series, by default. A model expands them into all their windows, and draws
`windows_batch_size` of these. Both happen here as in `BaseModel.training_step`, with the methods of the model. Column
`c0` is the target, all others are historic exogenous columns. A mask is added to the columns.

https://nixtlaverse.nixtla.io/neuralforecast/common.base_model.html
https://nixtlaverse.nixtla.io/neuralforecast/tsdataset.html
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import neuralforecast
import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch
from neuralforecast.models import NHITS
from neuralforecast.tsdataset import TimeSeriesDataModule, TimeSeriesDataset

from bench.sequences.setting import FUTURE, PAST, SERIES_STEPS, SequenceFacts, SequenceSetting


def facts(setting: SequenceSetting) -> SequenceFacts:
    """Facts of this system."""
    return SequenceFacts(
        version=f"neuralforecast {neuralforecast.__version__}, torch {torch.__version__}",
        shuffled="series without replacement, windows drawn from each batch of series",
        note=f"all values in memory; no epochs of windows; {setting.columns} columns and a mask; not scaled",
    )


def prepare(setting: SequenceSetting) -> None:
    """Do nothing: the frame is read at each start."""


def batches(setting: SequenceSetting) -> Iterator[Mapping[str, Any]]:
    """Batches without end."""
    warnings.filterwarnings("ignore")
    frame: pd.DataFrame = pq.read_table(setting.data).to_pandas()
    frame = frame.rename(columns={"series": "unique_id", "c0": "y"})
    frame["ds"] = np.tile(np.arange(SERIES_STEPS), setting.series)
    data, *_ = TimeSeriesDataset.from_df(frame)
    del frame
    model = NHITS(
        h=FUTURE,
        input_size=PAST,
        hist_exog_list=setting.names[1:] or None,
        windows_batch_size=setting.batch,
        max_steps=1,
    )
    loader = TimeSeriesDataModule(data, num_workers=setting.workers, prefetch_factor=1).train_dataloader()
    while True:
        for batch in loader:
            yield {"windows": _drawn(model, batch)}


def _drawn(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    """Windows of one training step, float32 [windows, past and future, columns and mask]."""
    windows, static, static_cols, available, weight, names = model._create_windows(batch, step="train")  # noqa: SLF001 - as its training step
    count = len(available)
    size = model.windows_batch_size
    drawn = torch.randint(0, count, size=(size,)) if count < size else torch.randperm(count)[:size]
    found = model._sample_windows(  # noqa: SLF001
        windows_temporal=windows,
        static=static,
        static_cols=static_cols,
        temporal_cols=names,
        w_idxs=drawn,
        final_condition=available,
        sample_weight=weight,
    )
    return found["temporal"].squeeze(-1).contiguous()
