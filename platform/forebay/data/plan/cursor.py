"""Position in a run's data, as saved in a checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from forebay.errors import CursorMismatch

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Position in a run's data.

    Rows `[0, position)` of `epoch` are done. Independent of the world size: any number of ranks can continue from here.

    Attributes:
        plan_id: Id of the plan, 64 hex digits.
        epoch: Number of the epoch, from 0.
        position: Number of rows of the epoch that are done, over all ranks.
        global_batch: Batch size that was in use. A loader with another one continues from the same position.
    """

    plan_id: str
    epoch: int
    position: int
    global_batch: int

    def to_dict(self) -> dict[str, str | int]:
        """Return the fields and the format version.

        The dict is plain, and the same on every rank.
        """
        return {"version": _VERSION} | asdict(self)

    def to_json(self) -> str:
        """Return one line of JSON.

        >>> Cursor(plan_id="9c02", epoch=1, position=64, global_batch=32).to_json()
        '{"version": 1, "plan_id": "9c02", "epoch": 1, "position": 64, "global_batch": 32}'
        """
        return json.dumps(self.to_dict())

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Cursor:
        """Read a cursor from `to_dict`.

        Raises `CursorMismatch` for anything else, or another version.
        """
        if not isinstance(state, Mapping) or state.get("version") != _VERSION:
            raise CursorMismatch(
                f"This is not a cursor of version {_VERSION}: {state!r:.200}. Pass what Cursor.to_dict() or to_json() "
                "returned, or read it with the Forebay release that wrote it."
            )
        values = {name: value for name, value in state.items() if name != "version"}
        types = {field.name: str if field.name == "plan_id" else int for field in fields(cls)}
        if set(values) != set(types) or any(type(values[name]) is not kind for name, kind in types.items()):
            raise CursorMismatch(f"A cursor holds {sorted(types)}; found {values!r:.200}. Pass it as it was saved.")
        if min(values["epoch"], values["position"], values["global_batch"]) < 0:
            raise CursorMismatch(f"A cursor holds no number below 0; found {values!r:.200}. Pass it as it was saved.")
        return cls(**values)

    @classmethod
    def from_json(cls, text: str) -> Cursor:
        """Read a cursor from `to_json`.

        Raises `CursorMismatch` for any other text, or another version.
        """
        try:
            state = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            state = text
        return cls.from_dict(state)
