"""Check that a fine-tuning fits into memory.

Refuses it otherwise, with the smallest change that makes it fit.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator, Mapping
from dataclasses import fields, replace
from typing import Any, cast

import torch

from forebay.errors import InvalidOption
from forebay.llm.adapters import ALL_LINEAR, targets_text
from forebay.llm.context_parallel import EXACT
from forebay.llm.cost.known_models import model_config
from forebay.llm.cost.memory import MemoryEstimate, MemoryPlan, estimate_memory
from forebay.llm.cost.skeleton import skeleton
from forebay.llm.models import recomputes_activations
from forebay.llm.recipe import Recipe
from forebay.runtime.formatting import bytes_text
from forebay.runtime.gpus import gpu_memory, num_gpus
from forebay.runtime.memory.available import machine_bytes

USABLE = 0.9
"""Share of a device's memory that an estimate may fill: the rest is for the CUDA context, NCCL and gaps."""
MOST_WORKERS, MOST_ROWS = 1024, 2048
_UNITS = {"": 1, "MB": 10**6, "MiB": 1 << 20, "GB": 10**9, "GiB": 1 << 30, "TB": 10**12, "TiB": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?) ?(" + "|".join(_UNITS) + ")")
_LOGGER = logging.getLogger(__name__)

CHANGES: tuple[Mapping[str, Any], ...] = (
    {"gradient_checkpointing": True},
    {"per_device_batch": 1},
    {"attn": "auto"},
    {"loss_chunk": 1024},
    {"reference": "stored"},
    {"strategy": "fsdp2"},
    {"strategy": "zero3", "offload": "optimizer"},
    {"finetuning": "lora"},
    {"finetuning": "qlora"},
)
"""Changes to propose, the smallest first: those that keep what is trained, and then adapters."""


def check_memory(plan: MemoryPlan, device_memory: str | None = None, *, gpus: float | None = None) -> None:
    """Check that a run fits into `device_memory`, such as "80GB".

    None: the memory of this machine, on which a worker has `gpus` GPUs, as in `Resources`.

    A model that cannot be counted is not checked, with a warning. Raises `InvalidOption`, with the parts of the
    estimate and the smallest change that fits, for a run that does not.
    """
    limit = local_memory(gpus) if device_memory is None else parse_bytes(device_memory)
    if limit is None:
        _LOGGER.warning(
            "the memory of the run is not checked: its workers have GPUs, and this machine has none. Give the size of "
            "one, such as device_memory=80GB."
        )
        return
    try:
        estimate = estimate_memory(plan)
    except InvalidOption as error:
        _LOGGER.warning("the memory of the run is not checked: %s", error)
        return
    if fits(estimate, limit):
        return
    parts = "\n".join(f"  {name:<12} {bytes_text(nbytes):>10}" for name, nbytes in estimate.device.items())
    raise InvalidOption(
        f"model={plan.model!r} needs {bytes_text(estimate.total)} on each of {plan.workers} workers:\n{parts}\n"
        f"A device has {bytes_text(limit)}, of which {USABLE:.0%} count. {remedy(plan, limit)} "
        "check_memory=False starts the run all the same.",
        needed_bytes=estimate.total,
        device_bytes=limit,
    )


def memory_plan(
    recipe: Recipe,
    *,
    workers: int,
    seq_len: int,
    strategy: str = "ddp",
    offload: str = "none",
    gpus: float | None = None,
) -> MemoryPlan:
    """Memory plan of `recipe`, on workers with `gpus` GPUs, as in `Resources`.

    Raises `InvalidOption` for unknown options, and for an adapter whose targets match no layer.
    """
    spec, adapter = recipe.model, recipe.adapter
    if adapter is not None and (adapter.targets != ALL_LINEAR or spec.head == "reward"):
        model = skeleton(model_config(spec.name, spec.vocab_size, head=spec.head, new_tokens=spec.new_tokens))
        adapter = recipe.adapter_of(model)
        adapter.explicit(model)
    device = torch.device("cuda" if _has_gpus(gpus) else "cpu")
    tuning = "full" if recipe.adapter is None else "lora" if recipe.model.quantization is None else "qlora"
    return MemoryPlan(
        model=recipe.model.name,
        workers=workers,
        strategy=cast(Any, strategy),
        offload=cast(Any, offload),
        finetuning=cast(Any, tuning),
        lora_r=recipe.adapter.r if recipe.adapter else 1,
        lora_targets=targets_text(recipe.adapter) if recipe.adapter else ALL_LINEAR,
        seq_len=seq_len,
        per_device_batch=recipe.per_device_batch,
        gradient_checkpointing=recomputes_activations(recipe.model.gradient_checkpointing, device=device),
        attn=recipe.model.attn,
        loss_chunk=recipe.loss_chunk,
        dtype="bf16" if recipe.compute_type(device) == torch.bfloat16 else "fp32",
        weights=recipe.weights,
        optimizer=recipe.algorithm,
        vocab_size=recipe.model.vocab_size,
        modules_to_save=",".join(adapter.modules_to_save) if adapter else "",
        dora=recipe.adapter is not None and recipe.adapter.dora,
        context_parallel=recipe.context_parallel,
        head=spec.head,
        new_tokens=spec.new_tokens,
        loss_kernel=recipe.loss_kernel,
        compile=spec.compile,
        on_gpu=device.type == "cuda",
    )


