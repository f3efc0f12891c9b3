"""Orders of a run in its storage: stop and scale, without a route to its driver. The driver reads them with the fence.

An order is for one attempt: a later attempt of the same name does not obey it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace

from forebay.errors import InvalidOption
from forebay.storage.atomic import write_failed
from forebay.storage.credentials import redacted
from forebay.storage.filesystem import below, resolve
from forebay.storage.json_file import read_json_file, write_json_file
from forebay.training.runs.attempts.files import AttemptFiles
from forebay.training.runs.control import Control

FILE_NAME = "orders.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """Requests to attempt `attempt`: end after its next checkpoint because of `stop`, train on `target` workers."""

    attempt: int
    stop: str | None = None
    target: int | None = None


class OrderReader:
    """Passes new orders for an attempt on to the control of its run."""

    def __init__(self, run: str, attempt: int | None, control: Control) -> None:
        self._run, self._control = run, control
        self._known = Orders(attempt=0 if attempt is None else attempt)

    def obey(self) -> None:
        """Read the orders, and request what is new in them. Raises `OSError` if storage does not answer."""
        orders = load_orders(self._run)
        if orders is None or orders.attempt != self._known.attempt:
            return
        if orders.stop is not None and self._known.stop is None:
            self._control.stop(orders.stop)
        if orders.target not in (None, self._known.target) and self._control.is_elastic:
            self._control.resize(orders.target)
        self._known = orders


def load_orders(run: str) -> Orders | None:
    """Orders in the run folder `run`, or None."""
    content = read_json_file(run, FILE_NAME, "run")
    return None if content is None else Orders(**json.loads(content))


def give_orders(storage: str, name: str, *, stop: str | None = None, target: int | None = None) -> Orders:
    """Add orders to those of the newest attempt of run `name` below `storage`. Returns all of that attempt.

    Raises `InvalidOption` if no attempt is running there, and `WriteFailed`.
    """
    run = below(resolve(storage).uri, name)
    files = AttemptFiles(run)
    newest = files.newest()
    if newest is None:
        raise InvalidOption(
            f"there is no run {name!r} in {resolve(storage).uri}: nothing was changed. Check the name and the storage.",
            name=name,
        )
    if (end := files.ended(newest.number)) is not None:
        raise InvalidOption(
            f"run {name!r} has ended ({end.how}{': ' + end.why if end.why else ''}): nothing was changed.", name=name
        )
    earlier = load_orders(run)
    orders = earlier if earlier is not None and earlier.attempt == newest.number else Orders(attempt=newest.number)
    if stop is not None:
        orders = replace(orders, stop=stop)
    if target is not None:
        orders = replace(orders, target=target)
    try:
        write_json_file(run, FILE_NAME, json.dumps(asdict(orders)))
    except OSError as error:
        raise write_failed(f"the order to run {name!r}", run, error, name=name) from redacted(error)
    return orders
