"""Jobs on several clusters: job files and submitted jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.fleet.client.submitted_job import SubmittedJob as SubmittedJob
    from forebay.fleet.spec.job_spec import Launch as Launch
    from forebay.fleet.spec.job_spec import Mount as Mount
    from forebay.fleet.spec.job_spec import Scheduling as Scheduling
    from forebay.fleet.spec.job_spec import Task as Task
    from forebay.fleet.spec.job_spec import TaskWorkers as TaskWorkers
    from forebay.fleet.spec.job_spec import Unreachable as Unreachable
    from forebay.training.job.start_policy import StartPolicy as StartPolicy

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "Launch": "forebay.fleet.spec.job_spec",
        "Mount": "forebay.fleet.spec.job_spec",
        "Scheduling": "forebay.fleet.spec.job_spec",
        "StartPolicy": "forebay.training.job.start_policy",
        "SubmittedJob": "forebay.fleet.client.submitted_job",
        "Task": "forebay.fleet.spec.job_spec",
        "TaskWorkers": "forebay.fleet.spec.job_spec",
        "Unreachable": "forebay.fleet.spec.job_spec",
    },
)
