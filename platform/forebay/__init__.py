"""Forebay keeps accelerators fed: Parquet in a deterministic order, cached per node, into elastic training on Ray."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import is_installed, lazy_names

if TYPE_CHECKING:
    from forebay import bridges as bridges
    from forebay import errors as errors
    from forebay import events as events
    from forebay import fleet as fleet
    from forebay import llm as llm
    from forebay.data import preparation as preparation
    from forebay.data.cache.disk.disk_cache import DiskCache as DiskCache
    from forebay.data.cache.spec import CacheSpec as CacheSpec
    from forebay.data.loader.batch import Batch as Batch
    from forebay.data.loader.data import Data as Data
    from forebay.data.loader.loader import Loader as Loader
    from forebay.data.manifest.manifest import Manifest as Manifest
    from forebay.data.manifest.prepared import Prepared as Prepared
    from forebay.data.plan.cursor import Cursor as Cursor
    from forebay.data.plan.mixture.mixture import Mixture as Mixture
    from forebay.data.plan.plan import Plan as Plan
    from forebay.data.plan.plan import build_plan as build_plan
    from forebay.data.plan.sampled import Sampled as Sampled
    from forebay.data.preparation.prepare import prepare as prepare
    from forebay.data.sources.scan import scan as scan
    from forebay.data.transform.augment import Augment as Augment
    from forebay.data.transform.dataset import Dataset as Dataset
    from forebay.data.transform.features.fixed_shape import Array as Array
    from forebay.data.transform.features.groups import Categorical as Categorical
    from forebay.data.transform.features.groups import Dense as Dense
    from forebay.data.transform.features.groups import Label as Label
    from forebay.data.transform.features.groups import Ragged as Ragged
    from forebay.data.transform.features.image import Image as Image
    from forebay.data.transform.features.text import Bytes as Bytes
    from forebay.data.transform.features.timestamps import Time as Time
    from forebay.data.transform.features.vocabulary import Vocabulary as Vocabulary
    from forebay.data.transform.transform import Transform as Transform
    from forebay.data.windows.sequences import Sequences as Sequences
    from forebay.data.windows.views import History as History
    from forebay.data.windows.views import Horizon as Horizon
    from forebay.errors import ForebayError as ForebayError
    from forebay.fleet.client.submit import submit as submit
    from forebay.fleet.spec.job_spec import JobSpec as JobSpec
    from forebay.sweep.deadline.scheduler import DeadlineScheduler as DeadlineScheduler
    from forebay.sweep.result import SweepResult as SweepResult
    from forebay.sweep.run_sweep import run_sweep as run_sweep
    from forebay.sweep.sweep import Sweep as Sweep
    from forebay.training import batch_size as batch_size
    from forebay.training import callbacks as callbacks
    from forebay.training import monitors as monitors
    from forebay.training import tables as tables
    from forebay.training.driver.driver import Driver as Driver
    from forebay.training.driver.driver import run as run
    from forebay.training.job.duration import Seconds as Seconds
    from forebay.training.job.elastic import Elastic as Elastic
    from forebay.training.job.job import Job as Job
    from forebay.training.job.resources import Resources as Resources
    from forebay.training.job.resources import workers_here as workers_here
    from forebay.training.runs.control import Control as Control
    from forebay.training.runs.result import Result as Result
    from forebay.training.state.evaluations import KeepBest as KeepBest
    from forebay.training.state.metric import Evaluation as Evaluation
    from forebay.training.tables.table import Table as Table
    from forebay.training.worker.evaluation import evaluate_auc as evaluate_auc
    from forebay.training.worker.fit import fit as fit
    from forebay.training.worker.worker import Worker as Worker
    from forebay.world import World as World

__version__ = "0.1.0"
__getattr__, _names = lazy_names(
    __name__,
    {
        "Array": "forebay.data.transform.features.fixed_shape",
        "Augment": "forebay.data.transform.augment",
        "Batch": "forebay.data.loader.batch",
        "Bytes": "forebay.data.transform.features.text",
        "CacheSpec": "forebay.data.cache.spec",
        "Categorical": "forebay.data.transform.features.groups",
        "Control": "forebay.training.runs.control",
        "Cursor": "forebay.data.plan.cursor",
        "Data": "forebay.data.loader.data",
        "Dataset": "forebay.data.transform.dataset",
        "DeadlineScheduler": "forebay.sweep.deadline.scheduler",
        "Dense": "forebay.data.transform.features.groups",
        "DiskCache": "forebay.data.cache.disk.disk_cache",
        "Driver": "forebay.training.driver.driver",
        "Elastic": "forebay.training.job.elastic",
        "Evaluation": "forebay.training.state.metric",
        "ForebayError": "forebay.errors",
        "History": "forebay.data.windows.views",
        "Horizon": "forebay.data.windows.views",
        "Image": "forebay.data.transform.features.image",
        "Job": "forebay.training.job.job",
        "JobSpec": "forebay.fleet.spec.job_spec",
        "KeepBest": "forebay.training.state.evaluations",
        "Label": "forebay.data.transform.features.groups",
        "Loader": "forebay.data.loader.loader",
        "Manifest": "forebay.data.manifest.manifest",
        "Mixture": "forebay.data.plan.mixture.mixture",
        "Plan": "forebay.data.plan.plan",
        "Prepared": "forebay.data.manifest.prepared",
        "Ragged": "forebay.data.transform.features.groups",
        "Resources": "forebay.training.job.resources",
        "Result": "forebay.training.runs.result",
        "Sampled": "forebay.data.plan.sampled",
        "Seconds": "forebay.training.job.duration",
        "Sequences": "forebay.data.windows.sequences",
        "Sweep": "forebay.sweep.sweep",
        "SweepResult": "forebay.sweep.result",
        "Table": "forebay.training.tables.table",
        "Time": "forebay.data.transform.features.timestamps",
        "Transform": "forebay.data.transform.transform",
        "Vocabulary": "forebay.data.transform.features.vocabulary",
        "Worker": "forebay.training.worker.worker",
        "World": "forebay.world",
        "batch_size": "forebay.training.batch_size:",
        "bridges": "forebay.bridges:",
        "build_plan": "forebay.data.plan.plan",
        "callbacks": "forebay.training.callbacks:",
        "errors": "forebay.errors:",
        "evaluate_auc": "forebay.training.worker.evaluation",
        "events": "forebay.events:",
        "fit": "forebay.training.worker.fit",
        "fleet": "forebay.fleet:",
        "llm": "forebay.llm:",
        "monitors": "forebay.training.monitors:",
        "preparation": "forebay.data.preparation:",
        "prepare": "forebay.data.preparation.prepare",
        "run": "forebay.training.driver.driver",
        "run_sweep": "forebay.sweep.run_sweep",
        "scan": "forebay.data.sources.scan",
        "submit": "forebay.fleet.client.submit",
        "tables": "forebay.training.tables:",
        "workers_here": "forebay.training.job.resources",
    },
)

# Without Ray, `from forebay import *` takes what works without it.
_NEED_RAY = () if is_installed("ray") else ("DeadlineScheduler",)
__all__ = [name for name in _names if name not in _NEED_RAY]


def __dir__() -> list[str]:
    return _names
