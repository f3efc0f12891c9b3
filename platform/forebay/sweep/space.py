"""Domains of a sweep's parameters.

Plain ranges and lists, or domains of Ray Tune.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from forebay.errors import BadJob, InvalidOption
from forebay.runtime.formatting import did_you_mean, without_addresses
from forebay.runtime.uris import SCHEME
from forebay.storage.credentials import has_credentials
from forebay.training.job.coercion import coerce, name_of_type
from forebay.training.job.recipe import Parameter, Recipe, parameters

GRID = "grid_search"
MOST = (1 << 63) - 1
"""Largest whole number that Ray Tune draws."""
# Set by the sweep for every trial.
RESERVED = ("name", "storage")
# Position in a range that is neither a whole number nor a round fraction.
EXAMPLE_POSITION = 0.381966


@dataclass(frozen=True, slots=True, kw_only=True)
class Uniform:
    """Any number from `low` to `high`."""

    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WholeNumbers:
    """Any whole number from `low` to `high`, both included."""

    low: int
    high: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One of `values`."""

    values: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Each of `values` in turn."""

    values: Sequence[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class TuneDomain:
    """Domain of Ray Tune, which Tune samples itself."""

    domain: Any


Domain = Uniform | WholeNumbers | Choice | Grid | TuneDomain


@dataclass(frozen=True, slots=True, kw_only=True)
class SweepParameters:
    """Parameters that can be swept or fixed.

    The parameters of the job function and of the callbacks function.
    """

    job: Mapping[str, Parameter]
    callbacks: Mapping[str, Parameter]

    @classmethod
    def of(cls, job: Recipe, callbacks: Any | None) -> SweepParameters:
        """Read both signatures.

        Raises `BadJob` for one that cannot be read.
        """
        made = parameters(callbacks) if callbacks is not None else ()
        return cls(job={each.name: each for each in parameters(job)}, callbacks={each.name: each for each in made})

    def annotations(self, name: str) -> list[Any]:
        """Return the annotations that a value must fit.

        One, or two if both functions take the parameter.
        """
        return [known[name].annotation for known in (self.job, self.callbacks) if name in known]

    def validate_name(self, name: str, where: str) -> None:
        """Check that a function takes the parameter `name`.

        Raises `BadJob` if neither does.
        """
        known = {**self.job, **self.callbacks}
        if name in known:
            return
        listing = f"{did_you_mean(name, known)}{self.listing}"
        raise BadJob(f"{where} names {name!r}, which is not a parameter.{listing}", parameter=name)

    @property
    def listing(self) -> str:
        """Text that lists all parameters, for messages."""
        parts = {"The job takes": self.job, "The callbacks take": self.callbacks}
        return "".join(f" {title}:{_lines(known.values())}" for title, known in parts.items() if known)


def parse_domain(name: str, given: Any) -> Domain:
    """Return the domain of `space[name]`.

    Raises `InvalidOption` for an empty range or a single value.

    >>> parse_domain("lr", (0.001, 0.1))
    Uniform(low=0.001, high=0.1)
    >>> parse_domain("depth", (1, 4)), parse_domain("depth", range(1, 5))
    (WholeNumbers(low=1, high=4), WholeNumbers(low=1, high=4))
    >>> parse_domain("optimizer", ["adam", "sgd"])
    Choice(values=('adam', 'sgd'))
    """
    if isinstance(given, Mapping) and list(given) == [GRID]:
        return Grid(values=_values(name, given[GRID]))
    if isinstance(given, list):
        return Choice(values=_values(name, given))
    if isinstance(given, range):
        if given.step == 1 and given.stop - given.start > 1:
            return _whole_numbers(name, given.start, given.stop - 1)
        return Choice(values=_values(name, list(given)))
    if isinstance(given, tuple):
        return _range(name, given)
    if is_tune_domain(given):
        _validate_tune_domain(name, given)
        return TuneDomain(domain=given)
    raise InvalidOption(
        f"space[{name!r}]={given!r} is not a domain. Give a list of values, a pair (low, high), a range, or "
        "a domain of ray.tune (tune.loguniform(1e-4, 1e-1), ...); put a single value into fixed.",
        parameter=name,
    )


def validate_domain(name: str, domain: Domain, annotation: Any) -> None:
    """Check that values of `domain` fit an annotation.

    Raises `BadJob` if one does not.
    """
    for value in _examples(domain):
        try:
            coerce(name, value, annotation)
        except BadJob as error:
            raise BadJob(
                f"space[{name!r}] holds {value!r}, but {name} is a {name_of_type(annotation)}. {_advice(domain)}",
                parameter=name,
            ) from error


def example_value(domain: Domain) -> Any:
    """Deterministic value of `domain`."""
    return next(iter(_examples(domain)), None)


def listed_values(domain: Domain) -> list[Any]:
    """Values of a domain that lists them. Empty for others."""
    match domain:
        case Choice() | Grid():
            return list(domain.values)
        case TuneDomain():
            return list(getattr(domain.domain, "categories", None) or ())
    return []


def domain_text(domain: Domain) -> str:
    """Text of `domain`. Equal domains have equal texts.

    >>> domain_text(Choice(values=("adam", "sgd")))
    "Choice(values=('adam', 'sgd'))"
    """
    if not isinstance(domain, TuneDomain):
        text = repr(domain)
    elif depends_on_others(domain):
        text = "sample_from"
    else:
        drawn = domain.domain
        text = f"{type(drawn).__name__}{drawn.domain_str} {_sampler_text(getattr(drawn, 'sampler', None))}".rstrip()
    return without_addresses(text)


def is_tune_domain(given: Any) -> bool:
    """Return whether `given` is a domain of Ray Tune.

    Does not import Ray Tune.
    """
    return any((kind.__module__, kind.__name__) == ("ray.tune.search.sample", "Domain") for kind in type(given).__mro__)


def depends_on_others(domain: Domain) -> bool:
    """Return whether a domain depends on other parameters.

    As `tune.sample_from` does.
    """
    return isinstance(domain, TuneDomain) and type(domain.domain).__name__ == "Function"


def is_log(domain: Domain) -> bool:
    """Return whether a domain is drawn on a logarithmic scale.

    As `tune.loguniform` is.
    """
    return "Log" in _sampler_kind(domain)


def is_quantized(domain: Domain) -> bool:
    """Return whether a domain is drawn in steps.

    As `tune.quniform` is.
    """
    return _sampler_kind(domain) == "Quantized"


def _sampler_kind(domain: Domain) -> str:
    """Return the name of Ray Tune's sampler class.

    Empty for domains of our own.
    """
    return type(getattr(domain.domain, "sampler", None)).__name__ if isinstance(domain, TuneDomain) else ""


def _range(name: str, given: tuple[Any, ...]) -> Domain:
    given = tuple(end.item() if isinstance(end, np.generic) else end for end in given)
    if len(given) != 2 or not all(isinstance(end, int | float) and not isinstance(end, bool) for end in given):
        raise InvalidOption(
            f"space[{name!r}]={given!r} is not a range. Give two numbers, (low, high), or a list to choose from.",
            parameter=name,
        )
    low, high = cast(tuple[float, float], given)
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InvalidOption(
            f"space[{name!r}]={given!r} is empty: low must be less than high, and both finite.", parameter=name
        )
    if isinstance(low, int) and isinstance(high, int):
        return _whole_numbers(name, low, high)
    if not math.isfinite(high - low):
        raise InvalidOption(
            f"space[{name!r}]={given!r} is wider than a float can be. Give nearer ends.", parameter=name
        )
    return Uniform(low=float(low), high=float(high))


def _whole_numbers(name: str, low: int, high: int) -> WholeNumbers:
    if low < -MOST - 1 or high > MOST:
        raise InvalidOption(
            f"space[{name!r}] goes from {low} to {high}, and Ray Tune draws 64-bit numbers. Give ends from -2**63 to "
            "2**63 - 1.",
            parameter=name,
        )
    return WholeNumbers(low=low, high=high)


def _values(name: str, given: Any) -> tuple[Any, ...]:
    values = tuple(given) if isinstance(given, list | tuple | range) else ()
    if not values:
        raise InvalidOption(f"space[{name!r}]={given!r} has no values. Give at least one.", parameter=name)
    # Not in prose: of a question about a page, the rest would be options of a URI.
    if any(SCHEME.match(text) and has_credentials(text) for text in _texts(values)):
        raise InvalidOption(
            f"space[{name!r}] holds a URI with credentials, which would be in the sweep's files and pages. Leave them "
            "out, and set them in the environment or the configuration of that store.",
            parameter=name,
        )
    return values


def _texts(value: Any) -> Iterator[str]:
    """Texts in a value, at any depth."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts([*value, *value.values()])
    elif isinstance(value, list | tuple | set | frozenset):
        for each in value:
            yield from _texts(each)


