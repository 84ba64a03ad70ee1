"""Settings: forgiving in form, one sentence when wrong, and NoneBot starts with them."""

import io
import json
import os
import re
import stat
import subprocess
import sys
import traceback
from pathlib import Path

import pytest
import uvicorn
from dotenv import dotenv_values
from pydantic import SecretStr, ValidationError

from kernel.errors import ConfigError
from kernel.settings import (
    KEYS,
    Settings,
    ensure_console_token,
    ensure_data_dir,
    ensure_token,
    napcat_line,
    server_options,
)

ROOT = Path(__file__).parents[1]
MODEL = {"QIWO_MODEL_URL": "https://api.example.com/v1", "QIWO_MODEL": "m"}


def read(key: str, text: str, cwd: Path) -> object:
    """What one setting of the environment is read as."""
    return getattr(Settings.load({key: text}, cwd), KEYS[key])


def refusal(environ: dict[str, str], cwd: Path) -> str:
    """The sentence that these settings are refused with."""
    with pytest.raises(ConfigError) as caught:
        Settings.load(environ, cwd)
    return str(caught.value)


# -- form ----------------------------------------------------------------------------------------------------


def test_everything_runs_without_configuration(tmp_path: Path) -> None:
    """With nothing set there are defaults: this machine only, the demo model, the playground, no warning."""
    settings = Settings.load({}, tmp_path)
    assert (settings.host, settings.port, settings.command_start) == ("127.0.0.1", 8080, ("/",))
    assert settings.data_dir == tmp_path / "data"
    assert settings.demo
    assert settings.loopback
    assert settings.playground_on
    assert settings.warnings == ()


@pytest.mark.parametrize(
    ("text", "users"),
    [
        ("123456", {"123456"}),
        ("1,2", {"1", "2"}),
        ("1 2", {"1", "2"}),
        (" 1，2、3；4;5 ", {"1", "2", "3", "4", "5"}),
        ('["1"]', {"1"}),
        ("[1, 2]", {"1", "2"}),
        ("['1'，'2']", {"1", "2"}),
        ('"1"', {"1"}),
        ("'1,2'", {"1", "2"}),
        ("“1”", {"1"}),
        ('"1","2"', {"1", "2"}),
        ("", set()),
    ],
)
def test_a_list_is_read_as_people_write_it(text: str, users: set[str], tmp_path: Path) -> None:
    """Commas of either width, spaces, quotes and JSON mean the same."""
    assert read("SUPERUSERS", text, tmp_path) == users


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("NICKNAME", "企窝", ("企窝",)),
        ("NICKNAME", "企窝，小窝", ("企窝", "小窝")),
        ("COMMAND_START", '["/", ""]', ("/", "")),
        ("COMMAND_START", "/ !", ("/", "!")),
        ("ONEBOT_WS_URLS", "ws://127.0.0.1:3001/", ("ws://127.0.0.1:3001/",)),
        ("HOST", "localhost", "127.0.0.1"),
        ("HOST", "[::]", "::"),
        ("PORT", " 9000 ", 9000),
        ("LOG_LEVEL", "debug", "DEBUG"),
        ("LOG_LEVEL", "warn", "WARNING"),
        ("LOG_LEVEL", "25", 25),
        ("QIWO_TOOL_TIMEOUT", " 1.5 ", 1.5),
        ("QIWO_PLAYGROUND", "1", True),
        ("QIWO_PLAYGROUND", "On", True),
        ("QIWO_PLAYGROUND", "TRUE", True),
        ("QIWO_PLAYGROUND", "是", True),
        ("QIWO_PLAYGROUND", "0", False),
        ("QIWO_PLAYGROUND", "off", False),
        ("QIWO_PLAYGROUND", "false", False),
        ("QIWO_PLAYGROUND", "否", False),
    ],
)
def test_a_value_is_read_as_people_write_it(key: str, text: str, value: object, tmp_path: Path) -> None:
    """Words, addresses, levels, numbers and switches need no exact spelling."""
    assert read(key, text, tmp_path) == value


