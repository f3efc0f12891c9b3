"""Bytes that a pass allocates beside weights and moments.

A forward and a backward pass on fake tensors, which have no memory. What lives is counted operator by operator.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from forebay.llm.adapters import Lora
from forebay.llm.attention import known_packing
from forebay.llm.cost.skeleton import has_equal_layers, has_reward_head, num_layers, on_fake_cpu, skeleton, with_layers
from forebay.llm.experts import expert_weights
from forebay.llm.loss import cross_entropy, in_chunks
from forebay.llm.packing import START

_GROUPED = torch.ops.aten._grouped_mm.default  # noqa: SLF001 - no public name
FEW = 2
"""Least layers that are counted: the last one and the first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PassOptions:
    """Options that decide what a pass allocates.

    Attributes:
        rows: Rows of the pass.
        seq_len: Tokens of a row.
        attn: "eager", "sdpa" with the dense mask of packed rows, or "fused" for all that have no such mask.
        is_bf16: Whether autocast computes in bf16.
        checkpointing: Whether each layer is computed again in the backward pass.
        loss_chunk: Positions whose logits exist at a time. 0: all.
        accumulates: Whether gradients of an earlier pass are there.
        is_quantized: Whether linear layers hold 4 bits, and are unpacked for each product.
        frozen: Type of the frozen weights.
        trained: Type of the trained weights.
        is_compiled: Whether `torch.compile` splits each layer into its passes, and computes part of it again.
    """

    rows: int
    seq_len: int
    attn: str = "fused"
    is_bf16: bool = False
    checkpointing: bool = False
    loss_chunk: int = 1024
    accumulates: bool = True
    is_quantized: bool = False
    frozen: torch.dtype = torch.float32
    trained: torch.dtype = torch.float32
    is_compiled: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Peak:
    """Most bytes that live at one moment of a phase.

    Attributes:
        gradients: Gradients of weights, whole.
        others: Activations, logits, copies of weights, and whatever an operator needs for a moment.
    """

    gradients: int
    others: int


def count_pass(config: Any, adapter: Lora | None, options: PassOptions) -> list[Peak]:
    """Peak of each phase of a pass.

    Phases are the forward pass, the output layer, the backward pass of the last layer, and of the first one. Each
    grows by the same bytes with every further layer, so few layers are counted: whatever is between the last and the
    first layer lies between their peaks. A model of unequal layers is counted as a whole.
    """
    if adapter is not None:
        adapter = adapter.explicit(skeleton(config))
    layers = num_layers(config)
    if layers <= FEW + 1 or not has_equal_layers(config):
        return [*_peaks(config, adapter, options).values()]
    few, more = (_peaks(with_layers(config, each), adapter, options) for each in (FEW, FEW + 1))
    further = layers - FEW

    def of_all(name: str, part: Callable[[Peak], int]) -> int:
        return part(few[name]) + further * (part(more[name]) - part(few[name]))

    return [
        Peak(gradients=of_all(name, lambda peak: peak.gradients), others=of_all(name, lambda peak: peak.others))
        for name in few
        if name != _BETWEEN
    ]


_BETWEEN = "backward, between"


def _peaks(config: Any, adapter: Lora | None, options: PassOptions) -> Mapping[str, Peak]:
    """Peak of each phase, by its name."""
    model: Any = skeleton(config, adapter, attn="eager" if options.attn == "eager" else "sdpa")
    causal = getattr(model, "get_base_model", lambda: model)()
    if options.checkpointing:
        # States of random generators are not fake.
        causal.gradient_checkpointing_enable({"use_reentrant": False, "preserve_rng_state": False})
    packed = np.zeros((1, 2), np.int32) + (0 if options.attn == "fused" else START)
    with FakeTensorMode():
        on_fake_cpu(model, frozen=options.frozen, trained=options.trained)
        if options.is_quantized:
            _unpack_weights(causal)
        if options.is_compiled:
            _compile_layers(causal)
            with known_packing(packed):  # the first pass is traced
                _loss(causal, options, has_reward_head(config)).backward()  # type: ignore[no-untyped-call]
            model.zero_grad()
        live = _LiveBytes(model, accumulates=options.accumulates)
        with live, _phases(causal, live), known_packing(packed):
            loss = _loss(causal, options, has_reward_head(config))
            loss.backward()  # type: ignore[no-untyped-call]
    return live.peaks


def _loss(causal: Any, options: PassOptions, is_reward: bool) -> Tensor:
    """Loss of a pass. Every position is a target, or has a reward."""
    shape = options.rows, options.seq_len
    ids = torch.zeros(shape, dtype=torch.long)
    inputs = {"input_ids": ids, "position_ids": torch.arange(shape[1]).expand(shape), "use_cache": False}
    labels = torch.zeros(ids.numel(), dtype=torch.long)
    # As `Recipe.autocast`.
    keeps_copies = not options.checkpointing
    with torch.autocast("cpu", torch.bfloat16, cache_enabled=keeps_copies) if options.is_bf16 else nullcontext():
        if is_reward:
            return causal(**inputs).logits.double().sum()  # type: ignore[no-any-return]
        if options.loss_chunk:
            head = causal.get_output_embeddings()
            with in_chunks(head, torch.arange(ids.numel()), labels, cross_entropy, options.loss_chunk):
                return causal(**inputs).logits.sum()  # type: ignore[no-any-return]
        logits = causal(**inputs).logits.flatten(0, 1)
        return cross_entropy(logits.index_select(0, torch.arange(ids.numel())).float(), labels).sum()


