"""The default policy, asked everything, against a table that was written by hand and not by the code."""

from itertools import product
from pathlib import Path

import pytest

import kernel
from kernel.policy import Act, Decision, Loaded, Policy, compose, load, parse, read, shipped
from kernel.source import Role, Scene, SceneKind, Source
from kernel.tools import Risk

GROUP, PRIVATE, TEMP = (
    Scene(SceneKind.GROUP, "10001"),
    Scene(SceneKind.PRIVATE, "20002"),
    Scene(SceneKind.TEMP, "20002"),
)

SUBJECTS = {
    "O": (Role.OPERATOR, GROUP),
    "P": (Role.OPERATOR, PRIVATE),
    "W": (Role.OWNER, GROUP),
    "A": (Role.ADMIN, GROUP),
    "M": (Role.MEMBER, GROUP),
    "F": (Role.FRIEND, PRIVATE),
    "S": (Role.STRANGER, PRIVATE),
    "T": (Role.ADMIN, TEMP),  # a group admin in a temp chat: no power there
    "N": (Role.ANONYMOUS, GROUP),
    "B": (Role.BOT, GROUP),
}

# + allow, ? ask, - deny. First block: the target is the chat that asked; second: another chat.
TOOLS = """
                                            here        elsewhere
tool                              risk      OPWAMFSTNB  OPWAMFSTNB
time_now                          read      ++++++++--  ++--------
remember_fact                     write     ++++++----  ++--------
undeclared_tool                   exec      ++--------  ++--------
plugin_warns_member               moderate  ++++------  ++--------

output_send__qq                   send      ++++++++--  ++--------
output_send__qq_help              read      +++++++++-  ++--------

qq_call_state                     read      ++--------  ++--------
qq_get_group_list                 read      ++--------  ++--------
qq_get_friend_list                read      ++--------  ++--------
qq_get_recent_contact             read      ++--------  ++--------
qq_get_stranger_info              read      ++--------  ++--------
qq_get_group_member_list          read      ++++------  ++--------
qq_some_future_read               read      ++--------  ++--------

qq_get_msg                        read      ++++++----  ++--------
qq_get_forward_msg                read      ++++++----  ++--------
qq_get_group_msg_history          read      ++++++----  ++--------
qq_get_friend_msg_history         read      ++++++----  ++--------
qq_get_group_member_info          read      ++++++----  ++--------
qq_get_group_info                 read      ++++++----  ++--------
qq_get_group_notice               read      ++++++----  ++--------
qq__get_group_notice              read      ++++++----  ++--------
qq_get_essence_msg_list           read      ++++++----  ++--------
qq_get_group_root_files           read      ++++++----  ++--------
qq_get_group_files_by_folder      read      ++++++----  ++--------
qq_get_group_file_system_info     read      ++++++----  ++--------
qq_get_group_file_url             read      ++++++----  ++--------
qq_ocr_image                      read      ++++++----  ++--------

qq_send_msg                       send      ++++++++--  ++--------
qq_send_poke                      send      ++++++++--  ++--------
qq_set_msg_emoji_like             send      ++++++++--  ++--------
qq_recall_own                     send      ++++++++--  ++--------
qq_send_group_forward_msg         send      ++++++----  ++--------
qq_send_private_forward_msg       send      ++++++----  ++--------
qq_forward_group_single_msg       send      ++++++----  ++--------
qq_send_record                    send      ++++++----  ++--------
qq_send_group_ai_record           send      ++++++----  ++--------
qq_send_file                      send      ++++++----  ++--------
qq_send_at_all                    send      ++++------  ++--------

qq_set_group_ban                  moderate  ++++------  ++--------
qq_delete_msg                     moderate  ++++------  ++--------
qq_set_group_card                 moderate  ++++------  ++--------
qq_set_essence_msg                moderate  ++++------  ++--------
qq_send_group_notice              moderate  ++++------  ++--------
qq_set_group_add_request          moderate  ++++------  ++--------

qq_set_group_kick                 exec      ????------  ??--------
qq_set_group_kick_members         exec      ????------  ??--------
qq_set_group_whole_ban            exec      ??--------  ??--------
qq_set_group_admin                exec      ??--------  ??--------
qq_set_group_name                 exec      ??--------  ??--------
qq_set_group_leave                exec      ??--------  ??--------
qq_upload_group_file              exec      ??--------  ??--------
qq_upload_private_file            exec      ++--------  ++--------
qq_set_friend_add_request         exec      ++--------  ++--------
qq_delete_friend                  exec      ++--------  ++--------
qq_set_qq_profile                 exec      ++--------  ++--------
"""

