"""`forebay llm memory`: memory of a fine-tuning per rank."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from forebay.cli.arguments import AsJson
from forebay.cli.output import print_facts, print_json, print_line, print_table
from forebay.errors import BadUsage
from forebay.runtime.formatting import bytes_text, count_text

if TYPE_CHECKING:
    from forebay.llm.cost.memory import MemoryEstimate, MemoryPlan

_VARIANTS: tuple[dict[str, Any], ...] = (
    {"strategy": "ddp", "offload": "none"},
    {"strategy": "zero1", "offload": "none"},
    {"strategy": "zero2", "offload": "none"},
    {"strategy": "fsdp2", "offload": "none"},
    {"strategy": "zero3", "offload": "none"},
    {"strategy": "zero3", "offload": "optimizer"},
)


def memory(
    options: Annotated[
        list[str],
        typer.Argument(
            help="Options of the fine-tuning: model=FOLDER, or a known one such as model=Llama-2-70B, workers=32 "
            "strategy=zero3 offload=optimizer finetuning=lora seq_len=4096 per_device_batch=1 "
            "gradient_checkpointing=true, and device_memory=80GB.",
            metavar="NAME=VALUE...",
        ),
    ],
    as_json: AsJson = False,
) -> None:
    """Show the memory of a fine-tuning on each rank.

    Part by part, and for each strategy. Loads no weights.
    """
    # Imported here because torch takes seconds to import and the other commands do not need it.
    from dataclasses import replace  # noqa: PLC0415

    from forebay.llm.cost.memory import estimate_memory  # noqa: PLC0415
    from forebay.llm.cost.memory_check import fits, parse_bytes, remedy  # noqa: PLC0415

    plan, device_memory = _plan(options)
    estimate = estimate_memory(plan)
    limit = None if device_memory is None else parse_bytes(device_memory)
    variants = [(each, estimate_memory(replace(plan, **each))) for each in _VARIANTS]
    if as_json:
        print_json(_facts(estimate) | {"strategies": [each | _facts(found) for each, found in variants]})
        return
    print_facts(
        {
            "model": plan.model,
            "parameters": f"{count_text(estimate.parameters)}, trained {count_text(estimate.trained)}",
            "workers": plan.workers,
            "strategy": _name(plan.strategy, plan.offload),
            "rows of a pass": f"{plan.per_device_batch} of {plan.seq_len} tokens",
        }
    )
    rows = [*estimate.device.items(), ("total", estimate.total), ("in main memory", estimate.host)]
    print_table(("part", "bytes per rank"), [(name, bytes_text(nbytes)) for name, nbytes in rows])
    print_table(
        ("strategy", "states", "total", "main memory"),
        [
            (_name(**each), bytes_text(found.states), bytes_text(found.total), bytes_text(found.host))
            for each, found in variants
        ],
        title="the same with other strategies",
    )
    if limit is not None:
        does = fits(estimate, limit)
        print_line(f"It fits into {bytes_text(limit)}." if does else f"It does not fit. {remedy(plan, limit)}")


def _plan(words: list[str]) -> tuple[MemoryPlan, str | None]:
    from forebay.cli.job_file import values_of  # noqa: PLC0415 - imports torch
    from forebay.llm.cost.memory import plan_of  # noqa: PLC0415 - see above
    from forebay.training.job.recipe import call_for  # noqa: PLC0415

    values = values_of(words)
    if "model" not in values:
        raise BadUsage("model= is missing. Give a folder, or a known model such as model=Llama-2-7B.")
    plan: MemoryPlan = call_for((object,), plan_of, values, called="forebay llm memory")
    return plan, values.get("device_memory")


def _facts(estimate: MemoryEstimate) -> dict[str, Any]:
    return {
        "parameters": estimate.parameters,
        "trained": estimate.trained,
        "device_bytes": estimate.device,
        "total_bytes": estimate.total,
        "host_bytes": estimate.host,
    }


def _name(strategy: str, offload: str) -> str:
    return strategy if offload == "none" else f"{strategy}, offload"
