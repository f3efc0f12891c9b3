"""Configuration and tokenizer files beside a model's weights."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyarrow import fs

from forebay.errors import InvalidOption
from forebay.llm.chat.documents import encode
from forebay.llm.chat.messages import InvalidConversation
from forebay.llm.chat.rendering import render
from forebay.llm.hf_folder.base_names import skeleton_of
from forebay.llm.hf_folder.model_origin import ModelOrigin
from forebay.llm.hf_folder.safetensors_files import Weight
from forebay.llm.hf_folder.weights import tied_outputs
from forebay.llm.models import TINY, read_config, tiny_sizes
from forebay.llm.reward_head import SCORE
from forebay.llm.source.folders import small_files_of
from forebay.llm.source.hub_model import hub_model
from forebay.llm.source.tokenizers import load_tokenizer, tokenizer_files
from forebay.storage.atomic import read_small
from forebay.storage.filesystem import below, resolve

FILE = "generation_config.json"
_END, _PAD = "eos_token_id", "pad_token_id"
_TEMPLATE = "chat_template.jinja"
_OF_TEMPLATE = "chat_template.json"
_NOT_COPIED = ("quantization_config", "torch_dtype")


def model_config(origin: ModelOrigin) -> dict[str, Any]:
    """Configuration of the run's base model.

    Training changes nothing of it but the number of entries, for new tokens.
    """
    if origin.model.name == TINY:
        sizes = tiny_sizes(origin.model.vocab_size)
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **sizes, "use_cache": True}
    found = read_config(origin.model.name)
    if "dtype" not in found and "torch_dtype" in found:
        found["dtype"] = found["torch_dtype"]
    if origin.model.new_tokens:
        found["vocab_size"] = max(found["vocab_size"], origin.model.vocab_size)
    return {name: value for name, value in found.items() if name not in _NOT_COPIED}


def adapter_config(origin: ModelOrigin, weights: Sequence[Weight]) -> dict[str, Any]:
    """Configuration of an adapter, as the peft library writes it."""
    adapter = origin.adapter
    assert adapter is not None, "there are weights of an adapter"
    targets = adapter.targets_in(skeleton_of(model_config(origin)))
    if isinstance(targets.layers, str):
        # Other libraries do not know "all-linear": name the layers that it stands for.
        adapted = {each.name.split(".lora_")[0].rpartition(".")[2] for each in weights if ".lora_" in each.name}
        targets = replace(targets, layers=tuple(sorted(adapted)))
    is_tied, task = bool(tied_outputs(origin, model_config(origin))), "CAUSAL_LM"
    if origin.model.head == "reward":
        adapter, task = replace(adapter, modules_to_save=(*adapter.modules_to_save, SCORE)), "SEQ_CLS"
    config = adapter.peft_config(targets, is_tied=is_tied, task=task)
    if hub := hub_model(origin.model.name):
        config.base_model_name_or_path, config.revision = hub.repo, hub.revision
    else:
        config.base_model_name_or_path = resolve(origin.model.name).uri
    config.inference_mode = True
    facts: dict[str, Any] = json.loads(json.dumps(config.to_dict(), default=_plain))
    return facts


def side_files(origin: ModelOrigin, *, has_generation: bool) -> dict[str, bytes]:
    """Contents of the tokenizer's files by name.

    With `has_generation`, also the defaults of generation.
    """
    found = _tokenizer_files(origin)
    if has_generation:
        of_base = None if origin.model.name == TINY else _content(origin.model.name, FILE)
        if content := generation_defaults(origin, of_base):
            found[FILE] = content
    return found


def _tokenizer_files(origin: ModelOrigin) -> dict[str, bytes]:
    spec = origin.tokenizer
    if spec is None:
        return {}
    if spec.trained is not None or spec.new_tokens:
        with tempfile.TemporaryDirectory(prefix="forebay-") as folder:
            load_tokenizer(spec).save_pretrained(folder)
            return {path.name: path.read_bytes() for path in sorted(Path(folder).iterdir())}
    assert spec.folder is not None, "a tokenizer that was trained has a text"
    found = tokenizer_files(spec.folder)
    if spec.template_text is not None:
        found.pop(_OF_TEMPLATE, None)
        found[_TEMPLATE] = spec.template_text.encode()
    return found


def pad_of_rewards(origin: ModelOrigin) -> int | None:
    """Pad token of an exported reward model.

    None where an answer may end with it: transformers would read the reward before the end. It then takes one text at
    a time, or a pad token that the user sets.
    """
    if origin.tokenizer is None:
        return None
    tokenizer = load_tokenizer(origin.tokenizer)
    pad: int = tokenizer.pad_token_id
    return None if pad in end_tokens(tokenizer) else pad


def _content(folder: str, name: str) -> bytes | None:
    location = resolve(below(small_files_of(folder).uri, name))
    if location.fs.get_file_info(location.path).type != fs.FileType.File:
        return None
    return read_small(location)


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)


def generation_defaults(origin: ModelOrigin, of_base: bytes | None) -> bytes | None:
    """Content of `generation_config.json`, or None.

    None if neither the base nor a tokenizer sets anything.

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
    """Ids of the tokens that end an answer.

    The tokenizer's end token, and the last token of a turn under its template.
    """
    found = [int(tokenizer.eos_token_id)]
    if tokenizer.chat_template:
        conversation = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
        try:
            (document,) = encode(tokenizer, [render(tokenizer, conversation, "last")])
        except (InvalidConversation, InvalidOption):  # a template under which no answer ends
            return found
        last = int(document.ids[document.is_target][-1])
        if last in tokenizer.added_tokens_decoder and last not in found:
            found.append(last)
    return found
