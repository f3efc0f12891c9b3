"""HTTP server that speaks the OpenAI API over an engine. It can refuse every third request with 429."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from forebay.llm.score.engines.engine import Prompt, RowAnswer, Sampling


class OpenAiServer(ThreadingHTTPServer):
    """Server of one engine, whose calls it makes one at a time. `status` is sent with every answer, if it is set."""

    def __init__(self, engine: Any, *, refuses_every: int = 0) -> None:
        super().__init__(("127.0.0.1", 0), _Requests)
        self.engine, self.refuses_every, self.status = engine, refuses_every, 0
        self.lock = threading.Lock()
        self.num_requests = self.num_refused = 0
        self.bodies: list[dict[str, Any]] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


class _Requests(BaseHTTPRequestHandler):
    server: OpenAiServer

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.num_requests += 1
            self.server.bodies.append(body)
            number = self.server.num_requests
            if self.server.status:
                return self._send(self.server.status, {"error": {"message": "as the test says"}})
            if self.server.refuses_every and number % self.server.refuses_every == 0:
                self.server.num_refused += 1
                return self._send(429, {"error": {"message": "slow down"}}, {"retry-after-ms": "10"})
            return self._answer(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - of the standard library
        pass

    def _answer(self, body: dict[str, Any]) -> None:
        if self.path.endswith("/embeddings"):
            (found,) = self.server.engine.embed([Prompt(row=0, content=body["input"])], "mean")
            data = [{"object": "embedding", "index": 0, "embedding": list(found.embedding)}]
            usage = {"prompt_tokens": found.input_tokens, "total_tokens": found.input_tokens}
            return self._send(200, {"object": "list", "model": body["model"], "data": data, "usage": usage})
        form = body.get("response_format")
        sampling = Sampling(
            max_tokens=body["max_tokens"],
            temperature=body["temperature"],
            schema=form["json_schema"]["schema"] if form else None,
        )
        content = body["prompt"] if "prompt" in body else body["messages"]
        (answer,) = self.server.engine.generate([Prompt(row=0, content=content)], sampling)
        if answer.error is not None:
            return self._send(400, {"error": {"message": answer.error}})
        return self._send(200, _reply(body, answer))

    def _send(self, status: int, facts: dict[str, Any], headers: dict[str, str] | None = None) -> None:
        content = json.dumps(facts).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def _reply(body: dict[str, Any], answer: RowAnswer) -> dict[str, Any]:
    is_chat = "messages" in body
    text = {"message": {"role": "assistant", "content": answer.text}} if is_chat else {"text": answer.text}
    return {
        "id": "1",
        "object": "chat.completion" if is_chat else "text_completion",
        "created": 0,
        "model": body["model"],
        "choices": [{"index": 0, "finish_reason": answer.finish_reason, **text}],
        "usage": {
            "prompt_tokens": answer.input_tokens,
            "completion_tokens": answer.output_tokens,
            "total_tokens": answer.input_tokens + answer.output_tokens,
        },
    }


@contextmanager
def serving(server: OpenAiServer) -> Iterator[OpenAiServer]:
    """Serve in a thread for the length of the block."""
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
