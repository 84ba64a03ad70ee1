"""The policy: what its language means, what no file can change, and what it says when a file is wrong."""

import json
from collections.abc import Mapping
from fnmatch import fnmatchcase
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernel.errors import ConfigError
from kernel.policy import NO_RULE, Act, Decision, Policy, Sheet, compose, load, parse, shipped, standing
from kernel.source import Role, Scene, SceneKind, Source
from kernel.tools import Risk

ALLOW, ASK, DENY = Decision.ALLOW, Decision.ASK, Decision.DENY


def who(role: Role = Role.MEMBER, chat: str = "group:10001", user: str = "20002", name: str = "") -> Source:
    kind, _, ident = chat.partition(":")
    return Source("qq", "1000", Scene(SceneKind(kind), ident), user, role, name)


def block(name: str, decision: str, more: str = "", *, table: str = "rule") -> str:
    return f'[[{table}]]\nname = "{name}"\ndecision = "{decision}"\nbecause = "{name}的理由。"\n{more}\n'


def policy(*blocks: str) -> Policy:
    sheet = parse("\n".join(blocks), "policy.toml")
    return Policy(sheet.rules, sheet.guards)


def guard(name: str, decision: str, more: str = "") -> str:
    return block(name, decision, more, table="guard")


# -- the decision --------------------------------------------------------------------------------------------


def test_the_first_rule_that_holds_decides() -> None:
    """Order is meaning: an exception stands before its rule, and the verdict carries its name and sentence."""
    both = policy(block("exception", "deny", 'tools = "pay"'), block("rest", "allow"))
    refused = both.decide(who(), Act("pay", Risk.READ))
    assert (refused.decision, refused.rule, refused.sentence) == (DENY, "exception", "exception的理由。")
    assert both.decide(who(), Act("look", Risk.READ)).rule == "rest"


def test_without_a_rule_the_answer_is_no() -> None:
    """No rule holds: denied, under a name and with a sentence, for the operator too."""
    assert Policy((), ()).decide(who(Role.OPERATOR), Act("x", Risk.READ)) == NO_RULE
    assert NO_RULE.decision is DENY
    assert NO_RULE.sentence


CONDITIONS: dict[str, tuple[tuple[Source, Act], tuple[Source, Act]]] = {
    'tools = ["a_*", "b"]': ((who(), Act("a_x", Risk.READ)), (who(), Act("b_", Risk.READ))),
    'tools = "get_?"': ((who(), Act("get_1", Risk.READ)), (who(), Act("get_12", Risk.READ))),
    'tools = "get_msg" ': ((who(), Act("get_msg", Risk.READ)), (who(), Act("Get-Msg", Risk.READ))),
    'risks = ["read", "send"]': ((who(), Act("x", Risk.SEND)), (who(), Act("x", Risk.WRITE))),
    'roles = ["admin"]': ((who(Role.ADMIN), Act("x", Risk.READ)), (who(Role.OWNER), Act("x", Risk.READ))),
    'scenes = "group"': (
        (who(Role.OPERATOR), Act("x", Risk.READ)),
        (who(Role.OPERATOR, "private:10001"), Act("x", Risk.READ)),
    ),
    "chats = [10001]": ((who(), Act("x", Risk.READ)), (who(chat="group:10002"), Act("x", Risk.READ))),
    'chats = "010001"': ((who(), Act("x", Risk.READ)), (who(chat="private:10001"), Act("x", Risk.READ))),
    'chats = ["group:10001"]': ((who(), Act("x", Risk.READ)), (who(chat="temp:10001"), Act("x", Risk.READ))),
    'chats = ["private:5"]': (
        (who(chat="private:5"), Act("x", Risk.READ)),
        (who(chat="group:5"), Act("x", Risk.READ)),
    ),
    'users = [20002, "7"]': ((who(user="7"), Act("x", Risk.READ)), (who(user="8"), Act("x", Risk.READ))),
    'users = "0020002"': ((who(), Act("x", Risk.READ)), (who(user="0"), Act("x", Risk.READ))),
    'target = "here"': ((who(), Act("x", Risk.READ)), (who(), Act("x", Risk.READ, here=False))),
    'target = "other"': ((who(), Act("x", Risk.READ, here=False)), (who(), Act("x", Risk.READ))),
    "tainted = false": ((who(), Act("x", Risk.READ)), (who(), Act("x", Risk.READ, tainted=True))),
    'commands = "/st*"': ((who(), Act.command("/stop", own=True)), (who(), Act.command("/help", own=True))),
    'commands = "/*"': ((who(), Act.command("/stop", own=True)), (who(), Act("x", Risk.READ))),
    'tools = "*"': ((who(), Act("stop", Risk.READ)), (who(), Act.command("/stop", own=True))),
    "": ((who(), Act("stop", Risk.EXEC)), (who(), Act.command("/stop", own=True))),
}


