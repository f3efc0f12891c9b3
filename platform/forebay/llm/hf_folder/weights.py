"""Weights of a trained model, read from a checkpoint.

The whole model, its adapter, or the base with the adapter merged.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora
from forebay.llm.hf_folder.model_origin import ModelOrigin
from forebay.llm.hf_folder.safetensors_files import Weight
from forebay.llm.models import TINY
from forebay.llm.quantization import dequantized
from forebay.llm.reward_head import SCORE, output_name
from forebay.llm.source.folders import local_copy
from forebay.llm.source.tokenizers import import_transformers
from forebay.runtime.extras import extra_package
from forebay.training.checkpoint.parts.stored_state import StoredState
from forebay.training.state.rng import seed_everything

_ADAPTED = "base_model.model."
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"
_MAGNITUDE, _SAVED = ".lora_magnitude_vector.default.weight", ".modules_to_save.default."
_OUTPUT = "lm_head.weight"


def trained_weights(state: StoredState, config: Mapping[str, Any]) -> list[Weight]:
    """All weights of a fully trained model.

    A tied output layer is left out.
    """
    is_tied = bool(config.get("tie_word_embeddings"))
    leaves = state.head["objects"]["model"]
    return [each for each in _weights(state, leaves) if not (is_tied and each.name == _OUTPUT)]


def adapter_weights(state: StoredState, tied: Mapping[str, str]) -> list[Weight]:
    """Weights of an adapter, and of layers trained whole beside it, by the names of peft.

    `tied` is from `tied_outputs`: peft reads such an output layer too, though it is the embedding.
    """
    found = [
        replace(
            each,
            name=each.name.removesuffix(".default.weight" if each.name.endswith(_MAGNITUDE) else "")
            .replace(_SAVED, ".")
            .replace(".default.", "."),
        )
        for each in _weights(state, state.head["objects"]["model"])
        if each.name.endswith((_A, _B, _MAGNITUDE)) or _SAVED in each.name
    ]
    by_name = {each.name.removeprefix(_ADAPTED): each for each in found}
    outputs = [replace(by_name[name], name=_ADAPTED + output) for output, name in tied.items()]
    return [*found, *outputs]


def merged_weights(base: list[Weight], state: StoredState, adapter: Lora) -> list[Weight]:
    """Weights of the base with the adapter merged.

    Raises `InvalidOption` for an adapter of another base.
    """
    parts = {each.name.removeprefix(_ADAPTED): each for each in _weights(state, state.head["objects"]["model"])}
    layers = {name.removesuffix(_A) for name in parts if name.endswith(_A)}
    if missing := layers - {each.name.removesuffix(".weight") for each in base}:
        raise InvalidOption(
            f"the adapter belongs to the layer {min(missing)}, which the files of the base model do not name. Export "
            "without merge, and merge with the peft library.",
            layers=sorted(missing),
        )
    saved = {
        name.replace(_SAVED, "."): replace(each, name=name.replace(_SAVED, "."))
        for name, each in parts.items()
        if _SAVED in name
    }
    merged = []
    for weight in base:
        layer = weight.name.removesuffix(".weight")
        if layer in layers:
            factors = parts[layer + _A].read, parts[layer + _B].read
            read = partial(_with_adapter, weight.read, *factors, adapter.scale)
            if adapter.dora:
                read = partial(_of_magnitude, read, parts[layer + _MAGNITUDE].read)
            weight = replace(weight, read=read)  # noqa: PLW2901 - the same weight, read in another way
        merged.append(saved.pop(weight.name, weight))
    return [*merged, *saved.values()]


def base_weights(origin: ModelOrigin) -> list[Weight]:
    """Weights of the base model, in file order.

    The tiny model is drawn from the seed of the run, as its workers did.
    """
    if origin.model.name == TINY:
        seed_everything(origin.seed)
        values = replace(origin.model, quantization=None).build().state_dict()
        return [
            Weight(name=name, shape=tuple(each.shape), dtype=each.dtype, read=partial(values.__getitem__, name))
            for name, each in values.items()
        ]
    with extra_package("safetensors", "A model in a folder of Hugging Face"):
        from safetensors import safe_open  # noqa: PLC0415 - an extra

    weights: list[Weight] = []
    for path in sorted(Path(local_copy(origin.model.name)).glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                found = file.get_slice(name)
                shape = tuple(found.get_shape())
                weights.append(Weight(name=name, shape=shape, dtype=torch.float32, read=partial(_read, path, name)))
    return weights


def dequantized_weights(base: list[Weight], config: Mapping[str, Any]) -> list[Weight]:
    """Weights of the base as a 4-bit run had them.

    Weights of linear layers are quantized and dequantized.
    """
    model = skeleton_of(config)
    layers = {name for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    quantized = {f"{name}.weight" for name in layers if model.get_submodule(name) is not model.get_output_embeddings()}
    return [
        replace(each, read=partial(_through_4_bits, each.read)) if each.name in quantized else each for each in base
    ]


def tied_outputs(origin: ModelOrigin, config: Mapping[str, Any]) -> dict[str, str]:
    """Weight of the output layer, and of the embedding that it is, if that is trained whole beside an adapter."""
    assert origin.adapter is not None, "a run without one has no such layers"
    if origin.model.head == "reward" or not config.get("tie_word_embeddings"):
        return {}
    model = skeleton_of(config)
    if not origin.adapter.ties_embedding(model):
        return {}
    embedding = next(name for name, each in model.named_modules() if each is model.get_input_embeddings())
    return {f"{output_name(model)}.weight": f"{embedding}.weight"}


def skeleton_of(config: Mapping[str, Any]) -> Any:
    """Causal model of a configuration, without memory."""
    transformers = import_transformers()
    facts = {name: value for name, value in config.items() if name not in ("model_type", "architectures")}
    with torch.device("meta"):
        found = transformers.AutoConfig.for_model(config["model_type"], **facts)
        return transformers.AutoModelForCausalLM.from_config(found)


def as_classifier(weights: list[Weight], config: Mapping[str, Any]) -> list[Weight]:
    """Weights of a reward model, by the names of sequence classification."""
    output = f"{output_name(skeleton_of(config))}.weight"
    return [
        replace(each, name=each.name.removesuffix(output) + f"{SCORE}.weight") if each.name.endswith(output) else each
        for each in weights
    ]


def as_type(weights: list[Weight], dtype: torch.dtype) -> list[Weight]:
    """The same weights, with floating-point ones written as `dtype`."""
    return [replace(each, dtype=dtype) if each.dtype.is_floating_point else each for each in weights]


def _weights(state: StoredState, leaves: Mapping[str, Any]) -> Iterator[Weight]:
    for name, leaf in leaves.items():
        if facts := state.facts(leaf):
            shape, dtype = facts
            yield Weight(name=name, shape=shape, dtype=dtype, read=partial(state.tensor, leaf))


def _read(path: Path, name: str) -> Tensor:
    with extra_package("safetensors", "A model in a folder of Hugging Face"):
        from safetensors import safe_open  # noqa: PLC0415 - an extra

    with safe_open(path, framework="pt") as file:
        found: Tensor = file.get_tensor(name)
    return found


def _through_4_bits(read: Any) -> Tensor:
    return dequantized(read())


def _with_adapter(base: Any, a: Any, b: Any, scale: float) -> Tensor:
    """Sum in float32, in which the adapter was trained."""
    change: Tensor = b().float() @ a().float()
    total: Tensor = base().float() + scale * change
    return total


def _of_magnitude(direction: Any, magnitude: Any) -> Tensor:
    """Weight with rows in one direction, of the lengths of DoRA."""
    found: Tensor = direction()
    lengths: Tensor = magnitude().float() / torch.linalg.norm(found, dim=1)
    return found * lengths[:, None]
