"""Submitters of a fleet: what identifies them, and what they may use."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from pydantic import ConfigDict

from forebay.errors import InvalidOption
from forebay.fleet.cluster import VISIBLE_GPUS, Cluster
from forebay.fleet.spec.fields import Count, Words, fault, settle_fields
from forebay.fleet.spec.job_spec import JobSpec
from forebay.fleet.spec.names import check_dns_label, check_env_name

_COMPONENT = r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*"
_REGISTRY = r"(?:localhost|[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+|[A-Za-z0-9.-]+(?=:\d))(?::\d+)?"
_IMAGE = re.compile(
    rf"(?:(?P<registry>{_REGISTRY})/)?(?P<repository>{_COMPONENT}(?:/{_COMPONENT})*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)
_STARRED = r"(?:[a-z0-9._-]|\*(?!\*))+"
_PATTERN = re.compile(
    rf"(?P<registry>{_REGISTRY})/(?P<repository>\*\*|{_STARRED}(?:/{_STARRED})*(?:/\*\*)?)"
    r"(?::(?P<tag>[\w.*-]+))?(?:@(?P<digest>sha256:(?:[0-9a-f]{64}|\*)))?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileOwner:
    """Owner and mode of a file, as the kernel says."""

    uid: int
    mode: int

    @property
    def is_alone(self) -> bool:
        """Whether only the owner may write the file."""
        return not self.mode & 0o022


@dataclass(frozen=True, slots=True, kw_only=True)
class Submitter:
    """A person or team, and what their jobs may use.

    What the fleet file gives to every job is always allowed: the image of a cluster, its first queue, its Secrets.
    """

    __pydantic_config__ = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    name: str
    """Name in tables, and in the audit."""
    storage: Words = ()
    """Storages that only this submitter may write. Their store keeps others out."""
    uids: tuple[Count, ...] = ()
    """Owners of submission files, on file systems."""
    names: Words = ("*",)
    """Names of jobs, with `*`."""
    images: Words = ()
    """Images `REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST]`. `*` is within one part of a path, `**` is the rest of it."""
    secrets: Words = ()
    """Secrets that jobs may mount or have as variables, with `*`."""
    config_maps: Words = ()
    """ConfigMaps that jobs may mount, with `*`."""
    claims: Words = ()
    """PersistentVolumeClaims that jobs may mount, with `*`."""
    clusters: Words = ("any",)
    """Clusters, with `*`."""
    queues: Words = ()
    """Queues beside the first one of each cluster, with `*`."""
    priorities: Words = ()
    """Priority classes beside `normal`, with `*`."""
    most_gpus: Count | None = None
    """GPUs that the jobs of this submitter may have at once. Further tasks wait."""
    shared_cluster: bool = False
    """Whether jobs may run on a shared Ray cluster, with its account and beside the jobs of others."""
    service_account: str | None = None
    """Account of the pods, instead of the cluster's: without one, code of a job may write where all others do."""
    secret_env: Mapping[str, str] | None = None
    """Variables from Secrets for access to storage, instead of the cluster's."""

    def __post_init__(self) -> None:
        settle_fields(self)
        check_dns_label("name", self.name, most=63)
        for pattern in self.images:
            if not _PATTERN.fullmatch(pattern):
                raise fault(
                    f"{pattern!r} is not a pattern of images. Write REGISTRY/REPOSITORY, such as "
                    "registry.example/team/** or registry.example/forebay@sha256:*.",
                    "images",
                )
        for variable in self.secret_env or ():
            check_env_name(variable, "secret_env")
        if self.most_gpus is not None and self.most_gpus < 0:
            raise fault(f"{self.most_gpus} cannot work. Give a whole number from 0.", "most_gpus")

    @property
    def is_default(self) -> bool:
        """Whether this is the entry of everybody else."""
        return not self.storage and not self.uids

    def refusals(self, spec: JobSpec, clusters: Iterable[Cluster]) -> Iterator[str]:
        """Yield what a job asks for and may not use.

        Each text has what is allowed.
        """
        clusters = tuple(clusters)
        launch, scheduling = spec.launch, spec.scheduling
        yield from _outside("the name", [spec.name], self.names)
        if launch.image is not None and launch.image not in {each.image for each in clusters}:
            yield from _image_refusal(launch.image, self.images)
        secrets = [each.secret for each in launch.mounts if each.secret]
        secrets += [reference.partition("/")[0] for reference in launch.secret_env.values()]
        yield from _outside("the Secret", secrets, self.secrets)
        yield from _outside("the ConfigMap", [e.config_map for e in launch.mounts if e.config_map], self.config_maps)
        yield from _outside("the claim", [e.claim for e in launch.mounts if e.claim], self.claims)
        asked = [each for each in clusters if each.is_allowed(scheduling.clusters, scheduling.deny) is None]
        if refused := [each.name for each in asked if each.is_allowed(self.clusters, ()) is not None]:
            allowed = ", ".join(self.clusters)
            yield f"the clusters {', '.join(refused)} (allowed: {allowed}; write [scheduling] clusters)"
        if scheduling.queue is not None and any(each.sku and scheduling.queue not in each.queues[:1] for each in asked):
            yield from _outside("the queue", [scheduling.queue], self.queues)
        if scheduling.priority != "normal":
            yield from _outside("the priority class", [scheduling.priority], self.priorities)
        if scheduling.cluster == "shared" and not self.shared_cluster:
            yield 'a shared Ray cluster (allowed: cluster = "own")'
        for task in spec.task:
            gpus = task.workers.largest * task.workers.gpus
            if self.most_gpus is not None and gpus > self.most_gpus:
                yield f"{gpus} GPUs for task {task.name} (allowed: {self.most_gpus} at once)"
        given = {**launch.env, **launch.secret_env}.get(VISIBLE_GPUS, "void")
        if self.most_gpus is not None and given not in ("void", "none"):
            yield f"{VISIBLE_GPUS} {given!r}, by which a pod sees more GPUs than it asks for (allowed: void)"


