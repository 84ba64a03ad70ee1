"""The seven stages through the real app: what a plugin may change, and that none of it can lose a result."""

from collections.abc import Iterator

import pytest
from tests.stage import Stage, results_in, stage


@pytest.fixture(scope="module")
def play() -> Iterator[Stage]:
    with stage(env={"QIWO_HOOK_TIMEOUT": "0.5"}) as one:
        yield one


def say(play: Stage, user: int, text: str) -> str:
    async def scene() -> str:
        await play.qq.private_says(user, text)
        [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
        return sent.text

    return play.run(scene())


def test_on_input_may_answer_instead(play: Stage) -> None:
    """The model is not asked, and the turn is on record."""
    user, before = play.newcomer(), len(play.model.requests)
    assert say(play, user, "canned please") == "a canned answer"
    assert len(play.model.requests) == before
    assert play.run(play.ended(user, 1)) == ["answered"]


def test_on_input_may_change_the_text(play: Stage) -> None:
    """The model and the record see the changed text."""
    user = play.newcomer()
    play.model.say("ok")
    say(play, user, "swap me")
    assert play.model.requests[-1]["messages"][-1]["content"].endswith("swapped")
    play.model.say("ok")
    say(play, user, "later")
    assert any(str(m["content"]).endswith("swapped") for m in play.model.requests[-1]["messages"])


@pytest.mark.parametrize("how", ["crashes", "hangs"])
def test_a_broken_onlooker_is_skipped(play: Stage, how: str) -> None:
    """B7: the reply goes out within the hook's budget, and the fault is in the log with its place."""
    play.model.say("answered all the same")
    assert say(play, play.newcomer(), f"on_input {how}") == "answered all the same"
    assert "plugin onlooker: on_input hook" in play.bot.log
    assert "onlooker.py:" in play.bot.log


def test_pre_action_may_add_to_the_system_text(play: Stage) -> None:
    """It is the system message that goes out."""
    play.model.say("ok")
    say(play, play.newcomer(), "hello")
    assert play.model.requests[-1]["messages"][0]["content"].endswith("Added by a plugin.")


def test_post_action_ends_the_turn_and_open_calls_are_cancelled(play: Stage) -> None:
    """The calls get their result, are not run, and stand paired in the next request."""
    user = play.newcomer()
    play.model.call(("fine", {"word": "x"}), ("effect", {"word": "y"}), text="take over")
    assert say(play, user, "go") == "a hook took over"
    rows = play.calls(user)
    assert [row.outcome for row in rows] == ["cancelled", "cancelled"]
    assert all(row.started is None and "it had no effect" in row.result for row in rows)
    play.model.say("next")
    assert say(play, user, "and now?") == "next"
    told = [m["content"] for m in play.model.requests[-1]["messages"] if m["role"] == "tool"]
    assert told == [row.result for row in rows]


def test_a_global_hook_may_refuse_any_plugins_call(play: Stage) -> None:
    """The reason names the plugin and reaches the model."""
    user = play.newcomer()
    play.model.call(("fine", {"word": "forbidden"}))
    play.model.say("ok")
    say(play, user, "go")
    assert results_in(play.model.requests[-1]) == ["denied (hook): onlooker: not for anybody"]


def test_after_toolcall_may_replace_the_outcome_but_not_with_nonsense(play: Stage) -> None:
    """A new Outcome is stored and sent; anything else is a fault of the hook, and the outcome stands."""
    user = play.newcomer()
    play.model.call(("fine", {"word": "mask"}), ("fine", {"word": "nonsense"}))
    play.model.say("ok")
    say(play, user, "go")
    assert [row.result for row in play.calls(user)] == ["masked", "nonsense"]
    assert results_in(play.model.requests[-1]) == ["masked", "nonsense"]


def test_before_output_may_change_or_silence_the_final_text(play: Stage) -> None:
    """What leaves is what is recorded as the reply."""
    user = play.newcomer()
    play.model.say("damn right")
    assert say(play, user, "swear") == "d**n right"
    [(stored,)] = play.query(
        "SELECT c.raw FROM calls c JOIN turns t ON t.id = c.turn"
        " WHERE c.name = 'reply' AND json_extract(t.source, '$.user') = ?",
        str(user),
    )
    assert stored == "d**n right"
    play.model.say("silence")
    play.model.say("back")

    async def scene() -> str:
        await play.qq.private_says(user, "hush")
        await play.ended(user, 2)
        await play.qq.private_says(user, "talk")
        [sent] = await play.qq.wait_sent(1, to=f"private:{user}")
        return sent.text

    assert play.run(scene()) == "back"
    assert play.run(play.ended(user, 3)) == ["answered", "silent", "answered"]


def test_after_output_sees_every_ending(play: Stage) -> None:
    """An answer, a failure of the model, and a turn that was stopped."""
    user = play.newcomer()
    play.model.say("first")
    say(play, user, "one")
    play.model.fail(401, {"error": {"message": "bad key", "type": "invalid_request_error"}})
    failed = say(play, user, "two")
    play.model.call(("slow", {"seconds": 20}))

    async def stop() -> None:
        await play.qq.private_says(user, "be slow")
        await play.model.requests.take(1, lambda request: "be slow" in request["messages"][-1]["content"])
        await play.qq.private_says(user, "/stop")
        await play.qq.wait_sent(1, to=f"private:{user}")
        await play.ended(user, 3)

    play.run(stop())
    play.model.call(("endings", {}))
    play.model.say("ok")
    say(play, user, "three")
    [result] = results_in(play.model.requests[-1])
    assert "answered: first" in result
    assert f"failed: {failed}" in result
    assert "stopped: " in result
