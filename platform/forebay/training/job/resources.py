"""Share of a node for each worker, its GPUs and its device."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from numbers import Real

import torch

from forebay.errors import InvalidOption
from forebay.runtime.gpus import GpuSupply, gpus_here, num_gpus


@dataclass(frozen=True, slots=True, kw_only=True)
class Resources:
    """Share of a node that each worker needs.

    Attributes:
        cpus: Logical CPUs.
        gpus: GPUs. None: one where the machine or the cluster has any, and else none. 0: the worker trains on the CPU,
            whatever there is. Below 1: a share of a GPU, for a single worker. A worker with several trains on the first
            of them, and its train function may use the others.

    Raises `InvalidOption` for a negative share, for a number of GPUs above 1 that is not whole, or if both are 0.
    """

    cpus: float = 1.0
    gpus: float | None = None

    def __post_init__(self) -> None:
        gpus = 1.0 if self.gpus is None else self.gpus
        for name, amount in (("cpus", self.cpus), ("gpus", gpus)):
            if isinstance(amount, bool) or not isinstance(amount, Real):
                raise InvalidOption(f"Resources({name}={amount!r}) is not a number. Give a number >= 0.")
        if not (math.isfinite(self.cpus + gpus) and min(self.cpus, gpus) >= 0 and self.cpus + gpus > 0):
            raise InvalidOption(
                f"Resources(cpus={self.cpus}, gpus={self.gpus}) cannot run a worker. "
                "Give a positive share of CPUs, GPUs or both."
            )
        if gpus > 1 and gpus != int(gpus):
            raise InvalidOption(
                f"Resources(gpus={self.gpus}) is no share of a node: only one GPU can be shared. Give a whole number, "
                "or a number below 1.",
                gpus=self.gpus,
            )

    @property
    def bundle(self) -> dict[str, float]:
        """Request of one worker, in Ray's words.

        GPUs that are not settled yet count as none.
        """
        return {"CPU": self.cpus, "GPU": self.gpus or 0.0}


def workers_here(gpus: float | None = None, *, on_cpus: int = 2) -> int:
    """Return a number of workers that suits this machine.

    One for each GPU, or for each `gpus` of them. `on_cpus` without GPUs, and for `gpus=0`.
    """
    room = 0 if gpus == 0 else gpus_here().room(max(gpus or 1.0, 1.0))
    return room or on_cpus


def settled(resources: Resources, supply: GpuSupply, *, workers: int) -> Resources:
    """Decide how many GPUs each worker gets.

    `workers` must have room at once, unless nodes may join. Raises `InvalidOption` if they have not.
    """
    wanted = resources.gpus
    gpus = float(any(each >= 1 for each in supply.nodes)) if wanted is None else float(wanted)
    if gpus and not supply.grows and supply.room(gpus) < workers:
        raise _too_few(wanted, gpus, supply, workers)
    return replace(resources, gpus=gpus)


def _too_few(wanted: float | None, gpus: float, supply: GpuSupply, workers: int) -> InvalidOption:
    facts = {"gpus": gpus, "found": supply.total, "workers": workers}
    if not supply.total:
        unseen = f", though the machine has {_count(supply.unseen)}" if supply.unseen else ""
        return InvalidOption(
            f"Resources(gpus={gpus:g}) is set, but PyTorch {torch.__version__} finds no GPU on {supply.place}{unseen}. "
            "Set gpus=0, or install a build of PyTorch for its GPUs.",
            **facts,
        )
    why = "" if wanted is not None else ", which Resources() means where there are any"
    room = supply.room(gpus)
    fewer = f"at most {room} worker{'s' * (room != 1)} (workers=, or min_workers= of fb.Elastic)" if room else "less"
    return InvalidOption(
        f"{workers} worker{'s' * (workers != 1)} need {_count(gpus)}{' each' * (workers > 1)}{why}, and "
        f"{supply.place} has {_count(supply.total)}. Two workers cannot train on one GPU: NCCL refuses a GPU that "
        f"another rank has. Give {fewer}, or gpus=0 to train on the CPU.",
        **facts,
    )


def share_text(wanted: Resources, given: Resources, supply: GpuSupply, *, workers: int) -> str | None:
    """Describe the GPUs of a run, for people.

    `given` is what `settled` made of `wanted`, for up to `workers` workers. None: there is nothing to say.
    """
    if not given.gpus:
        if wanted.gpus is not None:
            return None
        if supply.unseen:
            return (
                f"training on the CPU: this machine has {_count(supply.unseen)}, and PyTorch {torch.__version__} finds "
                "none"
            )
        return "training on CPUs: no node has a GPU now (gpus=1 waits for one that joins)" if supply.grows else None
    each = f"each of {workers} workers" if workers > 1 else "the worker"
    own = " of its own" if given.gpus >= 1 else ""
    room = supply.room(given.gpus)
    limit = f", room for {room} workers" if room < workers else ""
    return f"giving {each} {_count(given.gpus)}{own}; {supply.place} has {_count(supply.total)}{limit}"


def device_of(resources: Resources, position: int = 0) -> torch.device:
    """Device of the worker at `position` among workers with the same GPUs.

    The CPU without GPUs. Ray shows a worker its own GPUs only, so that each is the first there. Workers of the local
    driver see all of them, as NCCL needs to copy between GPUs directly, and each takes those at its own place.
    Raises `InvalidOption` if a GPU is missing.
    """
    if not resources.gpus:
        return torch.device("cpu")
    index, found = int(position * resources.gpus), num_gpus()
    if index >= found:
        raise InvalidOption(
            f"a worker was given Resources(gpus={resources.gpus:g}), but PyTorch {torch.__version__} finds "
            f"{found or 'no'} GPU{'s' * (found > 1)} in its process. Set gpus=0, or install a build of PyTorch for the "
            "GPUs of the machine.",
            gpus=resources.gpus,
            found=found,
        )
    return torch.device("cuda", index)


def use_device(device: torch.device) -> torch.device:
    """Make `device` the current one, before code of users runs.

    So that "cuda" means this worker's GPU there. Raises `InvalidOption` for a GPU that cannot be used.
    """
    if device.type == "cuda":
        try:
            torch.cuda.set_device(device)
        except RuntimeError as error:
            raise InvalidOption(
                f"PyTorch {torch.__version__} cannot use {device} ({error}). Free it or renew its driver; gpus=0 "
                "trains on the CPU.",
                device=str(device),
            ) from error
    return device


def _count(gpus: float) -> str:
    """Amount of GPUs in words.

    >>> _count(1), _count(8), _count(0.5), _count(0)
    ('a GPU', '8 GPUs', '0.5 of a GPU', 'no GPU')
    """
    if gpus == 1:
        return "a GPU"
    return "no GPU" if gpus == 0 else f"{gpus:g} GPUs" if gpus > 1 else f"{gpus:g} of a GPU"