@pytest.mark.parametrize("condition", CONDITIONS)
def test_each_condition_counts(condition: str) -> None:
    """A rule holds where its condition is met and nowhere else; ids are compared in any spelling."""
    one = policy(block("x", "allow", condition))
    met, unmet = CONDITIONS[condition]
    assert one.decide(*met).decision is ALLOW
    assert one.decide(*unmet) == NO_RULE


def test_a_permission_reaches_no_other_chat_unless_it_says_so() -> None:
    """Without `target`, allow means here; ask and deny mean everywhere."""
    here, other = Act("x", Risk.SEND), Act("x", Risk.SEND, here=False)
    for decision, elsewhere in (("allow", DENY), ("ask", ASK)):
        one = policy(block("x", decision))
        assert one.decide(who(), here).decision is Decision(decision)
        assert one.decide(who(), other).decision is elsewhere
    opened = policy(block("no", "deny", 'tools = "x"'), block("yes", "allow", 'target = "any"'))
    assert opened.decide(who(), other).rule == "no"
    assert opened.decide(who(), Act("y", Risk.SEND, here=False)).rule == "yes"


def test_a_guard_tightens_what_a_rule_allows() -> None:
    """Every guard that holds is heard, and the strictest word stands."""
    one = policy(
        block("yes", "allow"),
        guard("ask", "ask", 'risks = ["send", "exec"]'),
        guard("no", "deny", 'risks = "exec"'),
    )
    assert one.decide(who(), Act("x", Risk.READ)).rule == "yes"
    assert one.decide(who(), Act("x", Risk.SEND)).rule == "ask"
    assert one.decide(who(), Act("x", Risk.EXEC)).rule == "no"


def test_a_guard_never_loosens() -> None:
    """A guard that asks leaves a denial a denial, and a rule's own question its own words."""
    guards = guard("guard", "ask")
    assert policy(block("no", "deny"), guards).decide(who(), Act("x", Risk.READ)).rule == "no"
    assert policy(block("mine", "ask"), guards).decide(who(), Act("x", Risk.READ)).rule == "mine"
    assert policy(guards).decide(who(), Act("x", Risk.READ)) == NO_RULE


def test_a_guards_denial_is_told_in_its_own_words() -> None:
    """Where nobody may, nobody is told that somebody else may."""
    both = policy(block("only the operator", "deny"), guard("nobody", "deny"))
    assert both.decide(who(), Act("x", Risk.READ)).rule == "nobody"


def test_a_guard_knows_a_name_in_any_spelling() -> None:
    """Case, `_` and `-` are no way around a guard; for a rule they are another name."""
    one = policy(block("yes", "allow", 'tools = "*"'), guard("no", "deny", 'tools = "*get_cookies"'))
    for name in ("get_cookies", "qq_get_cookies", "QQ-Get-Cookies", "getCookies", "__get__cookies"):
        assert one.decide(who(), Act(name, Risk.READ)).rule == "no"
    assert one.decide(who(), Act("get_cookie", Risk.READ)).rule == "yes"


