"""Defaults of generation beside an exported model: those of its base, and the tokens that end an answer."""

from __future__ import annotations

import json
from typing import Any

from forebay.errors import InvalidOption
from forebay.llm.chat import encode, render
from forebay.llm.hf_folder.model_origin import ModelOrigin
from forebay.llm.models import TINY, read_config
from forebay.llm.source.tokenizers import load_tokenizer

FILE = "generation_config.json"
_END, _PAD = "eos_token_id", "pad_token_id"


def generation_defaults(origin: ModelOrigin, of_base: bytes | None) -> bytes | None:
    """Content of `generation_config.json`, or None if neither the base nor a tokenizer says anything.

    Without the end tokens of training, `generate` goes on behind an answer up to its limit: a base of plain text, and
    one whose chat template was replaced, know other ones.
    """
    if origin.tokenizer is None:
        return of_base
    tokenizer = load_tokenizer(origin.tokenizer)
    found: dict[str, Any] = {} if of_base is None else json.loads(of_base)
    config = {} if origin.model.name == TINY else read_config(origin.model.name)
    known = found.get(_END, config.get(_END))
    before = known if isinstance(known, list) else [] if known is None else [known]
    more = [each for each in end_tokens(tokenizer) if each not in before]
    if not more and of_base is not None:
        return of_base
    ends = [*before, *more]
    found[_END] = ends[0] if len(ends) == 1 else ends
    found.setdefault(_PAD, tokenizer.pad_token_id)
    return json.dumps(found, indent=2, sort_keys=True).encode()


def end_tokens(tokenizer: Any) -> list[int]:
    """Ids of the tokens that end an answer: the tokenizer's own, and the last one of a turn under its template."""
    found = [int(tokenizer.eos_token_id)]
    if tokenizer.chat_template:
        conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            (document,) = encode(tokenizer, [render(tokenizer, conversation, "last")])
        except InvalidOption:  # a template that rewrites earlier turns
            return found
        last = int(document.ids[document.is_target][-1])
        if last in tokenizer.added_tokens_decoder and last not in found:
            found.append(last)
    return found
