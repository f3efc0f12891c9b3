"""Scoring of all rows of a dataset, each once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from forebay.data.parquet.schemas import missing_column
from forebay.data.preparation.progress import tell
from forebay.errors import InvalidOption
from forebay.llm.score.answer_folder import AnswerFolder
from forebay.llm.score.engines.engine import EngineSpec, SchemaEngineSpec
from forebay.llm.score.plan import ScorePlan, keep_plan
from forebay.llm.score.pool.counters import ProgressListener, RunCounters, ScoreProgress
from forebay.llm.score.pool.local_pool import score_here
from forebay.llm.score.pool.schedule import PieceSchedule
from forebay.llm.score.prompts import PromptFunction, find_prompt
from forebay.llm.score.report import has_page, write_page
from forebay.llm.score.request import ScoreRequest
from forebay.llm.score.result import ScoreResult
from forebay.llm.score.shard_scorer import ScoreSpec
from forebay.llm.score.shards import ShardLayout
from forebay.llm.score.source.finding import find_source
from forebay.llm.score.source.row_source import RowSource
from forebay.llm.score.tasks import ScoreTask
from forebay.llm.source.text_files import refuse_within
from forebay.storage.credentials import Access, without_credentials
from forebay.storage.filesystem import resolve

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreSetup:
    """A checked request.

    What every process gets, the division into shards, and the plan.
    """

    spec: ScoreSpec
    layout: ShardLayout
    plan: ScorePlan


def score_rows(
    request: ScoreRequest,
    *,
    prompt: PromptFunction | None = None,
    engine: EngineSpec | None = None,
    listener: ProgressListener | None = None,
) -> ScoreResult:
    """Score each row of `request.data` once.

    The answers are written to `request.to`.

    Shards that are there are not scored again: a finished run opens no engine. A run that was stopped or killed goes
    on. The answer to a row does not depend on workers, restarts and other rows.

    Args:
        request: Model, data, folder and options.
        prompt: Function of a row, as a dictionary, that returns a text or a list of {role, content}.
        engine: Engine instead of the one that `request.engine` names.
        listener: Called with the progress, at most twice a second. By default the log.

    Raises:
        InvalidOption, MissingColumn: The request can never work, or the folder holds the output of another plan.
        ScoringFailed: More rows than `max_errors` have an error, or no engine can be opened.
        WriteFailed, ReadFailed, SourceChanged: Storage failed, or the data changed.
    """
    if not request.to:
        raise InvalidOption("to='' names no folder. Give one: a variable of a shell may be unset.")
    refuse_within(request.data, "to", request.to)
    setup = set_up(request, prompt, engine)
    keep_plan(setup.plan, setup.spec.folder.uri)
    layout, existing = setup.layout, setup.spec.folder.existing()
    missing = [shard for shard in range(layout.num_shards) if shard not in existing]
    rows_before = layout.rows - sum(layout.piece(shard).num_rows for shard in missing)
    counters = RunCounters(layout.rows, rows_before, request.max_errors, listener or _log)
    if missing:
        workers = min(request.workers, len(missing))
        schedule = PieceSchedule(missing, layout, workers)
        if request.workers == 1:
            score_here(setup.spec, schedule, counters)
        else:
            _score_on_ray(setup.spec, schedule, counters, (request, workers), has_named_engine=engine is None)
    counters.tell(at_once=True)
    result = ScoreResult(
        folder=setup.spec.folder.uri,
        rows=layout.rows,
        rows_before=rows_before,
        workers=counters.totals,
        workers_lost=counters.lost,
        seconds=counters.seconds,
    )
    if missing or not has_page(result.folder):
        names = {"model": without_credentials(request.model), "data": without_credentials(request.data)}
        write_page(result, names, setup.plan.facts)
    return result


def set_up(request: ScoreRequest, prompt: PromptFunction | None = None, engine: EngineSpec | None = None) -> ScoreSetup:
    """Check a request without opening its engine.

    Raises as `score_rows`.
    """
    spec, task = engine or request.engine_spec(), request.scoring_task()
    asked = request.prompt_source(prompt)
    source = find_source(request.data)
    prompts = find_prompt(asked, source.columns, source.name, from_arrow=source.from_arrow)
    _check_kept(request.keep, task, source)
    spec.check()
    if task.sampling.schema is not None and isinstance(spec, SchemaEngineSpec):
        spec.check_schema(task.sampling.schema)
    folder = resolve(request.to).uri
    layout = ShardLayout(rows=source.num_rows, shard_rows=request.shard_rows)
    identity = spec.identity()
    plan = ScorePlan(
        {
            "data": source.identity,
            "rows": layout.rows,
            "shard_rows": layout.shard_rows,
            "prompt": prompts.identity(),
            "keep": list(request.keep),
            **task.identity(),
            **identity,
        }
    )
    columns = tuple(dict.fromkeys((*prompts.columns(source.columns), *request.keep)))
    source.open(columns, request.keep)  # raises what can be found without rows
    return ScoreSetup(
        spec=ScoreSpec(
            source=source,
            columns=columns,
            keep=request.keep,
            prompts=prompts,
            task=task,
            engine=spec,
            folder=AnswerFolder(uri=folder, plan=plan.fingerprint, is_exact=bool(identity.get("exact", True))),
            access=Access([request.model, request.data, request.to]),
        ),
        layout=layout,
        plan=plan,
    )


def _check_kept(names: Sequence[str], task: ScoreTask, source: RowSource) -> None:
    """Check that columns to keep are in the source, and not in the answers."""
    for name in names:
        if name in task.answer_names:
            raise InvalidOption(f"keep= names {name!r}, which is a column of the answers. Leave it out, or rename it.")
        if name not in source.columns:
            raise missing_column(name, source.columns, source.name)


def _score_on_ray(
    spec: ScoreSpec,
    schedule: PieceSchedule,
    counters: RunCounters,
    size: tuple[ScoreRequest, int],
    *,
    has_named_engine: bool,
) -> None:
    # Imported here: one engine in this process needs no Ray, which takes seconds to import.
    from forebay.llm.score.pool.ray_pool import RayPool  # noqa: PLC0415
    from forebay.ray_cluster.nodes import gpus_of_cluster  # noqa: PLC0415
    from forebay.ray_cluster.session import ray_session, session_text  # noqa: PLC0415

    request, workers = size
    tell(f"{session_text()} ...")
    with ray_session(int(workers * request.cpus_per_worker + 1)) as is_ours:
        supply = gpus_of_cluster(grows=not is_ours)
        # An engine of the caller's own takes what it was given.
        gpus = request.gpus_of(supply) if has_named_engine else request.gpus_per_worker or 0.0
        if gpus:
            log.info(
                "%g GPUs for each of %d engines; %s has %g, room for %d at a time",
                *(gpus, workers, supply.place, supply.total, supply.room(gpus)),
            )
        resources = {"num_cpus": request.cpus_per_worker, "num_gpus": gpus}
        RayPool(spec, schedule, counters, resources).run(workers)


def _log(progress: ScoreProgress) -> None:
    log.info("%s", progress)
