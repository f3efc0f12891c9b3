"""MosaicML Streaming: a `Stream` with a `proportion` for each dataset, converted to MDS.

https://docs.mosaicml.com/projects/streaming/en/stable/dataset_configuration/mixing_data_sources.html
https://docs.mosaicml.com/projects/streaming/en/stable/distributed_training/fast_resumption.html
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

import streaming
from streaming import MDSWriter, Stream, StreamingDataLoader, StreamingDataset

from bench.mixture.setting import WEIGHTS, WIDTH, MixedBatch, MixtureSetting, samples

_PREFETCH = 4


class MosaicStreams:
    """One loader for all epochs of the process."""

    version = f"mosaicml-streaming {streaming.__version__}"

    def __init__(self, setting: MixtureSetting) -> None:
        self._setting = setting

    def prepare(self) -> None:
        for name in WEIGHTS:
            folder = self._setting.converted / name
            if (folder / "index.json").exists():
                continue
            columns = {"id": "int64", "source": "int64", "x": f"ndarray:float32:{WIDTH}"}
            with MDSWriter(out=str(folder), columns=columns, exist_ok=True) as writer:
                for path in self._setting.files(name):
                    for sample in samples(path):
                        writer.write(sample)

    def batches(self, state: Any | None) -> Iterator[MixedBatch]:
        setting = self._setting
        streaming.base.util.clean_stale_shared_memory()
        streams = [Stream(local=str(setting.converted / name), proportion=share) for name, share in WEIGHTS.items()]
        rows = StreamingDataset(
            streams=streams,
            epoch_size=setting.rows,
            shuffle=True,
            shuffle_seed=setting.seed,
            batch_size=setting.batch,
        )
        loader = StreamingDataLoader(
            rows,
            batch_size=setting.batch,
            num_workers=setting.threads,
            prefetch_factor=_PREFETCH,
            persistent_workers=True,
        )
        if state is not None:
            loader.load_state_dict(state)
        for epoch in count():
            for batch in loader:
                yield MixedBatch(batch, epoch, loader.state_dict)


open_system = MosaicStreams