def parse_bytes(text: str) -> int:
    """Parse a size: "80GB", "74.5 GiB" or "1000000".

    Raises `InvalidOption` for other text.

    >>> parse_bytes("80GB"), parse_bytes("1.5 GiB"), parse_bytes("1000")
    (80000000000, 1610612736, 1000)
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise InvalidOption(f"device_memory={text!r} is not a size. Write it as 80GB or 74.5GiB.")
    return round(float(found[1]) * _UNITS[found[2]])


def fits(estimate: MemoryEstimate, device_bytes: int) -> bool:
    """Whether an estimate leaves a tenth of the device's memory."""
    return estimate.total <= USABLE * device_bytes


def smallest_change(plan: MemoryPlan, device_bytes: int) -> dict[str, Any] | None:
    """Find the smallest change that makes `plan` fit.

    As few of `CHANGES` as possible, or else several workers for a row, or more workers. None if nothing fits.
    """
    for changes in _combinations(plan):
        if fits(estimate_memory(replace(plan, **changes)), device_bytes):
            return changes
    for changes in _of_several_workers(plan):
        if fits(estimate_memory(replace(plan, **changes)), device_bytes):
            return changes
    sharded: dict[str, Any] = {"strategy": plan.strategy if plan.strategy in {"fsdp2", "zero3"} else "fsdp2"}
    if sharded["strategy"] == "fsdp2":
        sharded["offload"] = "none"
    for checkpointing in (
        {},
        {"gradient_checkpointing": True},
        {"gradient_checkpointing": True, "per_device_batch": 1},
    ):
        workers = 2 * plan.workers
        while workers <= MOST_WORKERS:
            changes = _different(plan, sharded | checkpointing | {"workers": workers})
            if fits(estimate_memory(replace(plan, **changes)), device_bytes):
                return changes
            workers *= 2
    return None


def largest_batch(plan: MemoryPlan, device_bytes: int) -> int:
    """Largest `per_device_batch` with which `plan` fits.

    0 if one row does not fit.
    """

    def does(rows: int) -> bool:
        return fits(estimate_memory(replace(plan, per_device_batch=rows)), device_bytes)

    # From below: counting a pass of thousands of rows takes minutes.
    rows = 0
    while rows < MOST_ROWS and does(2 * rows or 1):
        rows = 2 * rows or 1
    step = rows // 2
    while step:
        rows += step if does(rows + step) else 0
        step //= 2
    return rows


def _has_gpus(gpus: float | None) -> bool:
    return num_gpus() > 0 if gpus is None else gpus > 0


def local_memory(gpus: float | None = None) -> int | None:
    """Bytes of a worker's device on this machine.

    Of a GPU, of a worker's share of one, or of main memory. None: workers have GPUs, and this machine has none.
    """
    if _has_gpus(gpus):
        return None if (each := gpu_memory()) is None else int(each * min(gpus or 1.0, 1.0))
    return machine_bytes()


def option_text(changes: Mapping[str, Any]) -> str:
    """Options as they are written on the command line."""
    return " ".join(
        f"{name}={str(value).lower() if isinstance(value, bool) else value}" for name, value in changes.items()
    )


def _combinations(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    useful = [changes for each in CHANGES if (changes := _different(plan, each))]
    for number in range(1, len(useful) + 1):
        for some in itertools.combinations(useful, number):
            names = [name for changes in some for name in changes]
            # Two changes of one option contradict each other.
            if len(names) == len(set(names)):
                yield {name: value for changes in some for name, value in changes.items()}


def _of_several_workers(plan: MemoryPlan) -> Iterator[dict[str, Any]]:
    """Changes that let several of the workers compute a row together."""
    config = model_config(plan.model, plan.vocab_size)
    if plan.context_parallel > 1 or plan.reference != "none" or config.model_type not in EXACT:
        return
    least = {"gradient_checkpointing": True, "per_device_batch": 1, "attn": "auto"}
    for ranks in (2, 4, 8, 16):
        if not any(each % ranks for each in (plan.workers, plan.seq_len, config.num_attention_heads)):
            for strategy in ("ddp", "fsdp2"):
                changes = {"context_parallel": ranks, "strategy": strategy, "offload": "none", **least}
                yield _different(plan, changes)


def _different(plan: MemoryPlan, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of `changes` that changes `plan`.

    Empty if the changes would undo what `plan` already does to fit.
    """
    if plan.finetuning == "qlora" and "finetuning" in changes:
        return {}
    if plan.context_parallel > 1 and changes.get("strategy") == "zero3":
        return {}
    if "reference" in changes and plan.reference != "copy":
        return {}
    if plan.strategy == "zero3" and plan.offload == "optimizer" and changes.get("strategy") == "fsdp2":
        return {}
    known = {each.name for each in fields(plan)}
    return {name: value for name, value in changes.items() if name in known and getattr(plan, name) != value}


def remedy(plan: MemoryPlan, device_bytes: int) -> str:
    """Sentence with the smallest change that fits."""
    found = smallest_change(plan, device_bytes)
    if found is None:
        return f"No change fits, up to {MOST_WORKERS} workers: take a smaller model or larger devices."
    return f"The smallest change that fits: {option_text(found)}."