def test_taint_never_loosens_whatever_the_file_says() -> None:
    """A tainted act gets no more than the same act in a clean turn."""
    tainted = Act("x", Risk.READ, tainted=True)
    odd = policy(block("clean only", "deny", "tainted = false"), block("rest", "allow"))
    assert odd.decide(who(), tainted).rule == "clean only"
    odd = policy(block("dirty", "ask", "tainted = true"))
    assert odd.decide(who(), tainted) == NO_RULE


HOME = {
    SceneKind.GROUP: {Role.OWNER, Role.ADMIN, Role.MEMBER},
    SceneKind.PRIVATE: {Role.FRIEND, Role.STRANGER},
    SceneKind.TEMP: {Role.STRANGER},
}
EVERYWHERE = {Role.OPERATOR, Role.ANONYMOUS, Role.BOT}


def role_here(role: Role, kind: SceneKind) -> Role:
    return role if role in HOME[kind] | EVERYWHERE else Role.STRANGER


@pytest.mark.parametrize(("role", "kind"), list(product(Role, SceneKind)))
def test_a_role_counts_only_where_it_was_given(role: Role, kind: SceneKind) -> None:
    """A group admin is a stranger in a temp chat, even to an operator's rule that names no scene."""
    expected = role_here(role, kind)
    source = who(role, f"{kind}:10001")
    assert standing(source) is expected
    named = policy(block("x", "allow", f'roles = "{role}"'))
    assert (named.decide(source, Act("x", Risk.READ)).decision is ALLOW) is (role is expected)


def test_a_tool_is_shown_when_any_target_is_open() -> None:
    """Allowed or asked, here or elsewhere: shown; the taint of the turn counts."""
    other = policy(block("x", "ask", 'target = "other"\ntainted = false'))
    assert other.shows(who(), "x", Risk.SEND, tainted=False)
    assert not other.shows(who(), "x", Risk.SEND, tainted=True)
    assert not Policy((), ()).shows(who(), "x", Risk.READ, tainted=False)


# -- what no operator's file can change ----------------------------------------------------------------------

NAMES = ["time_now", "qq_get_cookies", "qqCallApi", "/stop", "/help"]
GLOBS = ["*", "time_*", "qq*", "qq_get_cookies", "?ime_now"]
OPERATORS: Mapping[str, st.SearchStrategy[Any]] = {
    "tools": st.lists(st.sampled_from(GLOBS), min_size=1, max_size=2),
    "risks": st.lists(st.sampled_from([*map(str, Risk)]), min_size=1, max_size=3),
    "roles": st.lists(st.sampled_from([*map(str, Role)]), min_size=1, max_size=4),
    "scenes": st.lists(st.sampled_from([*map(str, SceneKind)]), min_size=1, max_size=2),
    "chats": st.lists(st.sampled_from(["group:10001", "private:20002"]), min_size=1, max_size=2),
    "users": st.lists(st.sampled_from(["20002", "20003"]), min_size=1, max_size=2),
    "target": st.sampled_from(["here", "other", "any"]),
    "tainted": st.booleans(),
}
TOOL_BLOCK = st.fixed_dictionaries({"decision": st.sampled_from([*map(str, Decision)])}, optional=dict(OPERATORS))
COMMAND_BLOCK = st.fixed_dictionaries(
    {
        "decision": st.sampled_from([*map(str, Decision)]),
        "commands": st.lists(st.sampled_from(["/*", "/stop"]), min_size=1, max_size=2),
    },
    optional={key: OPERATORS[key] for key in ("roles", "scenes", "chats", "users", "target")},
)
FILES = st.lists(TOOL_BLOCK | COMMAND_BLOCK, max_size=6)
SOURCES = st.builds(
    who,
    role=st.sampled_from(list(Role)),
    chat=st.sampled_from(["group:10001", "group:10002", "private:20002", "temp:20002"]),
    user=st.sampled_from(["20002", "20003"]),
)
ACTS = st.builds(
    lambda name, risk, here, tainted: Act(name, None if name[0] == "/" else risk, here, tainted),
    st.sampled_from(NAMES),
    st.sampled_from(list(Risk)),
    st.booleans(),
    st.booleans(),
)


