"""Plan of a scoring run: everything that decides its output.

It is kept beside the output in `plan.json`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from forebay.data.transform.fingerprint.values import digest
from forebay.errors import InvalidOption
from forebay.storage.atomic import write_failed
from forebay.storage.json_file import read_json_file, to_json, write_json_file

VERSION = 1
FILE_NAME = "plan.json"


@dataclass(frozen=True, slots=True)
class ScorePlan:
    """Facts that decide the output, by name.

    The values are plain data that JSON can hold.
    """

    facts: Mapping[str, Any]

    @property
    def fingerprint(self) -> str:
        """Digest of the facts."""
        return digest(_text(self.facts).encode())[:16]


def keep_plan(plan: ScorePlan, folder: str) -> None:
    """Write the plan into `folder`, or check the existing one.

    Raises `InvalidOption` for a folder with another plan, and names what differs. Raises `WriteFailed`.
    """
    there = read_json_file(folder, FILE_NAME, "scoring run")
    if there is None:
        text = to_json({"version": VERSION, "fingerprint": plan.fingerprint, "facts": plan.facts})
        try:
            write_json_file(folder, FILE_NAME, text)
        except OSError as error:
            raise write_failed("The plan of the scoring run", folder, error) from error
        return
    try:
        other = ScorePlan(json.loads(there)["facts"])
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidOption(
            f"{folder} holds a {FILE_NAME} that is not the plan of a scoring run. Give another folder: to=."
        ) from error
    if other.fingerprint != plan.fingerprint:
        raise _other_plan(plan, other, folder)


def _other_plan(plan: ScorePlan, other: ScorePlan, folder: str) -> InvalidOption:
    names = [*other.facts, *(name for name in plan.facts if name not in other.facts)]
    differing = [name for name in names if _value(other, name) != _value(plan, name)]
    listed = "; ".join(f"{name} {_value(other, name)} there, {_value(plan, name)} here" for name in differing)
    return InvalidOption(
        f"{folder} holds the output of plan {other.fingerprint}, and this run has plan {plan.fingerprint}: {listed}. "
        "Give another folder (to=), or the same arguments as before.",
        found=other.fingerprint,
        plan=plan.fingerprint,
        differing=differing,
    )


def _value(plan: ScorePlan, name: str) -> str:
    return _text(plan.facts[name]) if name in plan.facts else "nothing"


def _text(fact: object) -> str:
    return json.dumps(json.loads(to_json(fact)), sort_keys=True)
