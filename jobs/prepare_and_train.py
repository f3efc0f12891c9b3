"""Prepare raw tables, and train a model on them.

The tables are the 1994 US census (UCI Adult). Ray Data prepares them.

forebay prepare jobs/prepare_and_train.py csv=../shared/data/adult.data
forebay run jobs/prepare_and_train.py csv=../shared/data/adult.data trials=4
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import ray.data
import torch
from ray import tune
from ray.data.aggregate import Count, Sum
from torch import Tensor, nn

import forebay as fb

NUMBERS = ("age", "education_num", "capital_gain", "capital_loss", "hours_per_week", "job_hours", "job_people")
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
BLOCKS = 8


def census(csv: str) -> ray.data.Dataset:
    """Join of people with what is usual in their occupation.

    Called only when the result is not there yet.
    """
    raw = pa.csv.read_csv(
        csv,
        read_options=pa.csv.ReadOptions(column_names=COLUMNS),
        convert_options=pa.csv.ConvertOptions(null_values=[" ?"], strings_can_be_null=True),
    )
    raw = raw.append_column("person", pa.array(range(raw.num_rows)))
    people = ray.data.from_arrow(raw).repartition(BLOCKS).map_batches(labelled, batch_format="pyarrow")
    # Sums of integers: a mean of floats differs in its last bits whenever blocks arrive in another order.
    grouped = people.groupby("occupation", num_partitions=BLOCKS)
    occupations = grouped.aggregate(Sum("hours_per_week", alias_name="hours"), Count())
    usual = pa.Table.from_pylist([row for row in occupations.take_all() if row["occupation"] is not None])
    # The smaller table fits into every worker, so nothing has to be shuffled.
    return people.map_batches(partial(joined, usual=usual.sort_by("occupation")), batch_format="pyarrow")


def labelled(people: pa.Table) -> pa.Table:
    rich = pc.equal(pc.utf8_trim_whitespace(people["income"]), ">50K").cast(pa.int8())
    return people.drop_columns(["income"]).append_column("rich", rich)


def joined(people: pa.Table, usual: pa.Table) -> pa.Table:
    place = pc.index_in(people["occupation"], usual["occupation"].combine_chunks())
    hours = pc.divide(usual["hours"].cast(pa.float64()), usual["count()"].cast(pa.float64()))
    people = people.append_column("job_hours", pc.fill_null(hours.take(place), 0.0))
    return people.append_column("job_people", pc.fill_null(usual["count()"].take(place), 0))


def job(
    csv: str = "../shared/data/adult.data",
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
        csv: File `adult.data` of the UCI dataset.
        gpus: GPUs of each worker. Default: one where there are any. 0 trains on the CPU.
    """
    prepared = fb.preparation.from_ray_data(
        census,
        csv=str(Path(csv).absolute()),
        inputs=[csv],
        into=f"{storage}/prepared",
        key="person",
        row_group_rows=512,
        fit=[fb.Vocabulary(CATEGORIES), fb.preparation.Moments(NUMBERS)],
    )
    training, evaluation = prepared.manifest.split(0.2, seed=seed)
    categories = fb.Categorical(CATEGORIES, vocabulary=prepared.vocabularies)
    transform = fb.Transform(numbers=fb.Dense(NUMBERS), ids=categories, label=fb.Label("rich"))
    scales = [(prepared.statistics[column].mean, prepared.statistics[column].std) for column in NUMBERS]
    return fb.Job(
        train=partial(train, sizes=categories.num_ids, scales=scales, dim=dim, lr=lr),
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


def sweep(
    trials: int = 4,
    csv: str = "../shared/data/adult.data",
    epochs: int = 5,
    gpus: float | None = None,
    driver: str = "ray",
    cache: str = "~/.cache/forebay",
    storage: str = "runs",
    name: str | None = None,
    seed: int = 0,
) -> fb.Sweep:
    """Search the learning rate and the width of the embeddings.

    The data is prepared once, for all trials.

    Args:
        gpus: GPUs of a trial. Default: one where there are any. Below 1, trials share a GPU.
    """
    # A trial runs in a folder of its own.
    place = storage if "://" in storage else str(Path(storage).absolute())
    return fb.Sweep(
        job,
        {"lr": tune.loguniform(5e-4, 1e-2), "dim": [4, 8, 16]},
        metric="auc",
        mode="max",
        num_trials=trials,
        fixed={"csv": str(Path(csv).absolute()), "epochs": epochs, "gpus": gpus, "cache": cache, "storage": place},
        driver=driver,
        name=name,
        storage=storage,
        seed=seed,
    )


def train(worker: fb.Worker, sizes: tuple[int, ...], scales: list[tuple[float, float]], dim: int, lr: float) -> None:
    optimizer = partial(torch.optim.AdamW, lr=lr, weight_decay=1e-3)
    fb.fit(worker, Earnings(sizes, scales, dim), optimizer, nn.BCEWithLogitsLoss(), fb.evaluate_auc)


class Earnings(nn.Module):
    """Network over embedded categories and numbers.

    Numbers enter scaled and on a logarithmic scale.
    """

    def __init__(self, sizes: tuple[int, ...], scales: list[tuple[float, float]], dim: int) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(size, dim) for size in sizes)
        usual, spread = torch.tensor(scales, dtype=torch.float32).T
        self.register_buffer("usual", usual)
        self.register_buffer("spread", spread)
        self.layers = nn.Sequential(
            nn.Linear(2 * len(scales) + dim * len(sizes), 64),
            nn.ReLU(),
            nn.Dropout(0.1),
            nn.Linear(64, 32),
            nn.ReLU(),
            nn.Linear(32, 1),
        )

    def forward(self, batch: fb.Batch) -> Tensor:
        plain = (batch["numbers"] - self.usual) / self.spread
        logarithmic = torch.log1p(batch["numbers"]) * 0.3
        embedded = [table(batch["ids"][:, place]) for place, table in enumerate(self.tables)]
        return self.layers(torch.cat([plain, logarithmic, *embedded], dim=1)).squeeze(1)
