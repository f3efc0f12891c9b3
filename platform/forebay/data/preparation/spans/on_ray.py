"""`prepare_on_ray`: spans of a source, prepared on Ray.

Tasks on all nodes of a cluster prepare them.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError, RayTaskError

from forebay.data.manifest.prepared import Prepared
from forebay.data.preparation.progress import tell
from forebay.data.preparation.request import preparation_options
from forebay.data.preparation.spans.prepare_spans import SpanWriter, WrittenSpan, prepare_spans
from forebay.data.preparation.spans.process_pool import ONE_CORE
from forebay.data.preparation.spans.source import SpanSource
from forebay.errors import ForebayError, PreparationFailed
from forebay.ray_cluster.session import environment_defaults, ray_session, session_text
from forebay.runtime.pickling import own_code_by_value

_MAX_RETRIES = 10
"""A span is prepared again when its node or its process is lost."""
_IN_FLIGHT_PER_CPU = 2


def prepare_on_ray(source: SpanSource, /, *, into: str, row_group_rows: int | None = None) -> Prepared:
    """Prepare a source of spans on a cluster, once.

    The files equal the files of `fb.prepare`. Uses the Ray of this process, the cluster at `RAY_ADDRESS`, or a Ray that
    it starts on this machine and ends. A span is one task of one CPU. The spans of a lost node are prepared again, and
    those that are finished are kept, also if this process is killed.

    Args:
        source: Such as `forebay.llm.TokenSource`.
        into: Folder or URI, which every node can write.
        row_group_rows: Rows of a row group. None: the default of the source.

    Raises what the source raises, `WriteFailed`, and `PreparationFailed` for a span whose process ends again and again.
    """
    options = preparation_options(
        into=into,
        key=(),
        row_group_rows=source.row_group_rows if row_group_rows is None else row_group_rows,
        fit=(),
        fit_on=None,
        inputs=None,
        version=None,
    )
    return prepare_spans(source, options, _map_on_ray)


def _map_on_ray(writer: SpanWriter, tasks: Sequence[tuple[int, Any]]) -> Iterator[tuple[int, WrittenSpan]]:
    """Results of all tasks, as they are done."""
    tell(f"{session_text()} ...")
    with ray_session(os.cpu_count() or 1), own_code_by_value(cloudpickle):
        submit = ray.remote(_write_span).options(num_cpus=1, max_retries=_MAX_RETRIES, scheduling_strategy="SPREAD")
        shared, left, waiting = ray.put(writer), iter(tasks), list[Any]()
        try:
            while True:
                # Nodes come and go: there may be more tasks under way than the CPUs that are left need.
                most = max(int(_IN_FLIGHT_PER_CPU * ray.cluster_resources().get("CPU", 1)), 1)
                free = max(most - len(waiting), 0)
                waiting += [submit.remote(shared, task) for task in itertools.islice(left, free)]
                if not waiting:
                    return
                done, waiting = ray.wait(waiting, num_returns=1)
                yield _result(done[0])
        finally:
            for task in waiting:
                ray.cancel(task, force=True)


def _write_span(writer: SpanWriter, task: tuple[int, Any]) -> tuple[int, WrittenSpan]:
    with environment_defaults(ONE_CORE):
        return writer(task)


def _result(task: Any) -> tuple[int, WrittenSpan]:
    try:
        found: tuple[int, WrittenSpan] = ray.get(task)
    except RayTaskError as error:
        if isinstance(error.cause, ForebayError):
            raise error.cause from None
        raise PreparationFailed(f"a span could not be prepared: {error.cause}\n{error}") from error
    except RayError as error:
        raise PreparationFailed(
            f"a process that prepares a span ended {_MAX_RETRIES + 1} times ({type(error).__name__}: {error}). If it "
            "ran out of memory, give the nodes of the cluster fewer CPUs. What is finished is kept: prepare again."
        ) from error
    return found
