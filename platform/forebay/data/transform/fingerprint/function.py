"""Identity of a user's function, and whether it changed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

from forebay.data.transform.fingerprint.reference_walk import STATE, ReferenceWalk
from forebay.data.transform.fingerprint.values import Identity
from forebay.errors import InvalidOption, Unfingerprintable
from forebay.runtime.late_import import plain


def function_identity(fn: Callable[..., Any], version: str | None, *, reads_inputs: bool = False) -> Identity:
    """Identity of `fn`, as JSON values.

    Two functions with equal identity compute the same. It covers the function's bytecode, defaults, closure values,
    and the globals that it reads: plain data by value, the user's own functions and classes recursively, installed
    packages by version, and by content where the version says too little.

    Raises `Unfingerprintable`, naming the variable, for everything else: what is not defined yet, what a call changes,
    and what depends on files, the process, time or chance. `reads_inputs` allows to read files: the caller's own
    fingerprint covers them.

    With `version`, nothing is refused. The version stands for what cannot be seen, and the user is responsible for
    it. What is seen counts as without a version.

    The state inside of a package cannot be seen, such as an option set by a call.
    """
    if version is not None and (not isinstance(version, str) or not version):
        raise InvalidOption(
            f"version={version!r} is not a version. Give a non-empty string such as '1'.", version=version
        )
    fn = plain(fn)
    name, module = function_name(fn), getattr(_innermost(fn), "__module__", None)
    if version is not None and type(fn) is FunctionType and str(module).partition(".")[0] == "forebay":
        # Its own functions count by their version alone: all of its code would change with each release.
        return {"function": f"{module}.{name}", "version": version}
    identity = ReferenceWalk(name, is_versioned=version is not None, reads_inputs=reads_inputs).whole(fn)
    if version is None:
        return identity
    # A spawned process has the script as `__mp_main__`.
    return {"function": f"{module}.{name}".replace("__mp_main__", "__main__"), "version": version, "seen": identity}


def function_name(fn: Callable[..., Any]) -> str:
    """Name of `fn` for messages."""
    fn = _innermost(fn)
    return str(getattr(fn, "__qualname__", type(fn).__qualname__))


def _innermost(fn: Callable[..., Any]) -> Callable[..., Any]:
    while isinstance(fn, functools.partial):
        fn = fn.func
    return fn


def validate_unchanged(made_by: str, name: str, known: Identity, found: Identity) -> None:
    """Raise `Unfingerprintable` if an identity has changed.

    `made_by` is the call that computed the known one, such as "fb.Transform".
    """
    known, found = _without_state(known), _without_state(found)
    if known == found:
        return
    variable = _first_change(known, found) or "what it does"
    raise Unfingerprintable(
        f"{name} has changed since {made_by}(...) was called: {variable} is another. Rows that were cached for one "
        f"would be used for the other. Call {made_by} after everything that {name} reads is set, in the process that "
        "reads the rows too. What a call changes belongs in an object of a class of your own, with a version.",
        function=name,
        variable=variable,
    )


def _without_state(identity: Identity) -> Identity:
    if isinstance(identity, list):
        return [_without_state(part) for part in identity]
    if isinstance(identity, dict):
        return {key: _without_state(part) for key, part in identity.items() if key != STATE}
    return identity


def _first_change(known: Identity, found: Identity) -> str | None:
    """Name of the innermost variable that differs."""
    if isinstance(known, list) and isinstance(found, list) and len(known) == len(found):
        pairs = list(zip(known, found, strict=True))
        return next((_first_change(one, two) for one, two in pairs if one != two), None)
    if not isinstance(known, dict) or not isinstance(found, dict):
        return None
    for key in sorted(known.keys() | found.keys()):
        one, two = known.get(key), found.get(key)
        if one != two:
            inner = _first_change(one, two)
            own = key if key.startswith(("global ", "closure ", "default ", "field ", "the ", "import ")) else None
            return inner or own
    return None
