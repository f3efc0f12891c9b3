"""Sections of the report of one run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from markupsafe import Markup

from forebay.events import INTERRUPTED, EpochEnded, Evaluated
from forebay.report.columns import Column
from forebay.report.elements import element, facts, joined, row, section, table
from forebay.runtime.formatting import bytes_text, count_text, metric_text_of, time_text
from forebay.training.run_report.embedding_tables import PREFIX, tables_section
from forebay.training.run_report.epoch_columns import epoch_columns, stage_columns
from forebay.training.run_report.incidents import Incident, incident_table, incidents_of, marks_of
from forebay.training.run_report.learning import AXES, learning_pictures
from forebay.training.run_report.node_use import node_section
from forebay.training.run_report.pictures import (
    epoch_bars,
    stage_bars,
    throughput_pictures,
    workers_picture,
)
from forebay.training.run_report.recorded_run import RecordedRun
from forebay.training.run_report.stages import CAPTION
from forebay.training.run_report.summary import BEST, FAULTS, measured
from forebay.training.runs.run_folder import aside_name
from forebay.training.runs.timeline.timeline import FILE_NAME

_QUIET = {"failures": "0", "resizes": "0", "rollbacks": "0", "warnings": "0", "repeated steps": "0"}
_NO_METRIC = element("p", "No metric was reported.")
MOST_EPOCHS = 100
"""Epochs of a table. Of more, only the last ones are shown."""


def notices(run: RecordedRun) -> Markup:
    """Say what ended an unfinished run, and what is missing."""
    newest, found = run.newest, list[tuple[str, str]]()
    if run.state == "cut off":
        age = f" Its last record is {time_text(newest.last_s)} after its newest start." if newest else ""
        text = (
            f"The record is cut off: the process was killed, or its machine was lost.{age} What follows is all of it."
        )
        found.append(("failed", text))
    if run.state == "under way":
        found.append(("", "This run is under way. The report shows what was recorded so far."))
    if run.state == INTERRUPTED:
        again = element("code", f"name={run.name}")
        text = joined(
            ("The run was interrupted. To continue at its newest checkpoint, run the same job with ", again, ".")
        )
        found.append(("", text))
    failed = [event for _, event in run.events() if event.kind == "Failed" and not event.facts["will_retry"]]
    if run.state == "failed" and failed:
        found.append(("failed", f"The run failed: {failed[-1].facts['error']}"))
    if run.result is not None and run.result.stopped:
        found.append(("", f"The run was stopped: {run.result.stopped}"))
    if newest is None:
        found.append(("", "There is no timeline.json: times of events, code and packages are not known."))
    if damaged := run.timeline.damaged:
        name = aside_name(FILE_NAME, damaged)
        found.append(("", f"A damaged timeline.json was set aside ({name}): earlier starts are not shown."))
    if not run.epochs:
        found.append(("", "No epoch has ended: numbers of epochs are missing."))
    return joined(element("p", text, class_=f"notice {kind}".strip()) for kind, text in found)


def tiles(run: RecordedRun) -> Markup:
    """The most important numbers."""
    known = {name: texts[0] for name, texts in measured([run]).items() if not name.startswith(PREFIX)}
    shown = {name: text for name, text in known.items() if text != "-" and _QUIET.get(name) != text}
    pairs = (
        element("div", element("dt", name), element("dd", text, _best(run, name)))
        for name, text in shown.items()
        if not name.startswith(BEST)
    )
    return element("dl", *pairs, class_="tiles")


def _best(run: RecordedRun, name: str) -> str:
    """Best value of a metric and its epoch, under the last value."""
    found = run.best(name)
    if found is None:
        return ""
    is_by_step = bool(run.result and len(run.result.evaluations) > len(run.epochs))
    where = f"step {found.step}" if is_by_step else f"epoch {found.epoch + 1}"
    return element("small", f"best {metric_text_of(name, found.value)}, {where}")


def curves_section(runs: Sequence[RecordedRun]) -> Markup:
    """Loss and other metrics."""
    pictures = learning_pictures(runs)
    chosen = AXES if pictures else ""
    return section("Curves", chosen, element("div", *pictures or [_NO_METRIC], class_="pair"))


def evaluations_section(run: RecordedRun) -> Markup:
    """Table of the evaluations, and texts of the model."""
    found = run.result.evaluations if run.result else ()
    if len(found) <= len(run.epochs) and not any(each.samples or each.is_best for each in found):
        return joined(())  # the table of epochs has them
    names = [*dict.fromkeys(name for each in found for name in each.metrics)]
    best = run.result.best if run.result else None
    rows = [row(_evaluation_texts(each, names, is_best=each is best)) for each in found[-MOST_EPOCHS:]]
    titles = ["step", "epoch", *names, *(["best"] if best else [])]
    parts = [table(titles, rows, class_="numbers", label="Evaluations")]
    sampled = [each for each in found if each.samples][-1:]
    for each in sampled:
        texts = [row([sample.prompt, sample.text, sample.wanted]) for sample in each.samples]
        parts += [
            element("h3", f"Samples after step {each.step}"),
            table(["prompt", "text of the model", "text of the data"], texts, label="Samples"),
        ]
    return section("Evaluations", *parts)


def _evaluation_texts(each: Evaluated, names: Sequence[str], *, is_best: bool) -> list[str]:
    values = [metric_text_of(name, each.metrics[name]) if name in each.metrics else "-" for name in names]
    return [str(each.step), str(each.epoch + 1), *values, *(["best"] if is_best else [])]


def time_section(run: RecordedRun) -> Markup:
    """Time per epoch and stage."""
    if not run.epochs:
        return joined(())
    stages = stage_bars(run)
    pictures = [epoch_bars(run), *([stages] if stages else [])]
    result = run.result
    assert result is not None
    columns = [each for each in epoch_columns(result) if not each.title.startswith(PREFIX)]
    tables = [_table(columns, run.epochs, "Epochs")]
    if stages:
        caption = element("p", f"Seconds by stage, summed over workers. {CAPTION}.", class_="quiet")
        tables += [caption, _table(stage_columns(result), run.epochs, "Stages")]
    return section("Where the time went", element("div", *pictures, class_="pair"), *tables)


def throughput_section(runs: Sequence[RecordedRun]) -> Markup:
    """Draw the throughput, and numbers of language models."""
    pictures = throughput_pictures(runs)
    return section("Throughput", element("div", *pictures, class_="pair")) if pictures else joined(())


def cache_section(run: RecordedRun) -> Markup:
    """Use of the cache, reads and their faults."""
    found = {title: (run.counted(name), text) for name, (title, text) in FAULTS.items()}
    shown = {title: text(count) for title, (count, text) in found.items() if count}
    return section("Cache, reads and retries", facts(shown or {"blocks": "none was counted"}))


def events_section(run: RecordedRun, incidents: Sequence[Incident]) -> Markup:
    """Draw throughput and workers, with a table of incidents."""
    marks = marks_of(incidents)
    workers, pictures = workers_picture(run, marks), throughput_pictures([run], marks)
    if workers is None:
        return throughput_section([run])
    omitted = sum(start.omitted for start in run.timeline.starts)
    more = element("p", f"{omitted} further events were not recorded.", class_="quiet") if omitted else ""
    drawn = element("div", *pictures[:1], workers, *pictures[1:], class_="pair")
    return section("Throughput and events", drawn, incident_table(incidents), more)


def origin_section(run: RecordedRun) -> Markup:
    """StartOrigin of the run: config, data, code, machine, packages."""
    origin = run.origin
    plan = {"plan id": run.result.plan_id} if run.result else {}
    groups: dict[str, Mapping[str, object]] = {
        "Config": {name: value for name, value in origin.config.items() if name != "job.plan"},
        "Data": {**plan, **_data_texts(origin.data)},
        "Code": origin.code,
        "Machine of the driver": origin.machine,
        "Packages": origin.packages,
    }
    parts = [element("div", element("h3", title), facts(_texts(known))) for title, known in groups.items() if known]
    folder = facts({"folder": run.path})
    return section("What was run", folder, element("div", *parts, class_="pair"))


def run_sections(run: RecordedRun) -> list[Markup]:
    """All sections of the report of one run."""
    incidents = incidents_of(run)
    return [
        notices(run),
        tiles(run),
        curves_section([run]),
        evaluations_section(run),
        time_section(run),
        events_section(run, incidents),
        node_section(run),
        tables_section(run.metrics),
        cache_section(run),
        origin_section(run),
    ]


def _table(columns: Sequence[Column[EpochEnded]], epochs: Sequence[EpochEnded], label: str) -> Markup:
    rows = [row([each.text(epoch) for each in columns]) for epoch in epochs[-MOST_EPOCHS:]]
    return table([each.title for each in columns], rows, class_="numbers", label=label)


def _texts(known: Mapping[str, object]) -> dict[str, str]:
    return {name: "-" if value is None else str(value) for name, value in known.items()}


def _data_texts(data: Mapping[str, object]) -> dict[str, str]:
    return {name: _count(name, value) for name, value in data.items() if name != "plan"}


def _count(name: str, value: object) -> str:
    if isinstance(value, int) and name.endswith("bytes"):
        return bytes_text(value)
    return count_text(value) if isinstance(value, int) and value >= 100_000 else str(value)