# First block: the asker's own turn or conversation; second: not his own, in his chat.
COMMANDS = """
            own         not own
            OPWAMFSTNB  OPWAMFSTNB
/help       +++++++++-  +++++++++-
/status     +++++++++-  +++++++++-
/stop       ++++++++--  ++++------
/why        ++++++++--  ++++------
/reset      ++++++++--  ++++------
/bot        ++--------  ++--------
/policy     ++--------  ++--------
"""

# Nobody, in any class, in any chat, in any spelling.
NEVER = [
    "get_cookies",
    "get_credentials",
    "get_csrf_token",
    "get_clientkey",
    "nc_get_rkey",
    "get_rkey",
    "send_packet",
    "set_restart",
    "bot_exit",
    "clean_cache",
    "handle_quick_operation",
    "download_file",
    "upload_file_stream",
    "download_file_stream",
    "download_file_image_stream",
    "test_download_stream",
    "call_api",
]

LETTERS = {"+": Decision.ALLOW, "?": Decision.ASK, "-": Decision.DENY}
TAINTABLE = ("moderate", "exec")


def default_policy() -> Policy:
    qq = Path(kernel.__file__).parent.parent / "plugins" / "qq" / "policy.toml"
    assert qq.is_file()
    match load(Path("/nonexistent/policy.toml"), [read(qq)]):
        case Loaded(policy, ""):
            return policy
        case Loaded(_, problem):
            raise AssertionError(problem)


POLICY = default_policy()


def source(subject: str, name: str = "") -> Source:
    role, scene = SUBJECTS[subject]
    return Source("qq", "1000", scene, "20002", role, name)


def rows(table: str, width: int) -> list[list[str]]:
    """The lines of a table that have all columns and are no heading."""
    lines = [line.split() for line in table.splitlines()]
    return [line for line in lines if len(line) == width and set(line[-1]) <= set(LETTERS)]


def cells(here: str, elsewhere: str) -> list[tuple[str, bool, str]]:
    """Subject, here or not, the letter."""
    assert len(here) == len(elsewhere) == len(SUBJECTS)
    both = ((True, here), (False, elsewhere))
    return [(who, target, letter) for target, row in both for who, letter in zip(SUBJECTS, row, strict=True)]


@pytest.mark.parametrize(("tool", "risk", "here", "elsewhere"), rows(TOOLS, 4))
def test_a_tool_is_decided_as_the_table_says(tool: str, risk: str, here: str, elsewhere: str) -> None:
    """Every subject and target gets the table's decision, with a rule's name and a sentence."""
    for who, target, letter in cells(here, elsewhere):
        verdict = POLICY.decide(source(who), Act(tool, Risk(risk), here=target))
        assert verdict.decision is LETTERS[letter], (who, target, verdict)
        assert verdict.rule
        assert verdict.sentence.endswith("。")


@pytest.mark.parametrize(("tool", "risk", "here", "elsewhere"), rows(TOOLS, 4))
def test_taint_turns_dangerous_permissions_into_questions(tool: str, risk: str, here: str, elsewhere: str) -> None:
    """In a tainted turn moderate and exec are asked where they were allowed; the rest of the table stands."""
    for who, target, letter in cells(here, elsewhere):
        expected = "?" if letter == "+" and risk in TAINTABLE else letter
        verdict = POLICY.decide(source(who), Act(tool, Risk(risk), here=target, tainted=True))
        assert verdict.decision is LETTERS[expected], (who, target, verdict)


@pytest.mark.parametrize(("tool", "risk", "here", "elsewhere"), rows(TOOLS, 4))
def test_a_tool_is_shown_where_some_target_is_not_denied(tool: str, risk: str, here: str, elsewhere: str) -> None:
    """The model is told of a tool exactly when the table has more than a denial for the subject."""
    for who, one, other in zip(SUBJECTS, here, elsewhere, strict=True):
        for tainted in (True, False):
            shown = POLICY.shows(source(who), tool, Risk(risk), tainted=tainted)
            assert shown is (one + other != "--"), who


@pytest.mark.parametrize(("command", "own", "others"), rows(COMMANDS, 3))
def test_a_command_is_decided_as_the_table_says(command: str, own: str, others: str) -> None:
    """The commands' own permissions, for every subject."""
    for who, mine, letter in cells(own, others):
        verdict = POLICY.decide(source(who), Act.command(command, own=mine))
        assert verdict.decision is LETTERS[letter], (who, mine, verdict)
        assert verdict.sentence.endswith("。")


