"""One page of all jobs: what needs a person first."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime
from urllib.parse import quote, unquote

from markupsafe import Markup

from forebay.errors import ForebayError
from forebay.fleet.client.job_rows import BAD_ENDS, FoundJobs, JobRow, JobRows, older_text, report_link
from forebay.report.elements import element, joined, section
from forebay.report.page import document, fragment
from forebay.report.server import EVERY_S, KEEP_POSITION, CachedPage, LivePage, PageServer, error_page, reload_script
from forebay.runtime.formatting import printable

LONGEST_TEXT = 400
RUN_PATH = "/run/"

_STYLE = Markup(
    """<style>
.forebay ul.jobs { list-style: none; margin: 0; padding: 0; --columns: 6.5em minmax(9em, 1.2fr) minmax(11em, 1.7fr)
  minmax(8em, 1.1fr) 5em minmax(7em, 0.8fr); }
.forebay ul.jobs.with-cost { --columns: 6.5em minmax(9em, 1.2fr) minmax(11em, 1.7fr) minmax(8em, 1.1fr) 5em 5.5em
  minmax(7em, 0.8fr); }
.forebay ul.jobs > li { display: grid; grid-template-columns: var(--columns); align-items: baseline; gap: 0.1em 1em;
  padding: 0.4em 0; border-top: 1px solid var(--faint); content-visibility: auto;
  contain-intrinsic-size: auto 2.3em; }
.forebay ul.jobs > li:first-child { border-top: 0; }
.forebay ul.jobs > li.head { color: var(--quiet); font-weight: 600; }
.forebay ul.jobs > li > *, .forebay ul.jobs .facts > * { min-width: 0; overflow-wrap: anywhere; }
.forebay ul.jobs .facts { display: contents; }
.forebay ul.jobs .name, .forebay ul.jobs .state { font-weight: 600; }
.forebay ul.jobs a { color: var(--series-0); }
.forebay ul.jobs .more { grid-column: 2 / -1; }
.forebay ul.jobs pre { margin: 0.25em 0; padding: 0.45em 0.7em; background: var(--ground); border-radius: 5px;
  font-size: 0.84em; line-height: 1.4; white-space: pre-wrap; overflow-wrap: anywhere; }
.forebay ul.jobs progress { width: 100%; height: 0.5em; accent-color: var(--series-0); display: block;
  margin-top: 0.2em; }
.forebay ul.jobs summary { color: var(--quiet); cursor: pointer; font-size: 0.9em; }
.forebay .find { font: inherit; width: min(26em, 100%); padding: 0.4em 0.7em; margin: 0.6em 0 0.2em; color: var(--ink);
  background: var(--paper); border: 1px solid var(--faint); border-radius: 6px; }
.forebay .find::placeholder { color: var(--quiet); opacity: 1; }
.forebay [hidden] { display: none !important; }
@media (max-width: 900px) {
  .forebay ul.jobs > li { grid-template-columns: 1fr auto; contain-intrinsic-size: auto 4.2em; }
  .forebay ul.jobs > li.head { display: none; }
  .forebay ul.jobs .name { order: -1; }
  .forebay ul.jobs .facts { display: flex; flex-wrap: wrap; gap: 0 0.9em; grid-column: 1 / -1; font-size: 0.92em; }
  .forebay ul.jobs .facts > :empty { display: none; }
  .forebay ul.jobs .facts > [data-name]::before { content: attr(data-name) " "; color: var(--quiet); }
  .forebay ul.jobs .more { grid-column: 1 / -1; } }
