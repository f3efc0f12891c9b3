"""Tokens of a chat format that a base model does not have."""

from __future__ import annotations

from typing import Any

import torch

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora, is_named


def add_rows(model: Any, entries: int, new_tokens: int) -> None:
    """Give the last `new_tokens` of `entries` tokens rows of their own.

    In the embedding and the output layer, each the mean of the rows of the other tokens: so a new token is as probable
    as the average one, where a random row could be the most probable of all (Hewitt 2021, "Initializing new word
    embeddings for pretrained language models"). Many models have more rows than tokens: these are used first.
    """
    if entries > len(model.get_input_embeddings().weight):
        model.resize_token_embeddings(entries, mean_resizing=False)
    known = entries - new_tokens
    with torch.no_grad():
        for layer in {model.get_input_embeddings(), model.get_output_embeddings()} - {None}:
            for rows in layer.parameters(recurse=False):
                rows[known:entries] = rows[:known].float().mean(0).to(rows.dtype)


def check_trained(adapter: Lora, model: Any) -> None:
    """Check that an adapter trains the rows of new tokens.

    Raises `InvalidOption` with the names that `modules_to_save` needs.
    """
    layers = [model.get_input_embeddings()]
    if not getattr(model.config, "tie_word_embeddings", False):
        layers.append(model.get_output_embeddings())
    names = [next(name for name, each in model.named_modules() if each is layer) for layer in layers]
    if missing := [name for name in names if not any(is_named(name, each) for each in adapter.modules_to_save)]:
        wanted = ",".join([*adapter.modules_to_save, *(name.rpartition(".")[2] for name in missing)])
        raise InvalidOption(
            f"new_tokens: an adapter leaves the new rows of {missing[0].rpartition('.')[2]!r} as they begin, the mean "
            f"of all others. Set modules_to_save={wanted}, or finetuning=full.",
            option="modules_to_save",
        )