def spellings(name: str) -> set[str]:
    words = name.split("_")
    camel = words[0] + "".join(map(str.title, words[1:]))
    plain = {name, name.upper(), name.replace("_", "-"), name.replace("_", ""), camel, "_" + name, f"nc__{name}"}
    return plain | {f"qq_{one}" for one in plain} | {f"mcp-{one}" for one in plain}


@pytest.mark.parametrize("name", NEVER)
def test_nobody_gets_what_nobody_may_have(name: str) -> None:
    """Credentials, restarts and raw calls: denied to all, operator included, by the guard's own word."""
    for spelling, who, risk, here, tainted in product(spellings(name), SUBJECTS, Risk, (True, False), (True, False)):
        verdict = POLICY.decide(source(who), Act(spelling, risk, here, tainted))
        assert verdict.decision is Decision.DENY, (spelling, who)
    assert POLICY.decide(source("O"), Act(name, Risk.READ)).rule == "never"
    assert POLICY.decide(source("M"), Act(name, Risk.EXEC)).rule == "never"


def test_streams_of_the_gateway_are_closed_to_all() -> None:
    """A `*_stream` action would close the connection, whatever its name will be."""
    for spelling in ("qq_anything_stream", "qq-anythingStream"):
        assert POLICY.decide(source("O"), Act(spelling, Risk.READ)).rule == "qq-streams"


TOLD = {
    ("N", Act.command("/stop", own=True)): "commands-anonymous",
    ("M", Act.command("/why", own=False)): "turn-others",
    ("M", Act.command("/reset", own=False)): "conversation-others",
    ("A", Act.command("/bot", own=True)): "commands-rest",
    ("N", Act("time_now", Risk.READ)): "anonymous",
    ("A", Act("output_send__qq", Risk.SEND, here=False)): "elsewhere",
    ("S", Act("remember_fact", Risk.WRITE)): "write-rest",
    ("T", Act("qq_set_group_ban", Risk.MODERATE)): "moderate-rest",
    ("M", Act("undeclared_tool", Risk.EXEC)): "exec-rest",
    ("M", Act("qq_set_group_kick", Risk.EXEC)): "qq-kick-rest",
    ("S", Act("qq_call_state", Risk.READ)): "qq-read-rest",
    ("S", Act("qq_send_file", Risk.SEND)): "qq-send-heavy-rest",
    ("M", Act("qq_send_at_all", Risk.SEND)): "qq-at-all-rest",
    ("B", Act("time_now", Risk.READ)): "bot",
    ("A", Act("qq_set_group_ban", Risk.MODERATE, tainted=True)): "tainted-asks",
    ("A", Act("qq_set_group_kick", Risk.EXEC)): "qq-kick",
}


@pytest.mark.parametrize(("who", "act"), TOLD, ids=TOLD.values())
def test_a_refusal_says_why(who: str, act: Act) -> None:
    """What is not allowed is told by the rule that knows the reason, never by the bare default."""
    verdict = POLICY.decide(source(who), act)
    assert verdict.decision is not Decision.ALLOW
    assert verdict.rule == TOLD[who, act]


def test_a_name_is_no_evidence() -> None:
    """A card that says 群主 or operator changes no verdict."""
    for who, risk, here in product(SUBJECTS, Risk, (True, False)):
        act = Act("qq_set_group_kick", risk, here)
        plain = POLICY.decide(source(who), act)
        assert all(POLICY.decide(source(who, name), act) == plain for name in ("群主", "operator", "20002"))


def open_to_all() -> Policy:
    """The worst file that an operator can write."""
    everything = parse('[[rule]]\nname = "x"\ndecision = "allow"\nbecause = "y"\ntarget = "any"', "x")
    return compose(everything, (), shipped())


def test_an_anonymous_speaker_never_gets_beyond_a_stranger() -> None:
    """His id is shared by all who are anonymous: at most he reads and sends here, whatever the file says."""
    for risk, here in product(Risk, (True, False)):
        verdict = open_to_all().decide(source("N"), Act("some_tool", risk, here))
        assert (verdict.decision is Decision.ALLOW) is (here and risk in (Risk.READ, Risk.SEND)), (risk, here)


def test_the_floor_for_dangerous_calls_knows_every_role() -> None:
    """The guard on exec lists roles; one that is added later must be listed too, or this fails."""
    policy = open_to_all()
    for role, scene in product(Role, (GROUP, PRIVATE, TEMP)):
        subject = Source("qq", "1000", scene, "20002", role)
        verdict = policy.decide(subject, Act("some_tool", Risk.EXEC))
        assert (verdict.decision is Decision.ALLOW) is (role is Role.OPERATOR), (role, scene)
