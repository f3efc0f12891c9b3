"""GluonTS: an Arrow file with a row per series, `InstanceSplitter` and `as_stacked_batches`, as in its torch models.

A window is drawn at random from each series in turn (`ExpectedNumInstanceSampler`), so there are no epochs. The loader
runs in the trainer's process. Its torch models have no other one.

https://ts.gluon.ai/stable/api/gluonts/gluonts.transform.split.html
https://ts.gluon.ai/stable/api/gluonts/gluonts.dataset.loader.html
https://ts.gluon.ai/stable/api/gluonts/gluonts.dataset.arrow.html
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import gluonts
import numpy as np
import pandas as pd
import torch
from gluonts.dataset.arrow import ArrowWriter
from gluonts.dataset.common import FileDataset
from gluonts.dataset.loader import as_stacked_batches
from gluonts.itertools import Cyclic
from gluonts.transform import ExpectedNumInstanceSampler, InstanceSplitter

from bench.sequences.setting import FUTURE, PAST, SERIES_STEPS, SequenceFacts, SequenceSetting

_FILE = "gluonts.arrow"


def facts(setting: SequenceSetting) -> SequenceFacts:  # noqa: ARG001
    """Facts of this system."""
    return SequenceFacts(
        version=f"GluonTS {gluonts.__version__}, torch {torch.__version__}",
        shuffled="drawn with replacement: a random window of each series in turn",
        note="no epochs; in the trainer's process; not scaled",
    )


def prepare(setting: SequenceSetting) -> None:
    """Write the Arrow file."""
    values = np.memmap(setting.flat, np.float32, "r").reshape(setting.series, SERIES_STEPS, setting.columns)
    start = pd.Period("2020-01-01", freq="h")
    entries = ({"start": start, "target": np.ascontiguousarray(each.T).squeeze()} for each in values)
    ArrowWriter(metadata={"freq": "h"}).write_to_file(entries, setting.work / _FILE)


def batches(setting: SequenceSetting) -> Iterator[Mapping[str, Any]]:
    """Batches without end."""
    splitter = InstanceSplitter(
        target_field="target",
        is_pad_field="is_pad",
        start_field="start",
        forecast_start_field="forecast_start",
        instance_sampler=ExpectedNumInstanceSampler(num_instances=1.0, min_past=PAST, min_future=FUTURE),
        past_length=PAST,
        future_length=FUTURE,
    )
    data = FileDataset(setting.work / _FILE, freq="h", one_dim_target=setting.columns == 1)
    found = as_stacked_batches(
        splitter.apply(Cyclic(data).stream(), is_train=True),
        batch_size=setting.batch,
        field_names=["past_target", "future_target"],
        output_type=torch.tensor,
    )
    for batch in found:
        yield {"past": batch["past_target"], "future": batch["future_target"]}
