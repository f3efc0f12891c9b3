"""The fleet: clusters from a TOML file, and checks.

An entry names a cluster and says how it is reached. What it offers is read from the chart's catalogue there. Where the
chart is not installed, an entry describes the cluster whole, by the same keys.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from pydantic import ConfigDict, TypeAdapter, ValidationError

from forebay.errors import InvalidJobSpec, InvalidOption
from forebay.fleet.catalogue import CATALOGUE, DESCRIPTION, advice, described
from forebay.fleet.cluster import Cluster
from forebay.fleet.spec.fields import fault, first_fault, settle_fields
from forebay.fleet.spec.job_spec import JobSpec, check_shared
from forebay.fleet.spec.job_toml import line_of, refuse_unknown_keys
from forebay.fleet.submitter import Submitter, require_distinct
from forebay.runtime.formatting import did_you_mean

_RAY_IMAGE = re.compile(r"(?:^|/)ray[\w-]*:(\d+\.\d+\.\d+)")
"""Images of Ray's own repositories, such as `rayproject/ray-ml:2.60.0-py311`, name their version."""


ACCESS = ("name", "context", "server", "namespace", "labels", "kind")
"""Keys of an entry that only the fleet file has: a catalogue chooses no host and no name."""


class SameCluster(InvalidOption):
    """Two entries of a fleet are the same cluster.

    The room of their namespace would be counted twice.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Fleet:
    """Clusters of a fleet, by name.

    Raises `SameCluster` for two entries of one namespace of one server.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    cluster: tuple[Cluster, ...]
    """Clusters of the fleet."""
    submitter: tuple[Submitter, ...] = ()
    """Submitters, and what their jobs may use. Without one, all that a storage holds is run."""
    ask: str = "the administrator of the fleet"
    """Whom a refused submitter asks."""
    audit: str | None = None
    """Folder of the audit, which no submitter should be able to write. By default `.audit` in the first storage."""

    def __post_init__(self) -> None:
        settle_fields(self)
        require_distinct(self.submitter)
        if not self.cluster:
            raise fault("a fleet has at least one cluster. Add [[cluster]].", "cluster")
        seen: dict[object, str] = {}
        for each in self.cluster:
            for identity in (each.name, each.identity):
                if identity in seen:
                    raise SameCluster(
                        f"the clusters {seen[identity]!r} and {each.name!r} are the same: {' '.join(each.identity)}. "
                        "Remove one of them."
                    )
                seen[identity] = each.name

    def named(self, name: str) -> Cluster:
        """Cluster of this name. Raises `InvalidOption`."""
        for each in self.cluster:
            if each.name == name:
                return each
        raise InvalidOption(f"the fleet has no cluster {name!r}. It has {_listed(each.name for each in self.cluster)}.")

    def check(self, spec: JobSpec) -> None:
        """Raise `InvalidJobSpec` if no cluster could ever run it.

        A cluster that is not described yet may have every SKU, queue and priority class. Sends no request.
        """
        check_shared(spec)
        for number, task in enumerate(spec.task):
            for sku in task.workers.sku if all(each.sku for each in self.cluster) else ():
                _one_of(
                    sku, {name for each in self.cluster for name in each.sku}, "SKU", "task", number, "workers", "sku"
                )
        scheduling = spec.scheduling
        reasons = {each.name: each.is_allowed(scheduling.clusters, scheduling.deny) for each in self.cluster}
        allowed = [each for each in self.cluster if reasons[each.name] is None]
        if not allowed:
            shown = "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
            raise fault(f"no cluster of the fleet may be used ({shown}).", "scheduling", "clusters")
        if not all(each.sku for each in allowed):
            return
        _check_ray(spec, allowed)
        if scheduling.queue is not None:
            _one_of(
                scheduling.queue, {queue for each in allowed for queue in each.queues}, "queue", "scheduling", "queue"
            )
        if scheduling.priority != "normal":
            known = {name for each in allowed for name in each.priorities}
            _one_of(scheduling.priority, known, "priority class", "scheduling", "priority")
        if scheduling.cluster == "shared" and not any(each.shared_cluster for each in allowed):
            raise fault('no allowed cluster has a shared Ray cluster. Write cluster = "own".', "scheduling", "cluster")

    def refusal(self, submitter: Submitter | None, spec: JobSpec) -> str | None:
        """Reason why a submitter's job is refused, or None.

        It says what was asked, what is allowed, and whom to ask. A submitter of None is not in the fleet file.
        """
        if not self.submitter:
            return None
        if submitter is None:
            return f"no [[submitter]] of the fleet is the one who wrote it, and none is for all others. Ask {self.ask}."
        found = list(submitter.refusals(spec, self.cluster))
        return f"{submitter.name} may not use {'; '.join(found)}. Ask {self.ask}." if found else None

    def images_without_digest(self, spec: JobSpec) -> tuple[str, ...]:
        """Return images of a job without a digest.

        Another push can replace them.
        """
        scheduling = spec.scheduling
        allowed = [each for each in self.cluster if each.is_allowed(scheduling.clusters, scheduling.deny) is None]
        images = [spec.launch.image] if spec.launch.image else [each.image for each in allowed if each.image]
        return tuple(dict.fromkeys(image for image in images if "@sha256:" not in image))


