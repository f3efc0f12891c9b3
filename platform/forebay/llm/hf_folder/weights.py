"""Weights of a trained model, read from a checkpoint.

The whole model, its adapter, or the base with the adapter merged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from forebay.errors import InvalidOption
from forebay.llm.adapters import Lora, StackForm, adapted_weights
from forebay.llm.experts import expert_weights
from forebay.llm.hf_folder.base_names import BaseNames, skeleton_of, weight_files
from forebay.llm.hf_folder.model_origin import ModelOrigin
from forebay.llm.hf_folder.safetensors_files import Weight
from forebay.llm.models import TINY
from forebay.llm.quantization import dequantized
from forebay.llm.reward_head import SCORE, output_name
from forebay.llm.source.folders import local_copy
from forebay.runtime.extras import extra_package
from forebay.training.checkpoint.parts.stored_state import StoredState
from forebay.training.state.rng import seed_everything

_ADAPTED = "base_model.model."
_A, _B = ".lora_A.default.weight", ".lora_B.default.weight"
_MAGNITUDE, _SAVED = ".lora_magnitude_vector.default.weight", ".modules_to_save.default."
OUTPUT = "lm_head.weight"
"""Name of an output layer that may be tied to the embedding."""


def trained_weights(state: StoredState, names: BaseNames) -> list[Weight]:
    """Weights of a fully trained model, named as its base."""
    whole = [*_weights(state, state.head["objects"]["model"])]
    return [part for each in _without_copy(whole, names.model) for part in names.split(each)]


def adapter_weights(state: StoredState, tied: Mapping[str, str]) -> list[Weight]:
    """Weights of an adapter and of whole layers, named by peft.

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


def merged_weights(base: list[Weight], state: StoredState, adapter: Lora, names: BaseNames) -> list[Weight]:
    """Weights of the base with the adapter merged.

    Raises `InvalidOption` for an adapter of another base.
    """
    parts = {each.name.removeprefix(_ADAPTED): each for each in _weights(state, state.head["objects"]["model"])}
    layers = {name.removesuffix(_A) for name in parts if name.endswith(_A)}
    adapted = adapted_weights(names.model, adapter)
    if missing := layers - adapted.keys():
        raise _unnamed(min(missing), layers)
    changes = [
        _Change(
            name=name,
            a=parts[layer + _A].read,
            b=parts[layer + _B].read,
            scale=adapter.scale,
            form=form,
            magnitude=parts[layer + _MAGNITUDE].read if adapter.dora else None,
        )
        for layer, (name, form) in adapted.items()
    ]
    of_parts = {part: (each, names) for each in changes for part in names.of_modules(frozenset({each.name}))}
    if unnamed := of_parts.keys() - {each.name for each in base}:
        raise _unnamed(min(unnamed), layers)
    whole = [replace(each, name=name.replace(_SAVED, ".")) for name, each in parts.items() if _SAVED in name]
    saved = {part.name: part for each in whole for part in names.split(each)}
    if adapter.ties_embedding(names.model):
        # The output layer is the embedding that was trained. Files of a base may have both.
        base = [each for each in base if each.name != OUTPUT]
    base = _without_copy(base, names.model)
    merged = []
    for weight in base:
        if weight.name in of_parts:
            read = partial(_with_change, weight, *of_parts[weight.name])
            weight = replace(weight, read=read)  # noqa: PLW2901 - the same weight, read in another way
        merged.append(saved.pop(weight.name, weight))
    return [*merged, *saved.values()]


def _without_copy(weights: list[Weight], model: Any) -> list[Weight]:
    """The weights without a tied output layer, which is the embedding.

    Transformers ties none whose values in the files of the base differ: such a layer stays.
    """
    # Not from config.json: it may leave out what is the default, and Gemma's is tied.
    if not getattr(model.config, "tie_word_embeddings", False):
        return weights
    by_name = {each.name: each for each in weights}
    output, embedding = by_name.get(OUTPUT), by_name.get(_embedding(model))
    if output is None or embedding is None or not torch.equal(output.read(), embedding.read()):
        return weights
    return [each for each in weights if each is not output]


