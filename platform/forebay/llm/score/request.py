"""Request of a scoring run, with every option."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from forebay.errors import InvalidOption, whole_number
from forebay.llm.score.engines.engine import EngineSpec, Pooling, Sampling
from forebay.llm.score.engines.hf import HfEngineSpec
from forebay.llm.score.engines.openai import OpenAiEngineSpec
from forebay.llm.score.engines.vllm import VllmEngineSpec
from forebay.llm.score.prompts import PromptFunction, PromptSource
from forebay.llm.score.tasks import Kind, ScoreTask
from forebay.llm.score.verdicts import read_schema
from forebay.runtime.gpus import GpuSupply

ENGINES: Mapping[str, Callable[..., EngineSpec]] = {
    "hf": HfEngineSpec,
    "vllm": VllmEngineSpec,
    "openai": OpenAiEngineSpec,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRequest:
    """All arguments of a scoring run.

    Raises `InvalidOption` for values that can never work.

    Attributes:
        model: Folder of a Hugging Face model, on any storage. For `engine="openai"`: the server's name of the model.
        data: File, folder or pattern, on any storage: Parquet, JSON Lines (also `.gz` and `.zst`), a folder of
            `datasets.save_to_disk`, or `hf:NAME`.
        to: Folder of the answers. A run that was stopped goes on where it is started again with the same arguments.
        task: "generate", "log_likelihood", "embed" or "judge".
        engine: "hf", "vllm" or "openai".
        workers: Engines, each in a process of its own on the Ray cluster. 1: one engine in this process, without Ray.
        batch: Prompts that an engine answers at a time.
        shard_rows: Rows of an output file, and so the most that is repeated when a process is lost.
        prompt: Column of the prompts. None: `messages`, `conversations`, `prompt`, `instruction` or `text`.
        template: Text with `{column}` fields that makes the prompt instead.
        chat: Whether a text is asked as the turn of a user, by the chat template.
        chat_template: "chatml", a Jinja text, or None for the tokenizer's own.
        completion: Column of the text whose likelihood is asked for, for `task="log_likelihood"`.
        end: Whether that likelihood counts the end token behind the text, as training does.
        keep: Columns of the data that the answers have too.
        max_tokens, temperature, top_k, top_p, seed, stop: As in `Sampling`.
        pooling: "mean" or "last", for `task="embed"`.
        schema: JSON schema of the verdicts as a text, or a file of one, for `task="judge"`.
        max_errors: Rows that may have an error before the run ends. None: any number.
        dtype: Type of weights and activations: "float32", "bfloat16" or "float16".
        tensor_parallel: GPUs of one engine, for `engine="vllm"`.
        cpus_per_worker: CPUs of one engine on the Ray cluster.
        gpus_per_worker: GPUs of one engine. None: for "hf" one where there are any, for "vllm" `tensor_parallel`. 0:
            the engine runs on the CPU.
        engine_options: More arguments of the engine's own library, such as `vllm.LLM`.
        base_url: Address of the server, for `engine="openai"`: `http://host:port/v1`.
    """

    model: str
    data: str
    to: str
    task: Kind = "generate"
    engine: str = "hf"
    workers: int = 1
    batch: int = 32
    shard_rows: int = 512
    prompt: str | None = None
    template: str | None = None
    chat: bool = False
    chat_template: str | None = None
    completion: str | None = None
    end: bool = False
    keep: tuple[str, ...] = ()
    max_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    stop: tuple[str, ...] = ()
    pooling: Pooling = "mean"
    schema: str | None = None
    max_errors: int | None = None
    dtype: str = "float32"
    tensor_parallel: int = 1
    cpus_per_worker: float = 1.0
    gpus_per_worker: float | None = None
    engine_options: dict[str, Any] = field(default_factory=dict)
    base_url: str | None = None

    def __post_init__(self) -> None:
        for name in ("workers", "batch", "shard_rows", "tensor_parallel"):
            whole_number(name, getattr(self, name), least=1)
        if self.max_errors is not None:
            whole_number("max_errors", self.max_errors)
        if self.prompt is not None and self.template is not None:
            raise InvalidOption(
                f"prompt={self.prompt!r} and template={self.template!r} both say what is asked. Give one of them."
            )
        if self.completion is not None and self.task != "log_likelihood":
            raise InvalidOption(f'completion={self.completion!r} is for task="log_likelihood", not {self.task!r}.')
        if self.end and self.task != "log_likelihood":
            raise InvalidOption(f'end=True is for task="log_likelihood", not {self.task!r}.')
        for name in ("cpus_per_worker", "gpus_per_worker"):
            if not 0 <= (getattr(self, name) or 0) < math.inf:
                raise InvalidOption(f"{name}={getattr(self, name)} cannot run an engine. Give 0 or more.")

    def scoring_task(self) -> ScoreTask:
        """Task of the run, with its options.

        Raises `InvalidOption` for options that do not fit.
        """
        sampling = Sampling(
            max_tokens=self.max_tokens,
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            seed=self.seed,
            stop=self.stop,
            schema=None if self.schema is None else read_schema(_text_of(self.schema)),
        )
        return ScoreTask(kind=self.task, sampling=sampling, pooling=self.pooling)

    def prompt_source(self, function: PromptFunction | None = None) -> PromptSource:
        """Rule by which a row becomes a prompt.

        `function`, or the rule of the options.
        """
        if function is not None and (self.prompt or self.template):
            raise InvalidOption("a prompt function says what is asked. Leave prompt= and template= out.")
        return PromptSource(
            column=self.prompt,
            template=self.template,
            function=function,
            completion=self.completion,
            is_chat=self.chat,
            with_answer=self.task == "log_likelihood",
            with_end=self.end,
        )

    def engine_spec(self) -> EngineSpec:
        """Engine that was named. Raises `InvalidOption` for an unknown one."""
        return engine_named(
            self.engine,
            {
                "model": self.model,
                "batch": self.batch,
                "dtype": self.dtype,
                "chat_template": self.chat_template,
                "tensor_parallel": self.tensor_parallel,
                "engine_options": self.engine_options,
                "base_url": self.base_url,
                "gpus": self.gpus_per_worker,
            },
        )

    def gpus_of(self, supply: GpuSupply) -> float:
        """GPUs of one engine where `supply` is all there is now.

        Raises `InvalidOption` if not one engine has room, and none can join.
        """
        if self.gpus_per_worker is not None:
            gpus = float(self.gpus_per_worker)
        elif self.engine == "vllm":
            gpus = float(self.tensor_parallel) if supply.total or supply.grows else 0.0
        else:
            gpus = float(self.engine == "hf" and any(each >= 1 for each in supply.nodes))
        if gpus and not supply.grows and not supply.room(gpus):
            raise InvalidOption(
                f"an engine needs {gpus:g} GPUs on one node (gpus_per_worker={self.gpus_per_worker}, tensor_parallel="
                f"{self.tensor_parallel}), and {supply.place} has {supply.total:g}. Set less, or gpus_per_worker=0 for "
                "the CPU.",
                gpus=gpus,
                found=supply.total,
            )
        return gpus


def _text_of(schema: str) -> str:
    """JSON text of a schema.

    `schema` itself, or the content of the file that it names.
    """
    if schema.lstrip().startswith("{"):
        return schema
    path = Path(schema).expanduser()
    if not path.is_file():
        raise InvalidOption(f"schema={schema!r} is neither a JSON object nor a file. Give one of them.")
    return path.read_text()


def engine_named(name: str, options: Mapping[str, Any]) -> EngineSpec:
    """Make the engine `name` with the `options` that it takes.

    Raises `InvalidOption` for an unknown name, and for an option that differs from its default and is another engine's.
    """
    if name not in ENGINES:
        raise InvalidOption(f"engine={name!r} is unknown. Choose one of {', '.join(map(repr, ENGINES))}.", engine=name)
    made = ENGINES[name]
    takes = inspect.signature(made).parameters
    for option in ("tensor_parallel", "base_url", "engine_options"):
        if option not in takes and options.get(option) not in (None, 1, {}):
            raise InvalidOption(f"{option}={options[option]!r} is not an option of engine={name!r}. Leave it out.")
    return made(**{option: value for option, value in options.items() if option in takes})
