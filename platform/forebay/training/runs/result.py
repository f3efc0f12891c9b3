"""Result of a run, from its events, and its file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from forebay.events import MAX_STEPS, EpochEnded, Evaluated, Event, Failed, Finished, Reported
from forebay.runtime.declared_types import require_types
from forebay.runtime.late_import import late
from forebay.storage.atomic import ADVICE
from forebay.storage.json_file import from_json, numbers, to_json
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.run_folder import RunFolder
from forebay.training.state.evaluations import best_of, loaded, with_evaluation
from forebay.training.state.known_reports import KnownReports

FILE_NAME = "result.json"
REPORT_FILE = "report.html"
VERSION = 1
MOST_SAMPLED = 16
_STEP_FIELDS = tuple(each.name for each in fields(Reported))


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a run so far.

    It has every completed epoch, and some of the steps. `path` is the folder of the run. `plan_id` is the hash that
    names the order of its rows. `num_epochs` is the number of epochs of the job, and `stopped` the reason for an
    earlier end. `failures` is the number of times that workers were lost and replaced. `steps` are at most 4,096
    reported steps, spread over the run. `evaluations` has each of them, with the samples of the last 16 and of the best
    one. `statistics` are those that values were scaled and filled by, as a checkpoint
    holds them: `id`, `scale`, `fill`, and `columns` by name. Empty without such.
    """

    name: str
    path: str
    plan_id: str
    num_epochs: int
    epochs: tuple[EpochEnded, ...] = ()
    steps: tuple[Reported, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    failures: int = 0
    stopped: str | None = None
    statistics: Mapping[str, Any] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        """Whether all epochs were trained."""
        return self.epochs_done >= self.num_epochs

    @property
    def epochs_done(self) -> int:
        """Number of completed epochs, including those without recorded metrics."""
        return self.epochs[-1].epoch + 1 if self.epochs else 0

    @property
    def metrics(self) -> Mapping[str, float]:
        """Metrics of the last completed epoch.

        Empty before the first one.
        """
        return self.epochs[-1].metrics if self.epochs else {}

    @property
    def best(self) -> Evaluated | None:
        """Best evaluation, whose checkpoint is kept.

        None without the job's `keep_best`.
        """
        return best_of(self.evaluations)

    def show(self) -> None:
        """Print the result, and write the run's report.

        Prints the tables of epochs and stages, and the path of the report. Raises `WriteFailed` if the folder cannot be
        written.
        """
        late("forebay.training.run_report.run_table:show_report")(self)

    def _repr_html_(self) -> str | None:
        """Return the stored report, for a notebook.

        None if it was not written.
        """
        page = RunFolder.at(self.path).read(REPORT_FILE)
        return None if page is None else page.decode(errors="replace").partition("<body>")[2].partition("</body>")[0]

    def to_json(self) -> str:
        """Encode as the text of `result.json`.

        Strict JSON: NaN and the infinities are strings.
        """
        facts = {each.name: getattr(self, each.name) for each in fields(self)}
        # asdict() of all would copy each number of 4,096 steps twice, at each epoch.
        steps = [{name: getattr(step, name) for name in _STEP_FIELDS} for step in self.steps]
        ended = {name: [asdict(each) for each in facts[name]] for name in ("epochs", "evaluations")}
        return to_json({"version": VERSION, **facts, **ended, "steps": steps})

    @classmethod
    def from_json(cls, text: str | bytes, file_name: str = FILE_NAME) -> Result:
        """Decode the text of a file.

        Raises `InvalidOption` for anything that `to_json` of this version did not write.
        """
        return from_json(text, cls._of_facts, version=VERSION, owner="run", file_name=file_name)

    @classmethod
    def _of_facts(cls, facts: dict[str, Any]) -> Result:
        epochs = tuple(EpochEnded(**numbers(epoch)) for epoch in facts.pop("epochs"))
        steps = tuple(Reported(**numbers(step)) for step in facts.pop("steps"))
        # A result of an earlier release has no evaluations.
        evaluations = loaded([numbers(each) for each in facts.pop("evaluations", ())])
        statistics = facts.pop("statistics", {})
        columns = {name: numbers(column) for name, column in statistics.get("columns", {}).items()}
        if statistics:
            statistics = statistics | {"columns": columns}
        made = cls(epochs=epochs, steps=steps, evaluations=evaluations, statistics=statistics, **facts)
        return require_types(made)


class RunHistory:
    """Keeps the epochs and steps that shaped the model.

    At most `MAX_STEPS` of the reported steps are kept, of all attempts. When workers are lost, training goes back to
    the newest checkpoint and reports steps again. The later report replaces the earlier ones from that step on.
    """

    def __init__(self, start: Result) -> None:
        self._start = start
        self._epochs = list(start.epochs)
        self._steps = list(start.steps)
        self._evaluations = start.evaluations
        self._known = KnownReports([*start.epochs, *start.evaluations])
        self._failures = start.failures
        self._stopped: str | None = None

    def record(self, event: Event) -> None:
        """Record one event."""
        match event:
            case Reported():
                self._record_step(event)
            case Evaluated() if not self.knows(event):
                self._known.note(event)
                self._evaluations = _with_few_samples(with_evaluation(self._evaluations, event))
            case EpochEnded() if not self.knows(event):
                self._known.note(event)
                self._epochs = [*(epoch for epoch in self._epochs if epoch.epoch < event.epoch), event]
            case Failed(will_retry=True):
                self._failures += 1
            case Finished():
                self._stopped = event.stopped

    @property
    def known(self) -> KnownReports:
        """Reports recorded so far."""
        return self._known

    def knows(self, event: EpochEnded | Evaluated) -> bool:
        """Whether an equal report of an epoch or an evaluation was recorded before."""
        return self._known.knows(event)

    def _record_step(self, event: Reported) -> None:
        while self._steps and self._steps[-1].step >= event.step:
            earlier = self._steps.pop()
            if earlier.step == event.step:
                # A step may be reported twice: its loss at the commit, and values that report() adds after it.
                event = replace(event, metrics={**earlier.metrics, **event.metrics})
        self._steps.append(event)
        if len(self._steps) > MAX_STEPS:
            # Drop every second step but keep the newest: so the shape of the curve stays, for runs of any length.
            self._steps = [*self._steps[:-1:2], self._steps[-1]]

    @property
    def result(self) -> Result:
        """Result of all events recorded so far."""
        return replace(
            self._start,
            epochs=tuple(self._epochs),
            steps=tuple(self._steps),
            evaluations=self._evaluations,
            failures=self._failures,
            stopped=self._stopped,
        )


def _with_few_samples(evaluations: tuple[Evaluated, ...]) -> tuple[Evaluated, ...]:
    """Drop the samples of old evaluations, but the best.

    The file is written often.
    """
    best = best_of(evaluations)
    old = [each if each is best else replace(each, samples=()) for each in evaluations[:-MOST_SAMPLED]]
    return (*old, *evaluations[-MOST_SAMPLED:])


def save_result(result: Result) -> None:
    """Write `result.json` into the run's folder.

    The write is atomic: after a crash, the file is the earlier or the new one. Raises `WriteFailed` if the storage
    refuses.
    """
    advice = f"{ADVICE} Then run {result.name!r} again: it continues from its newest checkpoint, if it has one."
    folder = RunFolder.at(result.path)
    folder.save(FILE_NAME, result.to_json(), f"the result of run {result.name!r}", advice)


def load_result(run: str | RunFolder) -> Result | None:
    """Return the result in a run's folder.

    None if no run has been saved there. Raises `InvalidOption` if it is a file. An attempt that was taken over may
    write `result.json` late. The first result of all epochs counts, and stays. `path` is where the folder is now.
    """
    folder = RunFolder.at(run)
    content = folder.read(FILE_NAME)
    if content is None:
        return None
    result = Result.from_json(content)
    files = AttemptFiles(folder)
    if not result.is_finished and (finished := files.finished(result.num_epochs)) is not None:
        result = Result.from_json(finished, files.finished_name(result.num_epochs))
    return replace(result, path=folder.uri)
