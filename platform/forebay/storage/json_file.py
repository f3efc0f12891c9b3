"""Small JSON files, written atomically.

JSON has no number for NaN and the infinities.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TypeAlias, TypeVar

from forebay.errors import ForebayError, InvalidOption
from forebay.storage.atomic import read_small, write_atomically
from forebay.storage.filesystem import Location, resolve

T = TypeVar("T")
Fact: TypeAlias = str | int | float | bool | None
NOT_FINITE = ("NaN", "Infinity", "-Infinity")
"""Strings by which strict JSON represents the floats that it has no number for."""
LARGEST_BYTES = 1 << 30
"""Bytes beyond which nothing is JSON of Forebay."""
_WAITS_S = (0.0, 0.05, 0.1, 0.2, 0.4, 0.4, 0.4, 0.4)
"""Waits before the reads of an object that is being replaced. On Azure and WebHDFS it is empty until it is written."""


def to_json(facts: object, *, not_finite: Callable[[float], object] = json.dumps) -> str:
    """Serialize to strict JSON.

    Scalars of NumPy and torch become numbers, other unknown types become text.

    >>> to_json({"loss": float("nan"), "rows": (1, 2)})
    '{"loss": "NaN", "rows": [1, 2]}'

    Args:
        facts: Mappings, sequences and values.
        not_finite: Returns the replacement of NaN and the infinities. By default one of the strings `NOT_FINITE`.
    """
    return json.dumps(_plain(facts, not_finite), allow_nan=False)


def from_json(text: str | bytes, build: Callable[[Any], T], *, version: int, owner: str, file_name: str) -> T:
    """Build a value from the JSON of a run or a sweep.

    `build` gets the decoded facts without their `version`. `owner` is "run" or "sweep".

    Raises `InvalidOption` for a text of another version, and for one that `build` cannot use.
    """
    try:
        facts = json.loads(text)
        if facts.pop("version") != version:
            raise ValueError("another version")
        return build(facts)
    except ForebayError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError, AssertionError) as error:
        raise InvalidOption(
            f"this is not the {file_name} of a Forebay {owner} of version {version} ({error}). "
            f"Remove {file_name} from the {owner}'s folder, or give the {owner} another name."
        ) from error


def numbers(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Numbers among `facts`, restored after `to_json`.

    Takes numbers, and mappings to numbers. Strings of `NOT_FINITE` become floats.
    """
    return {name: _number(fact) for name, fact in facts.items()}


def write_json_file(folder: str | Location, name: str, text: str) -> None:
    """Write or replace `name` in `folder`. Raises `OSError`.

    The folder is created if it is missing.
    """
    location = resolve(folder)
    if not location.is_local:
        location.fs.create_dir(location.path, recursive=True)
    write_atomically(location.child(name), text.encode())


def read_json_file(folder: str | Location, name: str, owner: str) -> bytes | None:
    """Content of `name` in the folder of an `owner`.

    The owner is a run or a sweep. None if the file does not exist.

    Raises `InvalidOption` if `folder` is a file.
    """
    location = resolve(folder)
    try:
        return read_json_content(location.child(name))
    except FileNotFoundError:
        return None
    except NotADirectoryError as error:
        raise InvalidOption(
            f"{location.uri} is a file, and a {owner} keeps its files in a folder. Name its folder, or give it another "
            "name or storage.",
            path=location.uri,
        ) from error


def read_json_content(location: Location) -> bytes:
    """Content of a JSON file that others may replace.

    It is from one write. Raises `OSError`.

    pyarrow asks an object store for the size of an object and then for so many bytes. Of a longer object that was
    written in between, it returns the beginning. The beginning of a JSON object is not JSON, so it is read again.
    """
    content = b""
    for wait_s in _WAITS_S:
        time.sleep(wait_s)
        content = read_small(location, LARGEST_BYTES)
        if location.is_local or _is_json(content):
            break
    return content


def _is_json(content: bytes) -> bool:
    try:
        json.loads(content)
    except (ValueError, RecursionError):
        return False
    return True


def _plain(value: Any, not_finite: Callable[[float], object]) -> Any:
    # The most frequent types first: a result has 4,096 steps of eight numbers, and is written after each epoch.
    if value is None or type(value) in (int, str, bool):
        return value
    if type(value) is not float:
        if isinstance(value, Mapping):
            return {str(name): _plain(each, not_finite) for name, each in value.items()}
        if isinstance(value, list | tuple):
            return [_plain(each, not_finite) for each in value]
        if hasattr(value, "item"):
            with suppress(ValueError, RuntimeError):  # of NumPy and torch, for more than one number
                value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return not_finite(value)
    return value if value is None or isinstance(value, str | int | float) else str(value)


def _number(fact: Any) -> Any:
    if isinstance(fact, Mapping):
        return numbers(fact)
    return float(fact) if isinstance(fact, str) and fact in NOT_FINITE else fact
