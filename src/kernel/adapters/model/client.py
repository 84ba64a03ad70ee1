"""A model behind an OpenAI-compatible server: one shared HTTP client, one place that tries again."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import TypeVar

import aiohttp
import httpx
from httpx_aiohttp import HttpxAiohttpClient

from kernel.adapters.model.assemble import Answer
from kernel.adapters.model.errors import fault, fault_of
from kernel.adapters.model.wire import Dialect, Mended, body_of, messages_of, paired
from kernel.errors import ConfigError, FaultKind, ModelFault
from kernel.ports import Chunk, Clock, Reply, Request

RETRIES = 2
BACKOFF = 1.0
CONNECT = 10.0
GRACE = 2.0
"""After the server said that it was done: how long the figures and the end of the stream may still take."""
ERROR_BYTES = 65_536

_log = logging.getLogger(__name__)
_FAILURES = (httpx.HTTPError, aiohttp.ClientError, OSError)
_T = TypeVar("_T")


def endpoint(url: str) -> httpx.URL:
    """The address to post to: `/chat/completions` is appended unless it stands there. Raises ConfigError."""
    try:
        parsed = httpx.URL(url.strip())
    except httpx.InvalidURL as error:
        raise ConfigError(f"the model's URL cannot be read: {error}") from None
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise ConfigError("the model's URL must start with http:// or https:// and name a host")
    path = parsed.path.rstrip("/")
    return parsed.copy_with(path=path if path.endswith("/chat/completions") else f"{path}/chat/completions")


def pause(failure: ModelFault, tries: int, left: float) -> float | None:
    """Seconds to wait before the same request is sent again; None: do not. The only place that decides this."""
    wait = BACKOFF * 2**tries if failure.retry_after is None else failure.retry_after
    return wait if failure.retryable and tries < RETRIES and wait < left else None


class OpenAIModel:
    """`kernel.ports.Model` over HTTP.

    `timeout` bounds an `ask` from the first byte to the last, retries included. Leave an `ask` early only through
    `contextlib.aclosing`: that closes the connection at once.
    """

    def __init__(
        self, url: str, key: str, model: str, *, timeout: float, clock: Clock, on_mend: Callable[[Mended], None]
    ) -> None:
        self._url = endpoint(url)
        self._key = key.strip()
        if not (self._key.isascii() and self._key.isprintable()):
            raise ConfigError("the model's key holds a character that no key can have; copy it again")
        self._model = model
        self._timeout = timeout
        self._clock = clock
        self._on_mend = on_mend
        self._dialect = Dialect()
        # aiohttp's pool: 20 times less CPU than httpx's own at 200 in flight (bench/transport.py). 0: no limit.
        self._client = HttpxAiohttpClient(
            headers={"authorization": f"Bearer {self._key}"} if self._key else {},
            limits=httpx.Limits(max_connections=0),
            timeout=httpx.Timeout(None, connect=CONNECT),
        )

    @property
    def name(self) -> str:
        return self._model

    async def close(self) -> None:
        await self._client.aclose()

    async def ask(self, request: Request) -> AsyncGenerator[Chunk | Reply, None]:
        """Chunks as they come, then exactly one Reply. Raises ModelFault."""
        deadline = self._clock.monotonic() + self._timeout
        tries, shown = 0, False
        while True:
            dialect = self._dialect
            try:
                async with aclosing(self.attempt(request, dialect, deadline)) as pieces:
                    async for piece in pieces:
                        shown = True
                        yield piece
                return
            except ModelFault as failure:
                clean = self._without_key(failure)
            if shown:
                raise clean
            if lesson := dialect.lesson(clean):
                self._dialect = replace(self._dialect, **lesson)
                _log.info("model %s is asked with %s since it said: %s", self._model, lesson, clean.detail)
                continue
            wait = pause(clean, tries, deadline - self._clock.monotonic())
            if wait is None:
                raise clean
            tries += 1
            await self._clock.sleep(wait)

    async def attempt(self, request: Request, dialect: Dialect, deadline: float) -> AsyncGenerator[Chunk | Reply, None]:
        """One request, no second try. Raises ModelFault."""
        messages, mended = paired(messages_of(request, dialect))
        if mended:
            self._on_mend(mended)
        answer = Answer({tool.name for tool in request.tools})
        response = await self._by(deadline, self._post(body_of(self._model, request, messages, dialect)))
        try:
            if not response.is_success:
                raise await self._refusal(response, deadline)
            stream = response.aiter_bytes()
            while data := await self._next(stream, answer, deadline):
                for chunk in answer.feed(data):
                    yield chunk
            for piece in answer.end():
                yield piece
        finally:
            with suppress(*_FAILURES):
                await response.aclose()

    async def _post(self, body: bytes) -> httpx.Response:
        headers = {"content-type": "application/json"}
        request = self._client.build_request("POST", self._url, content=body, headers=headers)
        return await self._client.send(request, stream=True)

    async def _next(self, stream: AsyncIterator[bytes], answer: Answer, deadline: float) -> bytes:
        """More bytes, or none at the end. A server that has finished may hang up, or forget to, as it likes."""
        if not answer.finished:
            return await self._by(deadline, anext(stream, b""))
        with suppress(ModelFault):
            return await self._by(min(deadline, self._clock.monotonic() + GRACE), anext(stream, b""))
        return b""

    async def _refusal(self, response: httpx.Response, deadline: float) -> ModelFault:
        body, stream = b"", response.aiter_bytes()
        with suppress(ModelFault):  # the status alone is worth telling
            while len(body) < ERROR_BYTES and (data := await self._by(deadline, anext(stream, b""))):
                body += data
        return fault_of(response.status_code, response.headers, body, self._clock.now())

    async def _by(self, deadline: float, work: Awaitable[_T]) -> _T:
        """The work's result by the deadline; what the transport raises becomes a fault here."""
        try:
            async with self._clock.timeout(deadline - self._clock.monotonic()):
                return await work
        except TimeoutError:
            raise fault(FaultKind.TIMEOUT, f"no answer within {self._timeout:g} s") from None
        except _FAILURES as error:
            raise fault(FaultKind.CONNECTION, f"{type(error).__name__}: {error}") from None

    def _without_key(self, failure: ModelFault) -> ModelFault:
        if self._key and self._key in failure.detail:
            detail = failure.detail.replace(self._key, "***")
            return fault(failure.kind, detail, status=failure.status, retry_after=failure.retry_after)
        return failure
