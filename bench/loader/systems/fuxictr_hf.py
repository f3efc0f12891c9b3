"""FuxiCTR's loader of Hugging Face datasets, `HFDataLoader`: one tensor per column and row, joined by torch's collate.

As FuxiCTR writes it: `load_dataset("parquet", columns=...)` with the format "torch", in a plain `DataLoader` with its
default collate function, rows shuffled, `num_workers=1`. The package itself is not needed: the loader is these calls.
Its variant `streaming=True` is left out: it fills a buffer of 100,000 rows, row by row, before the first batch.

FuxiCTR encodes and pads features before it trains, so lists and strings of the mixed set are encoded once, as the
transform of Forebay does. Columns are stacked to the arrays of the other systems at the end, in the trainer's process.

https://github.com/reczoo/FuxiCTR/blob/main/fuxictr/pytorch/dataloaders/hf_dataloader.py
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch.utils.data import DataLoader

from bench.loader.features import KINDS, city_ids, pad
from bench.loader.setting import LoaderFacts, LoaderSetting

os.environ["HF_DATASETS_OFFLINE"] = "1"  # Before the import: everything is local.
os.environ["HF_DATASETS_DISABLE_PROGRESS_BARS"] = "1"

import datasets


class FuxiCTRLoader:
    """One loader for all epochs of the process."""

    def __init__(self, setting: LoaderSetting) -> None:
        self._setting = setting
        self._loader: DataLoader[Any] | None = None
        self.facts = LoaderFacts(
            version=f"datasets {datasets.__version__}",
            shuffled="all rows",
            packed="collated row by row, columns stacked in the trainer's thread",
            deterministic="no: FuxiCTR gives it no seed",
            note="lists and strings converted first; one worker" if KINDS[setting.kind].ragged else "one worker",
        )

    def prepare(self) -> None:
        """Encode lists and strings if there are any, and build the loader."""
        setting = self._setting
        files = _encoded(setting) if KINDS[setting.kind].ragged else setting.files
        rows = datasets.load_dataset(
            "parquet",
            data_files=[str(path) for path in files],
            split="train",
            columns=pq.read_schema(files[0]).names,
            cache_dir=str(setting.converted / "arrow"),
        ).with_format("torch")
        self._loader = DataLoader(rows, batch_size=setting.batch, shuffle=True, num_workers=1)

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:  # noqa: ARG002 - the loader knows no epochs
        assert self._loader is not None, "prepare() comes first"
        for batch in self._loader:
            yield _packed(batch, self._setting.kind)

    def close(self) -> None:
        self._loader = None


def _encoded(setting: LoaderSetting) -> list[Path]:
    """Write the files with padded lists and ids in place of strings, once."""
    folder = setting.converted / "encoded"
    if not folder.exists():
        unfinished = folder.with_suffix(".unfinished")
        unfinished.mkdir(parents=True, exist_ok=True)
        for path in setting.files:
            source = pq.ParquetFile(path)
            with pq.ParquetWriter(unfinished / path.name, _encode(source.read_row_group(0)).schema) as writer:
                for index in range(source.num_row_groups):
                    writer.write_table(_encode(source.read_row_group(index)))
        unfinished.rename(folder)
    return sorted(folder.glob("*.parquet"))


def _encode(table: pa.Table) -> pa.Table:
    table = table.combine_chunks()
    padded, _ = pad(table["tags"].chunk(0))
    tags = pa.FixedSizeListArray.from_arrays(pa.array(padded.reshape(-1)), padded.shape[1]).cast(pa.list_(pa.int64()))
    city = pa.array(city_ids(table["city"].chunk(0))[:, 0])
    return table.set_column(table.schema.get_field_index("tags"), "tags", tags).set_column(
        table.schema.get_field_index("city"), "city", city
    )


def _packed(batch: Mapping[str, torch.Tensor], kind: str) -> dict[str, torch.Tensor]:
    groups = KINDS[kind].groups
    packed = {name: torch.stack([batch[column] for column in columns], dim=1) for name, columns in groups.items()}
    if KINDS[kind].ragged:
        lengths = torch.from_numpy(np.count_nonzero(batch["tags"].numpy(), axis=1).astype(np.int32))
        packed |= {"tags": batch["tags"], "tags_lengths": lengths, "city": batch["city"][:, None]}
    return packed | {"label": batch["label"]}


open_system = FuxiCTRLoader
