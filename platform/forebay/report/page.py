"""An HTML page that needs no network or other file."""

from __future__ import annotations

from markupsafe import Markup, escape

from forebay.report.elements import element
from forebay.report.style import STYLE
from forebay.storage.atomic import ADVICE, write_atomically, write_failed
from forebay.storage.credentials import redacted

_STYLE = Markup(f"<style>{STYLE}</style>")  # noqa: S704 - a constant
# A page never asks anything of the network, whatever its texts hold.
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


def fragment(title: str, *content: str, under: str = "") -> Markup:
    """Return the content of a page, with its style.

    A notebook shows it as it is. `under` is a line below the title.
    """
    line = element("p", under, class_="quiet") if under else ""
    parts = (element("header", element("h1", title), line), element("main", *content))
    return _STYLE + element("div", *parts, class_="forebay")


def document(title: str, content: Markup, script: str = "") -> str:
    """HTML document of a `fragment`."""
    run = f"<script>{script}</script>" if script else ""
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        "<style>html { color-scheme: light dark; } body { margin: 0; } .forebay { min-height: 100vh; }</style></head>"
        f"<body>{content}</body>{run}</html>\n"
    )


def write_page(uri: str, text: str, what: str, advice: str = ADVICE) -> str:
    """Write or replace the page `uri`.

    Returns `uri`. Raises `WriteFailed`.

    `what` names the page in the error: "the page of sweep 'a'".
    """
    try:
        write_atomically(uri, text.encode())
    except OSError as error:
        raise write_failed(what, uri, error, advice) from redacted(error)
    return uri
