"""Unknown keywords and names at the front door are refused with what to use here."""

from __future__ import annotations

import dataclasses
import inspect
import pickle
import pydoc
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

import forebay as fb
from forebay.data.transform.fingerprint.function import function_identity
from forebay.errors import InvalidOption
from forebay.llm import token_batch
from forebay.runtime.unknown_names import KEYWORDS, NAMES, SYNONYMS

TAKE_ANY = {
    "fb.ForebayError": "a keyword is a fact",
    "fb.Transform": "a keyword is a feature",
    "fb.llm.TokenSource": "has the options of another class",
    "fb.llm.run_identity": "a keyword is a fact of the run",
    "fb.llm.with_options": "has the options of another class",
    "fb.prepare": "a keyword may be the function's",
    "fb.preparation.from_ray_data": "a keyword may be the function's",
}
"""Callables that take every keyword, and why."""


def public_callables(room: ModuleType = fb, prefix: str = "fb") -> Iterator[tuple[str, Any]]:
    """Functions and classes of the front door and its rooms, by the name that users write."""
    for name in room.__all__:
        value = getattr(room, name)
        if inspect.ismodule(value) and hasattr(value, "__all__"):
            yield from public_callables(value, f"{prefix}.{name}")
        made = vars(value).get("__init__") if isinstance(value, type) else value
        if inspect.isfunction(made) and not getattr(value, "_is_protocol", False):
            yield f"{prefix}.{name}", value


CALLABLES = dict(public_callables())
REFUSING = sorted(CALLABLES.keys() - TAKE_ANY.keys())
FUNCTIONS = [name for name in REFUSING if inspect.isfunction(CALLABLES[name])]


def test_the_law_covers_the_front_door() -> None:
    assert len(REFUSING) > 100
    assert set(TAKE_ANY) < set(CALLABLES)


@pytest.mark.parametrize("name", REFUSING)
def test_every_public_callable_refuses_an_unknown_keyword(name: str) -> None:
    call = CALLABLES[name]
    with pytest.raises(InvalidOption, match=rf"^{re.escape(name)} has no argument zzzz=\. It takes \w") as failure:
        call(zzzz=1)
    assert failure.value.facts == {"argument": "zzzz"}


@pytest.mark.parametrize("name", REFUSING)
def test_every_public_callable_knows_which_keyword_is_meant(name: str) -> None:
    call = CALLABLES[name]
    for known in [
        each.name for each in inspect.signature(call).parameters.values() if each.kind != each.VAR_POSITIONAL
    ]:
        with pytest.raises(InvalidOption, match=rf"has no argument {known}_=\. Did you mean '{known}'\?"):
            call(**{f"{known}_": 1})


@pytest.mark.parametrize("name", REFUSING)
def test_signature_and_help_stay(name: str) -> None:
    call = CALLABLES[name]
    assert all(each.kind != each.VAR_KEYWORD for each in inspect.signature(call).parameters.values())
    assert call.__name__ in pydoc.render_doc(call)
    assert pickle.loads(pickle.dumps(call)) is call


def test_fingerprints_see_what_was_written() -> None:
    """Otherwise the first use at the front door would change them, and cached blocks would be made again."""
    identities = [function_identity(user_of(call), None) for call in (fb.llm.unpack, token_batch.unpack)]
    assert fb.llm.unpack is not token_batch.unpack
    assert identities[0] == identities[1]
    assert function_identity(fb.llm.unpack, "1") == function_identity(token_batch.unpack, "1")


def user_of(call: Any) -> Any:
    return lambda batch: [call(batch)]


@pytest.mark.parametrize(
    ("call", "keyword", "says"),
    [
        (fb.Loader, "batch_size", "fb.Data and fb.Loader take global_batch=: rows of a step on all ranks together"),
        (fb.Loader, "shuffle", "fb.build_plan(manifest, shuffle="),
        (fb.Loader, "num_workers", "FOREBAY_DATA_WORKERS"),
        (fb.Loader, "drop_last", 'last="drop"'),
        (fb.Loader, "pin_memory", 'device="cuda"'),
        (fb.Job, "num_workers", "Did you mean 'workers'?"),
        (fb.Job, "batch_size", "fb.Data and fb.Loader take global_batch="),
        (fb.Job, "lr", "The optimizer has it: fb.fit("),
        (fb.Job, "gpu", "fb.Resources takes gpus=."),
        (fb.run, "epochs", "fb.Loader and fb.Job take epochs=."),
        (fb.build_plan, "shufle", "Did you mean 'shuffle'?"),
        (fb.scan, "filters", "Did you mean 'where'?"),
        (fb.DiskCache, "size", "Did you mean 'quota_bytes'?"),
        (fb.llm.Options, "learning_rate", "Did you mean 'lr'?"),
        (fb.llm.token_rows, "seed", "fb.build_plan, fb.Job and fb.Sweep take seed=."),
    ],
)
def test_keywords_of_other_libraries(call: Any, keyword: str, says: str) -> None:
    with pytest.raises(InvalidOption) as failure:
        call(**{keyword: 1})
    assert says in str(failure.value)


def test_options_of_another_class_are_the_callables_own() -> None:
    with pytest.raises(InvalidOption, match=r"fb\.llm\.TokenSource has no argument seqlen=\. Did you mean 'seq_len'\?"):
        fb.llm.TokenSource("texts", fb.llm.TokenizerSpec(), seqlen=3)


def test_other_errors_pass_as_they_are() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'uri'"):
        fb.scan()  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="unhashable"):
        fb.Vocabulary(columns="a", min_count=1, max_size={[]})  # type: ignore[list-item]


def test_a_changed_copy_refuses_too() -> None:
    with pytest.raises(InvalidOption, match=r"fb\.World has no argument ranks=\. Did you mean 'rank'\?"):
        dataclasses.replace(fb.World(), ranks=1)  # type: ignore[call-arg]


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("DataLoader", "Use fb.Loader(fb.build_plan(fb.scan(folder)), transform, global_batch=...)."),
        ("train", "Use fb.run(fb.Job("),
        ("read_parquet", "Use fb.scan(folder)"),
        ("NanGuard", "It is fb.monitors.NanGuard."),
        ("torch", "It is fb.bridges.torch."),
        ("MissingColumn", "It is fb.errors.MissingColumn."),
    ],
)
def test_a_name_that_lies_elsewhere(name: str, says: str) -> None:
    with pytest.raises(AttributeError, match=rf"^module 'forebay' has no attribute '{name}'\. {re.escape(says)}"):
        getattr(fb, name)


def test_other_names_stay_attribute_errors() -> None:
    assert not hasattr(fb, "__path_of_nothing__")
    with pytest.raises(AttributeError, match="^module 'forebay' has no attribute 'loadr'$") as failure:
        fb.loadr  # type: ignore[attr-defined] # noqa: B018
    assert (failure.value.name, failure.value.obj) == ("loadr", fb)


def test_hints_name_what_exists() -> None:
    assert not NAMES.keys() & set(fb.__all__)
    parameters = {each for call in CALLABLES.values() for each in inspect.signature(call).parameters}
    assert set(SYNONYMS.values()) <= parameters
    for text in [*NAMES.values(), *KEYWORDS.values()]:
        for path in re.findall(r"\bfb((?:\.\w+)+)", text):
            value: Any = fb
            for name in path.removeprefix(".").split("."):
                value = getattr(value, name)
