"""What a server says when it fails, in its own dialect, as one of the kernel's fourteen kinds."""

import math
import re
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime

from kernel.adapters.model.reading import Json, Reader, mapping, mended
from kernel.errors import FaultKind, ModelFault

_UN = r"(unsupported|no endpoints|\b(not|cannot|unable|disabled|invalid|unknown|only|0)\b|n't\b|\bfail)"
_PICTURE = r"((?<![\w-])(images?|image_url|vision|multi-?modal)\b|图片|图像)"
_TOOL = r"(\btools?\b|tool.(use|choice|calling)|function.calling)"

_TABLE: tuple[tuple[FaultKind, str], ...] = (
    (
        FaultKind.AUTH,
        r"status=401|api.?key.{0,20}(not valid|invalid)|(invalid|incorrect).{0,10}api.?key|authentication_error",
    ),
    (FaultKind.RATE_LIMIT, r"RESOURCE_EXHAUSTED"),
    (
        FaultKind.BILLING,
        r"status=402|insufficient.{0,10}(quota|balance|credit|funds)|exceeded_current_quota"
        r"|balance.{0,20}(low|not enough)|billing|arrear|overdue|余额|欠费|额度不足|code=(1113|1008)\b",
    ),
    (
        FaultKind.CONTEXT_LENGTH,
        r"^(?!status=429|.*(rate.?limit|per.?min)).*(status=413|context_length|maximum context"
        r"|(input|prompt).length|(context|token).{0,10}(size|length|limit|window).{0,30}(exceed|too|larger)"
        r"|exceed.{0,40}(context|tokens?\b)"
        r"|(prompt|input|request|messages?|string).{0,30}too (long|large)|too many.{0,10}tokens|above_max_length"
        r"|超长|上下文.{0,10}超|code=1261\b)",
    ),
    (
        FaultKind.CONTENT_FILTER,
        r"^(?!status=404).*(status=451|content.?(filter|policy|exists.risk)|data.?inspection|responsible.?ai"
        r"|\bmoderation|\bflagged|high risk|\bsafety\b|inappropriate"
        r"|(new_|input|output|content|text).{0,10}sensitive|sensitive (content|words?)|敏感|违规"
        r"|code=(1301|1026|1027)\b)",
    ),
    (FaultKind.UNSUPPORTED_IMAGE, rf"{_PICTURE}.{{0,60}}({_UN}|expected)|{_UN}.{{0,60}}{_PICTURE}"),
    (
        FaultKind.UNSUPPORTED_TOOLS,
        rf"(not |n't |un)support.{{0,40}}{_TOOL}|{_TOOL}.{{0,40}}(not |un)(be )?(support|enabl)"
        rf"|no endpoints.{{0,40}}{_TOOL}|{_TOOL}.{{0,40}}requires --",
    ),
    (
        FaultKind.BAD_HISTORY,
        r"tool_calls?\b.{0,60}(follow|preced|respon)|(follow|preced|respon).{0,60}tool_calls?\b"
        r"|insufficient tool messages|tool call result|no tool call found|number of (function|tool) (call|response)"
        r"|tool[ _]?(call)?[ _]?(id|result).{0,60}not found|tool_(use|result).{0,80}(without|block|follow|preced)"
        r"|function (call|response) (turn|part)|reasoning_content|thought_signature"
        r"|must alternate|(unexpected|last|role) role|role '?tool",
    ),
    (
        FaultKind.NOT_FOUND,
        r"status=(404|405|3\d\d)|model.?not.?(found|exist)|no such model|model.{0,80}not (exist|found)"
        r"|模型不存在|code=1211\b",
    ),
    (FaultKind.RATE_LIMIT, r"status=429|rate.?limit|too many requests|throttl|code=130[235]\b"),
    (FaultKind.AUTH, r"status=403|unauthori[sz]ed|permission.?denied|code=100[0-4]\b"),
    (FaultKind.TIMEOUT, r"status=408"),
    (FaultKind.SERVER, r"status=(5\d\d|None)"),
    (FaultKind.BAD_REQUEST, r""),
)
"""The first pattern found in `status=… code=… words` names the kind: the order is part of the table."""

_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE | re.DOTALL)) for kind, pattern in _TABLE)
_RETRYABLE = frozenset(
    {FaultKind.RATE_LIMIT, FaultKind.SERVER, FaultKind.CONNECTION, FaultKind.TIMEOUT, FaultKind.TRUNCATED}
)
_COMPLAINTS = ("message", "msg", "detail")
_TAGGED = ("code", "status_code", "type", "param")
_NOT_THE_SERVERS = ("input", "choices", "usage")
"""Keys under which a server repeats what we or the model said: no evidence of what is wrong."""


def fault(kind: FaultKind, detail: str, *, status: int | None = None, retry_after: float | None = None) -> ModelFault:
    """A fault of this kind; whether it may be retried follows from the kind."""
    return ModelFault(kind, detail, retryable=kind in _RETRYABLE, retry_after=retry_after, status=status)


def fault_in(answer: Mapping[str, Json]) -> ModelFault | None:
    """The fault that an answer with status 200, or a piece of a stream, turns out to be."""
    if not (
        answer.get("error")
        or mapping(answer.get("base_resp")).get("status_code")
        or ("choices" not in answer and any(isinstance(answer.get(key), str | list) for key in _COMPLAINTS))
    ):
        return None
    return _judge(_status_in(answer), " ".join(_words(answer)))


def fault_of(status: int, headers: Mapping[str, str], body: bytes, now: float) -> ModelFault:
    """The fault that an answer without success stands for. `now` is the wall time, for a Retry-After date."""
    reader = Reader()
    said = [*reader.feed(body), *reader.end()]
    text = " ".join(_words(said)) if said else body.decode("utf-8", "replace").strip()
    words = "(a web page)" if text.startswith("<") and not said else text
    return _judge(status, words, retry_after(headers, now))


def _judge(status: int | None, words: str, wait: float | None = None) -> ModelFault:
    words = mended(words)[:2_000]
    kind = next(kind for kind, pattern in _PATTERNS if pattern.search(f"status={status} {words}"))
    return fault(kind, f"HTTP {status}: {words}" if status else words, status=status, retry_after=wait)


def _words(node: object, depth: int = 0) -> Iterator[str]:
    match node:
        case dict() if depth < 8:
            for key, value in node.items():
                if key in _TAGGED and isinstance(value, str | int):
                    yield f"{key}={value}"
                elif key not in _NOT_THE_SERVERS:
                    yield from _words(value, depth + 1)
        case list() if depth < 8:
            for item in node:
                yield from _words(item, depth + 1)
        case str() | int() | float():
            yield str(node)


def _status_in(answer: Mapping[str, Json]) -> int | None:
    for place in (mapping(answer.get("error")), answer):
        for key in ("code", "status", "status_code"):
            code = str(place.get(key))
            if re.fullmatch(r"[45]\d\d", code):
                return int(code)
    return None


def retry_after(headers: Mapping[str, str], now: float) -> float | None:
    """The seconds that the server asks us to wait, said in one of three ways."""
    milliseconds = _number(headers.get("retry-after-ms"))
    if milliseconds is not None:
        return milliseconds / 1_000
    said = headers.get("retry-after", "")
    seconds = _number(said)
    if seconds is not None:
        return seconds
    try:
        return max(0.0, parsedate_to_datetime(said).timestamp() - now)
    except (ValueError, OverflowError):  # no date, or one that no calendar has
        return None


def _number(text: str | None) -> float | None:
    try:
        number = float(text or "")
    except ValueError:
        return None
    return max(0.0, number) if math.isfinite(number) else None