def written(blocks: list[dict[str, Any]], table: str = "rule") -> str:
    """The blocks as TOML, named by their number."""
    lines = []
    for number, keys in enumerate(blocks):
        lines += [f"[[{table}]]", f'name = "{number}"', 'because = "。"']
        lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    return "\n".join(lines)


def names_it(keys: Mapping[str, Any], source: Source, role: str, act: Act) -> bool:
    """The language once more, read straight from the page."""
    default = "here" if keys["decision"] == "allow" else "any"
    target = keys.get("target", default)
    return (
        (act.risk is None) is ("commands" in keys)
        and any(fnmatchcase(act.name, glob) for glob in keys.get("commands", keys.get("tools", ["*"])))
        and ("risks" not in keys or act.risk in keys["risks"])
        and ("roles" not in keys or role in keys["roles"])
        and ("scenes" not in keys or source.scene.kind in keys["scenes"])
        and ("chats" not in keys or str(source.scene) in keys["chats"])
        and ("users" not in keys or source.user in keys["users"])
        and (target == "any" or (target == "here") is act.here)
        and ("tainted" not in keys or keys["tainted"] is act.tainted)
    )


@given(FILES, SOURCES, ACTS)
@settings(max_examples=200, deadline=None)
def test_a_clean_act_gets_the_first_block_that_names_it(blocks: list[dict[str, Any]], source: Source, act: Act) -> None:
    """The compiled rules say what a plain reading of the file says."""
    clean = Act(act.name, act.risk, act.here)
    role = role_here(source.role, source.scene.kind)
    expected = next((str(n) for n, keys in enumerate(blocks) if names_it(keys, source, role, clean)), "default")
    assert policy(written(blocks)).decide(source, clean).rule == expected


@given(FILES, SOURCES, ACTS)
@settings(max_examples=200, deadline=None)
def test_the_floor_holds_under_any_file(blocks: list[dict[str, Any]], source: Source, act: Act) -> None:
    """Whatever is written: no credentials, no unasked exec by others, nothing for bots, nothing gained by taint."""
    whole = compose(parse(written(blocks), "x"), (), shipped())
    verdict = whole.decide(source, act)
    clean = whole.decide(source, Act(act.name, act.risk, act.here))
    assert verdict.rule
    assert verdict.sentence
    assert verdict.decision.strictness >= clean.decision.strictness
    if act.name in ("qq_get_cookies", "qqCallApi") or source.role is Role.BOT:
        assert verdict.decision is DENY
    if act.risk is Risk.EXEC and source.role is not Role.OPERATOR:
        assert verdict.decision is not ALLOW
    if act.risk in (Risk.MODERATE, Risk.EXEC) and act.tainted:
        assert verdict.decision is not ALLOW
    if source.role is Role.ANONYMOUS and (not act.here or act.risk in (Risk.WRITE, Risk.MODERATE, Risk.EXEC)):
        assert verdict.decision is DENY or act.risk is None


# -- files ---------------------------------------------------------------------------------------------------


def test_the_operators_rules_stand_first_and_the_kernels_last() -> None:
    """Operator, then plugins, then kernel; the guards of all three hold at once."""
    names = ("operator", "plugin", "kernel")
    sheets = [
        parse(block(name, "deny", 'tools = "x"') + guard(f"g{name}", "deny", f'tools = "g{name}"'), "x")
        for name in names
    ]
    whole = compose(sheets[0], [sheets[1]], sheets[2])
    assert [rule.verdict.rule for rule in whole.rules] == list(names)
    for name in names:
        assert whole.decide(who(), Act(f"g{name}", Risk.READ)).rule == f"g{name}"