</style>"""
)
# Without a script, all jobs are shown. The text outlives a reload of the page.
_FIND = """
const find = document.querySelector(".find");
const jobs = [...document.querySelectorAll("ul.jobs > li:not(.head)")];
const show = () => {
  const words = find.value.toLowerCase().split(" ").filter(Boolean);
  jobs.forEach(each => { each.hidden = !words.every(word => each.dataset.find.includes(word)); });
  document.querySelectorAll("section.group").forEach(each => {
    each.hidden = words.length > 0 && !each.querySelector("ul.jobs > li:not(.head):not([hidden])"); });
  sessionStorage.setItem("forebay-find", find.value);
};
find.hidden = false;
find.value = sessionStorage.getItem("forebay-find") || "";
find.addEventListener("input", show);
if (find.value) show();
"""

Link = Callable[[str], str | None]


def jobs_page(
    rows: Sequence[JobRow], now: float, *, num_older: int = 0, link: Link = report_link, script: str = ""
) -> str:
    """HTML document about jobs.

    Jobs that need a person come first, then those that go on, then the ended ones, the newest first in each group.
    `num_older` are left out. `link` returns the address of a run's report. `now` is in seconds since 1970.
    """
    newest = sorted(rows, key=lambda row: (-row.changed_at, row.storage, row.name))
    groups = {
        "Needs a person": [row for row in newest if row.needs_person(now)],
        "Running": [row for row in newest if row.state in ("running", "preparing")],
        "Waiting": [row for row in newest if row.state == "starting"],
    }
    has_cost = any(map(_cost, rows))  # one for all: columns of the groups are below each other
    shown = {id(row) for group in groups.values() for row in group}
    groups["Ended"] = [row for row in newest if id(row) not in shown]
    tiles = element(
        "dl",
        *(
            element("div", element("dt", title), element("dd", str(len(group) + num_older * (title == "Ended"))))
            for title, group in groups.items()
        ),
        class_="tiles",
    )
    find = element("input", type="search", class_="find", placeholder="Find jobs", aria_label="Find jobs", hidden="")
    sections = (
        section(f"{title} ({len(group)})", _list(group, link, has_cost=has_cost), class_="group")
        for title, group in groups.items()
        if group
    )
    notices = [] if rows else ["No job was submitted with this storage."]
    notices += [older_text(num_older)] if num_older else []
    notes = (element("p", text, class_="notice") for text in notices)
    at = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%d %H:%M:%S} UTC"
    content = fragment("Jobs", tiles, find, *sections, *notes, under=at)
    return document("Forebay jobs", _STYLE + content, _FIND + script)


class ServedJobs:
    """Pages of a server: all jobs, and the report of each run."""

    def __init__(self, rows: JobRows) -> None:
        self._reader = rows
        self._found = FoundJobs(rows=[])

    def page(self) -> LivePage:
        """Page of all jobs, which reloads itself.

        Many jobs take long to read, and longer until the next time. A storage that does not answer becomes a page with
        the error.
        """
        began = time.monotonic()
        try:
            self._found = self._reader.read()
        except (OSError, ForebayError) as error:
            return error_page("The jobs could not be read", error, EVERY_S)
        reload_s = max(EVERY_S, 10 * (time.monotonic() - began))
        script = KEEP_POSITION + reload_script(reload_s)
        rows, num_older = self._found.rows, self._found.num_older
        return LivePage(text=jobs_page(rows, time.time(), num_older=num_older, link=served_link, script=script))

    def other(self, path: str) -> LivePage | None:
        """Report of the run that `path` names, None for every other path."""
        run = served_run(path, self._found.rows)
        if run is None:
            return None
        from forebay.training.run_report.live import live_page  # noqa: PLC0415 - it imports torch

        return live_page([run])


def jobs_server(rows: JobRows, port: int) -> PageServer:
    """Server of the page of all jobs, on 127.0.0.1. Raises as `PageServer`."""
    served = ServedJobs(rows)
    return PageServer(CachedPage(served.page), port, served.other)


def served_link(run: str) -> str:
    """Address of a run's report on the server of the page."""
    return RUN_PATH + quote(run, safe="")


