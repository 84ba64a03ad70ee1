"""Who may make the model call what: ordered rules, guards that only tighten, one sentence for every verdict.

The language of the files is described at the head of `policy.toml`, beside this module.
"""

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from fnmatch import translate
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StrictBool,
    ValidationError,
    field_validator,
    model_validator,
)
from pydantic_core import ErrorDetails

from kernel.errors import ConfigError
from kernel.source import Role, Scene, SceneKind, Source, least
from kernel.tools import Risk


class Decision(StrEnum):
    """What happens with an act. `ask`: only once somebody who may has approved it."""

    ALLOW = "allow"
    ASK = "ask"
    DENY = "deny"

    @property
    def strictness(self) -> int:
        return _STRICTNESS[self]


_STRICTNESS = {Decision.ALLOW: 0, Decision.ASK: 1, Decision.DENY: 2}


@dataclass(frozen=True, slots=True)
class Act:
    """What is about to be done. `risk` is None for a kernel command.

    `here`: the target is the chat that asked; for a command, the asker's own turn or conversation.
    """

    name: str
    risk: Risk | None
    here: bool = True
    tainted: bool = False

    @classmethod
    def command(cls, name: str, *, own: bool) -> Self:
        """A kernel command by its first name, with the slash."""
        return cls(name, None, here=own)


@dataclass(frozen=True, slots=True)
class Verdict:
    """The decision, whose word it is, and one sentence that model and user are told."""

    decision: Decision
    rule: str
    sentence: str


NO_RULE = Verdict(Decision.DENY, "default", "没有规则允许这样做。")


