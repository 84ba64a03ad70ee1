"""Whatever a server answers, the model layer gives a sound Reply or a typed fault: never another error."""

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.replay import unpaired
from tests.test_model_cases import CASES, TOOLS, step_of, turn_of

from kernel.adapters.model.assemble import Answer
from kernel.adapters.model.errors import fault_of
from kernel.adapters.model.wire import Dialect, messages_of
from kernel.errors import ModelFault
from kernel.ports import Reply, Request

ROUNDS = 64
"""Mutations of each case; 96 cases make some 6,000."""
NAMES = {tool.name for tool in TOOLS}
JUNK: tuple[Callable[[], Any], ...] = (
    lambda: None,
    lambda: True,
    lambda: -1,
    lambda: 10**30,
    lambda: 1e308,
    lambda: "",
    lambda: "\ud83d",
    lambda: "<think>",
    lambda: '<tool_call>{"name": ["qq_call_state"], "arguments": 1}</tool_call>',
    list,
    dict,
    lambda: [None, "x", [{}]],
    lambda: {"error": {"code": [1]}},
    lambda: "@deep",
    lambda: "@abyss",
)


def places(node: Any) -> Iterator[tuple[Any, Any]]:
    """Every (container, key) of a JSON value."""
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in items:
        yield node, key
        yield from places(value)


def mutate(node: Any, dice: random.Random) -> Any:
    """One to three of: replace by junk, remove, double, swap with another place."""
    root = [json.loads(json.dumps(node))]
    for _ in range(dice.randint(1, 3)):
        (here, key), (there, other) = dice.choices(list(places(root)), k=2)
        match dice.randrange(4):
            case 0:
                here[key] = dice.choice(JUNK)()
            case 1 if here is not root:
                del here[key]
            case 2 if isinstance(here, list):
                here.insert(key, json.loads(json.dumps(here[key])))
            case _:
                here[key] = json.loads(json.dumps(there[other]))
    return root[0]


def dumped(value: Any, dice: random.Random) -> str:
    text = json.dumps(value, ensure_ascii=dice.random() < 0.5)
    return text.replace('"@deep"', "[" * 900 + "]" * 900).replace('"@abyss"', '{"a":' * 50_000)


def text_of(piece: Any) -> str:
    return piece if isinstance(piece, str) else "".join(piece.get("split_utf8", ()))


def mutated(case: dict[str, Any], dice: random.Random) -> bytes:
    """The case's answer with its JSON mutated, or with a byte changed, or cut short."""
    if "sse" in case:
        lines = "".join(map(text_of, case["sse"])).split("\n")
        datas = [place for place, line in enumerate(lines) if line.startswith("data: {")]
        for place in dice.sample(datas, k=min(len(datas), dice.randint(1, 2))):
            value = mutate(json.loads(lines[place].removeprefix("data: ")), dice)
            lines[place] = "data: " + dumped(value, dice)
        data = "\n".join(lines).encode("utf-8", "surrogatepass")
    else:
        value = mutate(case["body"], dice) if "body" in case else case.get("body_text", "")
        data = (dumped(value, dice) if "body" in case else value).encode("utf-8", "surrogatepass")
    if data and dice.random() < 0.2:
        at = dice.randrange(len(data))
        data = data[:at] + bytes([dice.randrange(256)] if dice.random() < 0.5 else []) + data[at + 1 :]
    return data[: dice.randrange(len(data) + 1)] if dice.random() < 0.1 else data


def read(data: bytes, dice: random.Random) -> tuple[str, Reply]:
    """The answer as the client reads it: in pieces of any size."""
    answer, shown, reply = Answer(NAMES), "", None
    while data:
        size = dice.choice((1, 7, 100, 10_000))
        shown += "".join(chunk.text for chunk in answer.feed(data[:size]))
        data = data[size:]
    for piece in answer.end():
        if isinstance(piece, Reply):
            reply = piece
        else:
            shown += piece.text
    assert reply is not None
    return shown, reply


def check(shown: str, reply: Reply) -> None:
    """What the rest of the kernel may rely on."""
    assert "<think>" not in shown
    assert "<tool_call>" not in shown
    assert reply.finish in ("stop", "tool_calls", "length", "content_filter")
    assert all(call.name and isinstance(call.arguments, dict | None) for call in reply.calls)
    step = step_of(1, reply)
    messages = messages_of(Request("", (turn_of("hi", step),)), Dialect(reasoning=True))
    assert unpaired(messages) == ""
    kept = [(call.name, call.raw, call.wire_id, call.arguments) for call in reply.calls]
    json.dumps([messages, kept, reply.reasoning, shown], ensure_ascii=False).encode()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["id"])
def test_mutated_answers(case: dict[str, Any]) -> None:
    """A server gone mad gives a sound reply or a ModelFault."""
    dice = random.Random(case["id"])
    sound, told = 0, ""
    for _ in range(ROUNDS):
        data = mutated(case, dice)
        try:
            if case.get("status", 200) != 200:
                raise fault_of(case["status"], {"retry-after": dice.choice(("", "1e9", "nan", "x, 99"))}, data, 0.0)
            check(*read(data, dice))
            sound += 1
        except ModelFault as failure:
            told += failure.detail
    assert told.encode().decode() == told
    assert sound > 0 or "error" in case["expect"]


SPOKEN = (
    ("<think>a < b</think>\n\nhi", "hi", "a < b"),
    ("hi <tool_call>\n{}\n</tool_call> you", "hi  you", None),
    ("1 < 2 [x] <b>bold</b> <tool", "1 < 2 [x] <b>bold</b> <tool", None),
    ("<think>never closed", "", "never closed"),
    ("<think>a</think><think>b</think>c", "c", "a\nb"),
    ("[TOOL_CALLS] [] ", "", None),
    ("x</tool_call>y", "xy", None),
    ("😀<think>😀</think>", "😀", "😀"),
    ("\ud83d\ude00 \ud83d", "😀 \ufffd", None),
    ("<think>\ud83d</think>x", "x", "\ufffd"),
)


@pytest.mark.parametrize(("text", "visible", "reasoning"), SPOKEN)
def test_every_split_of_a_text(text: str, visible: str, reasoning: str | None) -> None:
    """Wherever the deltas are cut, the same is shown, and never a piece of a tag."""
    for cut in range(len(text) + 1):
        for other in range(cut, len(text) + 1):
            answer = Answer(NAMES)
            deltas = text[:cut], text[cut:other], text[other:]
            events = [{"choices": [{"delta": {"content": delta}}]} for delta in deltas]
            data = b"".join(b"data: %b\n\n" % json.dumps(event).encode() for event in events)
            shown = "".join(chunk.text for chunk in answer.feed(data + b"data: [DONE]\n\n"))
            *rest, reply = answer.end()
            assert isinstance(reply, Reply)
            assert (shown + "".join(piece.text for piece in rest)).rstrip() == reply.text == visible.strip()
            assert reply.reasoning == reasoning