def served_run(path: str, rows: Iterable[JobRow]) -> str | None:
    """Return the run that a path of `served_link` names, or None.

    Only a run of a shown job: the path is whatever a browser sends.
    """
    wanted = unquote(path.removeprefix(RUN_PATH)) if path.startswith(RUN_PATH) else None
    return next((run for row in rows for run in row.runs if run == wanted), None)


_KINDS = {
    **dict.fromkeys(BAD_ENDS, "failed"),
    **dict.fromkeys(("succeeded", "stopped", "fenced", "starting"), "pending"),
    "running": "running",
}
_HEAD = ("state", "job", "progress", "where", "attempt", "cost", "submitter")


def _list(rows: Sequence[JobRow], link: Link, *, has_cost: bool) -> Markup:
    titles = (element("span", title) for title in _HEAD if title != "cost" or has_cost)
    head = element("li", *titles, class_="head", aria_hidden="true")
    items = (_item(row, link, has_cost=has_cost) for row in rows)
    return element("ul", head, *items, class_="jobs with-cost" if has_cost else "jobs")


def _item(row: JobRow, link: Link, *, has_cost: bool) -> Markup:
    status = row.status
    where = "" if status is None else status.cluster or f"{status.backend} {status.host}".removeprefix("fleet").strip()
    submitter = "" if status is None else status.submitter
    attempt = f"{status.attempt}" if status is not None and status.attempt else ""
    cells = [_fact("", *_progress(row)), _fact("on", _short(where)), _fact("attempt", attempt)]
    cells += [_fact("cost", _cost(row))] if has_cost else []
    cells.append(_fact("by", _short(submitter)))
    find = f"{row.name} {row.state} {where} {submitter} {row.storage}".lower()
    return element(
        "li",
        element("span", _short(row.state), class_=f"state {_KINDS.get(row.state, 'paused')}"),
        element("span", *_name(row, link), class_="name"),
        element("span", *cells, class_="facts"),
        *_more(row),
        data_find=_short(find),
    )


def _fact(name: str, *content: str) -> Markup:
    return element("span", *content, data_name=name if name and any(content) else None)


def _name(row: JobRow, link: Link) -> Iterator[Markup]:
    has_begun = len(row.runs) > 1 or (row.status is not None and row.status.attempt > 0)
    addresses = [(run, address) for run in row.runs if has_begun and (address := link(run)) is not None]
    if len(addresses) == 1:
        yield element("a", _short(row.name), href=addresses[0][1])
        return
    yield element("span", _short(row.name))
    for run, address in addresses:
        title = run.partition("?")[0].rpartition("/")[2].removeprefix(f"{row.name}.")
        yield element("span", " ", element("a", _short(title), href=address))


def _progress(row: JobRow) -> Iterator[Markup]:
    status = row.status
    if status is None or not status.epochs:
        return
    epoch = min(status.epoch + 1, status.epochs)
    workers = f", {status.workers} worker{'s' * (status.workers != 1)}" if status.workers and not row.is_over else ""
    yield element("span", f"epoch {epoch} of {status.epochs}, step {status.step}{workers}")
    if not row.is_over:
        label = f"{status.epoch} of {status.epochs} epochs"
        yield element("progress", value=min(status.epoch, status.epochs), max=status.epochs, aria_label=label)


def _more(row: JobRow) -> Iterator[Markup]:
    lines = [_short(line) for line in row.last_lines]
    log = [element("pre", "\n".join(lines))] if lines else []
    if row.why:
        log.insert(0, element("p", _short(row.why)))
    if not log:
        return
    if row.state in ("running", "preparing") and lines:
        yield element("details", element("summary", lines[-1]), joined(log), class_="more")
    else:
        yield element("div", *log, class_="more")


def _cost(row: JobRow) -> str:
    return "" if row.cost.amount is None else f"{row.cost.amount:.2f}"


def _short(text: str) -> str:
    """Return a text that cannot steer anything, of bounded length."""
    safe = printable(text)
    return safe if len(safe) <= LONGEST_TEXT else f"{safe[:LONGEST_TEXT]}..."
