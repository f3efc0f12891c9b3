"""An attempt of a task: number, names and entrypoint."""

from __future__ import annotations

import hashlib
import shlex
from dataclasses import dataclass

from forebay.fleet.cluster import Cluster, Market, Sku
from forebay.fleet.spec.canonical import key_of
from forebay.fleet.spec.fields import argument_text
from forebay.fleet.spec.job_spec import JobSpec, Task
from forebay.fleet.spec.quantity import millicpus, nbytes, quantity
from forebay.fleet.submitter import Submitter

MAX_OBJECT_NAME = 47
"""Longest name of a RayJob: KubeRay accepts longer ones and fails them later."""
DOMAIN = "forebay.dev"
CODE_FOLDER = "/work/code"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacedAttempt:
    """Attempt `number` of `task`, on `sku` machines of one market.

    `workers` is the number that start at once, by default the smallest. `token` belongs to the attempt's claim in
    storage. `code` is the SHA-256 of the packed code. With `is_head_apart` the head keeps off the workers' nodes.
    `submitter` may have an account and Secrets of its own.
    """

    spec: JobSpec
    task: Task
    number: int
    sku: str
    market: Market = "on-demand"
    workers: int | None = None
    token: str = ""
    code: str | None = None
    is_head_apart: bool = False
    submitter: Submitter | None = None

    @property
    def world_size(self) -> int:
        """Number of workers that start at once."""
        return self.task.workers.min if self.workers is None else self.workers

    @property
    def key(self) -> str:
        """Key of the job."""
        return key_of(self.spec)

    @property
    def prefix(self) -> str:
        """Object name of the task, without the attempt's number."""
        return f"fb-{self.spec.name}-{hashlib.sha256(f'{self.key} {self.task.name}'.encode()).hexdigest()[:6]}"

    @property
    def name(self) -> str:
        """Name of the RayJob."""
        return f"{self.prefix}-{self.number}"

    @property
    def labels(self) -> dict[str, str]:
        """Labels of every object of the attempt."""
        return {
            "app.kubernetes.io/managed-by": "forebay",
            f"{DOMAIN}/job": self.spec.name,
            f"{DOMAIN}/task": self.task.name,
            f"{DOMAIN}/attempt": str(self.number),
        }

    @property
    def annotations(self) -> dict[str, str]:
        """Annotations that identify the attempt after a lost answer."""
        found = {
            f"{DOMAIN}/key": self.key,
            f"{DOMAIN}/attempt": str(self.number),
            f"{DOMAIN}/fence": f"{self.number}/{self.token}" if self.token else str(self.number),
            f"{DOMAIN}/sku": self.sku,
        }
        return found if self.submitter is None else {**found, f"{DOMAIN}/submitted-by": self.submitter.name}

    @property
    def fetch_code(self) -> tuple[str, ...]:
        """Command that fetches the code into `CODE_FOLDER`.

        Empty if no code was packed.
        """
        module = ("python", "-m", "forebay.fleet.code")
        return (*module, self.spec.storage, self.code, CODE_FOLDER) if self.code else ()

    @property
    def words(self) -> tuple[str, ...]:
        """Command of the attempt, as words."""
        if self.task.run is None:
            return self.task.command
        given = [f"{name}={argument_text(value)}" for name, value in self.task.args.items()]
        return ("forebay", "run", self.task.run, *given)

    @property
    def environment(self) -> dict[str, str]:
        """Variables `FOREBAY_RUN_*` for the process of the run."""
        workers = self.task.workers
        return {
            "FOREBAY_RUN_NAME": self.spec.run_name(self.task),
            "FOREBAY_RUN_STORAGE": self.spec.storage,
            "FOREBAY_RUN_WORKERS": f"{workers.min}..{workers.largest}",
            "FOREBAY_RUN_CPUS": f"{quantity(workers.cpu).normalize():f}",
            "FOREBAY_RUN_GPUS": str(workers.gpus),
            "FOREBAY_RUN_ATTEMPT": self.annotations[f"{DOMAIN}/fence"],
        }

    def environment_in(self, cluster: Cluster) -> dict[str, str]:
        """Variables of the run on a cluster, with its machine and the price of a worker."""
        sku, workers = cluster.sku.get(self.sku), self.task.workers
        price = None if sku is None else sku.price(self.market)
        found = {**self.environment, "FOREBAY_RUN_MACHINE": f"{cluster.name}/{self.sku}/{self.market}"}
        if sku is not None and price is not None:
            share = sku.share(millicpus(workers.cpu), nbytes(workers.memory or sku.memory), workers.gpus)
            found["FOREBAY_RUN_PRICE"] = f"{price * share:.6g}"
            dear = sku.price("on-demand") if "on-demand" in self.markets_on(sku) else None
            if self.market == "spot" and dear is not None:
                found["FOREBAY_RUN_PRICE_ON_DEMAND"] = f"{dear * share:.6g}"
        return found

    def markets_on(self, sku: Sku) -> tuple[Market, ...]:
        """Markets of its worker groups. Spot machines come first, where it may fall back."""
        if self.market == "on-demand":
            return ("on-demand",)
        may_fall_back = self.task.workers.spot == "prefer" and "on-demand" in sku.markets
        return ("spot", "on-demand") if may_fall_back else ("spot",)

    @property
    def entrypoint(self) -> str:
        """Command of the attempt as one text.

        Each of them is quoted for a shell. Kubernetes replaces `$(NAME)` in it, so each `$` is doubled.
        """
        return escaped(shlex.join(self.words))


def escaped(text: str) -> str:
    """Escape a text for commands and variables.

    Kubernetes replaces `$(NAME)` there, and `$$` is a `$`.
    """
    return text.replace("$", "$$")