def test_the_operators_exception_wins_but_no_guard_falls(tmp_path: Path) -> None:
    """A line in the data folder opens what the defaults deny, and not what a guard forbids."""
    file = tmp_path / "policy.toml"
    file.write_text(block("mine", "allow", 'tools = "*"\nusers = 20002'), "utf-8")
    loaded = load(file, ())
    assert loaded.problem == ""
    assert loaded.policy.decide(who(), Act("x", Risk.MODERATE)).rule == "mine"
    assert loaded.policy.decide(who(user="3"), Act("x", Risk.MODERATE)).rule == "moderate-rest"
    assert loaded.policy.decide(who(), Act("x", Risk.EXEC)).rule == "exec-asks"
    assert loaded.policy.decide(who(), Act("x_get_cookies", Risk.READ)).rule == "never"


@pytest.mark.parametrize("content", [None, b"", b"\n# nothing yet\n", b"\xef\xbb\xbf"])
def test_an_absent_or_empty_file_means_the_defaults(tmp_path: Path, content: bytes | None) -> None:
    """No file, an empty one, one with a comment or just a byte order mark."""
    file = tmp_path / "policy.toml"
    if content is not None:
        file.write_bytes(content)
    loaded = load(file, ())
    assert loaded.problem == ""
    assert loaded.policy == compose(Sheet(), (), shipped())


@pytest.mark.parametrize(
    ("content", "told"),
    [(b"\n[[rule]\n", ":2: "), ("# ok\n# 管理\n".encode("gbk"), ":2: this is not UTF-8"), (None, "cannot be read")],
)
def test_a_broken_file_closes_all_tools_and_no_command(tmp_path: Path, content: bytes | None, told: str) -> None:
    """Wrong, not UTF-8 or not a file: one sentence for the operator, commands as ever, no tool for anybody."""
    file = tmp_path / "policy.toml"
    if content is None:
        file.mkdir()
    else:
        file.write_bytes(content)
    loaded = load(file, [parse(block("plugin", "allow", 'target = "any"'), "x")])
    assert loaded.problem.startswith(str(file))
    assert told in loaded.problem
    for role, risk in product(Role, Risk):
        verdict = loaded.policy.decide(who(role), Act("time_now", risk))
        assert verdict.decision is DENY
        assert verdict.rule in ("locked", "bot", "anonymous-harmless")
    assert loaded.policy.decide(who(), Act("output_send__qq_help", Risk.READ)).rule == "locked"
    assert loaded.policy.decide(who(), Act.command("/help", own=False)).decision is ALLOW
    assert loaded.policy.decide(who(), Act.command("/stop", own=True)).decision is ALLOW
    assert loaded.policy.decide(who(), Act.command("/stop", own=False)).decision is DENY
    assert loaded.policy.decide(who(Role.OPERATOR), Act.command("/policy", own=False)).decision is ALLOW


