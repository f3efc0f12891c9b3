"""Fine-tuning of language models: text to token rows, once, and training on them (`docs/llm.md`)."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from forebay.llm.adapters import Lora as Lora
    from forebay.llm.cost.flops import count_flops as count_flops
    from forebay.llm.cost.known_models import model_config as model_config
    from forebay.llm.cost.memory import MemoryPlan as MemoryPlan
    from forebay.llm.cost.memory import estimate_memory as estimate_memory
    from forebay.llm.cost.memory_check import check_memory as check_memory
    from forebay.llm.cost.memory_check import memory_plan as memory_plan
    from forebay.llm.cost.meter import Meter as Meter
    from forebay.llm.fine_tuning import finetune as finetune
    from forebay.llm.hf_folder.exporting import ExportedModel as ExportedModel
    from forebay.llm.hf_folder.exporting import export as export
    from forebay.llm.hf_folder.model_origin import ModelOrigin as ModelOrigin
    from forebay.llm.hf_folder.smollm2 import smollm2 as smollm2
    from forebay.llm.identity import run_identity as run_identity
    from forebay.llm.models import ModelSpec as ModelSpec
    from forebay.llm.models import check_model as check_model
    from forebay.llm.preference_tuning import train_dpo as train_dpo
    from forebay.llm.recipe import Recipe as Recipe
    from forebay.llm.source.hub_model import pinned_model as pinned_model
    from forebay.llm.source.prepared_tokens import PreparedTokens as PreparedTokens
    from forebay.llm.source.prepared_tokens import prepared_tokens as prepared_tokens
    from forebay.llm.source.token_source import TokenSource as TokenSource
    from forebay.llm.source.tokenizers import TokenizerSpec as TokenizerSpec
    from forebay.llm.source.tokenizers import tokenizer as tokenizer
    from forebay.llm.token_batch import document_numbers as document_numbers
    from forebay.llm.token_batch import pair_rows as pair_rows
    from forebay.llm.token_batch import token_rows as token_rows
    from forebay.llm.token_batch import unpack as unpack
    from forebay.llm.training.evaluation import evaluate_tokens as evaluate_tokens
    from forebay.llm.training.token_loss import token_loss as token_loss

_HOMES = {
    "MemoryPlan": "cost.memory",
    "Meter": "cost.meter",
    "check_memory": "cost.memory_check",
    "count_flops": "cost.flops",
    "estimate_memory": "cost.memory",
    "memory_plan": "cost.memory_check",
    "model_config": "cost.known_models",
    "ExportedModel": "hf_folder.exporting",
    "Lora": "adapters",
    "ModelOrigin": "hf_folder.model_origin",
    "ModelSpec": "models",
    "PreparedTokens": "source.prepared_tokens",
    "Recipe": "recipe",
    "TokenSource": "source.token_source",
    "TokenizerSpec": "source.tokenizers",
    "check_model": "models",
    "document_numbers": "token_batch",
    "evaluate_tokens": "training.evaluation",
    "export": "hf_folder.exporting",
    "finetune": "fine_tuning",
    "pair_rows": "token_batch",
    "prepared_tokens": "source.prepared_tokens",
    "run_identity": "identity",
    "pinned_model": "source.hub_model",
    "smollm2": "hf_folder.smollm2",
    "token_loss": "training.token_loss",
    "token_rows": "token_batch",
    "tokenizer": "source.tokenizers",
    "train_dpo": "preference_tuning",
    "unpack": "token_batch",
}

__all__ = sorted(_HOMES)  # noqa: PLE0605 - derived from the table, so that no name is forgotten


def __getattr__(name: str) -> object:
    """Import a public name on first use: tokenizers and models need large libraries."""
    if name not in _HOMES:
        raise AttributeError(f"module 'forebay.llm' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"forebay.llm.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
