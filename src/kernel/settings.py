"""The settings: one frozen tree, read from `.env` and the environment; forgiving in form, one sentence if wrong."""

import difflib
import io
import ipaddress
import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any, Self

from dotenv import dotenv_values
from dotenv.parser import parse_stream
from pydantic import (
    AfterValidator,
    AnyUrl,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    SecretStr,
    ValidationError,
    ValidationInfo,
)

from kernel.errors import ConfigError
from kernel.mailbox import Waits
from kernel.retention import Keeping

# -- values as people write them -----------------------------------------------------------------------------

_QUOTED = re.compile(r"""\s*(?:"([^"]*)"|'([^']*)'|“([^”]*)”)\s*""")
_COMMAS = re.compile(r"[,，、;；]")
_GAPS = re.compile(r"[,，、;；\s]+")
_TOKEN = re.compile(r"[!-~]*")
_LEVELS = ("TRACE", "DEBUG", "INFO", "SUCCESS", "WARNING", "ERROR", "CRITICAL")


def _bare(text: str) -> str:
    """Without the spaces and the one pair of quotes that people leave around a value."""
    quoted = _QUOTED.fullmatch(text)
    return (quoted[quoted.lastindex or 0] if quoted else text).strip()


def _items(text: str, gap: re.Pattern[str]) -> list[object]:
    """A list as JSON, which may hold an empty word, or as bare words with any of our commas."""
    if text.startswith("["):
        try:
            items = json.loads(text)
        except ValueError:
            text = text[1:].removesuffix("]")
        else:
            return [str(item) if isinstance(item, int) else item for item in items]
    items = [item for piece in gap.split(text) if (item := _bare(piece))]
    if not items:
        raise ValueError("there is nothing in it")
    return items


def _words(value: object) -> object:
    return _items(value, _GAPS) if isinstance(value, str) else value


def _paths(value: object) -> object:
    return _items(value, _COMMAS) if isinstance(value, str) else value


def _switch(value: object) -> object:
    return {"是": True, "开": True, "否": False, "关": False}.get(value, value) if isinstance(value, str) else value


def _level(value: object) -> object:
    level = str(value).upper()
    level = "WARNING" if level == "WARN" else level
    return level if level in _LEVELS else int(level)


def _address(text: str) -> str:
    """NoneBot binds to an address only, never to a name."""
    return str(ipaddress.ip_address("127.0.0.1" if text.lower() == "localhost" else text.strip("[]")))


def _url(*schemes: str) -> AfterValidator:
    starts = tuple(f"{scheme}://" for scheme in schemes)

    def check(text: str) -> str:
        if not text.startswith(starts) or text.split() != [text]:
            raise ValueError("not such an address")
        AnyUrl(text)  # what NoneBot will make of it: raises for a bad host or port
        return text

    return AfterValidator(check)


def _base(text: str) -> str:
    return text.rstrip("/")


def _one_token(secret: SecretStr) -> SecretStr:
    """It has to pass through an HTTP header."""
    if not _TOKEN.fullmatch(secret.get_secret_value()):
        raise ValueError("not one token")
    return secret


def _place(path: Path, info: ValidationInfo) -> Path:
    """Where a path leads, seen from the folder that the settings were read in."""
    try:
        path = path.expanduser()
    except RuntimeError as error:
        raise ValueError("no such home") from error
    return Path(info.context or "", path)


def _folder(path: Path) -> Path:
    if not path.is_dir():
        raise ValueError("no such folder")
    return path


