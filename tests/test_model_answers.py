"""How servers vary what they answer: each kind of oddity in its smallest form."""

import json
import sys
from typing import Any

import pytest

from kernel.adapters.model.assemble import Answer, arguments_of
from kernel.conversation import Usage
from kernel.errors import FaultKind, ModelFault
from kernel.ports import Reply

Json = Any


def read(*pieces: bytes) -> Reply:
    answer = Answer({"ping"})
    for piece in pieces:
        answer.feed(piece)
    reply = answer.end()[-1]
    assert isinstance(reply, Reply)
    return reply


def events(*deltas: Json, finish: str | None = "tool_calls", done: bool = True) -> bytes:
    chunks = [{"choices": [{"delta": delta}]} for delta in deltas]
    chunks += [{"choices": [{"delta": {}, "finish_reason": finish}]}]
    return "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks).encode() + b"data: [DONE]\n\n" * done


def calls(*items: Json, finish: str | None = "tool_calls", done: bool = True) -> list[tuple[str, Json]]:
    """The calls that a stream of `tool_calls` items, one a delta, comes to."""
    reply = read(events(*({"tool_calls": [item]} for item in items), finish=finish, done=done))
    return [(call.name, call.arguments) for call in reply.calls]


def item(name: str | None = None, arguments: Json = None, **more: Json) -> Json:
    return {"function": {"name": name, "arguments": arguments}, **more}


def kind_of(*pieces: bytes) -> FaultKind:
    with pytest.raises(ModelFault) as caught:
        read(*pieces)
    return caught.value.kind


# -- calls ---------------------------------------------------------------------------------------------------

PING = [("ping", {"n": 1})]
TWO = [("ping", {"n": 1}), ("pong", {"n": 2})]
WHOLE, OTHER = '{"n":1}', '{"n":2}'


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([item("pi", index=0), item("ng", index=0), item(None, WHOLE, index=0)], PING),
        ([item("ping", '{"n"', index=0), item("x", ":1}", index=0)], PING),
        ([item("pi", index=0), item("ping", WHOLE, index=0)], PING),
        ([item("ping", '{"n"', index=0), item("ping", WHOLE, index=0)], PING),
        ([item("ping", WHOLE, index=0, id="a"), item("ping", WHOLE, index=0, id="a")], PING),
        ([item("ping", WHOLE, index=0), item("ping", "", index=0)], PING),
        ([item("ping", '{"n"', index=0, id="a"), item(None, ":1}", index=0, id="b")], PING),
        ([item("ping", '{"n"', id="a"), item(None, ":1}", id="b")], PING),
        ([item("ping", WHOLE), item("pong", OTHER)], TWO),
        ([item("ping", WHOLE, index=0), item("pong", OTHER, index=0)], TWO),
        ([item("ping", WHOLE), item("ping", OTHER)], [("ping", {"n": 1}), ("ping", {"n": 2})]),
        (
            [
                item("ping", "", id="a"),
                item("pong", "", id="b"),
                item(None, WHOLE, id="a"),
                item(None, OTHER, id="b"),
            ],
            TWO,
        ),
        ([item("ping", WHOLE, index="0"), item("pong", OTHER, index="1")], TWO),
        ([item("ping", WHOLE, index=0, id="a"), item("pong", OTHER, index=1, id="a")], TWO),
        ([{"name": "ping", "arguments": WHOLE}], PING),
        ([item("ping", WHOLE, index=0), item(None, "}", index=0)], [("ping", None)]),
        ([item(None, WHOLE, index=0), item("", WHOLE, index=1)], []),
        ([None, "x", [item("ping", WHOLE)]], []),
    ],
)
def test_pieces_of_calls(items: list[Json], expected: list[tuple[str, Json]]) -> None:
    """However index, id and name are kept or forgotten: the calls that were meant, once each."""
    assert calls(*items) == expected


@pytest.mark.parametrize("finish", ["length", "content_filter", "network_error"])
@pytest.mark.parametrize("raw", ["", '{"n"'])
def test_half_a_call_is_never_run(finish: str, raw: str) -> None:
    """Where the answer was cut off, even no arguments at all may be half of them; calls before it are whole."""
    last = item("pong", raw, index=1, id="b")
    assert calls(item("ping", WHOLE, index=0, id="a"), last, finish=finish) == [("ping", {"n": 1}), ("pong", None)]
    assert read(events({"tool_calls": [last]}, finish="length")).finish == "length"


def test_a_whole_call_is_run_however_the_answer_ended() -> None:
    """Cut off behind its last brace, a call is whole."""
    reply = read(events({"tool_calls": [item("ping", WHOLE)]}, finish="length"))
    assert ([call.arguments for call in reply.calls], reply.finish) == ([{"n": 1}], "tool_calls")


