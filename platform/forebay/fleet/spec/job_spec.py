"""JobSpec: what to run, and where.

TOML and JSON Schema are derived from it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal

from pydantic import ConfigDict

from forebay.errors import ExitCode
from forebay.fleet.spec.fields import (
    Argument,
    Bytes,
    Count,
    Cpus,
    Duration,
    EnvValue,
    NodeCount,
    Price,
    Words,
    fault,
    settle_fields,
)
from forebay.fleet.spec.names import check_dns_label, check_env_name, check_label, check_object_name, check_text
from forebay.fleet.spec.secret_values import refuse_secrets
from forebay.runtime.late_import import late
from forebay.training.job.elastic import Elastic

MAX_WORKERS = 10_000
MOST_TASKS = 1000
MOST_MOUNTS = 100
_REFERENCE = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+")
_NAMES = re.compile(r"\w[\w.,@+-]*", re.ASCII)
_SLURM_FORMS = {
    **dict.fromkeys(("partition", "account", "qos", "reservation"), _NAMES),
    "constraint": re.compile(r"[\w(\[][\w.,:&|*()\[\]-]*", re.ASCII),
    "gres": re.compile(r"\w[\w.,:/=-]*", re.ASCII),
}
"""Forms of texts in a batch script. Without space, quote and line break, a value cannot leave its option."""
_STRICT = ConfigDict(extra="forbid", use_attribute_docstrings=True)

Spot = Literal["never", "prefer", "only"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskWorkers:
    """Workers of a task: number and resources."""

    __pydantic_config__ = _STRICT

    min: Count = 1
    """Smallest number of workers that can train. The task starts when there is room for them."""
    max: Count | None = None
    """Largest number of workers. By default `min`."""
    cpu: Cpus = "1"
    """CPUs of one worker, for example 12 or 500m."""
    memory: Bytes | None = None
    """Memory of one worker, for example 96Gi. The SKU sets the default."""
    gpus: Count = 0
    """GPUs of one worker."""
    sku: Words = ()
    """SKUs of the fleet that may be used, the preferred one first. By default any."""
    spot: Spot = "never"
    """Whether workers may run on machines that can be taken away."""
    ephemeral: Bytes | None = None
    """Local disk of one worker, for example 100Gi."""

    def __post_init__(self) -> None:
        settle_fields(self)
        if self.max is None:
            object.__setattr__(self, "max", self.min)
        for name, count, least, most in (
            ("min", self.min, 1, MAX_WORKERS),
            ("max", self.largest, 1, MAX_WORKERS),
            ("gpus", self.gpus, 0, 64),
        ):
            if not least <= count <= most:
                raise fault(f"{count} cannot work. Give a whole number from {least} to {most}.", name)
        if self.min > self.largest:
            raise fault(f"min={self.min} is more than max={self.max}. Give 1 <= min <= max.", "min")
        if len(set(self.sku)) < len(self.sku):
            raise fault(f"a SKU is named twice in {list(self.sku)}. Name each once, the preferred one first.", "sku")

    @property
    def largest(self) -> int:
        """Largest number of workers."""
        return self.min if self.max is None else self.max

    @property
    def elastic(self) -> Elastic:
        """Bounds of the job that the task runs."""
        return Elastic(min_workers=self.min, max_workers=self.largest)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One step of a job: a job file or command.

    It has its own workers.
    """

    __pydantic_config__ = _STRICT

    name: str = "main"
    """Name of the task, unique in the job: lower-case letters, digits and '-'."""
    after: tuple[str, ...] = ()
    """Tasks that must succeed before this one starts."""
    run: str | None = None
    """Path of a job file with a function `job(...)` or `sweep(...)`."""
    args: Mapping[str, Argument] = field(default_factory=dict)
    """Values of the parameters of that function."""
    command: tuple[str, ...] = ()
    """Words of a command, instead of `run`. They are never joined into a shell line."""
    workers: TaskWorkers = field(default_factory=TaskWorkers)
    """Workers of the task."""
    retries: Count = 3
    """Number of further attempts, each of which may run on another cluster."""

    def __post_init__(self) -> None:
        settle_fields(self)
        check_dns_label("name", self.name)
        if (self.run is None) == (not self.command):
            found = "neither `run` nor `command`" if self.run is None else "both `run` and `command`"
            raise fault(f"the task {self.name!r} has {found}. Give one of them.", "run")
        if self.command and self.args:
            raise fault("args belong to `run`. Write them as words of `command`.", "args")
        if self.run is not None and (
            "://" in self.run or self.run.startswith(("/", "~")) or ".." in self.run.split("/")
        ):
            raise fault(f"{self.run!r} is outside the folder of the job file. Give a path below it.", "run")
        for name in self.args:
            if not name.isidentifier():
                raise fault(f"{name!r} is not a parameter of a Python function. Write name = value.", "args")
        for number, text in enumerate(self.command):
            check_text(text, "command", number)
        if not 0 <= self.retries <= 1000:
            raise fault(f"{self.retries} cannot work. Give a whole number from 0 to 1000.", "retries")

    @property
    def final_codes(self) -> frozenset[int]:
        """Exit codes after which no other attempt is made.

        A command has codes of its own, but by convention 2 is a wrong command line everywhere.
        """
        known = frozenset({ExitCode.USAGE, ExitCode.UNUSABLE_STORAGE})
        return known if self.run is None else known | {ExitCode.REFUSED}


