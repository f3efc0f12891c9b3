"""Random augmentation of batches by a user's function.

It runs after the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from forebay.data.transform.block import Block, BlockArray
from forebay.data.transform.fingerprint.function import function_identity, function_name, validate_unchanged
from forebay.data.transform.fingerprint.values import Identity, canonical, digest
from forebay.data.transform.row_random import RowRandom
from forebay.errors import AugmentFailed, InvalidOption, TransformFailed, Unfingerprintable
from forebay.runtime.foreign_code import message_of, replaced_errors
from forebay.runtime.user_frames import with_traceback

AugmentFunction: TypeAlias = Callable[[dict[str, BlockArray], RowRandom], Mapping[str, Any]]
"""`augment(batch, rng)`: gets arrays [rows, ...] by name and random numbers by row, and returns arrays by name."""


@dataclass(frozen=True, init=False, slots=True, eq=False)
class Augment:
    """Function that changes batches at random.

    It is called after rows were gathered from cached blocks.

    ```python
    def noisy(batch, rng):
        batch["dense"] += rng.normal(0, 0.1, batch["dense"].shape[1:])
        return batch
    ```

    `fn` may write into the arrays that it gets. It returns all of them or others instead, and may add some.
    Every array has one entry per row, in order. What it makes of a row must not depend on the other rows of the batch:
    then results are equal at any number of workers. The loader's gathering thread calls it, off the trainer's thread.

    A block's fingerprint does not cover it, so one cached block serves any augment. Immutable and picklable.

    Raises `InvalidOption` if `fn` cannot be called, and `Unfingerprintable` for a `fn` that needs a `version` and has
    none.
    """

    fn: AugmentFunction
    version: str | None
    fingerprint: str
    """SHA-256, hex. Equal fingerprints change equal rows in the same way."""
    _identity: Identity = field(repr=False)

    def __init__(self, fn: AugmentFunction, *, version: str | None = None) -> None:
        if not callable(fn):
            raise InvalidOption(f"augment={fn!r:.200} cannot be called. Give a function augment(batch, rng).")
        identity = _identity_of(fn, version)
        values = {"fn": fn, "version": version, "fingerprint": digest(canonical(identity).encode())}
        for name, value in (values | {"_identity": identity}).items():
            object.__setattr__(self, name, value)

    def validate_unchanged(self) -> None:
        """Raise `Unfingerprintable` if `fn` has changed.

        The record of a run would name another function.
        """
        validate_unchanged("fb.Augment", self.name, self._identity, _identity_of(self.fn, self.version))

    @property
    def name(self) -> str:
        """Name of the function."""
        return function_name(self.fn)

    def apply(self, arrays: Mapping[str, BlockArray], rng: RowRandom, *, where: Callable[[], str]) -> Block:
        """Change the arrays of a batch of `len(rng)` rows.

        `where()` names these rows in an error. Raises `AugmentFailed` if `fn` raises (the original is the cause),
        leaves out an array, or returns anything but numeric arrays with one entry per row.
        """
        with replaced_errors(partial(self._raised, where)):
            made = self.fn(dict(arrays), rng)
        if not isinstance(made, Mapping):
            raise self.failure(f"returned a {type(made).__name__} for {where()}. Return the batch, {{name: array}}.")
        if missing := [name for name in arrays if name not in made]:
            raise self.failure(
                f"returned no {missing[0]!r} for {where()}, only {', '.join(map(repr, made))}. Return every array of "
                "the batch: leave out features in the transform.",
                array=missing[0],
            )
        rows = {name: len(array) for name, array in made.items() if hasattr(array, "__len__")}
        if wrong := {name: length for name, length in rows.items() if length != len(rng)}:
            name, length = next(iter(wrong.items()))
            raise self.failure(
                f"returned {length} rows of {name!r} for the {len(rng)} rows of {where()}. Keep every row, in order: "
                "a filter belongs into fb.scan(..., where=...).",
                array=name,
                rows=length,
                expected=len(rng),
            )
        try:
            return Block.of(made, len(rng))
        except TransformFailed as error:
            raise self.failure(f"for {where()}: {error}", **error.facts) from error

    def failure(self, what: str, **facts: Any) -> AugmentFailed:
        """Error that begins with the function's name."""
        return AugmentFailed(f"augment {self.name} {what}", function=self.name, **facts)

    def _raised(self, where: Callable[[], str], error: Exception) -> AugmentFailed:
        what = (
            f"raised {type(error).__name__} in {where()}: {message_of(error)}. Mend the function, or leave augment= "
            "out: cached rows stay valid."
        )
        return self.failure(with_traceback(what, error))


def as_augment(given: Augment | AugmentFunction | None) -> Augment | None:
    """Return the option `augment` as an `Augment`.

    A plain function needs no version.
    """
    return given if given is None or isinstance(given, Augment) else Augment(given)


def _identity_of(fn: AugmentFunction, version: str | None) -> Identity:
    try:
        return function_identity(fn, version)
    except Unfingerprintable as error:
        reason = str(error).partition(": ")[2].partition(". Give it")[0]
        raise Unfingerprintable(
            f"augment {function_name(fn)} cannot be fingerprinted by its source: {reason}. Give "
            'fb.Augment(fn, version="1"), and raise the version whenever the result changes.',
            **error.facts,
        ) from error