Number = Annotated[str, Field(pattern=r"^[1-9][0-9]*$")]
Socket = Annotated[str, _url("ws", "wss")]
Secret = Annotated[SecretStr, AfterValidator(_one_token)]
Place = Annotated[Path, AfterValidator(_place)]
Folder = Annotated[Place, AfterValidator(_folder)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Switch = Annotated[bool, BeforeValidator(_switch)]


# -- where they stand ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Found:
    """A value as it was written, and where."""

    text: str
    where: str


def _dotenv(path: Path) -> dict[str, Found]:
    """The lines of a file, if there is one. A line that dotenv would skip may be a token: it is refused."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path.name} cannot be read ({error}): save it as readable UTF-8 text") from None
    lines: dict[str, int] = {}
    for binding in parse_stream(io.StringIO(text)):
        written = binding.original.string
        line = binding.original.line + written[: len(written) - len(written.lstrip())].count("\n")
        if binding.error or (binding.key and binding.value is None):
            raise ConfigError(f"{path.name} line {line} is not a setting: write NAME=value, or # before a comment")
        if binding.key:
            lines[binding.key] = line
    values = dotenv_values(stream=io.StringIO(text))
    return {key.upper(): Found(_bare(values[key] or ""), f"{path.name} line {line}") for key, line in lines.items()}


def _find(environ: Mapping[str, str], cwd: Path) -> dict[str, Found]:
    """What is set, looked for as NoneBot does: `.env`, `.env.prod` (or what ENVIRONMENT says), the environment.

    The later wins; names are read in either case, and what is left empty is not set.
    """
    given = {key.upper(): Found(_bare(text), "environment") for key, text in environ.items()}
    base = _dotenv(cwd / ".env")
    stage = (base | given).get("ENVIRONMENT", Found("prod", "")).text
    found = base | _dotenv(cwd / f".env.{stage}") | given
    return {key: value for key, value in found.items() if value.text}


# -- the tree ------------------------------------------------------------------------------------------------

UNNAMED = "default"
"""The model that is asked for when none is named."""

_NONEBOT = frozenset(
    {
        "host",
        "port",
        "onebot_access_token",
        "superusers",
        "nickname",
        "command_start",
        "log_level",
        "onebot_ws_urls",
    }
)


def _key(field: str) -> str:
    return field.upper() if field in _NONEBOT else f"QIWO_{field.upper()}"


class _Masked(str):
    """NoneBot logs its whole configuration at DEBUG: a secret stands there as stars."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "'***'"


class Settings(BaseModel):
    """Every setting, with its default; the description says what to write. Fields are keys without their QIWO_."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", hide_input_in_errors=True, alias_generator=_key, populate_by_name=True
    )

    host: Annotated[str, AfterValidator(_address)] = Field(
        "127.0.0.1", description="an IP address to listen on, such as 127.0.0.1 or 0.0.0.0"
    )
    port: int = Field(8080, ge=1, le=65535, description="a port from 1 to 65535, such as 8080")
    onebot_access_token: Secret = Field(SecretStr(""), description="a token of ASCII letters and digits, no spaces")
    superusers: Annotated[frozenset[Number], BeforeValidator(_words)] = Field(
        frozenset(), description="QQ numbers, such as 10001,10002"
    )
    nickname: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field((), description="names, such as 企窝,小窝")
    command_start: Annotated[tuple[str, ...], BeforeValidator(_words)] = Field(
        ("/",), description='prefixes, such as / or ["/", ""]'
    )
    log_level: Annotated[int | str, BeforeValidator(_level)] = Field(
        "INFO", description=f"a number or one of {', '.join(_LEVELS)}"
    )
    onebot_ws_urls: Annotated[tuple[Socket, ...], BeforeValidator(_words)] = Field(
        (), repr=False, description="addresses that begin with ws:// or wss://, such as ws://127.0.0.1:3001"
    )
    model_url: Annotated[str, _url("http", "https"), AfterValidator(_base)] = Field(
        "",
        repr=False,
        description="an address that begins with http:// or https://, such as https://api.deepseek.com",
    )
    model_key: Secret = Field(SecretStr(""), description="the key alone, ASCII and without spaces")
    model: str = Field("", description="the name of a model, such as deepseek-chat")
    model_timeout: Seconds = Field(120.0, description="seconds above 0, such as 120")
    data_dir: Place = Field(Path("data"), validate_default=True, description="a folder, such as data")
    plugin_dirs: Annotated[tuple[Folder, ...], BeforeValidator(_paths)] = Field(
        (), description="folders that exist, separated by commas"
    )
    max_steps: int = Field(12, ge=1, description="a whole number above 0, such as 12")
    tool_timeout: Seconds = Field(60.0, description="seconds above 0, such as 60")
    turn_timeout: Seconds = Field(300.0, description="seconds above 0, such as 300")
    hook_timeout: Seconds = Field(5.0, description="seconds above 0, such as 5")
    merge_window: float | None = Field(
        None, ge=0, le=60, allow_inf_nan=False, description="seconds from 0 to 60, such as 1.5; 0 merges nothing"
    )
    context_tokens: int = Field(8000, ge=1000, description="a whole number from 1000, such as 8000")
    keep_days: int | None = Field(None, ge=1, description="a whole number of days above 0, such as 90")
    files_mb: int = Field(2048, ge=1, description="a whole number of megabytes above 0, such as 2048")
    playground: Switch | None = Field(None, description="on or off")
    console_token: Secret = Field(SecretStr(""), description="a token of ASCII letters and digits, no spaces")
    warnings: tuple[str, ...] = Field((), alias="warnings")

    @classmethod
    def load(cls, environ: Mapping[str, str], cwd: Path) -> Self:
        """Read `.env` in `cwd` and the environment, which wins. Raises ConfigError for the first fault."""
        found = _find(environ, cwd)
        _check_model(found)
        given: dict[str, object] = {key: value.text for key, value in found.items() if key in KEYS}
        try:
            return cls.model_validate({**given, "warnings": _strangers(found) + _unnamed(found)}, context=cwd)
        except ValidationError as error:
            key = str(error.errors()[0]["loc"][0])
            raise _wrong(key, found[key]) from None

    @property
    def demo(self) -> bool:
        """No model is set: the demo model answers."""
        return not self.model_url

    @property
    def loopback(self) -> bool:
        """Only this machine can connect."""
        return ipaddress.ip_address(self.host).is_loopback

    @property
    def waits(self) -> Waits:
        """How long to wait for more words of the same sender."""
        return Waits() if self.merge_window is None else Waits.all(self.merge_window)

    @property
    def keeping(self) -> Keeping:
        """How long the record is kept, and how much room its files may take."""
        return Keeping(self.keep_days, self.files_mb * 1_000_000)

    @property
    def playground_on(self) -> bool:
        """By default only where a newcomer tries things out on his own machine."""
        return self.demo and self.loopback if self.playground is None else self.playground

    def nonebot(self) -> dict[str, Any]:
        """The arguments of `nonebot.init`, which win over what NoneBot reads itself."""
        token = _Masked(self.onebot_access_token.get_secret_value())
        return {
            "driver": "~fastapi+~httpx+~websockets",
            "host": self.host,
            "port": self.port,
            "superusers": set(self.superusers),
            "nickname": set(self.nickname),
            "command_start": set(self.command_start),
            "log_level": self.log_level,
            "onebot_access_token": token,
            "onebot_ws_urls": list(self.onebot_ws_urls),
            # The adapter prefers this name: without it an empty ONEBOT_ACCESS_TOKEN= in `.env` would beat a token
            # that was made, and everybody would be admitted.
            "onebot_v11_access_token": token,
            # NoneBot takes all of `.env` into its configuration: ours are covered there.
            "qiwo_model_key": _Masked(self.model_key.get_secret_value()),
            "qiwo_console_token": _Masked(self.console_token.get_secret_value()),
        }

    def normalise(self, environ: MutableMapping[str, str]) -> None:
        """Rewrite the lists in `os.environ` as JSON: NoneBot parses them before its arguments count.

        They are written even when unset, since an empty `SUPERUSERS=` in `.env` stops NoneBot too; the addresses
        also under the name that the adapter prefers.
        """
        lists = {
            "SUPERUSERS": sorted(self.superusers),
            "NICKNAME": self.nickname,
            "COMMAND_START": self.command_start,
            "ONEBOT_WS_URLS": self.onebot_ws_urls,
            "ONEBOT_V11_WS_URLS": self.onebot_ws_urls,
        }
        for key in [key for key in environ if key.upper() in lists]:
            del environ[key]
        environ.update({key: json.dumps(items) for key, items in lists.items()})


KEYS: Mapping[str, str] = MappingProxyType(
    {_key(field): field for field in Settings.model_fields if field != "warnings"}
)
"""Every key that is read, and its field."""


def server_options() -> dict[str, Any]:
    """The arguments of `nonebot.run`: a dead peer is noticed in 10 s (else 40), and exit waits 2 s for streams."""
    return {"ws_ping_interval": 5.0, "ws_ping_timeout": 5.0, "timeout_graceful_shutdown": 2}


# -- sentences -----------------------------------------------------------------------------------------------


def _wrong(key: str, found: Found) -> ConfigError:
    field = Settings.model_fields[KEYS[key]]
    said = "cannot be used" if field.annotation is SecretStr else f"is {_shown(found.text)}"
    return ConfigError(f"{key} ({found.where}) {said}: write {field.description}")


def _shown(text: str) -> str:
    """A value in a sentence: short, on one line, without what an address may hide."""
    text = re.sub(r"\?\S*", "?***", re.sub(r"//[^/\s]*@", "//***@", text))
    return json.dumps(text if len(text) <= 60 else f"{text[:60]}…", ensure_ascii=False)


def _check_model(found: Mapping[str, Found]) -> None:
    """A key or a name without an address is a slip: the demo would answer in their place."""
    for key in ("QIWO_MODEL", "QIWO_MODEL_KEY"):
        if key in found and "QIWO_MODEL_URL" not in found:
            what = Settings.model_fields["model_url"].description
            raise ConfigError(
                f"QIWO_MODEL_URL is not set, but {key} ({found[key].where}) is: write {what}, or unset both"
            )


def _unnamed(found: Mapping[str, Found]) -> tuple[str, ...]:
    """Local servers take any name, so that none is no error; others will say so themselves."""
    if "QIWO_MODEL_URL" in found and "QIWO_MODEL" not in found:
        return (f"QIWO_MODEL is not set: the server is asked for a model called {UNNAMED!r}",)
    return ()


def _strangers(found: Mapping[str, Found]) -> tuple[str, ...]:
    """A word on each key that looks like ours and is not."""
    return tuple(
        f"{key} ({value.where}) is not a setting" + (f"; did you mean {near[0]}?" if near else "")
        for key, value in found.items()
        if key not in KEYS and (key.startswith("QIWO_") or key.replace("ONEBOT_V11_", "ONEBOT_") in KEYS)
        for near in [difflib.get_close_matches(key, KEYS, 1)]
    )


# -- what is made at the first start -------------------------------------------------------------------------


@contextmanager
def _writing(settings: Settings) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise ConfigError(
            f"nothing can be written in {settings.data_dir} ({error.strerror}): "
            "let this user write there, or set QIWO_DATA_DIR to another folder"
        ) from error


def ensure_data_dir(settings: Settings) -> Path:
    """The data folder, made if need be and tried. Raises ConfigError if nothing can be written there."""
    with _writing(settings):
        settings.data_dir.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=settings.data_dir).close()
    return settings.data_dir


def ensure_token(settings: Settings) -> tuple[Settings, bool]:
    """Settings that never leave an open bind without a token, and whether a new one was made just now.

    A made token is kept in the data folder and used again at the next start.
    """
    if settings.loopback or settings.onebot_access_token:
        return settings, False
    with _writing(settings):
        token, made = _kept_token(settings.data_dir / "secrets" / "onebot_token")
    return settings.model_copy(update={"onebot_access_token": SecretStr(token)}), made


def _kept_token(file: Path) -> tuple[str, bool]:
    """The token in the file; or a new one, where there is none or what a crash left of it."""
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    file.parent.chmod(0o700)
    token = file.read_text("utf-8", "replace").strip() if file.is_file() else ""
    if token and _TOKEN.fullmatch(token):
        file.chmod(0o600)
        return token, False
    token = secrets.token_hex(24)
    handle, draft = tempfile.mkstemp(dir=file.parent)  # readable by its owner only, from its first byte
    with os.fdopen(handle, "w") as out:
        out.write(token)
    Path(draft).replace(file)
    return token, True


def ensure_console_token(settings: Settings) -> Settings:
    """Settings with a console token: the operator's own, or one for this process."""
    if settings.console_token:
        return settings
    return settings.model_copy(update={"console_token": SecretStr(secrets.token_urlsafe(24))})


def napcat_address(settings: Settings) -> str:
    """Where NapCat has to connect. An open bind does not tell by which name NapCat reaches this machine."""
    address = ipaddress.ip_address(settings.host)
    numeric = f"[{address}]" if address.version == 6 else str(address)
    host = "主机" if address.is_unspecified else numeric
    return f"ws://{host}:{settings.port}/onebot/v11/ws"


def napcat_line(settings: Settings) -> str:
    """What to enter in NapCat."""
    token = settings.onebot_access_token.get_secret_value() or "（留空）"
    return f"「WebSocket 客户端」 地址 {napcat_address(settings)} Token {token}"