@pytest.mark.parametrize("text", ["https://api.example.com/v1/ ", '"https://api.example.com/v1"'])
def test_the_model_address_is_a_base(text: str, tmp_path: Path) -> None:
    """Trailing spaces and slashes are no part of it, and a model that is set is no demo."""
    settings = Settings.load({**MODEL, "QIWO_MODEL_URL": text}, tmp_path)
    assert settings.model_url == "https://api.example.com/v1"
    assert not settings.demo


def test_folders_are_seen_from_where_the_settings_stand(tmp_path: Path) -> None:
    """A relative path starts at `cwd`, `~` is the home folder, and a space does not end a path."""
    (tmp_path / "my plugins").mkdir()
    found = read("QIWO_PLUGIN_DIRS", f"my plugins，{tmp_path}", tmp_path)
    assert found == (tmp_path / "my plugins", tmp_path)
    assert read("QIWO_DATA_DIR", "~/qiwo", tmp_path) == Path.home() / "qiwo"


# -- where they are read from --------------------------------------------------------------------------------


def test_the_environment_wins_over_the_file(tmp_path: Path) -> None:
    """An exported value counts; one exported as empty means unset, whatever the file says."""
    (tmp_path / ".env").write_text("PORT=1001\nQIWO_MAX_STEPS=3\nqiwo_tool_timeout=7\n")
    settings = Settings.load({"port": "1002", "QIWO_MAX_STEPS": ""}, tmp_path)
    assert (settings.port, settings.max_steps, settings.tool_timeout) == (1002, 12, 7)


@pytest.mark.parametrize(
    ("environ", "port"), [({}, 1001), ({"ENVIRONMENT": "dev"}, 1002), ({"ENVIRONMENT": "x"}, 1000)]
)
def test_the_second_file_is_the_one_nonebot_reads(environ: dict[str, str], port: int, tmp_path: Path) -> None:
    """`.env.prod`, or the one that ENVIRONMENT names, goes before `.env`."""
    for name, text in ((".env", "PORT=1000"), (".env.prod", "PORT=1001"), (".env.dev", "PORT=1002")):
        (tmp_path / name).write_text(text)
    assert Settings.load(environ, tmp_path).port == port


def test_the_file_can_name_the_second_file(tmp_path: Path) -> None:
    """ENVIRONMENT may stand in `.env` itself."""
    (tmp_path / ".env").write_text("ENVIRONMENT=dev\nPORT=1000")
    (tmp_path / ".env.dev").write_text("PORT=1002")
    assert Settings.load({}, tmp_path).port == 1002


def test_a_file_from_a_windows_editor_is_read(tmp_path: Path) -> None:
    """A byte order mark and CRLF are no part of the first setting."""
    (tmp_path / ".env").write_bytes("\ufeffNICKNAME=企窝\r\nPORT=1001\r\n".encode())
    settings = Settings.load({}, tmp_path)
    assert (settings.nickname, settings.port) == (("企窝",), 1001)


# -- sentences -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "text", "advice"),
    [
        ("SUPERUSERS", "me", "write QQ numbers, such as 10001,10002"),
        ("SUPERUSERS", '[{"id": 1}]', "write QQ numbers"),
        ("SUPERUSERS", ",", "write QQ numbers"),
        ("HOST", "0.0.0.0:8080", "write an IP address"),
        ("PORT", "0", "write a port from 1 to 65535"),
        ("PORT", "65536", "write a port from 1 to 65535"),
        ("LOG_LEVEL", "loud", "write a number or one of TRACE, DEBUG"),
        ("ONEBOT_WS_URLS", "127.0.0.1:3001", "begin with ws:// or wss://"),
        ("ONEBOT_WS_URLS", "ws://127.0.0.1:70000", "begin with ws:// or wss://"),
        ("QIWO_DATA_DIR", "~no_such_user/x", "write a folder"),
        ("QIWO_PLUGIN_DIRS", "no-such-folder", "write folders that exist"),
        ("QIWO_MAX_STEPS", "0", "write a whole number above 0"),
        ("QIWO_MODEL_TIMEOUT", "soon", "write seconds above 0"),
        ("QIWO_TOOL_TIMEOUT", "0", "write seconds above 0"),
        ("QIWO_TURN_TIMEOUT", "nan", "write seconds above 0"),
        ("QIWO_HOOK_TIMEOUT", "inf", "write seconds above 0"),
        ("QIWO_CONTEXT_TOKENS", "8k", "write a whole number"),
        ("QIWO_CONTEXT_TOKENS", "10", "write a whole number from 1000"),
        ("QIWO_PLAYGROUND", "maybe", "write on or off"),
    ],
)
def test_a_wrong_value_is_told_in_one_sentence(key: str, text: str, advice: str, tmp_path: Path) -> None:
    """The setting, where it stands, what it says, what to write: on one line."""
    sentence = refusal({key: text}, tmp_path)
    assert sentence.startswith(f"{key} (environment) is {json.dumps(text)}: write ")
    assert advice in sentence
    assert "\n" not in sentence


