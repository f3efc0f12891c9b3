"""Hints for names and keywords that Forebay does not have."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping

from forebay.runtime.formatting import did_you_mean

SYNONYMS = {
    "cardinality": "buckets",
    "capacity": "quota_bytes",
    "device_count": "gpus",
    "filter": "where",
    "filters": "where",
    "folder": "uri",
    "gpu": "gpus",
    "length": "max_len",
    "learning_rate": "lr",
    "max_length": "seq_len",
    "num_embeddings": "buckets",
    "num_samples": "num_trials",
    "num_workers": "workers",
    "output_dir": "storage",
    "path": "uri",
    "pattern": "uri",
    "predicate": "where",
    "shuffle_buffer_size": "shuffle_rows",
    "size": "quota_bytes",
    "storage_path": "storage",
    "vocab_size": "buckets",
    "world_size": "size",
}
"""Keywords of other libraries, and their name here."""

_ORDER = "fb.build_plan(manifest, shuffle=..., seed=...) decides on the order"
_WORLD = "fb.Loader takes world=fb.World(rank=..., size=...)."
_RATE = (
    "The optimizer has it: fb.fit(worker, model, partial(torch.optim.Adam, lr=...), criterion), in the train function."
)
KEYWORDS = {
    "batch_sampler": f"{_ORDER}. fb.Mixture and fb.Sampled weigh rows.",
    "batch_size": "fb.Data and fb.Loader take global_batch=: rows of a step on all ranks together, so batch_size times "
    "the number of ranks.",
    "collate_fn": "fb.Transform makes arrays of a row group, and augment= changes batches.",
    "cur_shard": _WORLD,
    "drop_last": 'fb.Data and fb.Loader take last="drop". By default no row is dropped: batches are equal to one row.',
    "generator": f"{_ORDER}.",
    "learning_rate": _RATE,
    "lr": _RATE,
    "num_replicas": _WORLD,
    "num_workers": "Blocks are made by data workers of the node, and read from the cache: FOREBAY_DATA_WORKERS.",
    "persistent_workers": "Data workers belong to the node and stay: FOREBAY_DATA_WORKERS sets their number.",
    "pin_memory": 'fb.Loader takes device="cuda": batches are copied from page-locked memory, ahead of need.',
    "sampler": f"{_ORDER}. fb.Mixture and fb.Sampled weigh rows.",
    "shard_count": _WORLD,
    "shuffle": f"{_ORDER}.",
    "worker_init_fn": "augment= changes batches, by random numbers that belong to the row.",
    "world_size": _WORLD,
}
"""Keywords of other libraries, and where their matter is decided here."""

_SCAN = "fb.scan(folder) reads Parquet, fb.build_plan(manifest) orders it, and fb.Loader yields batches"
_RUN = "fb.run(fb.Job(train=..., data=...)), or `forebay run my_job.py`"
_LOADER = "fb.Loader(fb.build_plan(fb.scan(folder)), transform, global_batch=...)"
NAMES = {
    "Checkpoint": "worker.commit() saves checkpoints, and a run of the same name resumes",
    "Config": "fb.Job",
    "DDP": "worker.setup(model, optimizer), and fb.Job(strategy=...)",
    "DataLoader": _LOADER,
    "DistributedSampler": "fb.Loader(..., world=fb.World(rank=..., size=...))",
    "Embedding": "fb.Categorical for the ids, and torch.nn.Embedding or fb.Table in the model",
    "Feature": "fb.Dense, fb.Categorical, fb.Ragged, fb.Label, fb.Array, fb.Bytes, fb.Image or fb.Time",
    "IterableDataset": "fb.bridges.torch.as_dataset(loader)",
    "RunConfig": "fb.Job(name=..., storage=...)",
    "ScalingConfig": "fb.Job(workers=..., resources=fb.Resources(gpus=...))",
    "Text": "fb.Bytes for bytes, fb.Categorical for ids",
    "TorchTrainer": _RUN,
    "Trainer": _RUN,
    "Tuner": "fb.run_sweep(fb.Sweep(job, space, metric, mode))",
    "dataloader": _LOADER,
    "finetune": "fb.llm.job(...), or `forebay run jobs/finetune_llm.py`",
    "init": "fb.run, which starts or finds Ray itself",
    "load": _SCAN,
    "load_dataset": _SCAN,
    "make_batch_reader": "fb.bridges.petastorm",
    "make_reader": "fb.bridges.petastorm",
    "open": _SCAN,
    "read": _SCAN,
    "read_parquet": _SCAN,
    "report": "worker.commit(loss=...) in the train function, and `forebay report RUN` afterwards",
    "sweep": "fb.run_sweep(fb.Sweep(job, space, metric, mode))",
    "train": _RUN,
    "train_test_split": "manifest.split(...)",
    "tune": "fb.run_sweep(fb.Sweep(job, space, metric, mode))",
}
"""Names of other libraries, and what to use here."""

_HOMES = ("scan", "build_plan", "Data", "Loader", "DiskCache", "Job", "Resources", "Elastic", "Sweep", "run")
"""Public names whose keywords are often given to another one."""


def keyword_hint(unknown: str, known: Mapping[str, object]) -> str:
    """Return what to give instead of a keyword, for a callable that takes `known`."""
    meant = SYNONYMS.get(unknown, unknown)
    if meant in known:
        return f" Did you mean {meant!r}?"
    if hint := KEYWORDS.get(unknown):
        return f" {hint}"
    if hint := did_you_mean(unknown, known):
        return hint
    front = sys.modules["forebay"]
    takers = [f"fb.{each}" for each in _HOMES if meant in inspect.signature(getattr(front, each)).parameters]
    if takers:
        *first, last = takers
        names = f"{', '.join(first)} and {last} take" if first else f"{last} takes"
        return f" {names} {meant}=."
    return f" It takes {', '.join(each for each in known if each != 'self') or 'none'}."


def name_hint(name: str, homes: Mapping[str, str]) -> str:
    """Return what to use instead of a name that the front door lacks, or nothing.

    `homes` has the module of each public name, as `lazy_names` takes it.
    """
    if name in NAMES:
        return f". Use {NAMES[name]}."
    for room in [each for each, home in homes.items() if home.endswith(":")]:
        module = getattr(sys.modules["forebay"], room)
        if name in getattr(module, "__all__", vars(module)):
            return f". It is fb.{room}.{name}."
    return ""
