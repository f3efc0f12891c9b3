"""Pictures of the machines of a run over its time."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from forebay.events import MachineUse
from forebay.report.axes import tick_text
from forebay.report.curves import Curve, Plot, curves
from forebay.report.elements import element, joined, section
from forebay.runtime.formatting import share_text
from forebay.training.run_report.learning import RUNNING
from forebay.training.run_report.recorded_run import RecordedRun

_WIDTH, _HEIGHT = 360, 190


@dataclass(frozen=True, slots=True, kw_only=True)
class _Panel:
    """Picture of numbers of a node. Of several nodes, the sum of the numbers is drawn."""

    title: str
    values: Mapping[str, Callable[[MachineUse], float]]
    is_share: bool = True


_PANELS = (
    _Panel(title="GPU busy", values={"": lambda use: use.gpu}),
    _Panel(title="GPU memory", values={"": lambda use: use.gpu_memory}),
    _Panel(title="CPU busy", values={"": lambda use: use.cpu}),
    _Panel(title="memory", values={"": lambda use: use.memory}),
    _Panel(
        title="disk, bytes per second",
        values={"read": lambda use: use.disk_read_bytes_per_s, "written": lambda use: use.disk_write_bytes_per_s},
        is_share=False,
    ),
    _Panel(
        title="network, bytes per second",
        values={"received": lambda use: use.received_bytes_per_s, "sent": lambda use: use.sent_bytes_per_s},
        is_share=False,
    ),
)


def node_section(run: RecordedRun) -> Markup:
    """Draw CPU, memory, GPUs, disk and network of each node."""
    nodes: dict[str, list[tuple[float, MachineUse]]] = {}
    for begin_s, start in run.starts():
        for node, points in start.use.items():
            nodes.setdefault(node, []).extend((begin_s + point.at_s, point.use) for point in points)
    pictures = [picture for panel in _PANELS if (picture := _picture(panel, nodes))]
    if not pictures:
        return joined(())
    names = f"Node {next(iter(nodes))}." if len(nodes) == 1 else f"{len(nodes)} nodes; at most 5 are recorded."
    return section("Machines", element("p", names, class_="quiet"), element("div", *pictures, class_="trio"))


def _picture(panel: _Panel, nodes: Mapping[str, Sequence[tuple[float, MachineUse]]]) -> Markup | None:
    found: list[Curve] = []
    for number, (node, points) in enumerate(nodes.items()):
        if len(nodes) == 1:
            found += [
                Curve(label=label or panel.title, points=_points(points, value), series=series)
                for series, (label, value) in enumerate(panel.values.items())
            ]
        else:
            found.append(Curve(label=node, points=_points(points, *panel.values.values()), series=number))
    if not any(curve.points for curve in found):
        return None
    plot = Plot(
        title=panel.title,
        x_label=RUNNING,
        curves=found,
        y_range=(0.0, 1.0) if panel.is_share else None,
        zero=True,
        format_y=share_text if panel.is_share else tick_text,
        is_time=True,
        width=_WIDTH,
        height=_HEIGHT,
    )
    return curves(plot)


def _points(
    points: Sequence[tuple[float, MachineUse]], *values: Callable[[MachineUse], float]
) -> list[tuple[float, float]]:
    sums = [(at_s, sum(value(use) for value in values)) for at_s, use in points]
    return [(at_s, value) for at_s, value in sums if math.isfinite(value)]
