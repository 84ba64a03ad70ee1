"""The operator's policy.toml in the data folder, through the real app."""

from pathlib import Path

from tests.stage import Row, Stage, stage

OPERATOR = 777


async def turn(play: Stage, user: int, *calls: tuple[str, dict[str, str]]) -> list[Row]:
    play.model.call(*calls)
    play.model.say("done")
    await play.qq.group_says(60001, user, "go")
    await play.qq.wait_sent(1, to="group:60001")
    return play.calls(user)[-len(calls) :]


def test_the_operators_rules_stand_first(tmp_path: Path) -> None:
    """A rule of his own opens one tool to one member, and closes another; the sentence is told to the model."""
    (tmp_path / "policy.toml").write_text(
        """
[[rule]]
name = "trusted"
tools = "qq_call_state"
users = 30001
decision = "allow"
because = "他可以看。"

[[rule]]
name = "quiet"
tools = "fine"
chats = 60001
decision = "deny"
because = "这个群里不用这个工具。"
""",
        encoding="utf-8",
    )
    with stage(data=tmp_path) as play:
        trusted, other = play.newcomer(), play.newcomer()
        calls = [("qq_call_state", {}), ("fine", {})]
        assert [row.outcome for row in play.run(turn(play, trusted, *calls))] == ["ok", "denied"]
        state, fine = play.run(turn(play, other, *calls))
        assert state.outcome == "denied"
        assert fine.result == "denied (quiet): 这个群里不用这个工具。"


def test_a_broken_file_closes_all_tools_and_says_where(tmp_path: Path) -> None:
    """Nobody, not even the operator, gets a tool; the log names the line; commands work as ever."""
    (tmp_path / "policy.toml").write_text('[[rule]]\nname = "x"\ndecison = "allow"\nbecause = "y"\n', encoding="utf-8")
    with stage(data=tmp_path, env={"SUPERUSERS": str(OPERATOR)}) as play:
        [row] = play.run(turn(play, OPERATOR, ("fine", {})))
        assert (row.outcome, "policy.toml" in row.result) == ("denied", True)
        assert "policy.toml:3" in play.bot.log, play.bot.log

        async def status() -> str:
            await play.qq.private_says(OPERATOR, "/status")
            [sent] = await play.qq.wait_sent(1, to=f"private:{OPERATOR}")
            return sent.text

        assert "策略文件" in play.run(status())
