"""Language models: a tiny one, or one from a folder."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from pyarrow import fs
from torch import nn

from forebay.data.kernels.kernel_files import kernel_files
from forebay.errors import InvalidOption, whole_number
from forebay.llm.attention import (
    DOCUMENTS,
    FLEX,
    Attention,
    attend_by_documents,
    can_attend_by_documents,
    chosen_attention,
)
from forebay.llm.experts import group_experts
from forebay.llm.new_tokens import add_rows
from forebay.llm.quantization import NF4, quantized, quantized_copy, require_bitsandbytes
from forebay.llm.reward_head import put_reward_head
from forebay.llm.source.folders import copy_headers, local_copy, small_files_of
from forebay.llm.source.hub_model import hub_model, hub_names
from forebay.llm.source.prepared_tokens import PreparedTokens
from forebay.llm.source.tokenizers import check_sizes, import_transformers
from forebay.runtime.foreign_code import replaced_errors
from forebay.storage.atomic import read_small
from forebay.storage.filesystem import Location
from forebay.storage.globs import children

TINY = "tiny"
"""Name of the model that is made on the spot, and needs neither files nor a network."""
Quantization = Literal["nf4"]
Head = Literal["tokens", "reward"]

_CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
_ADAPTER = "adapter_config.json"
_TINY_POSITIONS = 4096
_MOST_CASES = 64
_MIXING_LAYERS = frozenset({"conv", "hybrid", "hybrid_sliding", "linear_attention"})
"""Kinds of layers of transformers whose state goes on over the beginning of a document."""
_MIXING_MODELS = frozenset({"biogpt", "bloom", "openai-gpt"})
"""Architectures of transformers (5.16 to 5.19) whose mask lets documents of a row see each other."""

Answers = Literal["one", "pairs", "labels"]
"""Answers of a row of data: one that is learned, a preferred one and a rejected one, or one with a label."""
_HAVE = {
    "one": "no pairs of answers and no labels",
    "pairs": "pairs of answers (chosen, rejected)",
    "labels": "answers with labels (prompt, completion, label)",
}
_NEED = {
    "one": "A fine-tuning would learn both the good and the bad ones.",
    "pairs": "This loss needs pairs: the columns chosen and rejected, with prompt.",
    "labels": "This loss needs the columns prompt, completion and label.",
}
_USE = {
    "one": "Rename columns with columns=, or fine-tune on this data (jobs/finetune_llm.py).",
    "pairs": "Train on them with jobs/prefer_llm.py, and loss=dpo, ipo, simpo or reward.",
    "labels": "Train on them with jobs/prefer_llm.py and loss=kto, or leave the column label out.",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """Causal language model.

    Attributes:
        name: "tiny", or the folder of a model, on any storage, or "org/name" of the Hugging Face Hub.
        vocab_size: Entries of the tokenizer, for the tiny model.
        attn: Implementation of attention.
        gradient_checkpointing: Whether activations are computed again in the backward pass, which saves memory.
            None: on a GPU.
        quantization: "nf4" holds the linear layers in 4 bits, frozen. None holds whole numbers of the weights' type.
        head: "tokens" gives logits, "reward" one number for each token.
        compile: Whether the layers are compiled, which takes a minute at the first start on a machine.
        new_tokens: Number of the tokenizer's last entries that are new to the model. Their rows begin as the mean of
            the other ones. `vocab_size` counts them too.
    """

    name: str
    vocab_size: int
    attn: Attention = "auto"
    gradient_checkpointing: bool | None = None
    quantization: Quantization | None = None
    head: Head = "tokens"
    compile: bool = False
    new_tokens: int = 0

    def __post_init__(self) -> None:
        whole_number("new_tokens", self.new_tokens, least=0)
        if self.head not in get_args(Head):
            raise InvalidOption(f"head={self.head!r} is unknown. Choose 'tokens' or 'reward'.")
        if self.quantization is not None:
            if self.quantization not in get_args(Quantization):
                raise InvalidOption(f"quantization={self.quantization!r} is unknown. Choose {NF4!r}, or None.")
            require_bitsandbytes()
        if self.attn not in get_args(Attention):
            known = ", ".join(map(repr, get_args(Attention)))
            raise InvalidOption(f"attn={self.attn!r} is unknown. Choose one of {known}.", attn=self.attn)

    def build(self, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float32) -> nn.Module:
        """Build the model in training mode, on the CPU, to be trained on `device`.

        Weights are of `dtype` or quantized. The tiny model draws them from torch's generator.

        Raises `InvalidOption` for a folder that cannot be loaded.
        """
        transformers, device = import_transformers(), torch.device(device)
        attn = chosen_attention(self.attn, device, is_compiled=self.compile)
        if self.compile or attn == FLEX:
            _keep_compiled_code()
            _compile_all_cases()
        # Attention by documents is sdpa with another mask, and can be set where a model is known only.
        # None: sdpa, and eager for models without it, such as gpt-oss.
        usual = None if self.attn == "auto" else "sdpa"
        model = self._made(transformers, usual if attn == DOCUMENTS else attn, dtype)
        if self.attn == DOCUMENTS or (attn == DOCUMENTS and can_attend_by_documents(model)):
            attend_by_documents(model)
        model.config.use_cache = False
        if self.new_tokens:
            add_rows(model, self.vocab_size, self.new_tokens)
        if self.head == "reward":
            put_reward_head(model)
        group_experts(model)
        if recomputes_activations(self.gradient_checkpointing, device):
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if self.compile:
            _compile_layers(model)
        # A loaded model is in evaluation mode.
        trained: nn.Module = model.train()
        return trained

    def _made(self, transformers: Any, attn: str | None, dtype: torch.dtype) -> Any:
        """Model of transformers, whose weights are drawn or loaded."""
        if self.name == TINY:
            config = transformers.LlamaConfig(**tiny_sizes(self.vocab_size))
            model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attn)
            if self.quantization is None:
                return model.to(dtype)
            return quantized_copy(transformers, model, dtype=dtype, attn_implementation=attn)
        plain = transformers.AutoModelForCausalLM.from_pretrained
        load = plain if self.quantization is None else partial(quantized, transformers)
        with replaced_errors(partial(_unloadable, self.name)):
            model, found = load(
                local_copy(self.name),
                dtype=dtype,
                attn_implementation=attn,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
            )
        _check_names(self.name, found)
        return model


def _compile_layers(model: nn.Module) -> None:
    """Let torch compile each layer at its first call.

    All layers share one compilation. Names and states of the model stay as they are.
    """
    layers: Any = max((each for each in model.modules() if isinstance(each, nn.ModuleList)), key=len)
    for layer in layers:
        layer.compile()


def _keep_compiled_code() -> None:
    """Keep what torch compiles beside Forebay's kernels.

    Its own folder is a temporary one, so that a new container would compile FlexAttention again (23 s on an H200). It
    is named by TORCHINDUCTOR_CACHE_DIR, which is left alone where it is set.
    """
    folder = kernel_files().target
    if folder is not None:
        os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(folder / "inductor"))


def _compile_all_cases() -> None:
    """Let torch compile code for 64 cases instead of 8.

    Each of gradients, adapters, autocast, one row or several, another length and kind of mask makes another case.
    Training with evaluations had nine in a Llama. Those beyond the limit run as they are: FlexAttention then keeps the
    scores of all pairs of tokens.
    """
    from torch._dynamo import config  # noqa: PLC0415 - a second, which others do not need

    config.recompile_limit = max(config.recompile_limit, _MOST_CASES)


def recomputes_activations(wanted: bool | None, device: torch.device) -> bool:
    """Whether to checkpoint activations. Defaults to True on a GPU.

    A GPU has too little memory more often than time. Main memory is larger, and a CPU slower.
    """
    return device.type == "cuda" if wanted is None else wanted


def tiny_sizes(vocab_size: int) -> dict[str, Any]:
    """Sizes of the tiny model: Llama, 2 layers, width 64."""
    return {
        "vocab_size": vocab_size,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "max_position_embeddings": _TINY_POSITIONS,
        "tie_word_embeddings": False,
        "use_cache": False,
        # 0.02 suits wide models. With it, this one needs a third more steps.
        "initializer_range": 0.08,
    }


def check_model(name: str, tokens: PreparedTokens, *, answers: Answers = "one", new_tokens: int = 0) -> None:
    """Check that a model can be trained on `tokens`.

    The model is not loaded.

    Raises `InvalidOption` for a folder without a configuration or safetensors, with code of its own, for a tokenizer
    that is larger than the embedding, for rows that are longer than the model's positions, for rows of several
    documents that the model would let see each other, and for rows whose `answers`
    are others: "one", "pairs", or "labels" for one that is desired or not. And for weights that are
    quantized already. The last `new_tokens` entries of the tokenizer are new to the model.
    """
    found: Answers = "pairs" if tokens.has_pairs else "labels" if tokens.has_labels else "one"
    if found != answers:
        raise InvalidOption(f"the data has {_HAVE[found]}. {_NEED[answers]} {_USE[found]}", answers=found)
    config: Mapping[str, Any] = tiny_sizes(tokens.vocab_size) if name == TINY else read_config(name)
    if quantized_by := config.get("quantization_config"):
        how = quantized_by.get("quant_method", "quantized") if isinstance(quantized_by, Mapping) else quantized_by
        raise InvalidOption(
            f"the weights of the model {name} are quantized already ({how}), and training needs plain ones. Give a "
            "copy in bf16: load it with transformers, dequantize() it and save_pretrained() it. finetuning=qlora "
            "quantizes such a copy to 4 bits.",
            path=name,
        )
    if "vocab_size" in config:
        check_sizes(tokens.vocab_size - new_tokens, config["vocab_size"], name)
    elif new_tokens:
        raise InvalidOption(
            f"new_tokens: config.json of the model {name} has no vocab_size that could grow. Give the language model "
            "itself, or leave new_tokens out.",
            option="new_tokens",
        )
    # Not from config.json: it has other names for some, and may leave out what is the default of the architecture.
    with replaced_errors(partial(_unloadable, name)):
        whole = full_config({"model_type": "llama", **config} if name == TINY else config).get_text_config()
    if found != "one" or tokens.packing != "none":
        _check_apart(name, whole, found)
    positions = getattr(whole, "max_position_embeddings", None)
    if positions is not None and tokens.seq_len > positions:
        raise InvalidOption(
            f"seq_len={tokens.seq_len}, and the model {name} has {positions} positions. Set seq_len to at most that.",
            seq_len=tokens.seq_len,
            positions=positions,
        )


def full_config(config: Mapping[str, Any]) -> Any:
    """Configuration of transformers for config.json, with the defaults of its architecture."""
    with tempfile.TemporaryDirectory(prefix="forebay-config-") as folder:
        # Only a file is read with all that transformers writes, such as an infinite number.
        (Path(folder) / _CONFIG).write_text(json.dumps(dict(config)))
        return import_transformers().AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def _check_apart(name: str, config: Any, answers: Answers) -> None:
    """Check that the model keeps the documents of a row apart. Raises `InvalidOption`."""
    known, layers = import_transformers().MODEL_FOR_CAUSAL_LM_MAPPING, getattr(config, "layer_types", None) or ()
    mixed = sorted(_MIXING_LAYERS.intersection(layers))
    # Not all models name their layers. The flag of the class has no public name.
    has_state = not layers and type(config) in known and known[type(config)]._is_stateful  # noqa: SLF001
    if not has_state and not mixed and config.model_type not in _MIXING_MODELS:
        return
    why = f"layers of the kind {mixed[0]!r}" if mixed else "a state" if has_state else "a mask of its own"
    what = "the answers to compare" if answers != "one" else "documents"
    use = "Take a base of another architecture." if answers != "one" else "Set packing='none', one document a row."
    raise InvalidOption(
        f"the model {name} (model_type={config.model_type!r}) has {why}, through which {what} in one row would see "
        f"each other. {use}",
        path=name,
    )


def read_config(folder: str) -> dict[str, Any]:
    """Read the configuration of a model's folder.

    The folder must have safetensors and no code. Raises `InvalidOption`.

    Of a model of the Hub, no weights are downloaded.
    """
    location, hub = small_files_of(folder), hub_model(folder)
    names = {info.base_name for info in children(location.fs, location.path) if info.type == fs.FileType.File}
    named = location.uri
    if hub is not None:
        names, named = names | hub_names(hub), str(hub)
    seen = ", ".join(sorted(names)[:10]) or "no files"
    needs = "It needs config.json and model.safetensors, as save_pretrained() of transformers writes them."
    if _CONFIG not in names:
        raise InvalidOption(f"{named} is not the folder of a model: it holds {seen}. {needs}", path=named)
    config: dict[str, Any] = _read_json(location, _CONFIG)
    if "auto_map" in config:
        raise InvalidOption(
            f"{named} brings code of its own (auto_map in config.json), which is never run. Give a model that the "
            "transformers library has itself.",
            path=named,
        )
    if kernel := _kernel_in(config):
        raise InvalidOption(
            f"config.json of {named} names code of the Hub for its attention ({kernel!r:.100}), which is never run. "
            "Take the key out, and choose attn=.",
            path=named,
        )
    if _ADAPTER in names:
        raise InvalidOption(
            f"{named} holds an adapter beside the model ({_ADAPTER}), which transformers would add to the weights. "
            "Merge the adapter, or take the file out.",
            path=named,
        )
    missing = sorted(set(_read_json(location, INDEX)["weight_map"].values()) - names) if INDEX in names else []
    if missing:
        raise InvalidOption(f"{named} lacks {', '.join(missing)} of its weights. Copy the folder again.")
    if INDEX not in names and WEIGHTS not in names:
        pickles = sorted(name for name in names if name.endswith((".bin", ".pt", ".pth")))
        why = f"{pickles[0]} is a pickle, which may run any code, and is not read" if pickles else f"it holds {seen}"
        raise InvalidOption(f"{named} has no weights as safetensors: {why}. {needs}", path=named)
    return config


def _kernel_in(config: object) -> str | None:
    """Kernel that a configuration or one within it names for attention, or None.

    transformers loads `org/name` from the Hub.
    """
    if isinstance(config, list):
        return next(filter(None, map(_kernel_in, config)), None)
    if not isinstance(config, Mapping):
        return None
    for key, value in config.items():
        for each in value.values() if isinstance(value, Mapping) else (value,):
            if str(key).endswith("attn_implementation") and isinstance(each, str) and "/" in each:
                return each
    return next(filter(None, map(_kernel_in, config.values())), None)


def _read_json(location: Location, name: str) -> Any:
    try:
        found = json.loads(read_small(location.child(name)))
    except ValueError as error:
        raise InvalidOption(
            f"{name} of {location.uri} is not JSON ({error}). Copy the folder of the model again.", path=location.uri
        ) from error
    if not isinstance(found, dict):
        raise InvalidOption(f"{name} of {location.uri} is not a JSON object. Copy the folder of the model again.")
    return found


def check_weights(spec: ModelSpec) -> nn.Module:
    """Check that the weights of a model's files are whole.

    Reads the headers of the files, and no weights. Returns the model without memory. Weights of a model of the Hub are
    not there yet: only its architecture is checked.

    Raises `InvalidOption` for an unknown architecture, a file that was cut, and a weight that is missing or has another
    shape.
    """
    transformers = import_transformers()
    if spec.name == TINY:
        with torch.device("meta"):
            tiny: nn.Module = transformers.LlamaForCausalLM(transformers.LlamaConfig(**tiny_sizes(spec.vocab_size)))
        return tiny
    hub = hub_model(spec.name) is not None
    with replaced_errors(partial(_unloadable, spec.name)), _quiet(transformers):
        with tempfile.TemporaryDirectory(prefix="forebay-headers-") as folder:
            copy_headers(small_files_of(spec.name), Path(folder), with_weights=not hub)
            if hub:
                with torch.device("meta"):
                    config = transformers.AutoConfig.from_pretrained(
                        folder, local_files_only=True, trust_remote_code=False
                    )
                    made: nn.Module = transformers.AutoModelForCausalLM.from_config(config)
                return made
            model, found = transformers.AutoModelForCausalLM.from_pretrained(
                folder,
                dtype="float32",
                device_map="meta",
                ignore_mismatched_sizes=True,  # they are named by _check_names
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                output_loading_info=True,
                attn_implementation={DOCUMENTS: "sdpa", "sdpa": "sdpa"}.get(spec.attn),
            )
        _check_names(spec.name, found)
        if spec.attn == DOCUMENTS:
            attend_by_documents(model)
        checked: nn.Module = model
        return checked


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """Keep the tables of transformers back: an error says the same."""
    logging = transformers.utils.logging
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)


def _check_names(name: str, found: Mapping[str, Any]) -> None:
    """Raise `InvalidOption` for weights that transformers would draw."""
    missing, other = sorted(found["missing_keys"]), [str(each[0]) for each in found["mismatched_keys"]]
    if missing or other:
        what = f"lacks {missing[0]}" if missing else f"has another shape of {other[0]} than its config.json says"
        more = len(missing) + len(other) - 1
        raise InvalidOption(
            f"the model {name} {what}{f' and {more} more weights' if more else ''}: random numbers would be trained in "
            "its place. Convert or copy the model again.",
            missing=missing,
        )


def _unloadable(name: str, error: Exception) -> Exception:
    if isinstance(error, InvalidOption):
        return error
    return InvalidOption(
        f"the model {name} cannot be loaded ({type(error).__name__}: {error}). Give the folder of a causal language "
        "model that the installed transformers knows.",
        path=name,
    )