class _LiveBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Bytes of living storages, with the peak of each phase."""

    def __init__(self, model: nn.Module, *, accumulates: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peaks: dict[str, Peak] = {}
        self._phase, self._live, self._gradients = "", 0, 0
        self._known = {each.untyped_storage()._cdata for each in (*model.parameters(), *model.buffers())}  # noqa: SLF001 - no public identity
        for each in model.parameters():
            if each.requires_grad:
                if accumulates:
                    each.grad = torch.empty_like(each)
                    self._known.add(each.grad.untyped_storage()._cdata)  # noqa: SLF001
                    self._gradients += each.nbytes
                else:
                    each.register_post_accumulate_grad_hook(self._add_gradient)  # type: ignore[no-untyped-call]
        self.enter("forward")

    def enter(self, phase: str) -> None:
        """Begin a phase."""
        self._phase = phase
        self._note()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = _grouped(*args) if func is _GROUPED else func(*args, **(kwargs or {}))
        for each in tree_leaves(found):
            if isinstance(each, Tensor):
                self._add(each.untyped_storage())
        self._note()
        return found

    def _add(self, storage: Any) -> None:
        key = storage._cdata  # noqa: SLF001 - no public identity
        if key in self._known:
            return
        self._known.add(key)
        self._live += storage.nbytes()
        weakref.finalize(storage, self._remove, key, storage.nbytes())

    def _remove(self, key: int, nbytes: int) -> None:
        self._known.discard(key)
        self._live -= nbytes

    def _add_gradient(self, parameter: Tensor) -> None:
        # It was counted as one of the others until now.
        self._gradients += parameter.nbytes
        self._live -= parameter.nbytes

    def _note(self) -> None:
        peak = self.peaks.get(self._phase, Peak(gradients=0, others=0))
        if self._live + self._gradients >= peak.gradients + peak.others:
            self.peaks[self._phase] = Peak(gradients=self._gradients, others=self._live)


@contextmanager
def _phases(causal: Any, live: _LiveBytes) -> Iterator[None]:
    """Tell `live` when a phase begins."""
    layers = _layers(causal)
    last = len(layers) - 1
    borders = {last - 1: _BETWEEN, 0: "backward, first layer", last: "backward, last layer"}

    def watch(phase: str, _module: nn.Module, _inputs: Any, output: Any) -> None:
        hidden = output if isinstance(output, Tensor) else output[0]
        if hidden.requires_grad:
            hidden.register_hook(lambda _: live.enter(phase))

    head = causal.get_output_embeddings()
    hooks = [layers[at].register_forward_hook(partial(watch, name)) for at, name in borders.items() if at >= 0]
    hooks.append(head.register_forward_pre_hook(lambda *_: live.enter("output layer")))
    try:
        yield
    finally:
        for each in hooks:
            each.remove()


def _layers(causal: Any) -> Any:
    return max((each for each in causal.modules() if isinstance(each, nn.ModuleList)), key=len)


def _compile_layers(causal: Any) -> None:
    """Let each layer keep what `torch.compile` keeps of it.

    Its split of forward and backward pass, run operator by operator: `torch.compile` takes no fake tensors.
    """
    from functorch.compile import aot_function, make_boxed_func, min_cut_rematerialization_partition  # noqa: PLC0415
    from torch._inductor.decomposition import select_decomp_table  # noqa: PLC0415 - no public name; takes seconds

    for layer in _layers(causal):
        plain = layer.forward
        state = dict(layer.named_parameters(remove_duplicate=False)) | dict(layer.named_buffers(remove_duplicate=False))

        def call(state: Any, *args: Any, layer: Any = layer, plain: Any = plain, **kwargs: Any) -> Any:
            compiled, layer.forward = layer.forward, plain
            try:
                return torch.func.functional_call(layer, state, args, kwargs)
            finally:
                layer.forward = compiled

        passes = aot_function(
            call,
            fw_compiler=lambda graph, _: make_boxed_func(graph.forward),
            partition_fn=min_cut_rematerialization_partition,
            decompositions=select_decomp_table(),
            num_params_buffers=len(state),
        )
        layer.forward = partial(passes, state)


def _unpack_weights(causal: Any) -> None:
    """Let linear layers but the last, and experts, compute as 4-bit ones do."""
    head = causal.get_output_embeddings()
    for _, experts, own in list(expert_weights(causal)):
        # Of a type that nothing is computed in: each read is a copy, as it is from 4 bits.
        experts.register_parameter(own, nn.Parameter(getattr(experts, own).double(), requires_grad=False))
    for module in causal.modules():
        if type(module) is nn.Linear and module is not head and not module.weight.requires_grad:
            module.forward = partial(_quantized_linear, module)  # type: ignore[method-assign]


def _quantized_linear(layer: nn.Linear, values: Tensor) -> Tensor:
    dtype = torch.bfloat16 if torch.is_autocast_enabled("cpu") else torch.float32
    product: Tensor = _Unpacked.apply(values.to(dtype), layer.weight)  # type: ignore[no-untyped-call]
    return product.to(values.dtype)


class _Unpacked(torch.autograd.Function):
    """Product with a weight that both passes unpack.

    Neither keeps it.
    """

    @staticmethod
    def forward(ctx: Any, values: Tensor, weight: Tensor) -> Tensor:
        ctx.weight = weight
        unpacked = torch.empty(weight.shape, dtype=weight.dtype).to(values.dtype)
        return values @ unpacked.t()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        unpacked = torch.empty(ctx.weight.shape, dtype=ctx.weight.dtype).to(gradient.dtype)
        return gradient @ unpacked, None


def _grouped(first: Tensor, second: Tensor, ends: Tensor, *_: Any) -> Tensor:
    """Grouped product of fake tensors. torch (2.13) has one of bf16 alone."""
    if second.dim() == 3:
        return first.new_empty(first.shape[0], second.shape[-1])
    return first.new_empty(ends.shape[0], first.shape[0], second.shape[-1])
