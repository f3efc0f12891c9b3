"""The position in a run's data: all that a checkpoint keeps of it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields

from forebay.errors import CursorMismatch

_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """Rows `[0, position)` of `epoch` are done. It knows no world size: any number of ranks may go on from here.

    `global_batch` is the batch size that was in use; a loader with another one continues from the same position.
    """

    plan_id: str
    epoch: int
    position: int
    global_batch: int

    def to_json(self) -> str:
        """One line of JSON.

        >>> Cursor(plan_id="9c02", epoch=1, position=64, global_batch=32).to_json()
        '{"version": 1, "plan_id": "9c02", "epoch": 1, "position": 64, "global_batch": 32}'
        """
        return json.dumps({"version": _VERSION} | asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Cursor:
        """Raises `CursorMismatch` for text that is no cursor, or one of another version."""
        try:
            state = json.loads(text)
        except (ValueError, TypeError, RecursionError):
            state = None
        if not isinstance(state, dict) or state.pop("version", None) != _VERSION:
            raise CursorMismatch(
                f"This is no cursor of version {_VERSION}: {text!r:.200}. Pass the text that Cursor.to_json() wrote, "
                "or read it with the Forebay release that wrote it."
            )
        kinds = {field.name: str if field.name == "plan_id" else int for field in fields(cls)}
        if set(state) != set(kinds) or any(type(state[name]) is not kind for name, kind in kinds.items()):
            raise CursorMismatch(f"A cursor holds {sorted(kinds)}; found {state}. Use the text as it was saved.")
        if min(state["epoch"], state["position"], state["global_batch"]) < 0:
            raise CursorMismatch(f"A cursor holds no number below 0; found {state}. Use the text as it was saved.")
        return cls(**state)