@pytest.mark.parametrize(
    "text", ["api.example.com/v1", "ftp://api.example.com", "https://api.example.com/v 1", "https://"]
)
def test_a_model_address_needs_its_scheme_and_a_host(text: str, tmp_path: Path) -> None:
    """What no request could be sent to is refused at start."""
    sentence = refusal({**MODEL, "QIWO_MODEL_URL": text}, tmp_path)
    assert sentence.startswith(f'QIWO_MODEL_URL (environment) is "{text}": write an address that begins with http://')


def test_the_sentence_names_the_line(tmp_path: Path) -> None:
    """Comments, blank lines and quoted line ends are counted as an editor counts them."""
    (tmp_path / ".env").write_text('# one\nOTHER="a\nb"\n\n\n  PORT = x # why\n')
    assert refusal({}, tmp_path).startswith('PORT (.env line 6) is "x": ')
    (tmp_path / ".env.prod").write_text("PORT=y")
    assert refusal({}, tmp_path).startswith('PORT (.env.prod line 1) is "y": ')


@pytest.mark.parametrize("line", ["SUPERUSERS 123456", "SUPERUSERS＝123456", 'ONEBOT_ACCESS_TOKEN="abc'])
def test_a_line_that_would_be_skipped_is_refused(line: str, tmp_path: Path) -> None:
    """A token with an open quote or a full-width sign must not turn into no token; its text is not shown."""
    (tmp_path / ".env").write_text(f"PORT=1001\n\n{line}\nQIWO_MAX_STEPS=3\n")
    assert refusal({}, tmp_path) == ".env line 3 is not a setting: write NAME=value, or # before a comment"


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """GBK is told in one sentence, not in a traceback."""
    (tmp_path / ".env").write_bytes("NICKNAME=企窝".encode("gbk"))
    assert re.fullmatch(r"\.env cannot be read \(.*\): save it as readable UTF-8 text", refusal({}, tmp_path))


@pytest.mark.parametrize(
    ("given", "missing"),
    [
        ("QIWO_MODEL", "QIWO_MODEL_URL"),
        ("QIWO_MODEL_KEY", "QIWO_MODEL_URL"),
    ],
)
def test_half_a_model_is_refused(given: str, missing: str, tmp_path: Path) -> None:
    """Who sets a key or a name does not want the demo to answer; the sentence says what is missing."""
    sentence = refusal({given: "https://x.example"}, tmp_path)
    assert sentence.startswith(f"{missing} is not set, but {given} (environment) is: write ")


def test_an_unknown_key_is_a_warning(tmp_path: Path) -> None:
    """A slip in a name does not pass in silence; keys of others are none of our business."""
    (tmp_path / ".env").write_text("QIWO_MAX_STEP=3\n")
    ours = {"ONEBOT_V11_ACCESS_TOKEN": "t", "QIWO_ZZZ": "1"}
    known = {"PATH": "/bin", "ONEBOT_V11_SECRET": "s", "QIWO_TOOL_TIMEOUT": "7", "ONEBOT_ACCESS_TOKEN": "t"}
    assert Settings.load({**ours, **known}, tmp_path).warnings == (
        "QIWO_MAX_STEP (.env line 1) is not a setting; did you mean QIWO_MAX_STEPS?",
        "ONEBOT_V11_ACCESS_TOKEN (environment) is not a setting; did you mean ONEBOT_ACCESS_TOKEN?",
        "QIWO_ZZZ (environment) is not a setting",
    )


