"""Forebay keeps accelerators fed: Parquet in a deterministic order, cached per node, into elastic training on Ray."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from forebay import errors as errors

if TYPE_CHECKING:
    from forebay import events as events
    from forebay import llm as llm
    from forebay.bridges import hf as hf
    from forebay.bridges import lightning as lightning
    from forebay.bridges import petastorm as petastorm
    from forebay.bridges import ray_train as ray_train
    from forebay.bridges import torch as torch
    from forebay.bridges.jagged import jagged as jagged
    from forebay.bridges.jagged import keyed_jagged as keyed_jagged
    from forebay.data.cache.disk.disk_cache import DiskCache as DiskCache
    from forebay.data.cache.spec import CacheSpec as CacheSpec
    from forebay.data.filters.stratified_split import stratified_split as stratified_split
    from forebay.data.loader.batch import Batch as Batch
    from forebay.data.loader.data import Data as Data
    from forebay.data.loader.loader import Loader as Loader
    from forebay.data.manifest.manifest import Manifest as Manifest
    from forebay.data.manifest.manifest import RowGroup as RowGroup
    from forebay.data.manifest.prepared import Prepared as Prepared
    from forebay.data.manifest.prepared import load_prepared as load_prepared
    from forebay.data.manifest.saved import load_manifest as load_manifest
    from forebay.data.manifest.saved import save_manifest as save_manifest
    from forebay.data.plan.cursor import Cursor as Cursor
    from forebay.data.plan.mixture.mixture import Mixture as Mixture
    from forebay.data.plan.mixture.schedule import ramp as ramp
    from forebay.data.plan.order import Order as Order
    from forebay.data.plan.plan import Plan as Plan
    from forebay.data.plan.plan import build_plan as build_plan
    from forebay.data.plan.sampled import Sampled as Sampled
    from forebay.data.preparation.fits import Moments as Moments
    from forebay.data.preparation.fits import Quantiles as Quantiles
    from forebay.data.preparation.fits import Vocabulary as Vocabulary
    from forebay.data.preparation.prepare import prepare as prepare
    from forebay.data.preparation.preprocessors import load_preprocessor as load_preprocessor
    from forebay.data.preparation.ray_data import from_ray_data as from_ray_data
    from forebay.data.preparation.spans.on_ray import prepare_on_ray as prepare_on_ray
    from forebay.data.preparation.stream import PreparedStream as PreparedStream
    from forebay.data.preparation.stream import prepare_stream as prepare_stream
    from forebay.data.sources.scan import scan as scan
    from forebay.data.transform.augment import Augment as Augment
    from forebay.data.transform.block import Block as Block
    from forebay.data.transform.dataset import Dataset as Dataset
    from forebay.data.transform.features.fixed_shape import Array as Array
    from forebay.data.transform.features.groups import Categorical as Categorical
    from forebay.data.transform.features.groups import Dense as Dense
    from forebay.data.transform.features.groups import Label as Label
    from forebay.data.transform.features.groups import Ragged as Ragged
    from forebay.data.transform.features.image import Image as Image
    from forebay.data.transform.features.text import Bytes as Bytes
    from forebay.data.transform.features.timestamps import Time as Time
    from forebay.data.transform.features.vocabulary import fit_vocabulary as fit_vocabulary
    from forebay.data.transform.row_random import RowRandom as RowRandom
    from forebay.data.transform.row_rules import keep_rows as keep_rows
    from forebay.data.transform.transform import Transform as Transform
    from forebay.data.windows.sequences import Sequences as Sequences
    from forebay.data.windows.views import Future as Future
    from forebay.data.windows.views import Past as Past
    from forebay.errors import ForebayError as ForebayError
    from forebay.fleet.client.submit import submit as submit
    from forebay.fleet.client.submitted_job import SubmittedJob as SubmittedJob
    from forebay.fleet.spec.job_spec import JobSpec as JobSpec
    from forebay.fleet.spec.job_spec import Launch as Launch
    from forebay.fleet.spec.job_spec import Mount as Mount
    from forebay.fleet.spec.job_spec import Place as Place
    from forebay.fleet.spec.job_spec import Task as Task
    from forebay.fleet.spec.job_spec import TaskWorkers as TaskWorkers
    from forebay.fleet.spec.job_spec import Unreachable as Unreachable
    from forebay.fleet.spec.job_toml import load_job_spec as load_job_spec
    from forebay.llm import score as score
    from forebay.runtime.metrics import Counters as Counters
    from forebay.sweep.deadline.scheduler import DeadlineScheduler as DeadlineScheduler
    from forebay.sweep.result import SweepResult as SweepResult
    from forebay.sweep.result import load_sweep as load_sweep
    from forebay.sweep.run_sweep import run_sweep as run_sweep
    from forebay.sweep.sweep import Sweep as Sweep
    from forebay.training import callbacks as callbacks
    from forebay.training.batch_size.lr_scaling import LinearScaling as LinearScaling
    from forebay.training.batch_size.lr_scaling import SqrtScaling as SqrtScaling
    from forebay.training.batch_size.noise_scale import NoiseScale as NoiseScale
    from forebay.training.batch_size.schedule import BatchSchedule as BatchSchedule
    from forebay.training.callbacks.scaling import DoubleEvery as DoubleEvery
    from forebay.training.callbacks.scaling import RandomResize as RandomResize
    from forebay.training.callbacks.scaling import ScaleSchedule as ScaleSchedule
    from forebay.training.driver.driver import Driver as Driver
    from forebay.training.driver.driver import run as run
    from forebay.training.job.duration import Seconds as Seconds
    from forebay.training.job.elastic import Elastic as Elastic
    from forebay.training.job.job import Job as Job
    from forebay.training.job.job import Resources as Resources
    from forebay.training.job.start_policy import StartPolicy as StartPolicy
    from forebay.training.monitors.embedding_norms import EmbeddingNorms as EmbeddingNorms
    from forebay.training.monitors.loss_spikes import LossSpikes as LossSpikes
    from forebay.training.monitors.monitor import Action as Action
    from forebay.training.monitors.monitor import Verdict as Verdict
    from forebay.training.monitors.nan_guard import NanGuard as NanGuard
    from forebay.training.run_report.run_table import show_report as show_report
    from forebay.training.runs.callback import optional_callback as optional_callback
    from forebay.training.runs.control import Control as Control
    from forebay.training.runs.result import Result as Result
    from forebay.training.state.setup import TrainSetup as TrainSetup
    from forebay.training.tables.optimizers import LazyAdam as LazyAdam
    from forebay.training.tables.optimizers import RowSGD as RowSGD
    from forebay.training.tables.optimizers import RowWiseAdagrad as RowWiseAdagrad
    from forebay.training.tables.options import Tables as Tables
    from forebay.training.tables.table import Lookup as Lookup
    from forebay.training.tables.table import Table as Table
    from forebay.training.tables.table import look_up as look_up
    from forebay.training.tables.vocabulary.admission import Admission as Admission
    from forebay.training.tables.warm_start.options import WarmStart as WarmStart
    from forebay.training.worker.evaluation import evaluate_auc as evaluate_auc
    from forebay.training.worker.fit import fit as fit
    from forebay.training.worker.source_losses import losses_by_source as losses_by_source
    from forebay.training.worker.worker import Worker as Worker
    from forebay.world import World as World

_MODULES = {
    "callbacks": "training.callbacks",
    "errors": "errors",
    "events": "events",
    "hf": "bridges.hf",
    "lightning": "bridges.lightning",
    "llm": "llm",
    "petastorm": "bridges.petastorm",
    "ray_train": "bridges.ray_train",
    "score": "llm.score",
    "torch": "bridges.torch",
}
"""Homes of the modules that are public as a whole."""
_HOMES = {
    "Action": "training.monitors.monitor",
    "Admission": "training.tables.vocabulary.admission",
    "Array": "data.transform.features.fixed_shape",
    "Augment": "data.transform.augment",
    "Batch": "data.loader.batch",
    "BatchSchedule": "training.batch_size.schedule",
    "Block": "data.transform.block",
    "Bytes": "data.transform.features.text",
    "CacheSpec": "data.cache.spec",
    "Categorical": "data.transform.features.groups",
    "Control": "training.runs.control",
    "Cursor": "data.plan.cursor",
    "Data": "data.loader.data",
    "Dataset": "data.transform.dataset",
    "Dense": "data.transform.features.groups",
    "DeadlineScheduler": "sweep.deadline.scheduler",
    "DiskCache": "data.cache.disk.disk_cache",
    "DoubleEvery": "training.callbacks.scaling",
    "Driver": "training.driver.driver",
    "Elastic": "training.job.elastic",
    "EmbeddingNorms": "training.monitors.embedding_norms",
    "ForebayError": "errors",
    "Future": "data.windows.views",
    "Image": "data.transform.features.image",
    "Job": "training.job.job",
    "JobSpec": "fleet.spec.job_spec",
    "Label": "data.transform.features.groups",
    "Launch": "fleet.spec.job_spec",
    "LazyAdam": "training.tables.optimizers",
    "LinearScaling": "training.batch_size.lr_scaling",
    "Loader": "data.loader.loader",
    "Lookup": "training.tables.table",
    "LossSpikes": "training.monitors.loss_spikes",
    "Manifest": "data.manifest.manifest",
    "Mixture": "data.plan.mixture.mixture",
    "Moments": "data.preparation.fits",
    "Mount": "fleet.spec.job_spec",
    "NanGuard": "training.monitors.nan_guard",
    "NoiseScale": "training.batch_size.noise_scale",
    "Order": "data.plan.order",
    "Past": "data.windows.views",
    "Place": "fleet.spec.job_spec",
    "Plan": "data.plan.plan",
    "Prepared": "data.manifest.prepared",
    "PreparedStream": "data.preparation.stream",
    "Quantiles": "data.preparation.fits",
    "Ragged": "data.transform.features.groups",
    "RandomResize": "training.callbacks.scaling",
    "Resources": "training.job.job",
    "Result": "training.runs.result",
    "RowGroup": "data.manifest.manifest",
    "RowRandom": "data.transform.row_random",
    "RowSGD": "training.tables.optimizers",
    "RowWiseAdagrad": "training.tables.optimizers",
    "Sampled": "data.plan.sampled",
    "ScaleSchedule": "training.callbacks.scaling",
    "SqrtScaling": "training.batch_size.lr_scaling",
    "Seconds": "training.job.duration",
    "Sequences": "data.windows.sequences",
    "StartPolicy": "training.job.start_policy",
    "SubmittedJob": "fleet.client.submitted_job",
    "Sweep": "sweep.sweep",
    "SweepResult": "sweep.result",
    "Counters": "runtime.metrics",
    "Table": "training.tables.table",
    "Tables": "training.tables.options",
    "Task": "fleet.spec.job_spec",
    "TaskWorkers": "fleet.spec.job_spec",
    "Time": "data.transform.features.timestamps",
    "TrainSetup": "training.state.setup",
    "Transform": "data.transform.transform",
    "Unreachable": "fleet.spec.job_spec",
    "Verdict": "training.monitors.monitor",
    "Vocabulary": "data.preparation.fits",
    "WarmStart": "training.tables.warm_start.options",
    "Worker": "training.worker.worker",
    "World": "world",
    "build_plan": "data.plan.plan",
    "evaluate_auc": "training.worker.evaluation",
    "fit": "training.worker.fit",
    "fit_vocabulary": "data.transform.features.vocabulary",
    "from_ray_data": "data.preparation.ray_data",
    "jagged": "bridges.jagged",
    "keep_rows": "data.transform.row_rules",
    "keyed_jagged": "bridges.jagged",
    "load_job_spec": "fleet.spec.job_toml",
    "load_manifest": "data.manifest.saved",
    "load_prepared": "data.manifest.prepared",
    "load_preprocessor": "data.preparation.preprocessors",
    "load_sweep": "sweep.result",
    "look_up": "training.tables.table",
    "losses_by_source": "training.worker.source_losses",
    "optional_callback": "training.runs.callback",
    "prepare": "data.preparation.prepare",
    "prepare_on_ray": "data.preparation.spans.on_ray",
    "prepare_stream": "data.preparation.stream",
    "ramp": "data.plan.mixture.schedule",
    "run": "training.driver.driver",
    "run_sweep": "sweep.run_sweep",
    "save_manifest": "data.manifest.saved",
    "scan": "data.sources.scan",
    "show_report": "training.run_report.run_table",
    "stratified_split": "data.filters.stratified_split",
    "submit": "fleet.client.submit",
}

__version__ = "0.1.0"
__all__ = sorted([*_HOMES, *_MODULES])  # noqa: PLE0605 - derived from the tables, so that no name is forgotten


def __getattr__(name: str) -> object:
    """Import a public name on first use, so that `import forebay` itself stays fast."""
    if name not in _HOMES and name not in _MODULES:
        raise AttributeError(f"module 'forebay' has no attribute {name!r}")
    try:
        home = importlib.import_module(f"forebay.{_MODULES.get(name) or _HOMES[name]}")
    except ImportError as error:
        from forebay.runtime.extras import missing_package  # noqa: PLC0415 - slow, and only for what is missing

        if missing := missing_package(error, f"fb.{name}"):
            raise missing from error
        raise
    value = home if name in _MODULES else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
