"""Canonical form of a JobSpec, its key, and differences."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from forebay.errors import SpecChanged
from forebay.fleet.spec.job_spec import JobSpec


def canonical(spec: JobSpec) -> str:
    """Return the spec as canonical JSON, without its key.

    Equal specs have equal texts.
    """
    facts = {name: value for name, value in facts_of(spec).items() if name != "key"}
    if facts["launch"]["slurm"] is None:
        # A job that does not name it has the key, and so the names of objects, of releases without it.
        del facts["launch"]["slurm"]
    return json.dumps(facts, sort_keys=True, separators=(",", ":"), ensure_ascii=True)


def key_of(spec: JobSpec) -> str:
    """Return the key, or the SHA-256 of the form."""
    return spec.key or hashlib.sha256(canonical(spec).encode()).hexdigest()


def facts_of(spec: JobSpec) -> dict[str, Any]:
    """All fields of a spec as JSON values."""
    facts: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(spec)))
    return facts


def changes(old: JobSpec, new: JobSpec) -> dict[str, tuple[object, object]]:
    """Return differing fields by path, with both values."""
    before, after = dict(_leaves("", facts_of(old))), dict(_leaves("", facts_of(new)))
    names = sorted(before.keys() | after.keys())
    return {name: (before.get(name), after.get(name)) for name in names if before.get(name) != after.get(name)}


def require_same(old: JobSpec, new: JobSpec) -> None:
    """Raise `SpecChanged` with the fields that differ, if any."""
    if key_of(old) == key_of(new):
        return
    differing = changes(old, new) or {"key": (old.key, new.key)}
    shown = "\n".join(f"  {name}: {was!r} -> {now!r}" for name, (was, now) in differing.items())
    raise SpecChanged(
        f"the job {new.name!r} exists with another specification:\n{shown}\n"
        "Give the new job another name, or submit it with --replace.",
        name=new.name,
        fields=list(differing),
    )


def _leaves(path: str, value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, Mapping) and value:
        for name, each in value.items():
            yield from _leaves(f"{path}.{name}" if path else str(name), each)
    elif isinstance(value, list) and any(isinstance(each, Mapping) for each in value):
        for number, each in enumerate(value):
            yield from _leaves(f"{path}[{number}]", each)
    else:
        yield path, value
