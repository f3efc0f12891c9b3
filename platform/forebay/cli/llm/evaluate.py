"""Measurements on the command line."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from forebay.cli.job_file import values_of
from forebay.cli.llm.score import progress_line
from forebay.cli.output import only_the_document, print_facts, print_json, print_table
from forebay.cli.preparation_display import shown_preparations
from forebay.errors import BadParameter
from forebay.llm.score.evaluation.exact_match import ExactMatchRequest, count_exact_matches
from forebay.llm.score.evaluation.perplexity import measure_perplexity
from forebay.llm.score.evaluation.win_rate import WinRate, WinRateRequest, measure_win_rate
from forebay.llm.score.request import ScoreRequest
from forebay.runtime.formatting import metric_text
from forebay.training.job.recipe import call_for

Facts = dict[str, Any]


def run_evaluation(words: Sequence[str], *, as_json: bool) -> None:
    """Run `forebay llm evaluate`.

    Raises `BadJob` for arguments that do not fit, and as the measurements.
    """
    values: dict[str, object] = dict(values_of(words))
    metric = str(values.pop("metric", ""))
    if metric not in METRICS:
        known = ", ".join(f"metric={name}" for name in METRICS)
        fault = f"metric={metric!r} is unknown" if metric else "no metric was given"
        raise BadParameter(f"{fault}. Choose one of {known}.", metric=metric)
    with only_the_document(as_json), shown_preparations():
        facts = METRICS[metric](values)
    if as_json:
        print_json({"metric": metric, **facts})
        return
    groups = facts.pop("by", {})
    print_facts({name: _text(fact) for name, fact in facts.items()})
    if groups:
        names = list(next(iter(groups.values())))
        rows = [(group, *(_text(found[name]) for name in names)) for group, found in groups.items()]
        print_table(("by", *names), rows)


def _perplexity(values: Mapping[str, object]) -> Facts:
    request = _made(ScoreRequest, {"to": "", "task": "log_likelihood", **values})
    found = measure_perplexity(request, listener=progress_line())
    return {
        "perplexity": found.perplexity,
        "loss": found.loss,
        "targets": found.targets,
        "documents": found.documents,
        "errors": found.errors,
    }


def _exact_match(values: Mapping[str, object]) -> Facts:
    found = count_exact_matches(_made(ExactMatchRequest, values))
    return {"exact_match": found.share, "interval": found.interval, "matches": found.matches, "rows": found.rows}


def _win_rate(values: Mapping[str, object]) -> Facts:
    found = measure_win_rate(_made(WinRateRequest, values), listener=progress_line())
    by = {group: _win_facts(rate) for group, rate in found.by.items()}
    return {**_win_facts(found.total), "unanswered": found.total.unanswered, **({"by": by} if by else {})}


def _win_facts(rate: WinRate) -> Facts:
    return {
        "win_rate": rate.share,
        "interval": rate.interval,
        "wins": rate.wins,
        "losses": rate.losses,
        "ties": rate.ties,
        "invalid": rate.invalid,
    }


METRICS: Mapping[str, Callable[[Mapping[str, object]], Facts]] = {
    "perplexity": _perplexity,
    "exact_match": _exact_match,
    "win_rate": _win_rate,
}


def _made(kind: type, values: Mapping[str, object]) -> Any:
    return call_for((kind,), kind, values, called="forebay llm evaluate")


def _text(fact: object) -> str:
    if isinstance(fact, tuple):
        return " to ".join(map(_text, fact))
    return metric_text(fact) if isinstance(fact, float) else f"{fact:,}"
