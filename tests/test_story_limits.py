"""What one turn may use up, through the real app: steps, identical calls, sends, time; and sending only once."""

import itertools
import time
from collections.abc import Iterator

import pytest
from tests.stage import Stage, results_in, stage


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(env={"QIWO_MAX_STEPS": "4", "QIWO_TURN_TIMEOUT": "2.5"}) as one:
        yield one


async def said_to(play: Stage, user: int, text: str = "go", count: int = 1) -> list[str]:
    await play.qq.private_says(user, text)
    return [sent.text for sent in await play.qq.wait_sent(count, to=f"private:{user}")]


def test_at_the_step_limit_the_model_says_one_closing_sentence(play: Stage) -> None:
    """After four steps it is asked once more, without tools, and that answer is sent."""
    user = play.newcomer()
    for number in range(4):
        play.model.call(("fine", {"word": str(number)}))
    play.model.say("that is all I found")
    assert play.run(said_to(play, user)) == ["that is all I found"]
    closing = play.model.requests[-1]
    assert not closing.get("tools")
    assert len(play.calls(user)) == 4


def test_a_model_that_calls_on_regardless_is_ended(play: Stage) -> None:
    """Calls in the closing answer get their result too, and are not run; the chat gets a sentence."""
    user = play.newcomer()
    for number in range(5):
        play.model.call(("fine", {"word": str(number)}))
    [text] = play.run(said_to(play, user))
    assert "4 步" in text
    rows = play.calls(user)
    assert [row.outcome for row in rows] == ["ok"] * 4 + ["rate_limited"]
    assert rows[-1].started is None


def test_the_same_call_is_not_made_for_ever(play: Stage) -> None:
    """The fourth identical call in a turn is not run; another one still is."""
    user = play.newcomer()
    play.model.call(*[("fine", {"word": "again"})] * 5, ("fine", {"word": "other"}))
    play.model.say("enough")
    play.run(said_to(play, user))
    assert [row.outcome for row in play.calls(user)] == ["ok"] * 3 + ["duplicate"] * 2 + ["ok"]


def test_sends_are_limited(play: Stage) -> None:
    """Six messages by tool in one turn; the seventh is not sent."""
    user = play.newcomer()
    play.model.call(*[("output_send__qq", {"text": f"line {number}"}) for number in range(8)])
    play.model.say("finished")
    texts = play.run(said_to(play, user, count=7))
    assert texts == [f"line {number}" for number in range(6)] + ["finished"]
    assert [row.outcome for row in play.calls(user)] == ["ok"] * 6 + ["rate_limited"] * 2


def test_what_a_tool_sent_is_not_sent_again(play: Stage) -> None:
    """The final text that equals a sent one leaves once; the receipt says no more than `sent`."""
    user = play.newcomer()
    play.model.call(("output_send__qq", {"text": "only once"}))
    play.model.say("only  once\n")
    assert play.run(said_to(play, user)) == ["only once"]
    assert play.run(play.ended(user, 1)) == ["answered"]
    assert results_in(play.model.requests[-1]) == ["sent"]
    play.model.say("next")
    assert play.run(said_to(play, user, "and?")) == ["next"]


def test_an_empty_answer_is_asked_for_once_more(play: Stage) -> None:
    """Servers do that now and then; the person only sees the second answer."""
    user = play.newcomer()
    play.model.say("   ")
    play.model.say("here I am")
    assert play.run(said_to(play, user, "anybody?")) == ["here I am"]
    assert play.model.requests[-1]["messages"][-1]["content"].endswith("anybody?")


def test_two_empty_answers_are_told(play: Stage) -> None:
    """Silence would look like a dead bot: a human sentence, and the record says that the turn failed."""
    user = play.newcomer()
    play.model.say("")
    play.model.say(" \n")
    [text] = play.run(said_to(play, user, "anybody?"))
    assert "没有说话" in text
    assert play.run(play.ended(user, 1)) == ["failed"]


def test_after_a_tool_an_empty_answer_is_silence(play: Stage) -> None:
    """A model that has said all by its tools may leave it at that: nothing more is sent, and nothing asked again."""

    async def scene(user: int) -> list[str]:
        await play.qq.private_says(user, "say it by the tool")
        return await play.ended(user, 1)

    user = play.newcomer()
    play.model.call(("output_send__qq", {"text": "by the tool"}))
    play.model.say("")
    assert play.run(scene(user)) == ["silent"]
    assert [sent.text for sent in play.qq.sent if sent.chat == f"private:{user}"] == ["by the tool"]


def test_a_turn_has_a_deadline(play: Stage) -> None:
    """A model that hangs costs the chat 2.5 s; it hears a human sentence with the turn's code, and goes on."""
    user = play.newcomer()
    play.model.hang()
    begun = time.monotonic()
    [text] = play.run(said_to(play, user))
    assert 2.4 < time.monotonic() - begun < 6
    [(code,)] = play.query("SELECT id FROM turns WHERE json_extract(source, '$.user') = ?", str(user))
    assert code in text
    assert "时间太长" in text
    assert play.run(play.ended(user, 1)) == ["failed"]
    play.model.say("back again")
    assert play.run(said_to(play, user, "still there?")) == ["back again"]


def test_a_turns_deadline_settles_the_running_call(play: Stage) -> None:
    """The call is recorded as cancelled, and the next request is accepted."""
    user = play.newcomer()
    play.model.call(("slow", {"seconds": 20}))
    play.run(said_to(play, user))
    [row] = play.calls(user)
    assert (row.outcome, "deadline" in row.result) == ("cancelled", True)
    play.model.say("fine")
    assert play.run(said_to(play, user, "next")) == ["fine"]


def test_parallel_tools_run_at_once_and_others_one_by_one(play: Stage) -> None:
    """B9: tools that all declare `parallel` have all begun before one has ended; one that does not makes them queue."""

    def rows(*others: tuple[str, dict[str, str]]) -> list[tuple[float, float]]:
        user = play.newcomer()
        play.model.call(*[("slow", {"seconds": 0.2 + number / 1000}) for number in range(3)], *others)
        play.model.say("done")
        play.run(said_to(play, user))
        return [(row.started or 0, row.settled or 0) for row in play.calls(user)]

    together = rows()
    assert max(started for started, _ in together) < min(settled for _, settled in together)
    queued = rows(("effect", {"word": "x"}))
    assert all(settled <= started for (_, settled), (started, _) in itertools.pairwise(queued))


def test_sends_keep_their_order_in_a_parallel_step(play: Stage) -> None:
    """Two sends on one channel leave in call order, however slow the first one's answer is."""

    async def scene(user: int) -> list[str]:
        gate = play.qq.hold("send_private_msg")
        play.model.call(*[("output_send__qq", {"text": text}) for text in "abc"])
        play.model.say("d")
        await play.qq.private_says(user, "spell")
        [first] = await play.qq.wait_sent(1, to=f"private:{user}")
        await play.qq.group_says(70001, user, "/status")
        await play.qq.wait_sent(1, to="group:70001")
        assert sum(sent.chat == f"private:{user}" for sent in play.qq.sent) == 1
        gate.set()
        rest = await play.qq.wait_sent(3, to=f"private:{user}")
        return [first.text, *(sent.text for sent in rest)]

    assert play.run(scene(play.newcomer())) == ["a", "b", "c", "d"]