def test_calls_of_a_document_are_whole() -> None:
    """In a document every item is a call of its own, though ids and names be the same."""
    message = {"tool_calls": [item("ping", WHOLE, id="a"), item("ping", OTHER, id="a"), item("ping"), item("ping")]}
    reply = read(json.dumps({"choices": [{"message": message}]}).encode())
    assert [call.arguments for call in reply.calls] == [{"n": 1}, {"n": 2}, {}, {}]


def test_no_arguments_are_none() -> None:
    """A call without arguments, in an answer that ended well, has none."""
    assert calls(item("ping", "", index=0)) == calls(item("ping", None, index=0)) == [("ping", {})]


@pytest.mark.parametrize("raw", ['{"n":NaN}', '{"n":1e999}', '{"n":"\\ud83d"}', '"n"', "[" * 5_000, '{"n":1}}'])
def test_arguments_that_are_none(raw: str) -> None:
    """What is no JSON object, or could not be stored or sent again as one, is not repaired into running."""
    assert arguments_of(raw) is None


def test_a_stream_that_stops() -> None:
    """Without finish and DONE an answer is whole only if all its calls are."""
    assert calls(item("ping", WHOLE), finish=None, done=False) == PING
    for half in ("", '{"n"'):
        assert kind_of(events({"tool_calls": [item("ping", half)]}, finish=None, done=False)) is FaultKind.TRUNCATED
    assert kind_of(events({"content": "hi"}, finish=None, done=False)) is FaultKind.TRUNCATED
    assert read(events({"content": "hi"}, finish=None)).text == "hi"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('<tool_call>{"name":"ping","arguments":{"n":1}}</tool_call>', PING),
        ('<tool_call>{"name":"ping","parameters":{"n":1}}', PING),
        ('[TOOL_CALLS] [{"name":"ping","arguments":"{\\"n\\":1}"}]', PING),
        ('<tool_calls><tool_call>\n{"name":"ping","arguments":{"n":1}}\nok\n</tool_call></tool_calls>', PING),
        ('<tool_call>{"name":"rm","arguments":{}}</tool_call>', []),
        ('<tool_call>{"name":["ping"]}</tool_call>', []),
        ('<function=ping>{"n":1}</function>', []),
    ],
)
def test_calls_written_as_text(text: str, expected: list[tuple[str, Json]]) -> None:
    """A call of an offered tool is recovered from its markup; of the rest nothing is shown."""
    reply = read(events({"content": f"a {text}"}, finish="stop"))
    assert [(call.name, call.arguments) for call in reply.calls] == expected
    assert (reply.text, reply.finish) == ("a", "tool_calls" if expected else "stop")


def test_markup_beside_calls_is_not_run() -> None:
    """A server that delivers the call and its markup means one call."""
    text = '<tool_call>{"name":"ping","arguments":{"n":9}}</tool_call>'
    reply = read(events({"content": text, "tool_calls": [item("ping", WHOLE)]}))
    assert [(call.name, call.arguments) for call in reply.calls] == PING


# -- the body ------------------------------------------------------------------------------------------------

MESSAGE = {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "body",
    [
        json.dumps(MESSAGE, indent=1),
        "\ufeff" + json.dumps(MESSAGE),
        json.dumps([MESSAGE]),
        json.dumps({"choices": [{"delta": {"content": "h"}}]})
        + "\n"
        + json.dumps({"choices": [{"delta": {"content": "i"}}]}),
        f": ping\n\ndata:{json.dumps(MESSAGE)}\n\ndata:[DONE]",
        "data: " + json.dumps(MESSAGE, indent=1).replace("\n", "\ndata: ") + "\n\ndata: [DONE]\n\n",
        f"data: nonsense\ndata: {json.dumps(MESSAGE)}\ndata: [DONE]\n",
        json.dumps(MESSAGE | {"message": "success", "code": 0}),
        f'data: {{"choices": [{{"delta": {{"content": "no"}}}}]\n\ndata: }}\n\ndata: {json.dumps(MESSAGE)}\n\n',
        f"event: x\n\n{json.dumps(MESSAGE)}\ndata: [DONE]\n",
    ],
)
def test_bodies(body: str) -> None:
    """Documents, lines, events with one or several data lines, with or without blank ones: the same answer."""
    data = body.encode()
    assert read(data).text == read(*(data[place : place + 1] for place in range(len(data)))).text == "hi"


def test_raw_control_characters() -> None:
    """Some servers forget to escape a tab or a line break in a text."""
    assert read(json.dumps(MESSAGE).replace("hi", "h\ti\n!").encode()).text == "h\ti\n!"