@dataclass(frozen=True, slots=True)
class When:
    """A rule's conditions. `situations` are the bits of those it holds in; empty `chats` or `users`: any."""

    names: re.Pattern[str]
    situations: int
    chats: frozenset[str]
    users: frozenset[str]

    def holds(self, situation: int, chat: str, user: str, name: str) -> bool:
        return (
            self.situations & situation != 0
            and (not self.chats or chat in self.chats)
            and (not self.users or user in self.users)
            and self.names.match(name) is not None
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """When it holds, its verdict stands. A guard is one too, whose verdict is never `allow`."""

    when: When
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Sheet:
    """The rules and guards of one file, in its order."""

    rules: tuple[Rule, ...] = ()
    guards: tuple[Rule, ...] = ()


@dataclass(frozen=True, slots=True)
class Policy:
    """The whole of it. Pure: the same question always gets the same answer."""

    rules: tuple[Rule, ...]
    guards: tuple[Rule, ...]

    def decide(self, source: Source, act: Act) -> Verdict:
        """The first rule that holds, tightened by every guard that holds; no rule: deny."""
        verdict = self._judge(source, act)
        if not act.tainted:
            return verdict
        # Whatever a file says, taint never loosens: the stricter of both answers stands.
        clean = self._judge(source, replace(act, tainted=False))
        return max(verdict, clean, key=lambda one: one.decision.strictness)

    def shows(self, source: Source, name: str, risk: Risk, *, tainted: bool) -> bool:
        """Whether the model is told of a tool: some target is not denied."""
        acts = (Act(name, risk, here, tainted) for here in (True, False))
        return any(self.decide(source, act).decision is not Decision.DENY for act in acts)

    def _judge(self, source: Source, act: Act) -> Verdict:
        situation, chat, user, name = _situation(source, act), str(source.scene), source.user, act.name
        holding = (rule.verdict for rule in self.rules if rule.when.holds(situation, chat, user, name))
        verdict, folded = next(holding, NO_RULE), _fold(name)
        for guard in self.guards:
            if guard.when.holds(situation, chat, user, folded):
                if guard.verdict.decision is Decision.DENY:
                    return guard.verdict  # even of what a rule denies: the guard's sentence says that nobody may
                if verdict.decision is Decision.ALLOW:
                    verdict = guard.verdict
        return verdict


# Every combination of what a rule can ask for, save names and ids, as one bit: to try a rule is one `&`.
_KINDS: tuple[Risk | None, ...] = (None, *Risk)
_EITHER = (True, False)
_SITUATIONS = {
    combination: 1 << number for number, combination in enumerate(product(_KINDS, Role, SceneKind, _EITHER, _EITHER))
}


def _situation(source: Source, act: Act) -> int:
    return _SITUATIONS[act.risk, standing(source), source.scene.kind, act.here, act.tainted]


_AT_HOME = {
    SceneKind.GROUP: (Role.OWNER, Role.ADMIN, Role.MEMBER),
    SceneKind.PRIVATE: (Role.FRIEND,),
    SceneKind.TEMP: (),
}


def standing(source: Source) -> Role:
    """The role that counts: whoever brings one from elsewhere, as an admin into a temp chat, is a stranger here."""
    if source.role is Role.OPERATOR or source.role in _AT_HOME[source.scene.kind]:
        return source.role
    return least((source.role, Role.STRANGER))


def _fold(name: str) -> str:
    """A name without its spelling: `qq_get_cookies`, `QQ-getCookies` and `qqGetCookies` are one to a guard."""
    return name.replace("_", "").replace("-", "").lower()


# -- putting files together ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Loaded:
    """A policy to work with, and what is wrong with the operator's file, or ""."""

    policy: Policy
    problem: str = ""


def compose(operator: Sheet, sources: Iterable[Sheet], defaults: Sheet) -> Policy:
    """The operator's rules stand before the plugins', these before the kernel's; the guards of all hold."""
    sheets = (operator, *sources, defaults)
    return Policy(
        rules=tuple(rule for sheet in sheets for rule in sheet.rules),
        guards=tuple(guard for sheet in sheets for guard in sheet.guards),
    )


def load(path: Path, sources: Iterable[Sheet]) -> Loaded:
    """The operator's file before the sheets of plugins and kernel; absent or empty: those alone; broken: locked."""
    defaults = shipped()
    try:
        return Loaded(compose(read(path), sources, defaults))
    except ConfigError as error:
        return Loaded(compose(LOCKED, (), defaults), str(error))


def shipped() -> Sheet:
    """The kernel's own rules and guards. Unlike `read` it cannot do without the file: there is no floor then."""
    path = Path(__file__).with_name("policy.toml")
    return parse(path.read_text("utf-8"), str(path))


def read(path: Path) -> Sheet:
    """A file's sheet; without a file an empty one. Raises ConfigError."""
    try:
        raw = path.read_bytes()
    except FileNotFoundError:
        return Sheet()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read ({error.strerror}); let this user read it") from None
    try:
        return parse(raw.decode("utf-8-sig"), str(path))
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: this is not UTF-8; save the file as UTF-8") from None


# -- the file language ---------------------------------------------------------------------------------------

T = TypeVar("T")


def _listed(value: object) -> object:
    """One value may stand without its brackets."""
    return value if isinstance(value, list) else [value]


def _ident(value: object) -> str:
    """An id as the rest of the kernel writes it: 010001, "10001" and 10001 are one."""
    text = str(value).strip()
    if type(value) not in (int, str) or not re.fullmatch(r"\w[\w.-]{0,99}", text):
        raise ValueError("an id is a number such as 10001")
    return str(int(text)) if text.isdecimal() else text


def _scene(value: object) -> Scene:
    """A bare id is a group's."""
    kind, _, ident = str(value).strip().rpartition(":") if isinstance(value, str) else ("", "", value)
    if kind and kind not in list(SceneKind):
        raise ValueError("a chat is written group:10001, private:20002 or temp:20002; a bare 10001 is a group")
    return Scene(SceneKind(kind or "group"), _ident(ident))


def _like(pattern: str, what: str) -> AfterValidator:
    def check(text: str) -> str:
        if not re.fullmatch(pattern, text):
            raise ValueError(f"{text!r} {what}")
        return text

    return AfterValidator(check)


Many = Annotated[tuple[T, ...], BeforeValidator(_listed), Field(min_length=1)]
Line = Annotated[str, _like(r"\s*\S.{0,198}", "must be one line of 1 to 200 characters")]
ToolGlob = Annotated[str, _like(r"[A-Za-z0-9_*?-]+", "fits no tool: write letters, digits, _ and -, with * and ?")]
CommandGlob = Annotated[str, _like(r"/\S+", "fits no command: these begin with /")]
Ident = Annotated[str, BeforeValidator(_ident)]
Chat = Annotated[Scene, BeforeValidator(_scene)]


class RuleBlock(BaseModel):
    """`[[rule]]`"""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Line
    decision: Decision
    because: Line
    tools: Many[ToolGlob] | None = None
    risks: Many[Risk] | None = None
    commands: Many[CommandGlob] | None = None
    roles: Many[Role] | None = None
    scenes: Many[SceneKind] | None = None
    chats: Many[Chat] | None = None
    users: Many[Ident] | None = None
    target: Literal["here", "other", "any"] | None = None
    tainted: StrictBool | None = None

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if self.commands and (self.tools or self.risks):
            raise ValueError("it is for commands or for tools, not for both; make two of it")
        return self


class GuardBlock(RuleBlock):
    """`[[guard]]`"""

    @field_validator("decision")
    @classmethod
    def _tightens(cls, decision: Decision) -> Decision:
        if decision is Decision.ALLOW:
            raise ValueError("a guard can only tighten; write ask or deny")
        return decision


class File(BaseModel):
    """A whole policy.toml."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rule: tuple[RuleBlock, ...] = ()
    guard: tuple[GuardBlock, ...] = ()


def parse(text: str, origin: str) -> Sheet:
    """The sheet that a policy.toml holds. Raises ConfigError: `origin:line`, what is wrong, what to do."""
    try:
        raw = tomllib.loads(text)
        file = File.model_validate(raw)
    except ValidationError as error:
        first = min(error.errors(include_url=False), key=lambda one: _urgency(text, one))
        raise ConfigError(f"{origin}:{_line_of(text, first['loc'])}: {_explain(first, raw)}") from None
    except ValueError as error:  # tomllib's, or Python's own about a number of thousands of digits
        raise ConfigError(
            f"{origin}:{_toml_line(text, str(error))}: not valid TOML: {error}; texts need quotes, lists brackets"
        ) from None
    _refuse_doubles(text, origin, file)
    return Sheet(
        rules=tuple(_rule(block, spelled=str) for block in file.rule),
        guards=tuple(_rule(block, spelled=_fold) for block in file.guard),
    )


def _rule(block: RuleBlock, spelled: Callable[[str], str]) -> Rule:
    names = map(spelled, block.commands or block.tools or ("*",))
    return Rule(_when(block, names), Verdict(block.decision, block.name, block.because))


def _when(block: RuleBlock, globs: Iterable[str]) -> When:
    # A permission reaches no other chat unless it says so; a restriction left open holds everywhere.
    target = block.target or ("here" if block.decision is Decision.ALLOW else "any")
    situations = product(
        (None,) if block.commands else block.risks or Risk,
        block.roles or Role,
        block.scenes or SceneKind,
        {"here": (True,), "other": (False,), "any": _EITHER}[target],
        _EITHER if block.tainted is None else (block.tainted,),
    )
    return When(
        names=re.compile("|".join(map(translate, globs))),
        situations=sum(_SITUATIONS[one] for one in set(situations)),
        chats=frozenset(map(str, block.chats or ())),
        users=frozenset(block.users or ()),
    )


_LOCK = RuleBlock(name="locked", decision=Decision.DENY, because="策略文件 policy.toml 有错，改好之前只有命令可用。")
LOCKED = Sheet(rules=(_rule(_LOCK, spelled=str),))
"""What stands before everything while the operator's file is broken: no tool for anybody, commands as ever."""


# -- saying what is wrong with a file ------------------------------------------------------------------------


def _refuse_doubles(text: str, origin: str, file: File) -> None:
    """A verdict names its rule, so a name must lead to one place."""
    names = {NO_RULE.rule, _LOCK.name}
    for kind, blocks in (("rule", file.rule), ("guard", file.guard)):
        for number, block in enumerate(blocks):
            if block.name in names:
                line = _line_of(text, (kind, number, "name"))
                raise ConfigError(f"{origin}:{line}: the name {block.name!r} is taken; give this {kind} another")
            names.add(block.name)


def _urgency(text: str, error: ErrorDetails) -> tuple[int, bool, int]:
    """The topmost block's fault first; in it a misspelt key before the one that is missing because of it."""
    return _line_of(text, error["loc"][:2]), error["type"] == "missing", _line_of(text, error["loc"])


def _explain(error: ErrorDetails, raw: dict[str, Any]) -> str:
    """One sentence: which block, which key, what to write."""
    kind, number, key = (*map(str, error["loc"]), "", "", "")[:3]
    match error["type"]:
        case "extra_forbidden" if not number:
            return f"unknown table {kind!r}{_hint(kind, File)}; a block starts with [[rule]] or [[guard]]"
        case "tuple_type" | "model_type" if not key:
            return f"a {kind} starts with [[{kind}]], two brackets on each side"
    block = f"{kind} {_name_of(raw[kind][int(number)]) or int(number) + 1}"
    match error["type"]:
        case "missing":
            return f"{block} has no {key!r}; add it"
        case "extra_forbidden":
            return f"{block} has an unknown key {key!r}{_hint(key, RuleBlock)}; correct it or take it out"
        case "too_short":
            return f"{block} has an empty {key!r}; leave the key out to mean any"
        case "value_error":
            return ": ".join(filter(None, (block, key, str(error["msg"]).removeprefix("Value error, "))))
        case _:
            return f"{block}: {key} = {error['input']!r}: {error['msg']}"


def _name_of(block: object) -> str:
    return repr(block["name"]) if isinstance(block, dict) and "name" in block else ""


def _hint(word: str, model: type[BaseModel]) -> str:
    close = difflib.get_close_matches(word, model.model_fields, n=1)
    return f" (did you mean {close[0]!r}?)" if close else ""


def _line_of(text: str, loc: tuple[int | str, ...]) -> int:
    """The line of a key, else of its block, else of its table's first mention, else 1."""
    kind, number, key = (*loc, 0, "")[:3]
    lines = text.split("\n")
    heads = [at for at, line in enumerate(lines) if re.match(rf"\s*\[*\s*{re.escape(str(kind))}\s*[\]=]", line)]
    if not heads:
        return 1
    head = heads[min(int(number), len(heads) - 1)]
    for at in range(head + 1, len(lines)):
        if re.match(r"\s*\[\[", lines[at]):
            break
        if key and re.match(rf"""\s*["']?{re.escape(str(key))}["']?\s*=""", lines[at]):
            return at + 1
    return head + 1


def _toml_line(text: str, message: str) -> int:
    """tomllib says the line in words, or that the document ended."""
    found = re.search(r"at line (\d+)", message)
    return int(found[1]) if found else text.rstrip().count("\n") + 1