# -- secrets -------------------------------------------------------------------------------------------------

SECRETS = ["QIWO_MODEL_KEY", "ONEBOT_ACCESS_TOKEN", "QIWO_CONSOLE_TOKEN"]


@pytest.mark.parametrize("key", SECRETS)
@pytest.mark.parametrize("text", ["Bearer sk-hidden", "sk-hidden密"])
def test_a_wrong_secret_is_not_told(key: str, text: str, tmp_path: Path) -> None:
    """What cannot be sent in a header is refused, and no part of it is in the sentence or the traceback."""
    with pytest.raises(ConfigError) as caught:
        Settings.load({**MODEL, key: text}, tmp_path)
    assert str(caught.value).startswith(f"{key} (environment) cannot be used: write ")
    told = "".join(traceback.format_exception(caught.value))
    assert "sk-hidden" not in told
    assert "ValidationError" not in told


def test_secrets_are_in_no_repr(tmp_path: Path) -> None:
    """Neither a secret nor what an address may carry shows when settings are printed."""
    settings = Settings.load(
        {
            **dict.fromkeys(SECRETS, "hidden"),
            "QIWO_MODEL": "m",
            "QIWO_MODEL_URL": "https://u:hidden@api.example.com",
            "ONEBOT_WS_URLS": "ws://h:1/?access_token=hidden",
        },
        tmp_path,
    )
    assert settings.model_key.get_secret_value() == "hidden"
    assert "hidden" not in repr(settings) + str(settings) + repr(settings.nonebot()["onebot_access_token"])


def test_an_address_in_a_sentence_keeps_its_secrets(tmp_path: Path) -> None:
    """The login and the query of a wrong address are left out, and a long value is cut."""
    sentence = refusal({"ONEBOT_WS_URLS": "http://u:hidden@h/?access_token=hidden"}, tmp_path)
    assert sentence.startswith('ONEBOT_WS_URLS (environment) is "http://***@h/?***": ')
    assert len(refusal({"PORT": "9" * 5000}, tmp_path)) < 200


def test_a_value_of_the_wrong_type_is_not_told() -> None:
    """Settings made in code do not show a secret either."""
    with pytest.raises(ValidationError) as caught:
        Settings(model_key=SecretStr("sk-hidden 密"), port="hidden")
    assert "hidden" not in str(caught.value)


# -- tokens and the data folder ------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_loopback_needs_no_token(host: str, tmp_path: Path) -> None:
    """On this machine nothing is made, nothing written."""
    settings = Settings.load({"HOST": host}, tmp_path)
    assert ensure_token(settings) == (settings, False)
    assert not (tmp_path / "data").exists()


def test_the_operators_token_stands(tmp_path: Path) -> None:
    """On an open bind a token that is set is the token."""
    settings = Settings.load({"HOST": "0.0.0.0", "ONEBOT_ACCESS_TOKEN": "mine"}, tmp_path)
    assert ensure_token(settings) == (settings, False)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize("host", ["0.0.0.0", "192.168.1.5", "::"])
def test_an_open_bind_gets_a_token_and_keeps_it(host: str, tmp_path: Path) -> None:
    """A token is made once, kept for its owner only, and used again at the next start."""
    settings = Settings.load({"HOST": host}, tmp_path)
    first, made = ensure_token(settings)
    token = first.onebot_access_token.get_secret_value()
    file = tmp_path / "data/secrets/onebot_token"
    assert made
    assert re.fullmatch(r"[0-9a-f]{48}", token)
    assert [path.name for path in file.parent.iterdir()] == ["onebot_token"]
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)
    assert ensure_token(settings) == (first, False)


def test_a_restored_token_file_is_closed_again(tmp_path: Path) -> None:
    """A backup that came back readable for all does not stay so."""
    file = tmp_path / "data/secrets/onebot_token"
    file.parent.mkdir(parents=True, mode=0o755)
    file.write_text("kept\n")
    file.chmod(0o644)
    settings, made = ensure_token(Settings.load({"HOST": "0.0.0.0"}, tmp_path))
    assert (settings.onebot_access_token.get_secret_value(), made) == ("kept", False)
    assert (stat.S_IMODE(file.stat().st_mode), stat.S_IMODE(file.parent.stat().st_mode)) == (0o600, 0o700)


