"""Pipeline of the preparation bench in Ray Data, the same for every system: a join, an aggregate, a transform."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs
import pyarrow.parquet as pq
import ray.data
from ray.data.aggregate import Count, Sum

from bench.notes import note
from bench.preparation.data import FLOATS, USERS_FILE
from bench.preparation.setting import PreparationSetting

NUMBERS = (*FLOATS, "age", "days", "item_clicks", "price")
CATEGORY = "country"
_PARTITIONS = 4
_NUM_BINS = 256


def clicks_with_users(setting: PreparationSetting) -> ray.data.Dataset:
    """Clicks, each with its user, with facts about its item over all clicks, and with transformed numbers."""
    store = pa.fs.S3FileSystem(anonymous=True, endpoint_override=setting.endpoint, scheme="http", region="us-east-1")
    return joined_clicks(f"bucket/{setting.prefix}", setting.files, store, setting.log)


def joined_clicks(root: str, files: Sequence[str], store: pa.fs.FileSystem, log: str = "") -> ray.data.Dataset:
    """The same from a folder of any file system."""
    paths = [f"{root}/{name}" for name in files]
    # Sums of integers: a mean of floats differs in its last bits whenever blocks arrive in another order.
    items = (
        ray.data.read_parquet(paths, filesystem=store, columns=["item", "cents"])
        .groupby("item", num_partitions=_PARTITIONS)
        .aggregate(Count(alias_name="clicks"), Sum("cents", alias_name="cents"))
    )
    usual = pa.Table.from_pylist(items.take_all()).sort_by("item")
    users = pq.read_table(f"{root}/{USERS_FILE}", filesystem=store)
    clicks = ray.data.read_parquet(paths, filesystem=store)
    # Both tables fit into every worker, so no row is shuffled.
    return clicks.map_batches(
        partial(transformed, users=users, items=usual, log=log), batch_format="pyarrow", batch_size=None
    )


def transformed(clicks: pa.Table, users: pa.Table, items: pa.Table, log: str = "") -> pa.Table:
    """Clicks with `age` and `days` of the user, `item_clicks`, `price` over the item's mean, and floats by rank."""
    if log:
        note(log, {"transformed": clicks.num_rows})
    user = pc.index_in(clicks["user"], users["user"].combine_chunks())
    item = pc.index_in(clicks["item"], items["item"].combine_chunks())
    mean = pc.divide(items["cents"].cast(pa.float64()), items["clicks"].cast(pa.float64()))
    columns = {name: clicks[name] for name in ("row", CATEGORY, "label")}
    columns |= {
        "age": users["age"].take(user).cast(pa.float32()),
        "days": users["joined"].take(user).cast(pa.float32()),
        "item_clicks": pc.log1p(items["clicks"].take(item).cast(pa.float32())),
        "price": pc.divide(clicks["cents"].cast(pa.float64()), mean.take(item)).cast(pa.float32()),
    }
    bounds = np.exp(np.linspace(-3.0, 3.0, _NUM_BINS))
    ranks = np.linspace(0.0, 1.0, _NUM_BINS)
    for name in FLOATS:
        columns[name] = np.interp(clicks[name].to_numpy(), bounds, ranks).astype(np.float32)
    return pa.table(columns)
