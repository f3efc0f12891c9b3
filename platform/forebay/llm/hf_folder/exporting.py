"""Export of a checkpoint as a Hugging Face folder.

Needs no GPU, and holds no model in memory.
"""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from pyarrow import fs

from forebay.errors import CorruptFile, InvalidOption
from forebay.llm.hf_folder.base_names import BaseNames, file_names
from forebay.llm.hf_folder.model_origin import TRACKED, ModelOrigin
from forebay.llm.hf_folder.safetensors_files import Weight, index_text, split_files, write_safetensors
from forebay.llm.hf_folder.sealed_folder import SealedFolder
from forebay.llm.hf_folder.side_files import adapter_config, model_config, pad_of_rewards, side_files
from forebay.llm.hf_folder.weights import (
    OUTPUT,
    adapter_weights,
    as_classifier,
    as_type,
    base_weights,
    dequantized_weights,
    merged_weights,
    tied_outputs,
    trained_weights,
)
from forebay.llm.models import TINY
from forebay.llm.reward_head import classifier_config
from forebay.llm.source.folders import folder_digest
from forebay.storage.filesystem import Location, below, resolve
from forebay.training.checkpoint.encoded import CorruptCheckpoint
from forebay.training.checkpoint.files.checkpoint_files import CheckpointFiles, readable_checkpoints
from forebay.training.checkpoint.parts.stored_state import StoredState, open_state
from forebay.training.runs.found_runs import no_run
from forebay.training.runs.job_facts import load_identity

Content = Literal["model", "adapter", "merged model"]

_TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_MODEL_SEAL, _ADAPTER_SEAL = "config.json", "adapter_config.json"

