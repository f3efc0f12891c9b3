"""Result of a run, and the file that holds it."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from forebay.errors import InvalidOption, WriteFailed
from forebay.events import EpochEnded, Reported
from forebay.storage.credentials import redact, redacted
from forebay.storage.filesystem import resolve

FILE_NAME = "result.json"
VERSION = 1
# A diverged run is a result too, but JSON has no such numbers: they are written as strings.
NO_JSON_NUMBERS = ("NaN", "Infinity", "-Infinity")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """Result of a run so far: every completed epoch, and some of its steps.

    `path` is the folder of the run. `plan_id` is the hash that names the order of its rows. `num_epochs` is the number
    of epochs of the job, and `stopped` the reason for an earlier end. `failures` is the number of times that workers
    were lost and replaced. `steps` are at most 4,096 reported steps, spread over the run.
    """

    name: str
    path: str
    plan_id: str
    num_epochs: int
    epochs: tuple[EpochEnded, ...] = ()
    steps: tuple[Reported, ...] = ()
    failures: int = 0
    stopped: str | None = None

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
        """Metrics of the last completed epoch. Empty before the first one."""
        return self.epochs[-1].metrics if self.epochs else {}

    def to_json(self) -> str:
        return json.dumps({"version": VERSION, **_strict(asdict(self))}, allow_nan=False)

    @classmethod
    def from_json(cls, text: str | bytes) -> Result:
        """Raises `InvalidOption` for anything that `to_json` of this version did not write."""
        try:
            facts = json.loads(text)
            if facts.pop("version") != VERSION:
                raise ValueError("another version")
            epochs = tuple(EpochEnded(**_numbers(epoch)) for epoch in facts.pop("epochs"))
            steps = tuple(Reported(**_numbers(step)) for step in facts.pop("steps"))
            return cls(epochs=epochs, steps=steps, **facts)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise InvalidOption(
                f"this is no result of a Forebay run of version {VERSION} ({error}). "
                f"Remove {FILE_NAME} from the run's folder, or give the run another name."
            ) from error


def save_result(result: Result) -> None:
    """Write `result.json` into the run's folder, replacing an earlier one as a whole.

    Raises `WriteFailed` where storage refuses.
    """
    place = resolve(result.path)
    final, draft = f"{place.path}/{FILE_NAME}", f"{place.path}/.{FILE_NAME}.draft"
    try:
        place.fs.create_dir(place.path, recursive=True)
        with place.fs.open_output_stream(draft) as stream:
            stream.write(result.to_json().encode())
        place.fs.move(draft, final)
    except OSError as error:
        raise WriteFailed(
            f"the result of run {result.name!r} cannot be written to {place.uri} ({redact(str(error))}). What was "
            f"committed is kept: make room or give access, and run {result.name!r} again to continue.",
            name=result.name,
            uri=place.uri,
        ) from redacted(error)


def load_result(path: str) -> Result | None:
    """The result in the run folder `path`, or None where no run has been. Raises `InvalidOption` if it is a file."""
    place = resolve(path)
    try:
        with place.fs.open_input_stream(f"{place.path}/{FILE_NAME}") as stream:
            return Result.from_json(stream.read())
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InvalidOption(
            f"{path} is a file, and a run keeps what it makes in a folder of its name. Give the run another name, or "
            "another storage.",
            path=path,
        ) from error


def _strict(value: Any) -> Any:
    """`value` with strings for the numbers that JSON does not know."""
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)
    if isinstance(value, dict):
        return {name: _strict(each) for name, each in value.items()}
    return [_strict(each) for each in value] if isinstance(value, list | tuple) else value


def _numbers(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts that are numbers and mappings to numbers, as they were before `_strict`."""
    return {name: _number(fact) for name, fact in facts.items()}


def _number(fact: Any) -> Any:
    if isinstance(fact, dict):
        return _numbers(fact)
    return float(fact) if fact in NO_JSON_NUMBERS else fact