@pytest.mark.parametrize("left", [b"", b"\n", b"a b", b"\xff\xfe"])
def test_a_broken_token_file_is_no_token(left: bytes, tmp_path: Path) -> None:
    """An empty file would admit everybody, and rubbish nobody: a new token is made."""
    file = tmp_path / "data/secrets/onebot_token"
    file.parent.mkdir(parents=True)
    file.write_bytes(left)
    settings, made = ensure_token(Settings.load({"HOST": "0.0.0.0"}, tmp_path))
    assert made
    assert settings.onebot_access_token.get_secret_value() == file.read_text()
    assert len(file.read_text()) == 48


def test_a_console_token_is_per_process(tmp_path: Path) -> None:
    """Each start has its own, unless the operator set one."""
    settings = Settings.load({}, tmp_path)
    first, second = ensure_console_token(settings), ensure_console_token(settings)
    assert len(first.console_token) >= 32
    assert first.console_token != second.console_token
    mine = Settings.load({"QIWO_CONSOLE_TOKEN": "mine"}, tmp_path)
    assert ensure_console_token(mine) == mine


@pytest.mark.parametrize(
    ("host", "token", "line"),
    [
        ("127.0.0.1", "", "「WebSocket 客户端」 地址 ws://127.0.0.1:8080/onebot/v11/ws Token （留空）"),
        ("0.0.0.0", "t", "「WebSocket 客户端」 地址 ws://主机:8080/onebot/v11/ws Token t"),
        ("::1", "t", "「WebSocket 客户端」 地址 ws://[::1]:8080/onebot/v11/ws Token t"),
    ],
)
def test_the_line_for_napcat_can_be_pasted(host: str, token: str, line: str, tmp_path: Path) -> None:
    """NapCat's own word, the address of the reverse WebSocket and the token."""
    assert napcat_line(Settings.load({"HOST": host, "ONEBOT_ACCESS_TOKEN": token}, tmp_path)) == line


def test_the_data_folder_is_made(tmp_path: Path) -> None:
    """The folder is made with its parents, and trying it leaves nothing behind."""
    made = ensure_data_dir(Settings.load({"QIWO_DATA_DIR": "a/b"}, tmp_path))
    assert made == tmp_path / "a/b"
    assert list(made.iterdir()) == []


def test_an_unwritable_data_folder_is_told(tmp_path: Path) -> None:
    """A folder that cannot be made ends in one sentence, for the token as well."""
    (tmp_path / "file").write_text("")
    settings = Settings.load({"QIWO_DATA_DIR": "file/data", "HOST": "0.0.0.0"}, tmp_path)
    told = f"nothing can be written in {tmp_path}/file/data (Not a directory): "
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}.*QIWO_DATA_DIR"):
        ensure_data_dir(settings)
    with pytest.raises(ConfigError, match=f"^{re.escape(told)}.*QIWO_DATA_DIR"):
        ensure_token(settings)


@pytest.mark.skipif(not Path("/proc/self").is_dir(), reason="needs a folder in which even root cannot write")
def test_a_folder_that_exists_is_tried(tmp_path: Path) -> None:
    """To exist is not enough: the sentence comes before the record fails."""
    with pytest.raises(ConfigError, match=r"^nothing can be written in /proc/self "):
        ensure_data_dir(Settings.load({"QIWO_DATA_DIR": "/proc/self"}, tmp_path))


def test_the_playground_follows_model_and_bind(tmp_path: Path) -> None:
    """Unset, it is on for a newcomer only; set, it is as it was set."""
    assert not Settings.load({"HOST": "0.0.0.0"}, tmp_path).playground_on
    assert not Settings.load(MODEL, tmp_path).playground_on
    assert Settings.load({**MODEL, "QIWO_PLAYGROUND": "on"}, tmp_path).playground_on
    assert not Settings.load({"QIWO_PLAYGROUND": "off"}, tmp_path).playground_on


