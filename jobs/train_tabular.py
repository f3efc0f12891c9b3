"""Train on a CSV with strings and missing values.

People of the 1994 US census (UCI Adult).

forebay run --driver local jobs/train_tabular.py csv=../shared/data/adult.data
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Literal

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

import forebay as fb
from forebay.errors import InvalidOption

# Column -> its usual value and spread, in years, dollars and hours: networks learn from numbers around 0 and 1.
NUMBERS = {
    "age": (39.0, 14.0),
    "education_num": (10.0, 2.6),
    "capital_gain": (1000.0, 7400.0),
    "capital_loss": (90.0, 400.0),
    "hours_per_week": (40.0, 12.0),
}
CATEGORIES = (
    "workclass",
    "education",
    "marital_status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native_country",
)
COLUMNS = (
    *("age", "workclass", "fnlwgt", "education", "education_num", "marital_status", "occupation", "relationship"),
    *("race", "sex", "capital_gain", "capital_loss", "hours_per_week", "native_country", "income"),
)
ROW_GROUP_ROWS = 512


def job(
    csv: str = "../shared/data/adult.data",
    ids: Literal["vocabulary", "hash"] = "vocabulary",
    workers: int = 1,
    gpus: float | None = None,
    epochs: int = 10,
    global_batch: int = 256,
    lr: float = 2e-3,
    dim: int = 8,
    seed: int = 0,
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
) -> fb.Job:
    """Predict whether a person earns more than 50,000 dollars.

    Args:
        csv: File `adult.data` of the UCI dataset. It is converted to Parquet next to the runs.
        ids: Ids of categories: positions in a vocabulary that is fitted on the training part, or hashes.
        gpus: GPUs of each worker. Default: one where there are any. 0 trains on the CPU.
    """
    manifest = fb.scan(to_parquet(Path(csv), Path(storage) / "data" / "adult.parquet"))
    training, evaluation = manifest.split(0.2, seed=seed)
    if ids == "vocabulary":
        categories = fb.Categorical(CATEGORIES, vocabulary=fb.Vocabulary(CATEGORIES).fit(training))
    else:
        categories = fb.Categorical(CATEGORIES, buckets=4096)
    transform = fb.Transform(numbers=fb.Dense(list(NUMBERS)), ids=categories, label=fb.Label("rich"))
    return fb.Job(
        train=partial(train, sizes=categories.num_ids, dim=dim, lr=lr),
        data=fb.Data(plan=fb.build_plan(training, seed=seed), transform=transform, global_batch=global_batch),
        held_out=fb.Data(plan=fb.build_plan(evaluation, shuffle=False), transform=transform, global_batch=4096),
        epochs=epochs,
        workers=workers,
        resources=fb.Resources(gpus=gpus),
        seed=seed,
        cache=fb.CacheSpec(path=cache),
        storage=storage,
        name=name,
    )


def train(worker: fb.Worker, sizes: tuple[int, ...], dim: int, lr: float) -> None:
    optimizer = partial(torch.optim.AdamW, lr=lr, weight_decay=1e-3)
    fb.fit(worker, Census(sizes, dim), optimizer, nn.BCEWithLogitsLoss(), fb.evaluate_auc)


def to_parquet(source: Path, target: Path) -> str:
    """Name the columns, turn ` ?` into nulls, the label into 0 and 1.

    Written once per version of the source.
    """
    if not source.exists():
        raise InvalidOption(f"csv={str(source)!r} does not exist. Give the path of the UCI file adult.data.")
    if target.exists() and target.stat().st_mtime >= source.stat().st_mtime:
        return str(target)
    table = pa.csv.read_csv(
        source,
        read_options=pa.csv.ReadOptions(column_names=COLUMNS),
        convert_options=pa.csv.ConvertOptions(null_values=[" ?"], strings_can_be_null=True),
    )
    rich = pc.equal(pc.utf8_trim_whitespace(table["income"]), ">50K").cast(pa.int8())
    table = table.drop_columns(["income"]).append_column("rich", rich)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_suffix(".unfinished")
    pq.write_table(table, unfinished, row_group_size=ROW_GROUP_ROWS)
    unfinished.rename(target)
    return str(target)


class Census(nn.Module):
    """Network over embedded categories and numbers.

    Numbers enter as they are and on a logarithmic scale.
    """

    def __init__(self, sizes: tuple[int, ...], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        usual, spread = torch.tensor(list(NUMBERS.values())).T
        self.register_buffer("usual", usual)
        self.register_buffer("spread", spread)
        width = 2 * len(NUMBERS) + dim * len(sizes)
        self.layers = nn.Sequential(
            nn.Linear(width, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1)
        )

    def forward(self, batch: fb.Batch) -> Tensor:
        plain = (batch["numbers"] - self.usual) / self.spread
        logarithmic = torch.log1p(batch["numbers"]) * 0.3
        embedded = [table(batch["ids"][:, index]) for index, table in enumerate(self.tables)]
        return self.layers(torch.cat([plain, logarithmic, *embedded], dim=1)).squeeze(1)