def load_fleet(path: str | Path) -> Fleet:
    """Load a fleet from a TOML file.

    Raises `InvalidOption` with the line of the first fault.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOption(f"the fleet file {path} cannot be read ({error}). Give the path of a TOML file.") from error
    return parse_fleet(text, str(path))


class FleetFile:
    """A fleet file that may change while it is used, such as a mounted Secret.

    Raises `InvalidOption` as `load_fleet` does.

    Attributes:
        path: Path of the file.
        fleet: Its clusters, as they were first read.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._text = self._bytes()
        self.fleet = load_fleet(path)

    def has_changed(self) -> bool:
        """Whether the file has other clusters now.

        Raises `InvalidOption` once for each wrong text. A file that cannot be read has not changed: it is
        being replaced.
        """
        text = self._bytes()
        if text is None or text == self._text:
            return False
        self._text = text
        return load_fleet(self.path) != self.fleet

    def _bytes(self) -> bytes | None:
        try:
            return self.path.read_bytes()
        except OSError:
            return None


def parse_fleet(text: str, file: str = "fleet.toml") -> Fleet:
    """Parse a fleet from TOML.

    Raises `InvalidOption`: `file` and the line are part of its message.
    """
    try:
        facts = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # as of a job file
        raise InvalidOption(f"{file} is not TOML: {error}.") from None
    try:
        return _fleet_of(facts)
    except InvalidJobSpec as error:
        path: Any = error.facts.get("path", ())
        raise InvalidOption(f"{file}, line {line_of(text, path)}: {error}") from None


def _fleet_of(facts: Mapping[str, Any]) -> Fleet:
    refuse_unknown_keys(Fleet, {name: value for name, value in facts.items() if name != "cluster"})
    entries = facts.get("cluster", [])
    if not isinstance(entries, list) or not all(isinstance(each, Mapping) for each in entries):
        raise fault("it must be a list of tables. Write [[cluster]].", "cluster")
    clusters = [_entry(each, number) for number, each in enumerate(entries)]
    try:
        return TypeAdapter(Fleet).validate_python({**facts, "cluster": clusters})
    except ValidationError as error:
        own = error.errors()[0].get("ctx", {}).get("error")
        raise (own if isinstance(own, SameCluster) else first_fault(error)) from None


def _entry(facts: Mapping[str, Any], number: int) -> Cluster:
    """Return the cluster of an entry, undescribed if only its catalogue describes it."""
    access = {name: value for name, value in facts.items() if name in ACCESS}
    description = {name: value for name, value in facts.items() if name not in ACCESS}
    try:
        if "name" not in access:
            raise fault("it is missing. Write it.", "name")
        cluster = Cluster(**access)
        if not description:
            return cluster
        for name in description:
            if name not in DESCRIPTION:
                raise fault(advice(name, [*ACCESS, *DESCRIPTION]), name)
        if lacks := [name for name in ("image", "skus") if name not in description]:
            raise fault(
                f"the values of the chart say it, and {CATALOGUE} brings it here. Remove it. Without the chart, "
                f"describe the cluster whole: {' and '.join(lacks)} {'is' if len(lacks) == 1 else 'are'} missing.",
                next(iter(description)),
            )
        return described(cluster, description, "the fleet file")
    except InvalidJobSpec as error:
        path: Any = error.facts.get("path", ())
        raise fault(str(error.facts.get("fault", error)), "cluster", number, *path) from None


def _check_ray(spec: JobSpec, allowed: Iterable[Cluster]) -> None:
    """Refuse a job with another minor version of Ray.

    Its image, or all its clusters, are compared with this machine.
    """
    here = client_ray()
    found = {each.name: each.ray_version for each in allowed}
    image = _RAY_IMAGE.search(spec.launch.image or "")
    if image is not None:
        found = {"launch.image": image[1]}
    if here is None or any(_minor(ray) == _minor(here) for ray in found.values()):
        return
    shown = ", ".join(f"{name}: {ray}" for name, ray in found.items())
    path = ("launch", "image") if image is not None else ("scheduling", "clusters")
    raise fault(
        f"the image has another version of Ray ({shown}) than this machine ({here}). Install that version here, or "
        "choose an image with this one.",
        *path,
    )


def client_ray() -> str | None:
    """Version of Ray on this machine, or None without it."""
    try:
        return version("ray")
    except PackageNotFoundError:
        return None


def _minor(text: str) -> list[str]:
    return text.split(".")[:2]


def _one_of(found: str, known: Iterable[str], what: str, *path: str | int) -> None:
    names = sorted(known)
    if found not in names:
        hint = did_you_mean(found, names)
        raise fault(f"the fleet has no {what} {found!r}.{hint} It has {_listed(names)}.", *path)


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"
