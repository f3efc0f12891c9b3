"""Rows of a manifest as arrays of a transform."""

from __future__ import annotations

from dataclasses import dataclass

from forebay.data.manifest.manifest import Manifest
from forebay.data.parquet.arrow_types import parse_type
from forebay.data.parquet.column_paths import read_paths
from forebay.data.transform.augment import Augment, AugmentFunction, as_augment
from forebay.data.transform.block import ArraySchema
from forebay.data.transform.features.groups import Ragged
from forebay.data.transform.fingerprint.values import canonical, digest
from forebay.data.transform.transform import Transform
from forebay.errors import InvalidOption, validate_type


@dataclass(frozen=True, slots=True, eq=False)
class Dataset:
    """Rows of `manifest` as arrays of `transform`.

    One block for each row group. A cache stores these blocks, for all plans that order them, with any `augment`: that
    changes batches, after the cache. Immutable and picklable.

    Raises `InvalidOption` if an argument is not a manifest or not a transform, and for an augment of lists without
    padding.
    """

    manifest: Manifest
    transform: Transform
    augment: Augment | AugmentFunction | None = None

    def __post_init__(self) -> None:
        validate_type("manifest", self.manifest, Manifest, "the manifest that fb.scan() returns")
        validate_type("transform", self.transform, Transform, "an fb.Transform")
        object.__setattr__(self, "augment", as_augment(self.augment))
        validate_augment(self.augment, self.transform)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns and paths to read.

        The columns of the features, or with `fn` all columns of the manifest.
        """
        columns = self.transform.columns
        if columns is None:
            return self.manifest.columns
        return read_paths(columns, {field.name: parse_type(field.type) for field in self.manifest.fields})

    @property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that blocks depend on.

        Equal fingerprints make equal blocks of equal row groups. It is the transform's fingerprint. With `fn` it also
        covers the columns, because `fn` gets all of them.
        """
        if self.transform.columns is not None:
            return self.transform.fingerprint
        return digest(canonical([self.transform.fingerprint, list(self.columns)]).encode())

    def validate_columns(self) -> None:
        """Check that every feature can use its columns.

        Raises `MissingColumn` or `WrongType`. Does not call `fn`.
        """
        self.transform.check(self.manifest)

    def array_schema(self) -> ArraySchema | None:
        """Name, dtype and trailing shape of each array.

        Reads no data. None with `fn`, which is not called.
        """
        return self.transform.array_schema(self.manifest)


def validate_augment(augment: object, transform: Transform) -> None:
    """Raise `InvalidOption` for an augment of unpadded lists.

    An augment gets arrays with one entry per row.
    """
    if augment is None:
        return
    for name, feature in transform.features.items():
        if isinstance(feature, Ragged) and not feature.padded:
            raise InvalidOption(
                f"augment= changes arrays with one entry per row, and feature {name!r} is Ragged(padded=False). "
                "Give padded=True and max_len=..., or leave augment= out.",
                name=name,
            )
