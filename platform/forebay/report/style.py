"""Style of all pages: light, dark, narrow, wide, print."""

from __future__ import annotations

from collections.abc import Mapping

SERIES = ("#1f6fb2", "#c43b50", "#2e8b57", "#8a5fbf", "#b8860b")
"""Colors of up to five curves, which differ in lightness too."""
SERIES_IN_DARK = ("#6cb2eb", "#f0808f", "#5fc28c", "#b794e0", "#e0b040")

NUM_SHADES = 17
SHADES = ("#3f9e86", "#2e8fa8", "#2d74b0", "#2c53a2", "#272f7d")
"""Anchors of a scale from a low to a high value. The further from the ground, the higher. All can be seen on it."""
SHADES_IN_DARK = ("#4277a8", "#3f9fc0", "#77c8ba", "#b5e0b6", "#f0f6cf")


def _series(colors: tuple[str, ...]) -> dict[str, str]:
    return {f"series-{number}": color for number, color in enumerate(colors)}


def _shades(anchors: tuple[str, ...]) -> dict[str, str]:
    return {f"shade-{number}": _mixed(anchors, number / (NUM_SHADES - 1)) for number in range(NUM_SHADES)}


def _mixed(anchors: tuple[str, ...], share: float) -> str:
    at = share * (len(anchors) - 1)
    low = min(int(at), len(anchors) - 2)
    left, right = (bytes.fromhex(anchors[number][1:]) for number in (low, low + 1))
    return f"#{bytes(round(a + (b - a) * (at - low)) for a, b in zip(left, right, strict=True)).hex()}"


LIGHT = {
    "ink": "#22313f",
    "quiet": "#5f6b76",
    "faint": "#d5dbe1",
    "paper": "#ffffff",
    "ground": "#f4f6f8",
    "mark": "#fdf1f3",
    **_series(SERIES),
    **_shades(SHADES),
    "good": "#1b7a3d",
    "bad": "#b3261e",
    "warn": "#8a5a00",
}
"""CSS variables of a page: text, labels, lines behind the data, grounds, curves, states."""
DARK = {
    "ink": "#dde4ea",
    "quiet": "#98a5b1",
    "faint": "#3a4650",
    "paper": "#182028",
    "ground": "#10161c",
    "mark": "#3a2228",
    **_series(SERIES_IN_DARK),
    **_shades(SHADES_IN_DARK),
    "good": "#6cc68b",
    "bad": "#f2918b",
    "warn": "#e0b040",
}


def _variables(colors: Mapping[str, str]) -> str:
    return " ".join(f"--{name}: {color};" for name, color in colors.items())