def test_settings_are_frozen(tmp_path: Path) -> None:
    """A change is a new value."""
    settings = Settings.load({}, tmp_path)
    with pytest.raises(ValidationError):
        settings.port = 1  # type: ignore[misc]


# -- NoneBot -------------------------------------------------------------------------------------------------

PLAIN = """
import os, sys
import nonebot
from nonebot.adapters.onebot.v11 import Adapter
for setting in sys.argv[1:]:
    key, text = setting.split("=", 1)
    os.environ[key] = text
    try:
        nonebot.init(driver="~fastapi+~httpx+~websockets")
        nonebot.get_driver().register_adapter(Adapter)
    except ValueError as error:
        print("RAISED", setting)
    del os.environ[key]
"""

OURS = """
import json, os
from pathlib import Path
import nonebot
from nonebot.adapters.onebot.v11 import Adapter
from kernel.settings import Settings, ensure_token
settings, _ = ensure_token(Settings.load(os.environ, Path.cwd()))
settings.normalise(os.environ)
nonebot.init(**settings.nonebot())
driver = nonebot.get_driver()
driver.register_adapter(Adapter)
config, onebot = driver.config, nonebot.get_adapter(Adapter).onebot_config
result = {
    "host": str(config.host), "port": config.port, "log_level": config.log_level, "driver": config.driver,
    "superusers": sorted(config.superusers), "nickname": sorted(config.nickname),
    "command_start": sorted(config.command_start), "urls": sorted(map(str, onebot.onebot_ws_urls)),
    "token": len(onebot.onebot_access_token), "kept": onebot.onebot_access_token == nonebot.get_driver().config
        .onebot_access_token == settings.onebot_access_token.get_secret_value(),
    "others": config.model_extra.get("weather_key"),
}
print(json.dumps(result))
"""


def child(script: str, cwd: Path, *arguments: str, **environ: str) -> str:
    """What a process of its own printed: NoneBot can be started once in each."""
    clean = {key: value for key, value in os.environ.items() if key.upper() in ("PATH", "SYSTEMROOT", "TEMP")}
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        cwd=cwd,
        env={**clean, "PYTHONPATH": str(ROOT / "src"), "PYTHONIOENCODING": "utf-8", **environ},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def started(cwd: Path, **environ: str) -> tuple[dict[str, object], str]:
    """What NoneBot and its adapter hold, started with our settings; and all that was printed."""
    printed = child(OURS, cwd, **environ)
    return json.loads(next(line for line in printed.splitlines() if line.startswith("{"))), printed


BARE = ["SUPERUSERS=", "SUPERUSERS=123456", "SUPERUSERS=1,2", "NICKNAME=企窝", "ONEBOT_WS_URLS=ws://127.0.0.1:3001"]


def test_nonebot_alone_does_not_take_bare_values(tmp_path: Path) -> None:
    """The reason for `normalise`: if this one fails, NoneBot has learnt it and the rewriting can go."""
    printed = child(PLAIN, tmp_path, *BARE)
    assert [line[7:] for line in printed.splitlines() if line.startswith("RAISED")] == BARE


@pytest.mark.parametrize("users", ["123456", "1,2"])
def test_nonebot_starts_with_bare_values_of_the_environment(users: str, tmp_path: Path) -> None:
    """What people write arrives in NoneBot and its adapter; a name in lower case does not get in its way."""
    result, _ = started(
        tmp_path, superusers=users, NICKNAME="企窝", ONEBOT_V11_WS_URLS="ws://x", onebot_ws_urls="ws://h:3001",
        COMMAND_START="/ !", HOST="localhost", PORT="9000", LOG_LEVEL="warn", ONEBOT_ACCESS_TOKEN="mine",
    )  # fmt: skip
    assert result == {
        "host": "127.0.0.1",
        "port": 9000,
        "log_level": "WARNING",
        "driver": "~fastapi+~httpx+~websockets",
        "superusers": users.split(","),
        "nickname": ["企窝"],
        "command_start": ["!", "/"],
        "urls": ["ws://h:3001/"],
        "token": 4,
        "kept": True,
        "others": None,
    }


