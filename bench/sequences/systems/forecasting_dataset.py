"""pytorch-forecasting's `TimeSeriesDataSet` over a pandas frame, and its `to_dataloader`.

All columns are targets and encoder inputs, without a normalizer, which is the least work. Four workers make ten batches
of 256 windows ahead each.

https://pytorch-forecasting.readthedocs.io/en/stable/api/pytorch_forecasting.data.timeseries.TimeSeriesDataSet.html
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytorch_forecasting
import torch
from pytorch_forecasting import TimeSeriesDataSet
from pytorch_forecasting.data.encoders import MultiNormalizer, TorchNormalizer

from bench.sequences.setting import FUTURE, PAST, SERIES_STEPS, SequenceFacts, SequenceSetting


def facts(setting: SequenceSetting) -> SequenceFacts:  # noqa: ARG001
    """Facts of this system."""
    return SequenceFacts(
        version=f"pytorch-forecasting {pytorch_forecasting.__version__}, torch {torch.__version__}",
        shuffled="yes: over all windows, a list in memory",
        note="all values in memory, and a row of a pandas frame per window; not scaled",
    )


def prepare(setting: SequenceSetting) -> None:
    """Do nothing: the frame is read at each start."""


def batches(setting: SequenceSetting) -> Iterator[Mapping[str, Any]]:
    """Batches of one epoch after another."""
    warnings.filterwarnings("ignore")
    frame: pd.DataFrame = pq.read_table(setting.data).to_pandas()
    frame["step"] = np.tile(np.arange(SERIES_STEPS), setting.series)
    frame["series"] = frame["series"].astype(str)
    names = setting.names
    normalizers = [TorchNormalizer(method="identity") for _ in names]
    windows = TimeSeriesDataSet(
        frame,
        time_idx="step",
        target=names if len(names) > 1 else names[0],
        group_ids=["series"],
        min_encoder_length=PAST,
        max_encoder_length=PAST,
        min_prediction_length=FUTURE,
        max_prediction_length=FUTURE,
        time_varying_unknown_reals=names,
        target_normalizer=MultiNormalizer(normalizers) if len(names) > 1 else normalizers[0],
    )
    del frame
    assert len(windows) == setting.windows
    loader = windows.to_dataloader(
        train=True,
        batch_size=setting.batch,
        num_workers=setting.workers,
        prefetch_factor=setting.prefetch,
        persistent_workers=True,
    )
    while True:
        for x, (target, _) in loader:
            future = torch.stack(target, dim=2) if isinstance(target, list) else target
            yield {"past": x["encoder_cont"], "future": future}
