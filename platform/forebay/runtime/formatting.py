"""Numbers, and names that are meant, as text for people.

The same in the progress bar, the tables, the plots and errors.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path

_LAYOUT = "\n\t"


def did_you_mean(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Question after an unknown name, or nothing.

    >>> did_you_mean("epocs", ["data", "epochs"]), did_you_mean("x", ["data"])
    (" Did you mean 'epochs'?", '')
    """
    near = near_names(name, known, most=1, cutoff=cutoff)
    return f" Did you mean {near[0]!r}?" if near else ""


def did_you_mean_file(path: Path) -> str:
    """Question after a path that does not exist, or nothing.

    By the entries of the nearest folder that exists.
    """
    folder = next((up for up in path.parents if up.is_dir()), None)
    try:
        known = [] if folder is None else [each.name for each in folder.iterdir()]
    except OSError:  # it may not be listed
        known = []
    name = path.relative_to(folder).parts[0] if known and folder is not None else ""
    return "" if name in known else did_you_mean(name, known)


def near_names(name: str, known: Iterable[str], *, most: int = 3, cutoff: float = 0.6) -> list[str]:
    """Names that `name` may mean, the nearest first, whatever their case.

    >>> near_names("PRICE", ["price", "data", "prices"])
    ['price', 'prices']
    """
    from difflib import get_close_matches  # noqa: PLC0415 - for errors only

    by_lower = {each.lower(): each for each in known}
    return [by_lower[each] for each in get_close_matches(name.lower(), list(by_lower), n=most, cutoff=cutoff)]


def without_addresses(text: str) -> str:
    """`text` without memory addresses of functions and objects.

    They differ in every process.
    """
    return re.sub(r" at 0x[0-9a-f]+", "", text)


def metric_text(value: float) -> str:
    """Four significant digits: `0.4312`, `12.35`, `3.1e-05`."""
    if not math.isfinite(value):
        return str(value)
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.1e}"
    return f"{value:.4f}" if abs(value) < 10 else f"{value:.2f}"


def metric_text_of(name: str, value: float) -> str:
    """Value of the metric `name` as text.

    The end of the name says its unit: bytes and large rates are shortened.

    >>> metric_text_of("memory_bytes", 3 << 30), metric_text_of("tokens_per_s", 12_345.0), metric_text_of("auc", 0.7)
    ('3.00 GiB', '12.3k', '0.7000')
    """
    if name.endswith("_bytes") and math.isfinite(value):
        return bytes_text(value)
    return count_text(value) if name.endswith("_per_s") and value >= 1000 else metric_text(value)


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Metrics in their order: `loss 0.4312, auc 0.7731`."""
    return ", ".join(f"{name} {metric_text_of(name, value)}" for name, value in metrics.items())


def rate_text(rows: float | None) -> str:
    """Rows per second: `312k rows/s`."""
    return "- rows/s" if rows is None else f"{count_text(rows)} rows/s"


def count_text(count: float) -> str:
    """Three significant digits with a unit: `950`, `12.3k`, `312k`, `2.00M`."""
    for unit, size in (("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if count >= 0.9995 * size:
            return f"{_three_digits(count / size)}{unit}"
    return f"{count:.0f}"


def bytes_text(nbytes: float) -> str:
    """Bytes in the largest suitable unit.

    It leaves a number of 1 or more: `0 B`, `412 KiB`, `1.23 GiB`.
    """
    for unit, size in (("PiB", 1 << 50), ("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if nbytes >= size:
            return f"{_three_digits(nbytes / size)} {unit}"
    return f"{nbytes:.0f} B"


def share_text(share: float | None) -> str:
    """Percentage: `3 %`."""
    return "- %" if share is None else f"{share:.0%}".replace("%", " %")


def time_text(seconds: float | None) -> str:
    """Minutes and seconds, or with hours: `0:42`, `1:02:03`."""
    if seconds is None:
        return "-:--"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def seconds_text(seconds: float) -> str:
    """Seconds with three significant digits.

    For columns and lists. `0` for none.

    >>> [seconds_text(seconds) for seconds in (0, 0.042, 3.1, 12.34, 250.1, 7200)]
    ['0', '0.04', '3.10', '12.3', '250', '7200']
    """
    return _three_digits(seconds) if seconds else "0"


def _three_digits(value: float) -> str:
    return f"{value:.2f}" if value < 9.995 else f"{value:.1f}" if value < 99.95 else f"{value:.0f}"


def workers_text(world_size: int, target: int) -> str:
    """Workers that train now and, if it differs, their target: `2`, `2 -> 4`."""
    return f"{world_size}" if target == world_size else f"{world_size} -> {target}"


def age_text(seconds: float) -> str:
    """Seconds in the largest suitable unit.

    It leaves a number of 1 or more.

    >>> age_text(59), age_text(3 * 3600 + 1), age_text(200_000)
    ('59 s', '3 h', '2 d')
    """
    for unit, size in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= size:
            return f"{seconds // size:.0f} {unit}"
    return f"{seconds:.0f} s"


def printable(text: str) -> str:
    r"""Text with every character that could steer a terminal escaped.

    Control characters, escape sequences, marks that turn the direction of text, and lone surrogates are shown as their
    codes. Line ends and tabs stay. Names of columns and files, errors, and logs of jobs are written by others.

    >>> print(printable("red\x1b[31m, cba\u202e, naïve 💧"))
    red\x1b[31m, cba\u202e, naïve 💧
    """
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() or each in _LAYOUT else _code(each) for each in text)


def _code(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
