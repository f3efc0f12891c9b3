"""Models with 4-bit weights in linear layers, by bitsandbytes.

NF4: Dettmers et al. 2023, arXiv 2305.14314.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
import xxhash
from torch import Tensor, nn

from forebay.errors import BadJob
from forebay.llm.experts import (
    check_packable,
    expert_weights,
    is_stack,
    pack,
    packed_shapes,
    put_scales,
    take_scales,
)
from forebay.runtime.extras import require_package
from forebay.training.state.setup import local_part

NF4 = "nf4"
_METHOD = "bitsandbytes_4bit"
"""Name by which transformers looks its quantizer up."""


def require_bitsandbytes() -> None:
    """Raise `InvalidOption` if bitsandbytes is not installed.

    Does not import it.
    """
    require_package("bitsandbytes", "bitsandbytes", f"quantization={NF4!r}")


def quantized(transformers: Any, folder: str, **options: Any) -> Any:
    """Load and quantize the model of `folder`.

    Weight by weight: no more than one of them is whole at a time. The output layer keeps its type. With
    `output_loading_info`, returns also what transformers found. Raises any exception.
    """
    load = transformers.AutoModelForCausalLM.from_pretrained
    with _experts_too():
        loaded = load(folder, quantization_config=_config(transformers), **options)
    if not options.get("output_loading_info"):
        return _prepared(loaded)
    model, found = loaded
    # States of the quantization, such as `weight.absmax`, are in no file of a base.
    missing = {name for name in found["missing_keys"] if name.endswith((".weight", ".bias"))}
    return _prepared(model), {**found, "missing_keys": missing}


def quantized_copy(transformers: Any, model: Any, **options: Any) -> Any:
    """Quantized copy of `model`, which has weights in float32.

    `options` go to `from_pretrained`: `dtype` is the type of the other weights.
    """
    return _prepared(
        type(model).from_pretrained(
            None,
            config=model.config,
            state_dict=model.state_dict(),
            quantization_config=_config(transformers),
            **options,
        )
    )


def compute_in(model: nn.Module, dtype: torch.dtype) -> None:
    """Let the quantized layers compute in `dtype`.

    Autocast does not reach them.
    """
    for _, layer in quantized_layers(model):
        layer.compute_dtype, layer.compute_type_is_set = dtype, True


def quantized_layers(model: nn.Module) -> Iterator[tuple[str, Any]]:
    """Layers with 4-bit weights, by name."""
    import bitsandbytes  # noqa: PLC0415 - an extra, which takes seconds to import

    return ((name, each) for name, each in model.named_modules() if isinstance(each, bitsandbytes.nn.Linear4bit))


def packed_experts(model: nn.Module) -> dict[str, nn.Module]:
    """Modules of experts with 4-bit weights, by name."""
    return {name: module for name, module, own in expert_weights(model) if own in packed_shapes(module)}


def dequantized(weight: Tensor) -> Tensor:
    """Quantize `weight` to 4 bits and back, in float32."""
    from bitsandbytes import functional  # noqa: PLC0415 - an extra, which takes seconds to import

    packed, state = functional.quantize_4bit(weight.float(), quant_type=NF4, compress_statistics=False)
    values: Tensor = functional.dequantize_4bit(packed, state)
    return values


class FrozenWeights:
    """`Stateful` of quantized weights: a checksum instead of their values.

    A run continues with the weights that it was started with, or not at all. Each checkpoint also verifies that this
    rank's weights are what they were. It raises `BadJob` otherwise.
    """

    def __init__(self, model: nn.Module) -> None:
        """`model` has whole weights."""
        self._base = _checksum(model)
        self._model: nn.Module | None = None
        self._own = ""

    def watch(self, model: nn.Module) -> None:
        """Verify the weights of `model` from now on.

        This rank may hold a part of them.
        """
        self._model, self._own = model, _checksum(model)

    def state_dict(self) -> dict[str, str]:
        """Checksum of the whole weights."""
        if self._model is not None and _checksum(self._model) != self._own:
            raise BadJob(
                "the frozen 4-bit weights of the model have changed during training, which must not happen. Keep the "
                "model in training mode, and change no parameter that is not trained."
            )
        return {"xxh3_128": self._base}

    def load_state_dict(self, state_dict: Mapping[str, str]) -> None:
        """Check that a checkpoint has the same frozen weights.

        Raises `ValueError`.
        """
        found = state_dict["xxh3_128"]
        if found != self._base:
            raise ValueError(
                f"its frozen weights have the checksum {found[:12]}, and the weights of this base model have "
                f"{self._base[:12]}. Give the base model that the run was started with"
            )


def _config(transformers: Any) -> Any:
    return transformers.BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=NF4,
        bnb_4bit_compute_dtype=torch.float32,
        bnb_4bit_quant_storage=torch.uint8,
    )


@contextmanager
def _experts_too() -> Iterator[None]:
    """Let transformers quantize the experts of a mixture as they are read, as it does linear layers."""
    from transformers.quantizers import auto  # noqa: PLC0415 - an extra, which takes seconds to import

    own = auto.AUTO_QUANTIZER_MAPPING[_METHOD]
    auto.AUTO_QUANTIZER_MAPPING[_METHOD] = _quantizer()
    try:
        yield
    finally:
        auto.AUTO_QUANTIZER_MAPPING[_METHOD] = own


@cache
def _quantizer() -> type:
    """Quantizer of transformers for linear layers and experts. Checked on 5.19."""
    from transformers.core_model_loading import ConversionOps  # noqa: PLC0415 - an extra, as above
    from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer  # noqa: PLC0415 - as above

    class Packed(ConversionOps):  # type: ignore[misc]
        def __init__(self, of_layers: Any, scales: list[tuple[nn.Module, str, Tensor]]) -> None:
            self._of_layers, self._scales = of_layers, scales

        def convert(self, input_dict: dict[str, Any], *, model: Any, **others: Any) -> dict[str, Any]:
            done: dict[str, Any] = {}
            for name, found in [*input_dict.items()]:
                module, own = model.get_submodule(name.rpartition(".")[0]), name.rpartition(".")[2]
                if not is_stack(module, own):
                    done |= self._of_layers.convert({name: found}, model=model, **others)
                    continue
                pack(module, own, NF4, found[0] if isinstance(found, list) else found)
                done[name] = getattr(module, own)
                # transformers empties buffers that are in no file, when it has read all files.
                self._scales.append((module, own, take_scales(module, own)))
            return done

    class Quantizer(Bnb4BitHfQuantizer):  # type: ignore[misc]
        def _process_model_before_weight_loading(self, model: Any, *given: Any, **others: Any) -> None:
            check_packable(model)
            self._scales: list[tuple[nn.Module, str, Tensor]] = []
            super()._process_model_before_weight_loading(model, *given, **others)

        def _process_model_after_weight_loading(self, model: Any, **others: Any) -> Any:
            for each in self._scales:
                put_scales(*each)
            return super()._process_model_after_weight_loading(model, **others)

        def param_needs_quantization(self, model: Any, param_name: str, **others: Any) -> bool:
            module, own = param_name.rpartition(".")[0], param_name.rpartition(".")[2]
            is_linear: bool = super().param_needs_quantization(model, param_name, **others)
            return is_linear or is_stack(model.get_submodule(module), own)

        def get_quantize_ops(self) -> Any:
            return Packed(super().get_quantize_ops(), self._scales)

    return Quantizer


def _prepared(model: Any) -> Any:
    """Freeze the quantized weights, and keep them out of checkpoints.

    They follow from the model's folder. Quantizes the experts of a mixture that was not read. Returns the same model.
    """
    check_packable(model)
    for _, module, own in list(expert_weights(model)):
        if own not in packed_shapes(module):
            pack(module, own, NF4, getattr(module, own).detach())
    experts: Any
    for experts in packed_experts(model).values():
        experts.register_state_dict_post_hook(_leave_out)
        experts.register_load_state_dict_pre_hook(_keep_own)
    for layer in dict(quantized_layers(model)).values():
        # In evaluation mode on a CPU, bitsandbytes (0.50) repacks a weight in place and leaves it so.
        layer.support_avx512bf16_for_cpu = False
        layer.register_state_dict_post_hook(_leave_out)
        layer.register_load_state_dict_pre_hook(_keep_own)
    return model


def _leave_out(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for own in _quantized_names(module):
        for name in [each for each in state if f"{each}.".startswith(f"{prefix}{own}.")]:
            del state[name]


def _keep_own(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for own in _quantized_names(module):
        state[f"{prefix}{own}"] = getattr(module, own)


def _quantized_names(module: nn.Module) -> Iterable[str]:
    return packed_shapes(module) or ("weight",)


def _checksum(model: nn.Module) -> str:
    sums = xxhash.xxh3_128()
    for name, layer in [*quantized_layers(model), *packed_experts(model).items()]:
        for own in _quantized_names(layer):
            weight = getattr(layer, own)
            sums.update(name.encode())
            # Under ZeRO-3 the rank's part is beside the parameter, gathered for some of the time (deepspeed 0.19).
            part = getattr(weight, "ds_tensor", weight.data)
            values = local_part(part).detach().contiguous().reshape(-1).view(torch.uint8)
            sums.update(values.cpu().numpy().data)
    return sums.hexdigest()