@pytest.mark.parametrize(
    ("body", "kind"),
    [
        ("", FaultKind.TRUNCATED),
        (" \n ", FaultKind.TRUNCATED),
        ('{"choices": [{"mess', FaultKind.TRUNCATED),
        ('{"choices": []}', FaultKind.TRUNCATED),
        ("<html>", FaultKind.NOT_FOUND),
        ("upstream gone", FaultKind.SERVER),
        ("data: [DONE]\n\n", FaultKind.SERVER),
        ('{"message": {"content": "high risk"}, "done": true}', FaultKind.TRUNCATED),
        ('{"code": 500, "msg": "no"}', FaultKind.SERVER),
        ('data: {"error": {"code": "429", "message": "slow"}}\n\n', FaultKind.RATE_LIMIT),
        ('event: error\ndata: {"message": "maximum context length", "code": 400}\n\n', FaultKind.CONTEXT_LENGTH),
        ('{"choices": null, "base_resp": {"status_code": 1008, "status_msg": "no"}}', FaultKind.BILLING),
        ('data: {"choices": [{"delta": {}, "finish_reason": "error"}]}\n\n', FaultKind.SERVER),
        ('{"choices": [{"message": {"content": "high risk"}}], "error": {"message": "x"}}', FaultKind.SERVER),
    ],
)
def test_no_answer(body: str, kind: FaultKind) -> None:
    """What holds no answer is a fault, told by what it is, not by what the model may have said in it."""
    assert kind_of(body.encode()) is kind


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="newer interpreters walk a document of this depth")
def test_a_document_that_is_too_deep_to_walk_is_a_fault() -> None:
    """It parses, but reading it runs out of stack: typed like any other nonsense."""
    body = '{"choices": [{"message": {"content": ' + "[" * 900 + "]" * 900 + "}}]}"
    assert kind_of(body.encode()) is FaultKind.SERVER


def test_a_sum_after_the_deltas_is_no_second_answer() -> None:
    """Some servers close a stream with the whole message again."""
    last = {"choices": [{"delta": {}, "message": {"content": "hi", "tool_calls": [item("ping", WHOLE)]}}]}
    said = events({"content": "h"}, {"content": "i", "tool_calls": [item("ping", WHOLE)]}, done=False)
    reply = read(said, f"data: {json.dumps(last)}\n\n".encode())
    assert (reply.text, len(reply.calls)) == ("hi", 1)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"usage": {"prompt_tokens": 5, "completion_tokens": 2, "prompt_cache_hit_tokens": 3}}, Usage(5, 2, 3)),
        ({"usage": {"prompt_tokens": 5, "prompt_tokens_details": {"cached_tokens": 4}}}, Usage(5, 0, 4)),
        ({"x_groq": {"usage": {"prompt_tokens": 5.0, "completion_tokens": 2}}}, Usage(5, 2)),
        ({"usage": {"prompt_tokens": "many", "completion_tokens": -1}}, Usage()),
        ({"usage": {"prompt_tokens": 10**30, "completion_tokens": 2}}, Usage(0, 2)),
    ],
)
def test_usage(usage: Json, expected: Usage) -> None:
    """Tokens, wherever the server puts them; nonsense counts as unsaid."""
    assert read(json.dumps(MESSAGE | usage).encode()).usage == expected


def test_reasoning_said_twice() -> None:
    """Two fields with the same thought are one thought; the answer's text is not among it."""
    said = {"reasoning": "mm", "reasoning_content": "mm", "content": "hi"}
    reply = read(events(said, finish="stop"))
    assert (reply.reasoning, reply.text) == ("mm", "hi")


@pytest.mark.parametrize(
    "part",
    [
        {"type": "thinking", "thinking": [{"type": "text", "text": "mm"}]},
        {"type": "reasoning", "text": "mm"},
        {"type": "thinking", "thinking": "mm"},
    ],
)
def test_thoughts_among_the_parts(part: Json) -> None:
    """A thought that stands beside the text in a list of parts is not spoken."""
    reply = read(events({"content": [part, {"type": "text", "text": "hi"}, "!"]}, finish="stop"))
    assert (reply.reasoning, reply.text) == ("mm", "hi!")


@pytest.mark.parametrize("piece", ["word ", "<think>", "x"])
def test_an_answer_that_never_ends_is_cut_off(piece: str) -> None:
    """A server in a loop must not fill the memory: at 16 MB it is a fault, whatever it says."""
    line = b"data: " + json.dumps({"choices": [{"delta": {"content": piece * 10_000}}]}).encode() + b"\n\n"
    answer = Answer(set())
    fed = 0
    with pytest.raises(ModelFault, match="longer than 16000000 bytes"):  # noqa: PT012 - the feeding raises
        while fed < 20_000_000:
            answer.feed(line)
            fed += len(line)
    assert 15_000_000 < fed <= 16_000_000
