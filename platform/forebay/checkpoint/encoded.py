"""A commit as bytes: its facts, its state, and the checksum over both. Knows nothing of what the bytes mean."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import xxhash

VERSION = 2
STATE, SEAL = "state.pt", "commit.json"
_CHECKSUM = "xxh3_128"

Bytes = bytes | memoryview


class CorruptCheckpoint(Exception):
    """Why a commit cannot be trusted."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EncodedCheckpoint:
    """`facts` with the checksum are what the seal says, `state` is what it speaks of: compared by identity."""

    facts: Mapping[str, Any]
    state: Bytes = field(repr=False)

    @classmethod
    def close(cls, facts: Mapping[str, Any], state: Bytes) -> EncodedCheckpoint:
        """Seal `state`; `facts` must survive JSON and name the `step`."""
        sized = {"version": VERSION, **facts, "state_bytes": len(state)}
        return cls(facts={**sized, _CHECKSUM: checksum(sized, state)}, state=state)

    @property
    def step(self) -> int:
        return int(self.facts["step"])

    @property
    def num_bytes(self) -> int:
        return len(self.state)

    @property
    def seal(self) -> bytes:
        """The facts as they are written."""
        return json.dumps(self.facts, indent=1).encode()

    def check(self) -> None:
        """Raises `CorruptCheckpoint` where the state is not the one that was sealed."""
        facts = dict(self.facts)
        told = facts.pop(_CHECKSUM, None)
        if len(self.state) != facts.get("state_bytes"):
            raise CorruptCheckpoint(f"{STATE} has {len(self.state)} bytes, the seal says {facts.get('state_bytes')}")
        if told != checksum(facts, self.state):
            raise CorruptCheckpoint("its checksum is wrong")


def facts_of(seal: bytes) -> dict[str, Any]:
    """The facts of a written seal. Raises `CorruptCheckpoint`."""
    try:
        facts = json.loads(seal)
    except (ValueError, RecursionError):
        raise CorruptCheckpoint(f"{SEAL} is cut short") from None
    if not isinstance(facts, dict):
        raise CorruptCheckpoint(f"{SEAL} holds no facts")
    return facts


def checksum(facts: Mapping[str, Any], state: Bytes) -> str:
    """Over the seal's facts too: a cursor with one flipped digit would resume in the wrong place."""
    digest = xxhash.xxh3_128(json.dumps(facts, sort_keys=True).encode())
    digest.update(state)
    return digest.hexdigest()
