"""Engine of a server with the OpenAI API.

vLLM, SGLang, llama.cpp, or a hosted model.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

from forebay.errors import EngineFailed, InvalidOption, whole_number
from forebay.llm.chat.messages import REASONING, Messages
from forebay.llm.score.engines.engine import Pooling, Prompt, RowAnswer, Sampling, TokenPrompt
from forebay.runtime.extras import extra_package

_RETRIES = 8
_TIMEOUT_S = 600.0
_NO_KEY = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenAiEngineSpec:
    """Engine `openai`. An `EngineSpec`.

    The key is `OPENAI_API_KEY` in the environment of each process. Requests that the server refuses for now
    (429, 5xx) are repeated with growing waits, as long as it says.

    Attributes:
        model: The server's name of the model.
        base_url: Address, such as `http://host:8000/v1`.
        batch: Requests at a time.
    """

    model: str
    base_url: str | None
    batch: int = 32

    def __post_init__(self) -> None:
        whole_number("batch", self.batch, least=1)
        if self.base_url is None or not self.base_url.startswith(("http://", "https://")):
            raise InvalidOption(
                f'base_url={self.base_url!r}: engine="openai" needs the address of a server, such as '
                "http://host:8000/v1."
            )

    def identity(self) -> Mapping[str, Any]:
        # No promise that equal requests get equal texts: the server decides.
        return {"engine": "openai 1", "model": self.model, "base_url": self.base_url, "exact": False}

    def check(self) -> None:
        _import_openai()

    def open(self) -> OpenAiEngine:
        return OpenAiEngine(self)


class OpenAiEngine:
    """Client of a server.

    Conversations go to its chat completions, texts to its completions.
    """

    def __init__(self, spec: OpenAiEngineSpec) -> None:
        self._openai = _import_openai()
        key = os.environ.get("OPENAI_API_KEY", _NO_KEY)
        self._client: Any = self._openai.OpenAI(
            base_url=spec.base_url, api_key=key, max_retries=_RETRIES, timeout=_TIMEOUT_S
        )
        self._model = spec.model
        self._threads = ThreadPoolExecutor(spec.batch, thread_name_prefix="forebay-openai")

    def generate(self, prompts: Sequence[Prompt], sampling: Sampling) -> list[RowAnswer]:
        return self._each(partial(self._generated, sampling=sampling), prompts)

    def log_likelihood(self, prompts: Sequence[Prompt]) -> list[RowAnswer]:  # noqa: ARG002 - a method of engines
        raise InvalidOption('task="log_likelihood" needs engine="hf" or "vllm": the OpenAI API has no such request.')

    def embed(self, prompts: Sequence[Prompt], pooling: Pooling) -> list[RowAnswer]:  # noqa: ARG002 - the server's
        return self._each(self._embedded, prompts)

    def close(self) -> None:
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._client.close()

    def _each(self, answer: Callable[[Prompt], RowAnswer], prompts: Sequence[Prompt]) -> list[RowAnswer]:
        return list(self._threads.map(partial(self._guarded, answer), prompts))

    def _guarded(self, answer: Callable[[Prompt], RowAnswer], prompt: Prompt) -> RowAnswer:
        """Answer, or the error of a permanently rejected request.

        Raises `EngineFailed` for other errors.
        """
        try:
            return answer(prompt)
        except (self._openai.BadRequestError, self._openai.UnprocessableEntityError) as error:
            return RowAnswer(error=f"the server refuses the prompt: {error}"[:500])
        except (
            self._openai.AuthenticationError,
            self._openai.PermissionDeniedError,
            self._openai.NotFoundError,
        ) as error:
            raise InvalidOption(
                f"the server refuses every request ({error}). Set OPENAI_API_KEY, and give a model that it serves: "
                f"model={self._model!r}."
            ) from error
        except self._openai.APIError as error:
            raise EngineFailed(f"the server does not answer after {_RETRIES} retries: {error}") from error

    def _generated(self, prompt: Prompt, sampling: Sampling) -> RowAnswer:
        if isinstance(prompt.content, TokenPrompt):
            return RowAnswer(error="a server takes texts and conversations, and the prompt is tokens")
        options: dict[str, Any] = {
            "model": self._model,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            # By row: a server that honors seeds draws the same text in every batch.
            "seed": (sampling.seed * 1_000_003 + prompt.row) % 2**31,
            "stop": list(sampling.stop) or None,
        }
        if sampling.top_k:
            options["extra_body"] = {"top_k": sampling.top_k}
        if sampling.schema is not None:
            form = {"name": "verdict", "schema": dict(sampling.schema), "strict": True}
            options["response_format"] = {"type": "json_schema", "json_schema": form}
        if isinstance(prompt.content, str) and sampling.schema is None:
            found = self._client.completions.create(prompt=prompt.content, **options)
            text = found.choices[0].text
        else:
            asked = prompt.content
            turns = [{"role": "user", "content": asked}] if isinstance(asked, str) else as_openai(asked)
            if prompt.tools:
                options["tools"] = [dict(each) for each in prompt.tools]
            if prompt.variables:
                more = options.get("extra_body", {})
                options["extra_body"] = {**more, "chat_template_kwargs": dict(prompt.variables)}
            found = self._client.chat.completions.create(messages=turns, **options)
            text = _text_of(found.choices[0].message)
        usage = found.usage
        return RowAnswer(
            text=text,
            finish_reason=found.choices[0].finish_reason,
            input_tokens=usage.prompt_tokens if usage else 0,
            output_tokens=usage.completion_tokens if usage else 0,
        )

    def _embedded(self, prompt: Prompt) -> RowAnswer:
        if not isinstance(prompt.content, str):
            return RowAnswer(error="a server embeds texts, and the prompt is a conversation or tokens")
        found = self._client.embeddings.create(model=self._model, input=prompt.content)
        return RowAnswer(embedding=tuple(found.data[0].embedding), input_tokens=found.usage.prompt_tokens)


def as_openai(messages: Messages) -> list[dict[str, Any]]:
    """Turns as the API wants them.

    Arguments of tool calls are JSON texts, and calls have ids, which the results name in their order.
    """
    turns, waiting, number = [], list[str](), 0
    for message in messages:
        turn = {name: value for name, value in message.items() if name not in REASONING[1:]}
        calls = []
        for call in turn.get("tool_calls", ()):
            function = {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}
            calls.append({"id": f"call_{number}", **call, "function": function})
            number += 1
        if calls:
            turn["tool_calls"], waiting = calls, [str(call["id"]) for call in calls]
        elif turn["role"] == "tool" and waiting:
            first = waiting.pop(0)
            turn.setdefault("tool_call_id", first)
        turns.append(turn)
    return turns


def _text_of(message: Any) -> str:
    """Text of an answer, with tool calls as Qwen's."""
    calls = [
        f'<tool_call>\n{{"name": {json.dumps(call.function.name)}, "arguments": {call.function.arguments}}}'
        "\n</tool_call>"
        for call in getattr(message, "tool_calls", None) or ()
    ]
    return "\n".join([*([message.content] if message.content else []), *calls])


def _import_openai() -> Any:
    with extra_package("openai", "engine='openai'"):
        import openai  # noqa: PLC0415 - an extra
    return openai
