"""Scripts of a page that reloads itself and keeps its place."""

from __future__ import annotations

KEEP_PLACE = """
history.scrollRestoration = "manual";
const scrolling = () => [document.scrollingElement, ...document.querySelectorAll(".wide")];
const places = JSON.parse(sessionStorage.getItem("forebay") || "{}");
scrolling().forEach(each => each.scrollTo(...(places[each.ariaLabel] || [0, 0])));
addEventListener("pagehide", () => sessionStorage.setItem("forebay", JSON.stringify(Object.fromEntries(
  scrolling().map(each => [each.ariaLabel, [each.scrollLeft, each.scrollTop]])))));
"""
"""Scrolls the page and its wide tables to where they were before, by the storage of the tab. A browser would do so for
the page alone, and show its top after a page with an error.
"""
# A page in a hidden tab waits until it is seen.
_RELOAD = """
const reload = () => location.reload();
setTimeout(() => document.hidden ? addEventListener("visibilitychange", reload, { once: true }) : reload(), AFTER_MS);
"""


def reload_script(after_s: float) -> str:
    """Script that reloads its page after `after_s` seconds."""
    return _RELOAD.replace("AFTER_MS", str(round(1e3 * after_s)))