STYLE = f"""
.forebay {{ {_variables(LIGHT)} color-scheme: light dark; }}
@media screen and (prefers-color-scheme: dark) {{ .forebay {{ {_variables(DARK)} }} }}
.forebay {{ font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--ground); padding: 1px 0 1.5em; }}
.forebay * {{ box-sizing: border-box; }}
.forebay header, .forebay main {{ max-width: 1180px; margin: 0 auto; padding: 0 1em; }}
.forebay h1 {{ font-size: 1.55em; line-height: 1.25; margin: 0.8em 0 0.15em; overflow-wrap: anywhere; }}
.forebay h2 {{ font-size: 1.08em; margin: 0 0 0.5em; }}
.forebay h3 {{ font-size: 0.95em; margin: 1em 0 0.2em; }}
.forebay p {{ margin: 0.3em 0; overflow-wrap: anywhere; }} .forebay .quiet {{ color: var(--quiet); }}
.forebay section {{ background: var(--paper); border: 1px solid var(--faint); border-radius: 8px; padding: 0.9em 1em;
  margin: 0.9em 0; }}
.forebay .notice {{ border-left: 4px solid var(--warn); background: var(--paper); padding: 0.5em 0.9em;
  margin: 0.7em 0; }}
.forebay .notice.failed {{ border-color: var(--bad); }}
.forebay dl {{ display: grid; grid-template-columns: fit-content(13em) 1fr; gap: 0.15em 1.2em; margin: 0.3em 0; }}
.forebay dt {{ color: var(--quiet); overflow-wrap: anywhere; }}
.forebay dd {{ margin: 0; overflow-wrap: anywhere; min-width: 0; }}
.forebay dl.tiles {{ grid-template-columns: repeat(auto-fit, minmax(7.5em, 1fr)); gap: 0.8em; margin: 0.8em 0; }}
.forebay dl.tiles div {{ background: var(--paper); border: 1px solid var(--faint); border-radius: 8px;
  padding: 0.5em 0.8em; }}
.forebay dl.tiles dt {{ font-size: 0.86em; }} .forebay dl.tiles dd {{ font-size: 1.15em; font-weight: 600;
  overflow-wrap: normal; }}
.forebay dl.tiles small {{ display: block; font-size: 0.7em; font-weight: 400; color: var(--quiet); }}
.forebay .pair {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(26em, 100%), 1fr));
  gap: 0 1.6em; }}
.forebay .trio {{ display: grid; grid-template-columns: repeat(auto-fill, minmax(min(20em, 100%), 1fr));
  gap: 0 1.2em; }}
.forebay .axes label {{ margin-right: 1.2em; }} .forebay .axes {{ font-size: 0.88em; color: var(--quiet); }}
.forebay section:has(input.log:checked) .linear, .forebay section:not(:has(input.log:checked)) figure.log,
.forebay section:has(input.time:checked) .by-step, .forebay section:not(:has(input.time:checked)) .by-time {{
  display: none; }}
@supports not selector(:has(a)) {{ .forebay .axes, .forebay .by-time, .forebay figure.log {{ display: none; }} }}
.forebay figure {{ margin: 0.2em 0 0.8em; min-width: 0; }} .forebay figcaption {{ font-size: 0.92em; }}
.forebay svg {{ display: block; width: 100%; height: auto; }}
.forebay svg text {{ font-family: system-ui, sans-serif !important; }}
.forebay .key {{ display: flex; flex-wrap: wrap; gap: 0.1em 1.1em; font-size: 0.88em; color: var(--quiet); }}
.forebay i {{ display: inline-block; width: 0.8em; height: 0.8em; margin-right: 0.45em; border-radius: 2px; }}
.forebay .wide {{ overflow-x: auto; }}
.forebay table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.93em; }}
.forebay th, .forebay td {{ text-align: left; padding: 0.28em 1em 0.28em 0; white-space: nowrap;
  border-bottom: 1px solid var(--faint); vertical-align: top; background: var(--paper); }}
.forebay th {{ color: var(--quiet); font-weight: 600; }}
.forebay th:first-child, .forebay td:first-child {{ position: sticky; left: 0; }}
.forebay table.numbers th:not(:first-child), .forebay table.numbers td:not(:first-child) {{ text-align: right; }}
.forebay td.text {{ white-space: normal; overflow-wrap: anywhere; min-width: 14em; }}
.forebay tr.best td {{ font-weight: 600; background: var(--mark); }}
.forebay th[data-up="yes"]::after {{ content: " \\25b2"; }} .forebay th[data-up="no"]::after {{ content: " \\25bc"; }}
.forebay span.best {{ color: var(--series-1); font-weight: 600; }}
.forebay .failed {{ color: var(--bad); }} .forebay .running {{ color: var(--good); }}
.forebay .paused {{ color: var(--warn); }} .forebay .pending {{ color: var(--quiet); }}
.forebay .notice.failed {{ color: inherit; }}
@media (max-width: 560px) {{
  .forebay header, .forebay main {{ padding: 0 0.6em; }} .forebay section {{ padding: 0.7em; }}
  .forebay td.text {{ min-width: 8em; }} .forebay dl.tiles {{ grid-template-columns: repeat(3, 1fr); }}
  .forebay dl {{ gap: 0.1em 0.8em; grid-template-columns: fit-content(9em) 1fr; }} }}
@media print {{
  .forebay .axes {{ display: none; }}
  .forebay {{ background: none; font-size: 11px; padding: 0; }}
  .forebay header, .forebay main {{ max-width: none; padding: 0; }}
  .forebay section {{ border: none; padding: 0; margin: 1em 0; }} .forebay .wide {{ overflow: visible; }}
  .forebay figure, .forebay tr, .forebay dl.tiles div {{ break-inside: avoid; }} .forebay h2 {{ break-after: avoid; }}
  .forebay th, .forebay td {{ white-space: normal; padding-right: 0.6em; position: static !important; }}
  .forebay i, .forebay rect {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }} }}
"""
