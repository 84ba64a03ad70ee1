"""How sending ends, through the real app: sent, not sent, unknown; what the model is told, and never twice."""

import time
from collections.abc import Iterator

import pytest
from tests.stage import Stage, results_in, stage


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage() as one:
        yield one


@pytest.mark.parametrize(
    ("answer", "outcome", "says"),
    [
        ({"retcode": 1400, "wording": "bad params"}, "failed", "not sent: retcode 1400"),
        ({"retcode": 1200, "wording": "you are muted"}, "failed", "not sent: retcode 1200: you are muted"),
        (
            {"retcode": 1200, "wording": "Timeout: no answer", "delivered": True},
            "unconfirmed",
            "do not send it again",
        ),
        ({"status": "async", "retcode": 1}, "unconfirmed", "do not send it again"),
    ],
    ids=["parameters", "business", "timeout", "async"],
)
def test_what_the_platform_says_is_what_the_model_is_told(
    play: Stage, answer: dict[str, object], outcome: str, says: str
) -> None:
    """A muted bot is no crash of its sending tool; a timeout is not `not sent`."""

    async def scene(user: int) -> None:
        play.qq.answer("send_private_msg", **answer)  # type: ignore[arg-type]
        play.model.call(("output_send__qq", {"text": "hello"}))
        play.model.say("final")
        await play.qq.private_says(user, "go")
        await play.qq.sent.take(1, lambda sent: (sent.chat, sent.text) == (f"private:{user}", "final"))

    user = play.newcomer()
    play.run(scene(user))
    [row] = play.calls(user)
    assert row.outcome == outcome
    assert says in row.result
    assert results_in(play.model.requests[-1]) == [row.result]


def test_a_send_that_may_have_arrived_is_not_sent_again(play: Stage) -> None:
    """The final text equals one whose delivery is unknown: it does not go out a second time."""

    async def scene(user: int) -> int:
        play.qq.answer("send_private_msg", retcode=1200, wording="Timeout", delivered=True)
        play.model.call(("output_send__qq", {"text": "only me"}))
        play.model.say("only me")
        await play.qq.private_says(user, "go")
        await play.ended(user, 1)
        return sum(sent.chat == f"private:{user}" for sent in play.qq.sent)

    assert play.run(scene(play.newcomer())) == 1


def test_a_final_answer_that_could_not_be_sent_fails_the_turn(play: Stage) -> None:
    """The record says that the chat did not get it; the next message is answered."""

    async def scene(user: int) -> None:
        play.qq.answer("send_private_msg", retcode=1200, wording="blocked")
        play.model.say("lost words")
        await play.qq.private_says(user, "go")
        await play.ended(user, 1)
        play.model.say("heard now")
        await play.qq.private_says(user, "again")
        await play.qq.sent.take(1, lambda sent: sent.text == "heard now")

    user = play.newcomer()
    play.run(scene(user))
    assert play.run(play.ended(user, 2)) == ["failed", "answered"]
    replies = play.query(
        "SELECT c.outcome FROM calls c JOIN turns t ON t.id = c.turn"
        " WHERE c.name = 'reply' AND json_extract(t.source, '$.user') = ? ORDER BY t.seq",
        str(user),
    )
    assert replies == [("failed",), ("ok",)]


def test_a_lost_connection_ends_the_wait_at_once(play: Stage) -> None:
    """E9: the outcome is known within a second or two, as unknown; nothing is sent twice; the account comes back."""

    async def scene(user: int) -> tuple[float, int]:
        play.qq.hold("send_private_msg")
        play.model.say("into the void")
        await play.qq.private_says(user, "go")
        await play.qq.sent.take(1, lambda sent: sent.text == "into the void")
        begun = time.monotonic()
        play.qq.drop()
        await play.ended(user, 1)
        waited = time.monotonic() - begun
        play.qq.hold("send_private_msg").set()
        await play.qq.connect()
        play.model.say("here again")
        await play.qq.private_says(user, "hello?")
        await play.qq.sent.take(1, lambda sent: sent.text == "here again")
        return waited, sum(sent.text == "into the void" for sent in play.qq.sent)

    user = play.newcomer()
    waited, times = play.run(scene(user))
    assert waited < 2.0
    assert times == 1
    [(outcome,), _] = play.query(
        "SELECT c.outcome FROM calls c JOIN turns t ON t.id = c.turn"
        " WHERE c.name = 'reply' AND json_extract(t.source, '$.user') = ? ORDER BY t.seq",
        str(user),
    )
    assert outcome == "unconfirmed"


def test_model_text_is_never_parsed_for_codes(play: Stage) -> None:
    """CQ codes and Markdown in an answer leave as one text segment."""

    async def scene(user: int) -> list[dict[str, object]]:
        play.model.say("[CQ:at,qq=all] **hi**")
        await play.qq.private_says(user, "go")
        [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
        return list(sent.segments)

    assert play.run(scene(play.newcomer())) == [{"type": "text", "data": {"text": "[CQ:at,qq=all] **hi**"}}]


def test_the_help_tool_tells_the_format(play: Stage) -> None:
    """output_send__qq_help is there for everybody and names the arguments."""

    async def scene(user: int) -> None:
        play.model.call(("output_send__qq_help", {}))
        play.model.say("I see")
        await play.qq.private_says(user, "how?")
        await play.qq.sent.take(1, lambda sent: sent.text == "I see")

    user = play.newcomer()
    play.run(scene(user))
    [row] = play.calls(user)
    assert row.outcome == "ok"
    assert all(word in row.result for word in ("text", "at", "reply_to", "to"))
