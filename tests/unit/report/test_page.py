"""A page stands alone: nothing in its texts becomes part of the page, and it asks nothing of the network."""

from __future__ import annotations

from forebay.report.elements import element, facts, row, section, table
from forebay.report.page import document, fragment

EVIL = "<img src=x onerror=alert(1)> & \"'"


def test_text_is_escaped_wherever_it_stands() -> None:
    shown = table([EVIL], [row([EVIL], title=EVIL)], label=EVIL)
    page = document(EVIL, fragment(EVIL, section(EVIL, shown), facts({EVIL: EVIL}), under=EVIL))
    assert "<img" not in page and "onerror=alert(1)&gt;" in page
    assert EVIL.replace("<", "&lt;").replace(">", "&gt;").count("alert") * 10 == page.count("alert(1)")


def test_a_page_allows_no_request_and_gives_its_fragment_back() -> None:
    content = fragment("ctr", element("p", "text"))
    page = document("ctr", content, script="let a = 1;")
    assert "default-src 'none'" in page and "connect-src" not in page
    shown = page.partition("<body>")[2].partition("</body>")[0]
    assert shown == content and "let a" not in shown
