"""Forebay keeps accelerators fed: Parquet in a deterministic order, cached per node, into elastic training on Ray."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from forebay import errors as errors

if TYPE_CHECKING:
    from forebay import callbacks as callbacks
    from forebay import events as events
    from forebay import llm as llm
    from forebay import score as score
    from forebay.bridges import hf as hf
    from forebay.bridges import lightning as lightning
    from forebay.bridges import petastorm as petastorm
    from forebay.bridges import ray_train as ray_train
    from forebay.bridges import torch as torch
    from forebay.bridges.jagged import jagged as jagged
    from forebay.bridges.jagged import keyed_jagged as keyed_jagged
    from forebay.cache.disk.disk_cache import DiskCache as DiskCache
    from forebay.cache.spec import CacheSpec as CacheSpec
    from forebay.callbacks.scaling import DoubleEvery as DoubleEvery
    from forebay.callbacks.scaling import RandomResize as RandomResize
    from forebay.callbacks.scaling import ScaleSchedule as ScaleSchedule
    from forebay.deploy.client.submit import submit as submit
    from forebay.deploy.client.submitted_job import SubmittedJob as SubmittedJob
    from forebay.deploy.spec.job_spec import JobSpec as JobSpec
    from forebay.deploy.spec.job_spec import Launch as Launch
    from forebay.deploy.spec.job_spec import Mount as Mount
    from forebay.deploy.spec.job_spec import Place as Place
    from forebay.deploy.spec.job_spec import Task as Task
    from forebay.deploy.spec.job_spec import TaskWorkers as TaskWorkers
    from forebay.deploy.spec.job_spec import Unreachable as Unreachable
    from forebay.deploy.spec.job_toml import load_job_spec as load_job_spec
    from forebay.driver.driver import Driver as Driver
    from forebay.driver.driver import run as run
    from forebay.errors import ForebayError as ForebayError
    from forebay.job.duration import Seconds as Seconds
    from forebay.job.elastic import Elastic as Elastic
    from forebay.job.job import Job as Job
    from forebay.job.job import Resources as Resources
    from forebay.job.start_policy import StartPolicy as StartPolicy
    from forebay.loader.batch import Batch as Batch
    from forebay.loader.data import Data as Data
    from forebay.loader.loader import Loader as Loader
    from forebay.loader.sampled import Sampled as Sampled
    from forebay.loader.sequences.sequences import Sequences as Sequences
    from forebay.manifest.manifest import Manifest as Manifest
    from forebay.manifest.manifest import RowGroup as RowGroup
    from forebay.manifest.prepared import Prepared as Prepared
    from forebay.manifest.prepared import load_prepared as load_prepared
    from forebay.manifest.saved import load_manifest as load_manifest
    from forebay.manifest.saved import save_manifest as save_manifest
    from forebay.manifest.scan import scan as scan
    from forebay.manifest.stratified_split import stratified_split as stratified_split
    from forebay.metrics import Counters as Counters
    from forebay.plan.cursor import Cursor as Cursor
    from forebay.plan.mixture.mixture import Mixture as Mixture
    from forebay.plan.mixture.schedule import ramp as ramp
    from forebay.plan.order import Order as Order
    from forebay.plan.plan import Plan as Plan
    from forebay.plan.plan import build_plan as build_plan
    from forebay.preparation.fits import Moments as Moments
    from forebay.preparation.fits import Quantiles as Quantiles
    from forebay.preparation.fits import Vocabulary as Vocabulary
    from forebay.preparation.prepare import prepare as prepare
    from forebay.preparation.preprocessors import load_preprocessor as load_preprocessor
    from forebay.preparation.ray_data import from_ray_data as from_ray_data
    from forebay.preparation.spans.on_ray import prepare_on_ray as prepare_on_ray
    from forebay.preparation.stream import PreparedStream as PreparedStream
    from forebay.preparation.stream import prepare_stream as prepare_stream
    from forebay.report.run_table import show_report as show_report
    from forebay.runs.callback import optional_callback as optional_callback
    from forebay.runs.control import Control as Control
    from forebay.runs.result import Result as Result
    from forebay.sweep.deadline.scheduler import DeadlineScheduler as DeadlineScheduler
    from forebay.sweep.result import SweepResult as SweepResult
    from forebay.sweep.result import load_sweep as load_sweep
    from forebay.sweep.run_sweep import run_sweep as run_sweep
    from forebay.sweep.sweep import Sweep as Sweep
    from forebay.train.batch_size.lr_scaling import LinearScaling as LinearScaling
    from forebay.train.batch_size.lr_scaling import SqrtScaling as SqrtScaling
    from forebay.train.batch_size.noise_scale import NoiseScale as NoiseScale
    from forebay.train.batch_size.schedule import BatchSchedule as BatchSchedule
    from forebay.train.evaluation import evaluate_auc as evaluate_auc
    from forebay.train.fit import fit as fit
    from forebay.train.monitors.embedding_norms import EmbeddingNorms as EmbeddingNorms
    from forebay.train.monitors.loss_spikes import LossSpikes as LossSpikes
    from forebay.train.monitors.monitor import Action as Action
    from forebay.train.monitors.monitor import Verdict as Verdict
    from forebay.train.monitors.nan_guard import NanGuard as NanGuard
    from forebay.train.setup import TrainSetup as TrainSetup
    from forebay.train.source_losses import losses_by_source as losses_by_source
    from forebay.train.tables.optimizers import LazyAdam as LazyAdam
    from forebay.train.tables.optimizers import RowSGD as RowSGD
    from forebay.train.tables.optimizers import RowWiseAdagrad as RowWiseAdagrad
    from forebay.train.tables.options import Tables as Tables
    from forebay.train.tables.table import Lookup as Lookup
    from forebay.train.tables.table import Table as Table
    from forebay.train.tables.table import look_up as look_up
    from forebay.train.tables.vocabulary.admission import Admission as Admission
    from forebay.train.tables.warm_start.options import WarmStart as WarmStart
    from forebay.train.worker import Worker as Worker
    from forebay.transform.augment import Augment as Augment
    from forebay.transform.block import Block as Block
    from forebay.transform.dataset import Dataset as Dataset
    from forebay.transform.features.fixed_shape import Array as Array
    from forebay.transform.features.groups import Categorical as Categorical
    from forebay.transform.features.groups import Dense as Dense
    from forebay.transform.features.groups import Label as Label
    from forebay.transform.features.groups import Ragged as Ragged
    from forebay.transform.features.image import Image as Image
    from forebay.transform.features.text import Bytes as Bytes
    from forebay.transform.features.timestamps import Time as Time
    from forebay.transform.features.vocabulary import fit_vocabulary as fit_vocabulary
    from forebay.transform.row_random import RowRandom as RowRandom
    from forebay.transform.row_rules import keep_rows as keep_rows
    from forebay.transform.sequences.views import Future as Future
    from forebay.transform.sequences.views import Past as Past
    from forebay.transform.transform import Transform as Transform
    from forebay.world import World as World

_MODULES = {
    "callbacks": "callbacks",
    "errors": "errors",
    "events": "events",
    "hf": "bridges.hf",
    "lightning": "bridges.lightning",
    "llm": "llm",
    "petastorm": "bridges.petastorm",
    "ray_train": "bridges.ray_train",
    "score": "score",
    "torch": "bridges.torch",
}
"""Homes of the modules that are public as a whole."""
_HOMES = {
    "Action": "train.monitors.monitor",
    "Admission": "train.tables.vocabulary.admission",
    "Array": "transform.features.fixed_shape",
    "Augment": "transform.augment",
    "Batch": "loader.batch",
    "BatchSchedule": "train.batch_size.schedule",
    "Block": "transform.block",
    "Bytes": "transform.features.text",
    "CacheSpec": "cache.spec",
    "Categorical": "transform.features.groups",
    "Control": "runs.control",
    "Cursor": "plan.cursor",
    "Data": "loader.data",
    "Dataset": "transform.dataset",
    "Dense": "transform.features.groups",
    "DeadlineScheduler": "sweep.deadline.scheduler",
    "DiskCache": "cache.disk.disk_cache",
    "DoubleEvery": "callbacks.scaling",
    "Driver": "driver.driver",
    "Elastic": "job.elastic",
    "EmbeddingNorms": "train.monitors.embedding_norms",
    "ForebayError": "errors",
    "Future": "transform.sequences.views",
    "Image": "transform.features.image",
    "Job": "job.job",
    "JobSpec": "deploy.spec.job_spec",
    "Label": "transform.features.groups",
    "Launch": "deploy.spec.job_spec",
    "LazyAdam": "train.tables.optimizers",
    "LinearScaling": "train.batch_size.lr_scaling",
    "Loader": "loader.loader",
    "Lookup": "train.tables.table",
    "LossSpikes": "train.monitors.loss_spikes",
    "Manifest": "manifest.manifest",
    "Mixture": "plan.mixture.mixture",
    "Moments": "preparation.fits",
    "Mount": "deploy.spec.job_spec",
    "NanGuard": "train.monitors.nan_guard",
    "NoiseScale": "train.batch_size.noise_scale",
    "Order": "plan.order",
    "Past": "transform.sequences.views",
    "Place": "deploy.spec.job_spec",
    "Plan": "plan.plan",
    "Prepared": "manifest.prepared",
    "PreparedStream": "preparation.stream",
    "Quantiles": "preparation.fits",
    "Ragged": "transform.features.groups",
    "RandomResize": "callbacks.scaling",
    "Resources": "job.job",
    "Result": "runs.result",
    "RowGroup": "manifest.manifest",
    "RowRandom": "transform.row_random",
    "RowSGD": "train.tables.optimizers",
    "RowWiseAdagrad": "train.tables.optimizers",
    "Sampled": "loader.sampled",
    "ScaleSchedule": "callbacks.scaling",
    "SqrtScaling": "train.batch_size.lr_scaling",
    "Seconds": "job.duration",
    "Sequences": "loader.sequences.sequences",
    "StartPolicy": "job.start_policy",
    "SubmittedJob": "deploy.client.submitted_job",
    "Sweep": "sweep.sweep",
    "SweepResult": "sweep.result",
    "Counters": "metrics",
    "Table": "train.tables.table",
    "Tables": "train.tables.options",
    "Task": "deploy.spec.job_spec",
    "TaskWorkers": "deploy.spec.job_spec",
    "Time": "transform.features.timestamps",
    "TrainSetup": "train.setup",
    "Transform": "transform.transform",
    "Unreachable": "deploy.spec.job_spec",
    "Verdict": "train.monitors.monitor",
    "Vocabulary": "preparation.fits",
    "WarmStart": "train.tables.warm_start.options",
    "Worker": "train.worker",
    "World": "world",
    "build_plan": "plan.plan",
    "evaluate_auc": "train.evaluation",
    "fit": "train.fit",
    "fit_vocabulary": "transform.features.vocabulary",
    "from_ray_data": "preparation.ray_data",
    "jagged": "bridges.jagged",
    "keep_rows": "transform.row_rules",
    "keyed_jagged": "bridges.jagged",
    "load_job_spec": "deploy.spec.job_toml",
    "load_manifest": "manifest.saved",
    "load_prepared": "manifest.prepared",
    "load_preprocessor": "preparation.preprocessors",
    "load_sweep": "sweep.result",
    "look_up": "train.tables.table",
    "losses_by_source": "train.source_losses",
    "optional_callback": "runs.callback",
    "prepare": "preparation.prepare",
    "prepare_on_ray": "preparation.spans.on_ray",
    "prepare_stream": "preparation.stream",
    "ramp": "plan.mixture.schedule",
    "run": "driver.driver",
    "run_sweep": "sweep.run_sweep",
    "save_manifest": "manifest.saved",
    "scan": "manifest.scan",
    "show_report": "report.run_table",
    "stratified_split": "manifest.stratified_split",
    "submit": "deploy.client.submit",
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
        from forebay.extras import missing_package  # noqa: PLC0415 - slow, and only for what is missing

        if missing := missing_package(error, f"fb.{name}"):
            raise missing from error
        raise
    value = home if name in _MODULES else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
