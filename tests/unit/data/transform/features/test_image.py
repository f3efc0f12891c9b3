"""Encoded images: pixels equal Pillow's, decoded once."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import forebay as fb
from forebay.errors import InvalidOption, MissingPackage, TransformFailed, WrongType

pillow = pytest.importorskip("PIL.Image")


def encoded(pixels: Any, kind: str = "PNG", **options: Any) -> bytes:
    sink = io.BytesIO()
    pillow.fromarray(np.asarray(pixels, np.uint8)).save(sink, kind, **options)
    return sink.getvalue()


def decoded(values: Any, **options: Any) -> Any:
    column = values if isinstance(values, pa.ChunkedArray) else pa.array(values, pa.binary())
    return fb.Transform(x=fb.Image("c", **options)).apply(pa.table({"c": column})).arrays["x"]


def test_pixels_of_the_size_come_back_and_nulls_are_black() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (2, 3, 4, 3), np.uint8)
    chunks = [[encoded(noise[0]), None], [encoded(noise[1])]]
    found = decoded(pa.chunked_array(chunks, pa.large_binary()), size=(3, 4))
    assert found.shape == (3, 3, 3, 4)
    np.testing.assert_array_equal(found[[0, 2]].transpose(0, 2, 3, 1), noise)
    assert not found[1].any()
    assert decoded([], size=(3, 4)).shape == (0, 3, 3, 4)


def test_an_image_covers_the_size_and_is_cut_at_its_centre() -> None:
    """Three bands side by side: of a square, the middle one is left."""
    bands = np.zeros((10, 30, 3))
    bands[:, :10], bands[:, 10:20], bands[:, 20:] = [255, 0, 0], [0, 255, 0], [0, 0, 255]
    found = decoded([encoded(bands)], size=(4, 4))
    assert found[0, :, 1:3, 1:3].reshape(3, -1).T.tolist() == [[0, 255, 0]] * 4


def test_modes_and_orientation() -> None:
    grey = np.array([[0, 255]])
    assert decoded([encoded(grey)], size=(1, 2), mode="L").tolist() == [[[[0, 255]]]]
    assert decoded([encoded(grey)], size=(1, 2)).tolist() == [[[[0, 255]]] * 3]
    turned = pillow.Exif()
    turned[0x0112] = 3  # upside down
    assert decoded([encoded(grey, exif=turned)], size=(1, 2), mode="L").tolist() == [[[[255, 0]]]]


def test_a_data_set_of_hugging_face_decodes_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    images = [{"bytes": encoded(np.full((2, 2, 3), number)), "path": None} for number in range(6)]
    kind = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
    pq.write_table(pa.table({"image": pa.array(images, kind), "y": range(6)}), tmp_path / "a.parquet", row_group_size=2)
    transform = fb.Transform(image=fb.Image("image.bytes", size=(2, 2)), y=fb.Label("y"))
    cache = fb.DiskCache(tmp_path / "cache", quota_bytes=64 << 20, min_free_bytes=0)
    opened: list[object] = []
    original = pillow.open
    monkeypatch.setattr(pillow, "open", lambda file: opened.append(file) or original(file))
    with fb.Loader(fb.build_plan(fb.scan(tmp_path / "a.parquet")), transform, cache, global_batch=3) as loader:
        for _ in range(2):
            for batch in loader:
                assert batch["image"][:, 0, 0, 0].tolist() == batch["y"].tolist()
    assert len(opened) == 6


def test_what_is_no_image_is_named() -> None:
    with pytest.raises(TransformFailed, match=r"column 'c', row 2 of its row group \(UnidentifiedImageError"):
        decoded(pa.chunked_array([[encoded(np.zeros((1, 1))), None], [b"no image"]], pa.binary()), size=(1, 1))
    with pytest.raises(WrongType, match="encoded images"):
        fb.Transform(x=fb.Image("c", size=(1, 1))).apply(pa.table({"c": [1]}))
    for options in ({"size": 3}, {"size": (0, 1)}, {"size": (1, 1), "mode": "CMYK"}):
        with pytest.raises(InvalidOption, match="Give"):
            fb.Image("c", **options)  # type: ignore[arg-type]


def test_the_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "PIL"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(MissingPackage, match=r"pip install 'forebay\[image\]'"):
        fb.Image("c", size=(1, 1))


SAMPLES = np.array([[0, 1, 255, 256], [257, 32768, 65280, 65535]])
NOISE = np.random.default_rng(0).integers(0, 256, (2, 4, 4), np.uint8)


def _saved(image: Any, kind: str, **options: Any) -> bytes:
    sink = io.BytesIO()
    image.save(sink, kind, **options)
    return sink.getvalue()


def _palette(transparency: Any) -> bytes:
    image = pillow.fromarray(NOISE[:, :, 0] % 4, "L").convert("P")
    image.putpalette([value for step in range(256) for value in (step, 255 - step, step * 7 % 256)])
    return _saved(image, "PNG", transparency=transparency)


WIDE = {
    "PNG of 16 bits": lambda: _saved(pillow.fromarray(SAMPLES.astype(np.uint16)), "PNG"),
    "TIFF of 16 bits": lambda: _saved(pillow.fromarray(SAMPLES.astype(np.uint16)), "TIFF"),
    "TIFF of 16 bits, big end first": lambda: _saved(pillow.fromarray(SAMPLES.astype(">u2")), "TIFF"),
    "PGM of 16 bits": lambda: b"P5 4 2 65535\n" + SAMPLES.astype(">u2").tobytes(),
}
UNKNOWN = {
    "TIFF of floats": lambda: _saved(pillow.fromarray(np.array([[0.0, 1.0]], np.float32)), "TIFF"),
    "TIFF of 32 bits": lambda: _saved(pillow.fromarray(np.array([[0, 1 << 30]], np.int32)), "TIFF"),
}
USUAL = {
    "palette": lambda: _palette(None),
    "palette with a transparent entry": lambda: _palette(1),
    "palette with transparencies": lambda: _palette(bytes([0, 100, 255, 7])),
    "grey with transparency": lambda: _saved(pillow.fromarray(np.ascontiguousarray(NOISE[:, :, :2]), "LA"), "PNG"),
    "colours with transparency": lambda: _saved(pillow.fromarray(NOISE, "RGBA"), "PNG"),
    "CMYK": lambda: _saved(pillow.fromarray(NOISE, "CMYK"), "TIFF"),
    "black and white": lambda: _saved(pillow.fromarray(NOISE[:, :, 0] > 127), "PNG"),
}


@pytest.mark.parametrize("name", WIDE)
def test_values_of_16_bits_keep_their_upper_8(name: str) -> None:
    content = WIDE[name]()
    assert decoded([content], size=(2, 4), mode="L")[0, 0].tolist() == (SAMPLES >> 8).tolist()
    assert decoded([content], size=(2, 4))[0].tolist() == [(SAMPLES >> 8).tolist()] * 3


@pytest.mark.parametrize("name", UNKNOWN)
def test_values_without_a_known_range_are_refused(name: str) -> None:
    with pytest.raises(TransformFailed, match=r"column 'c', row 1 .*32 bits"):
        decoded([None, UNKNOWN[name]()], size=(1, 2))


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("name", USUAL)
def test_transparency_is_left_out_of_the_colours(name: str) -> None:
    content = USUAL[name]()
    with pillow.open(io.BytesIO(content)) as image:
        expected = np.asarray(image.convert("RGBA").convert("RGB") if image.mode != "CMYK" else image.convert("RGB"))
    np.testing.assert_array_equal(decoded([content], size=expected.shape[:2])[0].transpose(1, 2, 0), expected)