_DIGEST = re.compile(r"\(([0-9a-f]{12})\)")
"""Digest of a base in the facts of a run (`run_identity`)."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedModel:
    """Folder of an exported model.

    Attributes:
        folder: Its URI.
        run: Name of the run.
        step: Step of the checkpoint.
        content: "model", "adapter" or "merged model".
        dtype: Type of the weights.
        tensors: Number of tensors.
        num_bytes: Bytes of all tensors.
        files: Files with weights.
        is_new: False if the folder had this content before.
    """

    folder: str
    run: str
    step: int
    content: Content
    dtype: str
    tensors: int
    num_bytes: int
    files: tuple[str, ...]
    is_new: bool


def export(  # noqa: PLR0913 - public options, all but two keyword-only
    name: str,
    to: str,
    *,
    storage: str = "runs",
    step: int | Literal["best"] | None = None,
    merge: bool = False,
    dtype: str | None = None,
    wrote: Callable[[int], object] = lambda _bytes: None,
) -> ExportedModel:
    """Export a checkpoint as a Hugging Face folder.

    The folder has safetensors, the configuration, and the tokenizer with its chat template. Its configuration is
    written last: until then it is not the folder of a model. Holds one tensor in memory at a time.

    Args:
        name: Run that trained a language model.
        to: Folder on any storage: new, empty, or with the same export.
        storage: Storage of the run.
        step: Step of a checkpoint, or "best" for the one of the best evaluation. None: the newest.
        merge: Add an adapter to its base model, instead of writing the adapter alone.
        dtype: Type of the weights: "fp32", "bf16" or "fp16". None: the type of the base model, and fp32 for an adapter.
        wrote: Called with the bytes of each tensor, once it is written.

    Raises:
        InvalidOption: There is no such run or step, it trained no language model, or the folder has other content.
        CorruptFile: The checkpoint is damaged.
        WriteFailed: Storage refused a file.
    """
    if dtype is not None and dtype not in _TYPES:
        known = ", ".join(map(repr, _TYPES))
        raise InvalidOption(f"dtype={dtype!r} is unknown. Choose one of {known}, or leave it out.", dtype=dtype)
    files = stored_checkpoints(resolve(storage), name)
    found, checksum = found_step(files, name, step)
    try:
        with open_state(files, found) as state:
            origin = _origin(state, name)
            if origin.adapter is not None:
                _warn_of_another_base(origin.model.name, name, load_identity(below(resolve(storage).uri, name)))
            plan = _ExportPlan(run=name, step=found, checksum=checksum, origin=origin, merge=merge, dtype=dtype)
            return _write(plan, state, to, wrote)
    except CorruptCheckpoint as error:
        others = ", ".join(str(each) for each in files.complete_steps() if each != found) or "none"
        raise CorruptFile(
            f"the checkpoint {files.uri_of(found)} is corrupt: {error}. Other steps of the run: {others}.", step=found
        ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class _ExportPlan:
    run: str
    step: int
    checksum: str
    origin: ModelOrigin
    merge: bool
    dtype: str | None

    def __post_init__(self) -> None:
        is_tiny = self.origin.model.name == TINY
        if self.merge and self.origin.adapter is None:
            raise InvalidOption(f"run {self.run!r} trained all of its model: there is no adapter. Leave merge out.")
        if self.content == "adapter" and is_tiny:
            raise InvalidOption(
                f"the adapter of run {self.run!r} belongs to the model 'tiny', which is in no folder that an adapter "
                "could name. Merge them: --merge, or merge=True."
            )

    @property
    def content(self) -> Content:
        if self.origin.adapter is None:
            return "model"
        return "merged model" if self.merge else "adapter"

    def identity(self, dtype: str) -> dict[str, Any]:
        return {
            "version": 1,
            "run": self.run,
            "step": self.step,
            "checkpoint": self.checksum,
            "content": self.content,
            "dtype": dtype,
        }


def _write(plan: _ExportPlan, state: StoredState, to: str, wrote: Callable[[int], object]) -> ExportedModel:
    origin, is_adapter = plan.origin, plan.content == "adapter"
    base_config, is_reward = model_config(origin), origin.model.head == "reward"
    config = classifier_config(base_config, pad_of_rewards(origin)) if is_reward else base_config
    dtype = plan.dtype or ("fp32" if is_adapter else _dtype_of(config))
    weights, stem = (
        as_type(_weights(plan, state, base_config), _TYPES[dtype]),
        "adapter_model" if is_adapter else "model",
    )
    if any(each.name == OUTPUT for each in weights):  # one that is tied is not written
        config |= {"tie_word_embeddings": False}
    files = split_files(weights, stem)
    folder = SealedFolder(to, plan.identity(dtype), _ADAPTER_SEAL if is_adapter else _MODEL_SEAL)
    with folder.writing():
        is_new = folder.start()
        if is_new:
            for name, each in files.items():
                with folder.stream(name) as out:
                    write_safetensors(out, each, wrote)
            if len(files) > 1:
                folder.write(f"{stem}.safetensors.index.json", index_text(files).encode())
            for name, content in side_files(origin, has_generation=not (is_adapter or is_reward)).items():
                folder.write(name, content)
            seal = adapter_config(origin, weights) if is_adapter else config | {"dtype": _name(_TYPES[dtype])}
            folder.seal(json.dumps(seal, indent=2, sort_keys=True).encode())
    return ExportedModel(
        folder=folder.uri,
        run=plan.run,
        step=plan.step,
        content=plan.content,
        dtype=dtype,
        tensors=len(weights),
        num_bytes=sum(each.num_bytes for each in weights),
        files=tuple(files),
        is_new=is_new,
    )


def _weights(plan: _ExportPlan, state: StoredState, config: Mapping[str, Any]) -> list[Weight]:
    """Weights by the names of the exported model, whose base has `config`."""
    if plan.origin.model.head == "tokens":
        return _causal_weights(plan, state, config)
    # Its output layer is its own, also where the base has none.
    return as_classifier(_causal_weights(plan, state, {**config, "tie_word_embeddings": False}), config)


def _causal_weights(plan: _ExportPlan, state: StoredState, config: Mapping[str, Any]) -> list[Weight]:
    adapter = plan.origin.adapter
    if adapter is not None and not plan.merge:
        if plan.origin.model.new_tokens:
            log.warning(
                "The adapter of run %r has rows of new tokens. Before it is loaded, its base needs them too: "
                "model.resize_token_embeddings(%d). Merged (--merge), it is a model of its own.",
                plan.run,
                config["vocab_size"],
            )
        return adapter_weights(state, tied_outputs(plan.origin, config))
    names = BaseNames(config, file_names(plan.origin.model.name))
    if adapter is None:
        return trained_weights(state, names)
    base = base_weights(plan.origin)
    if plan.origin.model.quantization is not None:
        log.warning(
            "The adapter of run %r was trained beside 4-bit weights. It is merged into what these stand for, which "
            "differs from the base model by the rounding to 4 bits.",
            plan.run,
        )
        base = dequantized_weights(base, names)
    return merged_weights(base, state, adapter, names)


def stored_checkpoints(storage: Location, name: str) -> CheckpointFiles:
    """Checkpoints of the run `name`.

    Raises `InvalidOption` if the run does not exist.
    """
    folder = below(storage.uri, name)
    location = resolve(folder)
    if location.fs.get_file_info(location.path).type != fs.FileType.Directory:
        raise no_run(storage.uri, name)
    return readable_checkpoints(folder)


def found_step(files: CheckpointFiles, name: str, step: int | Literal["best"] | None) -> tuple[int, str]:
    """Step to export, and the checksum of its checkpoint.

    Raises as `export`.
    """
    steps = files.complete_steps()
    if not steps:
        raise InvalidOption(
            f"run {name!r} has no checkpoint in {files.uri}. Export it after its first checkpoint has reached storage.",
            name=name,
        )
    if step == "best":
        step = files.read(steps[0], shards=()).best
        if step is None:
            raise InvalidOption(
                f"run {name!r} has judged no evaluation, so that none of its checkpoints is the best. Leave step out "
                "for the newest, or train with keep_best=fb.KeepBest(...) (patience= of a language model's job)."
            )
    if step is not None and step not in steps:
        raise InvalidOption(
            f"run {name!r} has no checkpoint of step {step}. It has steps {', '.join(map(str, sorted(steps)))}. "
            "Give one of them, or leave step out for the newest.",
            steps=sorted(steps),
        )
    found = steps[0] if step is None else step
    try:
        return found, str(files.read(found, shards=()).metadata["xxh3_128"])
    except CorruptCheckpoint as error:
        raise CorruptFile(f"the checkpoint {files.uri_of(found)} is corrupt: {error}.", step=found) from error


def _warn_of_another_base(model: str, name: str, identity: Mapping[str, Any]) -> None:
    """Warn if the folder of the base is not what run `name` recorded when it began."""
    recorded = _DIGEST.search(str(identity.get("model", "")))
    if recorded and not folder_digest(model).startswith(recorded[1]):
        log.warning(
            "The base model %s was changed or replaced since run %r began, and the adapter was trained beside what it "
            "was. Put the old folder back, unless only its texts changed.",
            model,
            name,
        )


def _origin(state: StoredState, name: str) -> ModelOrigin:
    objects: Mapping[str, Any] = state.head.get("objects", {})
    if TRACKED not in objects:
        raise InvalidOption(
            f"run {name!r} did not say which language model it trained: its checkpoint has the states of "
            f"{', '.join(sorted(objects)) or 'nothing'}. A train function of your own says it with "
            f"worker.track({TRACKED}=recipe.origin(worker.seed)).",
            name=name,
        )
    return ModelOrigin.of(objects[TRACKED])


def _dtype_of(config: Mapping[str, Any]) -> str:
    names: Sequence[str] = [str(config.get(key)).removeprefix("torch.") for key in ("dtype", "torch_dtype")]
    found = [short for short, dtype in _TYPES.items() if _name(dtype) in names]
    return found[0] if found else "fp32"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
