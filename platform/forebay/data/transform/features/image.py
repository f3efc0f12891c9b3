"""Encoded images, decoded once to one size."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa

from forebay.data.parquet.decoded_table import Columns
from forebay.data.transform.block import BlockArray
from forebay.data.transform.features.categories import is_text, value_type
from forebay.data.transform.features.columns import column_names, column_type, wrong_type
from forebay.data.transform.features.groups import Schema
from forebay.data.transform.fingerprint.values import Identity
from forebay.errors import InvalidOption, TransformFailed
from forebay.runtime.extras import extra_package
from forebay.runtime.foreign_code import replaced_errors

_CHANNELS = {"RGB": 3, "L": 1}


@dataclass(frozen=True, slots=True)
class Image:
    """Encoded images, decoded and scaled to one size.

    JPEG, PNG, WebP and what else Pillow reads. They become array [rows, channels, height, width] of uint8. A null is
    all 0. Decoded once, when the row group enters the cache: later epochs read pixels. An image is turned as its EXIF
    orientation says, scaled so that it covers the size, and cut at its centre (`PIL.ImageOps.fit`, bilinear).

    Values of 16 bits keep their upper 8, as Pillow's RGB does. Transparency is left out, and of several frames
    all but the first. Images of 32 bits, whole numbers or floats, have no range that says what is white: they are
    refused.

    Takes binary columns, also as a field of a struct, as datasets of Hugging Face have them (`image.bytes`). The
    fingerprint covers the version of Pillow.

    Raises `MissingPackage` without Pillow, `InvalidOption` for an unusable option, `WrongType` for other columns, and
    `TransformFailed` for a value that cannot be decoded as an image, with its row.
    """

    column: str
    size: Sequence[int]
    mode: str = "RGB"

    def __post_init__(self) -> None:
        column_names("Image", [self.column])
        size = tuple(self.size) if isinstance(self.size, Sequence) else ()
        if len(size) != 2 or not all(isinstance(side, int) and side > 0 for side in size):
            raise InvalidOption(f"Image(size={self.size!r}) is invalid. Give height and width, such as (224, 224).")
        if self.mode not in _CHANNELS:
            raise InvalidOption(f"Image(mode={self.mode!r}) is not known. Give RGB, or L for shades of grey.")
        object.__setattr__(self, "size", size)
        _pillow()

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column,)

    def array_names(self, name: str) -> tuple[str, ...]:
        return (name,)

    def check(self, name: str, schema: Schema) -> None:
        found = column_type(f"Image {name!r}", self.column, schema)
        if not (is_text(value_type(found)) or pa.types.is_null(found)):
            raise wrong_type(f"Image {name!r}", self.column, found, "It takes encoded images as binary values.")

    def arrays(self, name: str, table: Columns) -> dict[str, BlockArray]:
        height, width = self.size
        pixels = np.zeros((table.num_rows, _CHANNELS[self.mode], height, width), np.uint8)
        row = 0
        for chunk in table[self.column].chunks:
            for value in chunk:
                if value.is_valid:
                    with replaced_errors(partial(self._not_an_image, name, row)):
                        pixels[row] = self._decode(value.as_py())
                row += 1
        return {name: pixels}

    def identity(self) -> Identity:
        return ["Image", self.column, list(self.size), self.mode, _pillow().__version__]

    def _decode(self, content: bytes) -> BlockArray:
        pillow = _pillow()
        height, width = self.size
        with pillow.Image.open(io.BytesIO(content)) as image:
            upright = _of_8_bits(pillow.ImageOps.exif_transpose(image), image).convert(self.mode)
        fitted = pillow.ImageOps.fit(upright, (width, height), method=pillow.Image.Resampling.BILINEAR)
        pixels: BlockArray = np.asarray(fitted).reshape(height, width, -1).transpose(2, 0, 1)
        return pixels

    def _not_an_image(self, name: str, row: int, error: Exception) -> Exception:
        return TransformFailed(
            f"Image {name!r} cannot decode column {self.column!r}, row {row} of its row group "
            f"({type(error).__name__}: {error}). Write the image again, or leave the row out (where=...).",
            column=self.column,
            row=row,
        )


_SAMPLE_BITS = 258
"""Number of TIFF's tag of the bits of a sample."""


def _of_8_bits(upright: Any, image: Any) -> Any:
    """Image of a mode that converts without clipping.

    `upright` is `image`, turned. Raises `ValueError` for values without a known range.
    """
    if upright.mode.startswith("I;16"):
        bits = getattr(image, "tag_v2", {}).get(_SAMPLE_BITS, (16,))[0]
        return _upper_bits(upright, bits)
    if upright.mode == "I" and image.format in ("PNG", "PPM"):  # of 16 bits, in Pillow before 11.3
        return _upper_bits(upright, 16)
    if upright.mode in ("I", "F"):
        raise ValueError(f"its values are of 32 bits (mode {upright.mode}), and nothing says which one is white")
    # Pillow warns of a palette with transparency that is converted to RGB.
    return upright.convert("RGBA") if upright.mode == "P" and "transparency" in upright.info else upright


def _upper_bits(image: Any, bits: int) -> Any:
    pixels = np.asarray(image).astype(np.int64) >> (bits - 8)
    if pixels.size and not 0 <= pixels.min() <= pixels.max() < 1 << 8:
        raise ValueError(f"it has values of more than {bits} bits")
    return _pillow().Image.fromarray(pixels.astype(np.uint8))


def _pillow() -> Any:
    with extra_package("pillow", "fb.Image"):
        import PIL.Image  # noqa: PLC0415
        import PIL.ImageOps  # noqa: PLC0415
    return PIL