def _embedding(model: Any) -> str:
    return next(f"{name}.weight" for name, each in model.named_modules() if each is model.get_input_embeddings())


def _unnamed(name: str, layers: set[str]) -> InvalidOption:
    return InvalidOption(
        f"the adapter belongs to {name}, which the files of the base model do not name. Export without merge, and "
        "merge with the peft library.",
        layers=sorted(layers),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Change:
    """Sum that an adapter adds to a weight of the model.

    Attributes:
        name: Name of the weight in the model.
        a: Reads the first factor.
        b: Reads the second factor.
        scale: Factor of their product.
        form: Form of the weight.
        magnitude: Reads the lengths of rows of DoRA. None: the sum has its own.
    """

    name: str
    a: Callable[[], Tensor]
    b: Callable[[], Tensor]
    scale: float
    form: StackForm
    magnitude: Callable[[], Tensor] | None = None

    def values(self) -> Tensor:
        """The change, in float32, in which the adapter was trained."""
        a, b = self.a().float(), self.b().float()
        if self.form.experts == 1:
            return self.scale * (a.T @ b.T if self.form.is_transposed else b @ a)
        # The order of peft: rows of A by experts, and columns of B by ranks.
        a, b = a.reshape(self.form.experts, -1, a.shape[-1]), b.reshape(b.shape[0], -1, self.form.experts)
        order = "ore,eri->eio" if self.form.is_transposed else "ore,eri->eoi"
        return self.scale * torch.einsum(order, b, a)


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
    for path in weight_files(Path(local_copy(origin.model.name))):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 - not a mapping
                found = file.get_slice(name)
                shape = tuple(found.get_shape())
                weights.append(Weight(name=name, shape=shape, dtype=torch.float32, read=partial(_read, path, name)))
    return weights


def dequantized_weights(base: list[Weight], names: BaseNames) -> list[Weight]:
    """Weights of the base as a 4-bit run had them.

    Weights of linear layers and experts are quantized and dequantized.
    """
    model = names.model
    layers = {name for name, each in model.named_modules() if isinstance(each, nn.Linear)}
    own = {f"{name}.weight" for name in layers if model.get_submodule(name) is not model.get_output_embeddings()}
    stacks = {f"{name}.{weight}" for name, _, weight in expert_weights(model)}
    layers_of, stacks_of = names.of_modules(frozenset(own)), names.of_modules(frozenset(stacks))
    return [
        replace(each, read=partial(_through_4_bits, each.read, as_row=each.name in stacks_of))
        if each.name in layers_of | stacks_of
        else each
        for each in base
    ]


def tied_outputs(origin: ModelOrigin, config: Mapping[str, Any]) -> dict[str, str]:
    """Names of a tied, trained output layer and its embedding."""
    assert origin.adapter is not None, "a run without one has no such layers"
    if origin.model.head == "reward":
        return {}
    model = skeleton_of(config)
    if not origin.adapter.ties_embedding(model):
        return {}
    return {f"{output_name(model)}.weight": _embedding(model)}


def as_classifier(weights: list[Weight], config: Mapping[str, Any]) -> list[Weight]:
    """Weights of a reward model, named for sequence classification."""
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


def _through_4_bits(read: Callable[[], Tensor], *, as_row: bool) -> Tensor:
    """Weight as a 4-bit run had it.

    Experts are quantized as one row.
    """
    weight = read()
    return dequantized(weight.reshape(-1)).view(weight.shape) if as_row else dequantized(weight)


def _with_change(base: Weight, change: _Change, names: BaseNames) -> Tensor:
    """Sum in float32, in which the adapter was trained."""
    total: Tensor = base.read().float() + names.parts(change.name, change.values())[base.name]
    if change.magnitude is None:
        return total
    # DoRA has a length for each output.
    inputs = 0 if change.form.is_transposed else 1
    lengths: Tensor = change.magnitude().float() / torch.linalg.norm(total, dim=inputs)
    return total * lengths.unsqueeze(inputs)