GOOD = block("good", "allow")  # five lines, and an empty one when joined
WRONG: dict[str, tuple[str, tuple[str, ...]]] = {
    "a = = 1": ("1", ("not valid TOML", "quotes")),
    GOOD + '[[rule]]\nname = "b': ("7", ("not valid TOML",)),
    'x = """abc\n\n\n': ("1", ("not valid TOML",)),
    f"{GOOD}[[rule]]\nusers = {'9' * 5000}": ("7", ("not valid TOML",)),
    GOOD + block("b", "allow", '\nrole = "admin"'): ("11", ("rule 'b'", "'role'", "did you mean 'roles'?")),
    block("b", "allow", "version = 1"): ("5", ("unknown key 'version'",)),
    GOOD + '[[rules]]\nname = "x"': ("6", ("'rules'", "did you mean 'rule'?")),
    '\nversion = "1"\n': ("2", ("unknown table 'version'", "[[rule]]")),
    '\n[rule]\nname = "x"': ("2", ("[[rule]]",)),
    'rule = "x"': ("1", ("[[rule]]",)),
    "rule = [1]": ("1", ("[[rule]]",)),
    GOOD + '[[guard]]\nname = "g"\nbecause = "x"': ("6", ("guard 'g'", "no 'decision'", "add it")),
    '[[rule]]\nname = "a"\nbecause = "x"\n' + GOOD: ("1", ("rule 'a' has no 'decision'",)),
    '[[rule]]\nname = "a"\ndecison = "deny"\nbecause = "x"': ("3", ("did you mean 'decision'?",)),
    '[[rule]]\ndecision = "deny"\nbecause = "x"': ("1", ("rule 1 has no 'name'",)),
    GOOD + block("b", "permit"): ("8", ("rule 'b'", "'permit'", "'allow', 'ask' or 'deny'")),
    GOOD + block("b", "allow", 'roles = ["member",\n  "admn"]'): ("10", ("rule 'b'", "'admn'", "'admin'")),
    block("b", "allow", "roles = []"): ("5", ("empty 'roles'", "leave the key out")),
    block("b", "allow", 'tools = "/stop"'): ("5", ("'/stop' fits no tool",)),
    block("b", "allow", 'tools = "踢人"'): ("5", ("'踢人' fits no tool",)),
    block("b", "allow", 'commands = "stop"'): ("5", ("'stop' fits no command", "/")),
    block("b", "allow", 'commands = "/stop"\nrisks = "read"'): ("1", ("rule 'b'", "not for both")),
    block("b", "allow", 'commands = "/stop"\ntools = "x"'): ("1", ("rule 'b'", "not for both")),
    block("b", "allow", "users = true"): ("5", ("users", "such as 10001")),
    block("b", "allow", "users = 1.5"): ("5", ("users", "such as 10001")),
    block("b", "allow", "users = -1"): ("5", ("users", "such as 10001")),
    block("b", "allow", 'chats = "gruop:10001"'): ("5", ("chats", "group:10001")),
    block("b", "allow", 'chats = "group:"'): ("5", ("chats", "such as 10001")),
    block("b", "allow", 'tainted = "no"'): ("5", ("tainted", "boolean")),
    block("b", "allow", 'target = "there"'): ("5", ("'there'", "'here', 'other' or 'any'")),
    guard("g", "allow"): ("3", ("guard 'g'", "ask or deny")),
    '[[rule]]\nname = "b"\ndecision = "deny"\nbecause = " "': ("4", ("rule 'b'", "one line")),
    '[[rule]]\nname = "b"\ndecision = "deny"\nbecause = """x\ny"""': ("4", ("rule 'b'", "one line")),
    GOOD + guard("good", "deny"): ("7", ("'good' is taken", "guard")),
    block("default", "deny"): ("2", ("'default' is taken",)),
    block("locked", "deny"): ("2", ("'locked' is taken",)),
}


@pytest.mark.parametrize("text", WRONG, ids=range(len(WRONG)))
def test_a_wrong_file_is_explained_by_line(text: str) -> None:
    """`file:line`, what is wrong and what to write, in one line."""
    line, parts = WRONG[text]
    with pytest.raises(ConfigError) as caught:
        parse(text, "data/policy.toml")
    message = str(caught.value)
    assert message.startswith(f"data/policy.toml:{line}: ")
    assert [part for part in parts if part not in message] == []
    assert len(message.splitlines()) == 1


def test_the_first_of_several_faults_is_told() -> None:
    """Faults are told from the top of the file, rules and guards alike."""
    text = guard("g", "allow") + block("b", "permit")
    with pytest.raises(ConfigError, match=r"^x:3: "):
        parse(text, "x")
