"""Picture of the throughput over batch sizes."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

FILE_NAME = "batches.png"
_INK, _LINE = "#22313f", "#2166ac"


def batch_png(batches: Sequence[int], requests_per_s: Sequence[float], tokens_per_s: Sequence[float]) -> bytes:
    """PNG of two plots: requests and output tokens per second over the batch size, both axes logarithmic."""
    figure = Figure(figsize=(8, 3.2), layout="constrained")
    FigureCanvasAgg(figure)
    plots = figure.subplots(1, 2)
    for plot, values, name in zip(
        plots, (requests_per_s, tokens_per_s), ("requests/s", "output tokens/s"), strict=True
    ):
        plot.plot(batches, values, marker="o", color=_LINE)
        plot.set_xscale("log", base=2)
        plot.set_yscale("log")
        plot.set_xticks(batches, [str(batch) for batch in batches])
        plot.minorticks_off()
        plot.set_xlabel("batch", color=_INK)
        plot.set_title(name, color=_INK, fontsize=10, loc="left")
        plot.grid(visible=True, color="#e4e8ec")
        for value, batch in zip(values, batches, strict=True):
            plot.annotate(
                f"{value:.0f}", (batch, value), textcoords="offset points", xytext=(0, 6), fontsize=7, ha="center"
            )
        plot.margins(y=0.15)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=110)
    return content.getvalue()