def _validate_tune_domain(name: str, domain: Any) -> None:
    """Find errors that Ray Tune raises too late.

    It would raise them only when it draws a value, in the middle of a sweep.
    """
    categories = getattr(domain, "categories", None)
    if categories is not None:
        _values(name, list(categories))
    low, high = getattr(domain, "lower", None), getattr(domain, "upper", None)
    if low is None or high is None:
        return
    if not low < high:
        raise InvalidOption(f"space[{name!r}] goes from {low} to {high}, which is empty.", parameter=name)
    if "Log" in type(getattr(domain, "sampler", None)).__name__ and low <= 0:
        raise InvalidOption(
            f"space[{name!r}] is logarithmic from {low}: it must start above 0. Give a small positive number.",
            parameter=name,
        )


def _examples(domain: Domain) -> list[Any]:
    match domain:
        case Uniform():
            return [domain.low + (domain.high - domain.low) * EXAMPLE_POSITION]
        case WholeNumbers():
            return [domain.low, domain.high]
        case TuneDomain() if not (depends_on_others(domain) or listed_values(domain)):
            return [domain.domain.sample(random_state=0)]
    return listed_values(domain)


def _sampler_text(sampler: Any) -> str:
    """Return the kind and numbers of a sampler.

    Including a nested one.
    """
    if sampler is None:
        return ""
    facts = {name: each for name, each in sorted(vars(sampler).items()) if isinstance(each, int | float | str)}
    within = _sampler_text(getattr(sampler, "sampler", None))
    return " ".join([type(sampler).__name__.strip("_"), *(f"{name}={each}" for name, each in facts.items()), within])


def _advice(domain: Domain) -> str:
    if isinstance(domain, Uniform):
        return "For whole numbers give whole ends: (1, 8)."
    return "Give values of that type."


def _lines(known: Iterable[Parameter]) -> str:
    return "".join(f"\n  {parameter}" for parameter in known)
