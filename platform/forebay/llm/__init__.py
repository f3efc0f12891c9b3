"""Fine-tuning of language models (`docs/llm.md`)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from forebay.runtime.late_import import lazy_names

if TYPE_CHECKING:
    from forebay.llm import score as score
    from forebay.llm.adapters import Lora as Lora
    from forebay.llm.cost.flops import count_flops as count_flops
    from forebay.llm.cost.known_models import model_config as model_config
    from forebay.llm.cost.memory import MemoryPlan as MemoryPlan
    from forebay.llm.cost.memory import estimate_memory as estimate_memory
    from forebay.llm.cost.memory_check import check_memory as check_memory
    from forebay.llm.cost.memory_check import memory_plan as memory_plan
    from forebay.llm.cost.meter import Meter as Meter
    from forebay.llm.evaluation import evaluate_tokens as evaluate_tokens
    from forebay.llm.fine_tuning import finetune as finetune
    from forebay.llm.hf_folder.exporting import ExportedModel as ExportedModel
    from forebay.llm.hf_folder.exporting import export as export
    from forebay.llm.hf_folder.model_origin import ModelOrigin as ModelOrigin
    from forebay.llm.hf_folder.smollm2 import smollm2 as smollm2
    from forebay.llm.identity import run_identity as run_identity
    from forebay.llm.loss import token_loss as token_loss
    from forebay.llm.models import ModelSpec as ModelSpec
    from forebay.llm.models import check_model as check_model
    from forebay.llm.options import Options as Options
    from forebay.llm.options import with_options as with_options
    from forebay.llm.preferences.losses import Preferences as Preferences
    from forebay.llm.preferences.reference_rows import with_reference as with_reference
    from forebay.llm.preferences.tuning import prefer as prefer
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
    from forebay.llm.tuning_job import job as job

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "ExportedModel": "forebay.llm.hf_folder.exporting",
        "Lora": "forebay.llm.adapters",
        "MemoryPlan": "forebay.llm.cost.memory",
        "Meter": "forebay.llm.cost.meter",
        "ModelOrigin": "forebay.llm.hf_folder.model_origin",
        "ModelSpec": "forebay.llm.models",
        "Options": "forebay.llm.options",
        "Preferences": "forebay.llm.preferences.losses",
        "PreparedTokens": "forebay.llm.source.prepared_tokens",
        "Recipe": "forebay.llm.recipe",
        "TokenSource": "forebay.llm.source.token_source",
        "TokenizerSpec": "forebay.llm.source.tokenizers",
        "check_memory": "forebay.llm.cost.memory_check",
        "check_model": "forebay.llm.models",
        "count_flops": "forebay.llm.cost.flops",
        "document_numbers": "forebay.llm.token_batch",
        "estimate_memory": "forebay.llm.cost.memory",
        "evaluate_tokens": "forebay.llm.evaluation",
        "export": "forebay.llm.hf_folder.exporting",
        "finetune": "forebay.llm.fine_tuning",
        "job": "forebay.llm.tuning_job",
        "memory_plan": "forebay.llm.cost.memory_check",
        "model_config": "forebay.llm.cost.known_models",
        "pair_rows": "forebay.llm.token_batch",
        "pinned_model": "forebay.llm.source.hub_model",
        "prefer": "forebay.llm.preferences.tuning",
        "prepared_tokens": "forebay.llm.source.prepared_tokens",
        "run_identity": "forebay.llm.identity",
        "score": "forebay.llm.score:",
        "smollm2": "forebay.llm.hf_folder.smollm2",
        "token_loss": "forebay.llm.loss",
        "token_rows": "forebay.llm.token_batch",
        "tokenizer": "forebay.llm.source.tokenizers",
        "unpack": "forebay.llm.token_batch",
        "with_options": "forebay.llm.options",
        "with_reference": "forebay.llm.preferences.reference_rows",
    },
)
