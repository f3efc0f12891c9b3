"""Functions with different results have other fingerprints, or are refused."""

from __future__ import annotations

import importlib.util
import os
import pickle
import sys
import tempfile
import traceback
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from forebay.data.transform.fingerprint.function import function_identity
from forebay.data.transform.fingerprint.values import canonical
from forebay.errors import Unfingerprintable

_spec = importlib.util.spec_from_file_location("fingerprint_pairs", Path(__file__).with_name("pairs.py"))
assert _spec is not None
assert _spec.loader is not None
pairs = importlib.util.module_from_spec(_spec)
sys.modules[_spec.name] = pairs
_spec.loader.exec_module(pairs)
BATCH = np.array([1.0, 2.0])


@dataclass(frozen=True)
class Looked:
    """Result of one version of a module, and its identity or why it has none."""

    result: str
    identity: str | None
    refused: str
    versioned: str


def look(text: str, folder: str) -> Looked:
    module = types.ModuleType("pair_module")
    module.__dict__["FOLDER"] = folder
    sys.modules["pair_module"] = module
    exec(text, module.__dict__)
    identity, refused = None, ""
    try:
        identity = canonical(function_identity(module.fn, None))
    except Unfingerprintable as error:
        refused = str(error)
    versioned = canonical(function_identity(module.fn, "1"))
    try:
        result = repr(module.fn(BATCH))
    except NameError as error:
        result = f"{error} {module.__dict__.get('STATE')}"
    return Looked(result, identity, refused, versioned)


def look_safely(text: str) -> Looked:
    try:
        with tempfile.TemporaryDirectory() as folder:
            return look(text, folder)
    except Exception:  # noqa: BLE001 - the test of this pair shows it
        return Looked("", None, traceback.format_exc(), "")


def forked(texts: Sequence[str]) -> list[Looked]:
    """Look at each text in a process of their own: they change modules and the environment."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            done = [look_safely(text) for text in texts]
            with os.fdopen(writing, "wb") as out:
                out.write(pickle.dumps(done))
        except BaseException:  # noqa: BLE001 - a fork must end here
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as given:
        found: list[Looked] = pickle.loads(given.read())
    os.waitpid(child, 0)
    return found


@pytest.fixture(scope="module")
def found() -> dict[str, tuple[Looked, Looked]]:
    before = forked([pair.text.replace("<>", pair.before) for pair in pairs.PAIRS])
    after = forked([pair.text.replace("<>", pair.after) for pair in pairs.PAIRS])
    return {pair.name: both for pair, both in zip(pairs.PAIRS, zip(before, after, strict=True), strict=True)}


@pytest.mark.parametrize("pair", pairs.PAIRS, ids=str)
def test_two_functions_are_told_apart_or_refused_by_name(pair, found) -> None:
    before, after = found[pair.name]
    assert before.result != after.result, "the pair is none"
    if pair.refused is None:
        assert before.refused == after.refused == ""
        assert before.identity != after.identity
        assert before.versioned != after.versioned
    else:
        assert pair.refused in before.refused
        assert pair.refused in after.refused
        assert 'version="1"' in before.refused