@dataclass(frozen=True, slots=True, kw_only=True)
class Unreachable:
    """Rule for an attempt whose cluster does not answer."""

    __pydantic_config__ = _STRICT

    after: Duration = 600.0
    """Time without an answer, for example 10m."""
    then: Literal["fence", "wait"] = "fence"
    """`fence` starts the next attempt elsewhere. `wait` waits, for jobs with effects outside their storage."""

    def __post_init__(self) -> None:
        settle_fields(self)
        if not 30 <= self.after <= 366 * 86_400:
            raise fault(f"{self.after:g} s cannot work. Give 30s or more, at most 366d.", "after")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Clusters, deadlines and price limits of a job."""

    __pydantic_config__ = _STRICT

    clusters: Words | Mapping[str, str] = ("any",)
    """Names of clusters, with `*`, or labels that a cluster must have."""
    deny: Words = ()
    """Names of clusters that are never used, with `*`."""
    cluster: Literal["own", "shared"] = "own"
    """`own` makes a Ray cluster for each attempt. `shared` uses the one of the chart."""
    queue: str | None = None
    """Queue of Kueue in the cluster."""
    priority: str = "normal"
    """Priority class of the fleet, where `normal` sets none."""
    start_within: Duration = 600.0
    """Time in which the workers must run. After it, the next cluster is tried."""
    finish_within: Duration | None = None
    """Time after which an attempt is ended, in a fleet. A SLURM job has `launch.slurm.time`."""
    max_price_per_hour: Price | None = None
    """Highest price of the smallest world per hour, in the currency of the fleet."""
    unreachable: Unreachable = field(default_factory=Unreachable)
    """Rule for an attempt whose cluster does not answer."""

    def __post_init__(self) -> None:
        settle_fields(self)
        if not self.clusters:
            raise fault('no cluster is allowed. Write clusters = ["any"], names, or labels.', "clusters")
        for name, least in (("start_within", 10.0), ("finish_within", 60.0)):
            seconds = getattr(self, name)
            if seconds is not None and not least <= seconds <= 366 * 86_400:
                raise fault(f"{seconds:g} s cannot work. Give a time from {least:g}s to 366d.", name)
        if self.queue is not None:
            check_object_name("queue", self.queue)
        check_object_name("priority", self.priority)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A Secret, ConfigMap or volume claim, mounted everywhere."""

    __pydantic_config__ = _STRICT

    path: str
    """Absolute path in the container."""
    secret: str | None = None
    """Name of a Secret."""
    config_map: str | None = None
    """Name of a ConfigMap."""
    claim: str | None = None
    """Name of a PersistentVolumeClaim, mounted read-only."""

    def __post_init__(self) -> None:
        settle_fields(self)
        given = [name for name in ("secret", "config_map", "claim") if getattr(self, name) is not None]
        if len(given) != 1:
            raise fault("a mount shows one thing. Give secret, config_map or claim, and its name.", *given[1:2])
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?", self.source) or len(self.source) > 253:
            raise fault(f"{self.source!r} is not the name of an object of Kubernetes.", given[0])
        if not re.fullmatch(r"(/[A-Za-z0-9_][A-Za-z0-9._-]*)+", self.path):
            raise fault(
                f"{self.path!r} is not an absolute path of plain names. Write for example /secrets/krb.", "path"
            )

    @property
    def source(self) -> str:
        """Name of the object that is mounted."""
        return self.secret or self.config_map or self.claim or ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Slurm:
    """Options of SLURM, for `--backend slurm`."""

    __pydantic_config__ = _STRICT

    partition: str | None = None
    """Partition, or several with commas. The cluster sets the default."""
    account: str | None = None
    """Account that pays."""
    qos: str | None = None
    """Quality of service."""
    reservation: str | None = None
    """Reservation."""
    constraint: str | None = None
    """Features of the nodes, such as `a100&nvlink`."""
    gres: str | None = None
    """Generic resources of a node, such as `gpu:a100:4`. By default the GPUs that the workers need."""
    nodes: NodeCount = "1"
    """Number of nodes, or a range: with `2-4` the job starts on 2, and on more if they are free."""
    time: Duration | None = None
    """Time limit of one start. At its end the job is requeued, and continues."""
    stop_before: Duration = 90.0
    """Time before the limit at which the run is asked to save a checkpoint and to end."""
    exclusive: bool = False
    """Whether no other job may use the nodes."""

    def __post_init__(self) -> None:
        settle_fields(self)
        for name, form in _SLURM_FORMS.items():
            value = getattr(self, name)
            if value is not None and (not form.fullmatch(value) or len(value) > 255):
                raise fault(
                    f"{value!r} cannot be this option of SLURM. It has letters, digits and a few signs, no spaces.",
                    name,
                )
        if not 1 <= self.fewest_nodes <= self.most_nodes <= MAX_WORKERS:
            raise fault(f'{self.nodes!r} cannot work. Give a number of nodes, or a range such as "2-4".', "nodes")
        if not 10 <= self.stop_before <= 65_535:
            raise fault(f"{self.stop_before:g} s cannot work. Give a time from 10s to 65535s.", "stop_before")
        if self.time is not None and not self.stop_before + 60 <= self.time <= 366 * 86_400:
            raise fault(
                f"{self.time:g} s is too short or too long. Give at least a minute more than stop_before "
                f"({self.stop_before:g} s), at most 366d.",
                "time",
            )

    @property
    def fewest_nodes(self) -> int:
        """Number of nodes with which the job starts."""
        return int(self.nodes.partition("-")[0])

    @property
    def most_nodes(self) -> int:
        """Largest number of nodes."""
        return int(self.nodes.rpartition("-")[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """Container of every node, and its setup."""

    __pydantic_config__ = _STRICT

    image: str | None = None
    """Image, best with its digest. The fleet sets the default."""
    setup: Words = ()
    """Shell lines that run before Ray starts. One that fails ends the pod, with its output."""
    env: Mapping[str, EnvValue] = field(default_factory=dict)
    """Environment variables that are no secrets."""
    secret_env: Mapping[str, str] = field(default_factory=dict)
    """Environment variables from Secrets: `HF_TOKEN = "hf-token/token"` is the key `token` of the Secret `hf-token`."""
    mounts: tuple[Mount, ...] = ()
    """Secrets, ConfigMaps and claims as files."""
    labels: Mapping[str, str] = field(default_factory=dict)
    """Further labels of the pods."""
    slurm: Slurm | None = None
    """Options of SLURM, for `--backend slurm`."""

    def __post_init__(self) -> None:
        settle_fields(self)
        for number, line in enumerate(self.setup):
            check_text(line, "setup", number)
        for table in ("env", "secret_env"):
            for name in getattr(self, table):
                check_env_name(name, table)
        self._check_env()
        for name, value in self.labels.items():
            check_label(name, value)
        check_count(self.mounts, MOST_MOUNTS, "mounts")
        paths = [mount.path for mount in self.mounts]
        for number, path in enumerate(paths):
            if path in paths[:number]:
                raise fault(f"{path} is mounted twice. Give each mount its own path.", "mounts", number, "path")

    def _check_env(self) -> None:
        for name, value in self.env.items():
            check_text(value, "env", name)
            if name in self.secret_env:
                raise fault(f"{name} is in env and in secret_env. Keep one of them.", "env", name)
        for name, reference in self.secret_env.items():
            if not _REFERENCE.fullmatch(reference):
                raise fault('this is not a reference. Write "NAME/KEY" of a Secret.', "secret_env", name)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """A job: its tasks, clusters, and storage."""

    __pydantic_config__ = _STRICT

    name: str
    """Name of the job and of its run: lower-case letters, digits and '-', at most 30 characters."""
    storage: str
    """Folder of all runs: a path or a URI. What the job saves is below `<storage>/<name>`."""
    key: str | None = None
    """Same name and key: the same job. By default a hash of everything that is written here."""
    task: tuple[Task, ...]
    """Tasks of the job, in the order of `after`."""
    scheduling: Scheduling = field(default_factory=Scheduling)
    """Clusters, limits and deadlines."""
    launch: Launch = field(default_factory=Launch)
    """Image, environment and setup."""

    @staticmethod
    def load(path: str | Path) -> JobSpec:
        """Load a job file (TOML).

        Raises `InvalidJobSpec` with the line of the first fault.
        """
        spec: JobSpec = late("forebay.fleet.spec.job_toml:load_job_spec")(path)
        return spec

    def __post_init__(self) -> None:
        settle_fields(self)
        check_dns_label("name", self.name)
        if not self.storage.strip() or any(ord(letter) < 32 for letter in self.storage):
            raise fault("this is not a path or a URI. Write for example s3://bucket/runs.", "storage")
        if self.key is not None and not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", self.key):
            raise fault("a key has letters, digits, '.', '_' and '-', at most 63.", "key")
        _check_order(self.task)
        refuse_secrets(asdict(self))

    def run_name(self, task: Task) -> str:
        """Return the name of the run of a task.

        It is the job's name, with the task's name if there are several.
        """
        return self.name if len(self.task) == 1 else f"{self.name}.{task.name}"


def check_shared(spec: JobSpec) -> None:
    """Raise `InvalidJobSpec` for what running pods cannot be given."""
    for name in ("image", "setup", "secret_env", "mounts"):
        if spec.scheduling.cluster == "shared" and getattr(spec.launch, name):
            raise fault(
                "the pods of a shared Ray cluster are there already, and would go without. Remove it, or write "
                '[scheduling] cluster = "own".',
                *("launch", name),
            )


def check_count(found: Sequence[object], most: int, *path: str | int) -> None:
    """Raise `InvalidJobSpec` for a list that is too long."""
    if len(found) > most:
        raise fault(f"it has {len(found):,} entries. Give at most {most:,}.", *path)


def ordered(tasks: tuple[Task, ...]) -> tuple[Task, ...]:
    """Sort tasks by their dependencies.

    Raises `InvalidJobSpec` for a cycle.
    """
    left, done = list(tasks), list[Task]()
    while left:
        names = {task.name for task in done}
        ready = next((task for task in left if names.issuperset(task.after)), None)
        if ready is None:
            circle = ", ".join(f"{task.name} after {' and '.join(task.after)}" for task in left)
            path = ("task", tasks.index(left[0]), "after")
            raise fault(f"these tasks wait for each other: {circle}. Remove one `after`.", *path)
        left.remove(ready)
        done.append(ready)
    return tuple(done)


def _check_order(tasks: tuple[Task, ...]) -> None:
    if not tasks:
        raise fault("a job has at least one task. Add [[task]] with run or command.", "task")
    check_count(tasks, MOST_TASKS, "task")
    names = [task.name for task in tasks]
    for number, task in enumerate(tasks):
        if task.name in names[:number]:
            raise fault(f"two tasks are called {task.name!r}. Give each its own name.", "task", number, "name")
        for other in task.after:
            if other not in names:
                raise fault(f"there is no task {other!r}; there are {', '.join(names)}.", "task", number, "after")
    ordered(tasks)