def require_distinct(submitters: Iterable[Submitter]) -> None:
    """Raise `InvalidJobSpec` for two entries that could be one submitter.

    Who may write a storage may write below it.
    """
    seen: list[Submitter] = []
    for number, each in enumerate(submitters):
        for other in seen:
            if each.name == other.name:
                raise fault(f"two submitters are called {each.name!r}. Give each its own name.", "submitter", number)
            if each.is_default and other.is_default:
                raise fault(
                    f"{other.name!r} and {each.name!r} are both for everybody else. Give one of them storage or uids.",
                    "submitter",
                    number,
                )
            if each.uids and other.uids:
                continue
            if pair := nested(each.storage, other.storage):
                raise fault(
                    f"{pair[0]} of {each.name!r} and {pair[1]} of {other.name!r} lie in each other: who may write the "
                    "one may write the other. Give each its own prefix.",
                    "submitter",
                    number,
                    "storage",
                )
        seen.append(each)


def nested(storages: Iterable[str], others: Iterable[str]) -> tuple[str, str] | None:
    """Return a pair of storages of which one lies in the other.

    >>> nested(["s3://lake/runs/a"], ["s3://lake/runs/b", "s3://lake/runs"])
    ('s3://lake/runs/a', 's3://lake/runs')
    """
    others = list(others)
    for one in storages:
        for other in others:
            first, second = (f"{each.partition('?')[0].rstrip('/')}/" for each in (one, other))
            if first.startswith(second) or second.startswith(first):
                return one, other
    return None


def _outside(what: str, asked: Iterable[str], allowed: tuple[str, ...]) -> Iterator[str]:
    for each in dict.fromkeys(asked):
        if not any(fnmatchcase(each, pattern) for pattern in allowed):
            yield f"{what} {each!r} (allowed: {', '.join(allowed) or 'none'})"


def _image_refusal(image: str, allowed: tuple[str, ...]) -> Iterator[str]:
    found = _IMAGE.fullmatch(image)
    if found is None:
        yield f"the image {image!r}, which is not REGISTRY/REPOSITORY[:TAG][@sha256:DIGEST]"
    elif found["registry"] is None:
        # The node decides which registry that is.
        yield f"the image {image!r}, which names no registry (write for example docker.io/library/{image})"
    elif not any(_matches(found, pattern) for pattern in allowed):
        yield f"the image {image!r} (allowed: {', '.join(('the one of the fleet', *allowed))})"


def _matches(image: re.Match[str], pattern: str) -> bool:
    wanted = _PATTERN.fullmatch(pattern)
    if wanted is None:
        raise InvalidOption(f"{pattern!r} is not a pattern of images.")
    if image["registry"] != wanted["registry"]:
        return False
    path = re.escape(wanted["repository"]).replace(r"\*\*", ".+").replace(r"\*", "[^/]*")
    if not re.fullmatch(path, image["repository"]):
        return False
    if wanted["digest"] is not None:
        return image["digest"] is not None and fnmatchcase(image["digest"], wanted["digest"])
    # A digest decides what is pulled, whatever tag is written before it.
    return wanted["tag"] is None or (
        image["digest"] is None and image["tag"] is not None and fnmatchcase(image["tag"], wanted["tag"])
    )
