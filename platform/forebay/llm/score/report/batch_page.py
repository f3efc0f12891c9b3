"""Page of the throughput over batch sizes."""

from __future__ import annotations

from collections.abc import Sequence

from forebay.report.curves import Curve, Plot, curves
from forebay.report.elements import element, section
from forebay.report.page import document, fragment, write_page
from forebay.storage.filesystem import below

FILE_NAME = "batches.html"


def write_batch_page(
    folder: str, batches: Sequence[int], requests_per_s: Sequence[float], tokens_per_s: Sequence[float]
) -> str:
    """Write two plots into `folder`: requests and output tokens per second over the batch size.

    Both axes are logarithmic. Returns the page's URI. Raises `WriteFailed`.
    """
    rates = {"requests/s": requests_per_s, "output tokens/s": tokens_per_s}
    pictures = [_picture(name, batches, values) for name, values in rates.items()]
    shown = fragment(folder, section("Throughput", element("div", *pictures, class_="pair")))
    return write_page(below(folder, FILE_NAME), document("Batch sizes", shown), "The page of the batch sizes")


def _picture(name: str, batches: Sequence[int], values: Sequence[float]) -> str:
    points = [(batch, value) for batch, value in zip(batches, values, strict=True) if value > 0]
    return curves(Plot(title=name, x_label="batch", curves=[Curve(label=name, points=points)], is_log=True))