def test_nonebot_starts_with_bare_values_of_the_file(tmp_path: Path) -> None:
    """NoneBot reads `.env` again: it stumbles over nothing, and its own plugins find their keys there.

    An empty token in it does not open the door that a made one closes, and no secret of ours is in NoneBot's log.
    """
    (tmp_path / ".env").write_text(
        "SUPERUSERS=1，2\nNICKNAME=\nCOMMAND_START=/\nHOST=0.0.0.0\nONEBOT_ACCESS_TOKEN=\nONEBOT_WS_URLS=ws://h:3001\n"
        "ONEBOT_V11_WS_URLS=h\nLOG_LEVEL=DEBUG\nWEATHER_KEY=w\nQIWO_CONSOLE_TOKEN=hidden-1\n"
        "QIWO_MODEL_URL=http://x\nQIWO_MODEL=m\nQIWO_MODEL_KEY=hidden-2\n",
        "utf-8",
    )
    result, printed = started(tmp_path)
    assert result["superusers"] == ["1", "2"]
    assert result["urls"] == ["ws://h:3001/"]
    assert (result["token"], result["kept"], result["others"]) == (48, True, "w")
    assert "Loaded Config" in printed
    assert "hidden-" not in printed
    assert (tmp_path / "data/secrets/onebot_token").read_text() not in printed


def test_nonebot_starts_with_the_example(tmp_path: Path) -> None:
    """`.env.example`, copied as it is, is a `.env` to start with, though NoneBot alone stops at `SUPERUSERS=`."""
    (tmp_path / ".env").write_text((ROOT / ".env.example").read_text("utf-8"), "utf-8")
    result, _ = started(tmp_path)
    assert (result["command_start"], result["superusers"], result["token"]) == (["/"], [], 0)


def test_normalise_leaves_secrets_and_others_alone(tmp_path: Path) -> None:
    """Child processes inherit the environment: only the lists are written there."""
    settings = Settings.load({"HOST": "0.0.0.0", "ONEBOT_ACCESS_TOKEN": "t", "nickname": "企窝"}, tmp_path)
    environ = {"PATH": "/bin", "nickname": "企窝"}
    settings.normalise(environ)
    assert environ == {
        "PATH": "/bin",
        "SUPERUSERS": "[]",
        "NICKNAME": '["\\u4f01\\u7a9d"]',
        "COMMAND_START": '["/"]',
        "ONEBOT_WS_URLS": "[]",
        "ONEBOT_V11_WS_URLS": "[]",
    }


def test_the_server_notices_dead_peers() -> None:
    """Uvicorn takes the options that `nonebot.run` hands on."""
    config = uvicorn.Config("x:y", log_config=None, **server_options())  # type: ignore[arg-type]
    assert (config.ws_ping_interval, config.ws_ping_timeout, config.timeout_graceful_shutdown) == (5, 5, 2)


# -- the example ---------------------------------------------------------------------------------------------


def test_the_example_names_every_setting_once_with_its_default(tmp_path: Path) -> None:
    """`.env.example` and Settings name the same keys, and each value there is read as the default."""
    text = (ROOT / ".env.example").read_text("utf-8")
    assert sorted(re.findall(r"^(\w+)=", text, re.MULTILINE)) == sorted(KEYS)
    default = Settings.load({}, tmp_path)
    for key, value in dotenv_values(stream=io.StringIO(text)).items():
        field = getattr(default, KEYS[key])
        assert (value == "") == (not field), f"{key}: only a setting without a default is empty"
        assert read(key, value or "", tmp_path) == field, key


def test_the_example_says_what_each_setting_means() -> None:
    """Right above each setting stands one line of comment."""
    lines = (ROOT / ".env.example").read_text("utf-8").splitlines()
    for above, line in zip(["", *lines], lines, strict=False):
        assert not re.match(r"\w+=", line) or re.fullmatch(r"# .{10,}\.", above), line


def test_an_address_without_a_name_is_taken_with_a_warning(tmp_path: Path) -> None:
    """A local server needs no model's name: the bot starts, and says what it asks for."""
    settings = Settings.load({"QIWO_MODEL_URL": "http://127.0.0.1:8000/v1"}, tmp_path)
    assert not settings.demo
    assert settings.warnings == ("QIWO_MODEL is not set: the server is asked for a model called 'default'",)
