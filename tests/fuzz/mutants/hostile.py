"""Planted content: pickles that leave a mark when they are loaded, and JSON of another shape."""

from __future__ import annotations

import copy
import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np

_VALUES = (
    None,
    True,
    -1,
    0,
    1,
    2**31,
    2**63,
    2**200,
    1.5,
    float("nan"),
    float("inf"),
    "",
    "x",
    "\0",
    "../../x",
    [],
    [[]],
    {},
    {"a": 1},
)


class HostileMark:
    """A pickle of this creates the file `path` when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mknod, (str(self._path),)


def bomb(path: Path, protocol: int = 4) -> bytes:
    return pickle.dumps(HostileMark(path), protocol=protocol)


def change_json(rng: np.random.Generator, content: bytes) -> bytes:
    """Replace, remove or nest very deeply one to three values somewhere in the JSON text."""
    if rng.random() < 0.02:
        return b"[" * 100_000
    holder = [json.loads(content)]
    for _ in range(int(rng.integers(1, 4))):
        places = list(_places(holder))
        parent, name = places[int(rng.integers(len(places)))]
        if rng.random() < 0.2 and parent is not holder:
            del parent[name]
        else:
            value = copy.deepcopy(_VALUES[int(rng.integers(len(_VALUES)))])
            old = parent[name]
            parent[name] = old + int(rng.choice([1, -1])) if type(old) is int and rng.random() < 0.5 else value
    return json.dumps(holder[0]).encode()


def _places(value: Any) -> Any:
    """(container, name) of everything below."""
    names = list(value) if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for name in names:
        yield value, name
        yield from _places(value[name])
