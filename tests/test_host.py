"""The plugin host: what loads, what is refused with file:line, what is undone, and how a reload swaps copies."""

import asyncio
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from tests.parts import add_channel, message

from kernel.adapters.embedded.memory import MemoryLedger
from kernel.app import Kernel
from kernel.errors import PluginFault
from kernel.plugin import Plugin
from kernel.ports import Reply
from kernel.settings import Settings
from kernel.testkit import FakeClock, RecordingChannel, ScriptedModel, calling, settle

TOOL = '''
from kernel import Plugin
plugin = Plugin("{name}")
@plugin.tool(risk="read")
async def {tool}() -> str:
    """Say who made it."""
    return "{says}"
'''


class House:
    """A kernel over a folder of plugins that the test writes."""

    def __init__(self, builtin: Path, others: Path) -> None:
        self.builtin, self.others = builtin, others
        self.clock, self.model, self.channel = FakeClock(), ScriptedModel(), RecordingChannel()
        settings = Settings.model_validate({"data_dir": builtin / "data", "plugin_dirs": (others,)})
        self.kernel = Kernel(
            settings, clock=self.clock, model=self.model, ledger=MemoryLedger(), plugins=builtin, tick=5.0
        )

    def write(self, name: str, text: str, *, trusted: bool = False) -> Path:
        path = (self.builtin if trusted else self.others) / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    async def start(self) -> None:
        await self.kernel.start()
        add_channel(self.kernel, self.channel)

    @property
    def tools(self) -> set[str]:
        return {tool.name for tool in self.kernel.graph.toolbox if tool.plugin != "test"}

    def trouble(self) -> dict[str, tuple[str, str, str]]:
        """Of each plugin that is not well: state, error, where."""
        rows = self.kernel.graph.health.report()
        return {
            row.plugin: (row.state, row.error, row.where) for row in rows if not row.tool and row.state != "healthy"
        }

    async def call(self, *tools: str, key: str = "", user: str = "20002") -> list[str]:
        """One turn that calls these tools; their results."""
        self.model.then(calling(*[(tool, {}) for tool in tools]), Reply("ok"))
        await self.kernel.submit(message("go", key=key or f"{len(self.model.requests)}", user=user))
        await settle()
        return [exchange.text for exchange in self.model.requests[-1].turns[-1].steps[-1].exchanges]


@pytest.fixture
def house(tmp_path: Path) -> House:
    for folder in ("builtin", "others"):
        (tmp_path / folder).mkdir()
    return House(tmp_path / "builtin", tmp_path / "others")


def play(house: House, scene: Coroutine[Any, Any, None]) -> None:
    async def whole() -> None:
        try:
            await scene
        finally:
            await house.kernel.stop()

    asyncio.run(whole())


@pytest.mark.parametrize(
    ("text", "error", "line"),
    [
        ("from kernel import Plugin\nplugin = Plugin('bad')\ndef broken(:\n", "SyntaxError", 3),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3", 2),
        ("x = 1\n\nraise KeyError('no')\n", "KeyError: 'no'", 3),
        ("import there_is_no_such_module\n", "ModuleNotFoundError", 1),
        (
            "from kernel import Plugin\nplugin = Plugin('bad')\n@plugin.tool\nasync def f(x) -> str:\n    'D.'\n",
            "annotation",
            3,
        ),
        (
            "from kernel import Plugin\nplugin = Plugin('bad')\n@plugin.tool(risk='huge')\ndef f() -> str:\n    'D.'\n",
            "huge",
            3,
        ),
        (
            "from kernel import Plugin\nplugin = Plugin('bad')\n@plugin.tool(name='a b')\ndef f() -> str:\n    'D.'\n",
            "a b",
            3,
        ),
    ],
    ids=["syntax", "exit", "raise", "import", "annotation", "risk", "name"],
)
def test_one_bad_plugin_of_five_is_shown_with_its_line(house: House, text: str, error: str, line: int) -> None:
    """C1: the four others work; the fifth is quarantined with file:line."""
    for number in range(4):
        house.write(f"good{number}.py", TOOL.format(name=f"good{number}", tool=f"say{number}", says=number))
    bad = house.write("bad.py", text)

    async def scene() -> None:
        await house.start()
        assert house.tools == {"say0", "say1", "say2", "say3"}
        assert await house.call("say0", "say3") == ["0", "3"]
        state, said, where = house.trouble()["bad"]
        assert state == "quarantined"
        assert error in said
        assert where == f"{bad}:{line}"

    play(house, scene())


@pytest.mark.parametrize("count", [0, 2])
def test_a_module_has_exactly_one_plugin(house: House, count: int) -> None:
    """None, or two, is a fault that says so."""
    plugins = "\n".join(f"p{number} = Plugin('p{number}')" for number in range(count))
    house.write("odd.py", f"from kernel import Plugin\n{plugins}\n")

    async def scene() -> None:
        await house.start()
        assert f"exactly one Plugin, this one has {count}" in house.trouble()["odd"][1]

    play(house, scene())


def test_a_doubled_tool_name_stops_the_second_plugin_only(house: House) -> None:
    """The first keeps the name; the second is undone whole."""
    house.write("a.py", TOOL.format(name="a", tool="say", says="first"))
    second = (
        TOOL.format(name="b", tool="other", says="x")
        + TOOL.format(name="b", tool="say", says="second").split("\n", 3)[3]
    )
    house.write("b.py", second)

    async def scene() -> None:
        await house.start()
        assert house.tools == {"say"}
        assert await house.call("say") == ["first"]
        assert "exists already, from plugin 'a'" in house.trouble()["b"][1]

    play(house, scene())


LIFE = """
from kernel import Plugin
plugin = Plugin("{name}")
@plugin.setup
async def life(handle):
    {before}
    yield
    {after}
"""


def test_setups_run_and_are_undone_backwards(house: House) -> None:
    """Last loaded, first torn down."""
    log = "import builtins; builtins.qiwo_log.append"
    for name in ("a", "b"):
        house.write(f"{name}.py", LIFE.format(name=name, before=f"{log}('{name} up')", after=f"{log}('{name} down')"))
    import builtins

    seen: list[str] = []
    builtins.qiwo_log = seen  # type: ignore[attr-defined]

    async def scene() -> None:
        await house.start()
        assert seen == ["a up", "b up"]

    play(house, scene())
    assert seen == ["a up", "b up", "b down", "a down"]
    del builtins.qiwo_log  # type: ignore[attr-defined]


def test_a_setup_that_crashes_or_hangs_takes_its_plugin_out(house: House) -> None:
    """Its tools are gone, the fault has a place, the next plugin is loaded."""
    house.write(
        "crash.py",
        TOOL.format(name="crash", tool="one", says=1) + LIFE.split("\n", 3)[3].format(before="1 / 0", after="pass"),
    )
    hang = "import asyncio; await asyncio.sleep(1e9) if False else await asyncio.Event().wait()"
    house.write(
        "hang.py",
        TOOL.format(name="hang", tool="two", says=2) + LIFE.split("\n", 3)[3].format(before=hang, after="pass"),
    )
    house.write("well.py", TOOL.format(name="well", tool="three", says=3))

    async def scene() -> None:
        starting = asyncio.ensure_future(house.start())
        await house.clock.advance(31)
        await starting
        assert house.tools == {"three"}
        trouble = house.trouble()
        assert "ZeroDivisionError" in trouble["crash"][1]
        assert trouble["crash"][2].startswith(str(house.others / "crash.py"))
        assert "not done after 30 s" in trouble["hang"][1]

    play(house, scene())


def test_a_plugins_task_is_its_own(house: House) -> None:
    """C2: a task that raises SystemExit is counted and ends nothing; one that runs on is ended with the plugin."""
    house.write(
        "tasks.py",
        """
import asyncio
from kernel import Plugin
plugin = Plugin("tasks")
async def leave():
    raise SystemExit(3)
async def forever():
    await asyncio.Event().wait()
@plugin.setup
async def life(handle):
    handle.spawn(leave(), "leave")
    handle.spawn(forever(), "forever")
    yield
""",
    )

    async def scene() -> None:
        await house.start()
        await settle()
        [row] = [row for row in house.kernel.graph.health.report() if row.tool == "task:leave"]
        assert (row.crashes, row.error) == (1, "SystemExit: 3")
        assert any(task.get_name() == "plugin tasks: forever" for task in asyncio.all_tasks())
        await house.kernel.stop()
        assert not any(task.get_name().startswith("plugin tasks") for task in asyncio.all_tasks())

    play(house, scene())


@pytest.mark.parametrize("trusted", [True, False])
def test_only_a_plugin_that_came_with_qiwo_may_speak_for_users(house: House, trusted: bool) -> None:
    """The way to hand in messages in anybody's name is not for strangers' plugins, whatever they call themselves."""
    house.write("qq.py", LIFE.format(name="qq", before="handle.gateway", after="pass"), trusted=trusted)

    async def scene() -> None:
        await house.start()
        if trusted:
            assert house.trouble() == {}
        else:
            assert "may not speak for users" in house.trouble()["qq"][1]

    play(house, scene())


def test_only_a_plugin_that_came_with_qiwo_may_bring_rules(house: House) -> None:
    """A stranger's policy.toml beside his code opens nothing."""
    danger = TOOL.replace('risk="read"', 'risk="exec"')
    rule = '[[rule]]\nname = "{0}"\ntools = "{0}"\ndecision = "allow"\nbecause = "b"\n'
    house.write("mine/__init__.py", danger.format(name="mine", tool="mine", says=1), trusted=True)
    house.write("mine/policy.toml", rule.format("mine"), trusted=True)
    house.write("theirs/__init__.py", danger.format(name="theirs", tool="theirs", says=1))
    house.write("theirs/policy.toml", rule.format("theirs"))

    async def scene() -> None:
        await house.start()
        mine, theirs = await house.call("mine", "theirs", user="1")
        assert mine.startswith("denied (exec-asks)")  # the rule opened it as far as the guard lets it
        assert theirs.startswith("denied (exec-rest)")

    play(house, scene())


def test_a_reload_swaps_the_copies_and_their_modules(house: House) -> None:
    """The new code answers, a helper file included; nothing of the old copy is left."""
    house.write(
        "pack/__init__.py",
        "from .words import WORD\n" + TOOL.format(name="pack", tool="say", says="x").replace('"x"', "WORD"),
    )
    house.write("pack/words.py", "WORD = 'old'\n")

    async def scene() -> None:
        await house.start()
        assert await house.call("say") == ["old"]
        house.write("pack/words.py", "WORD = 'quite new'\n")
        house.kernel.graph.health.begin_reload("pack")
        await settle()
        assert await house.call("say") == ["quite new"]
        assert [name for name in sys.modules if name.startswith("plugins.pack__g")] == [
            "plugins.pack__g2",
            "plugins.pack__g2.words",
        ]
        assert len([tool for tool in house.kernel.graph.toolbox if tool.name == "say"]) == 1

    play(house, scene())


def test_a_failed_reload_keeps_the_plugin_out_until_it_is_mended(house: House) -> None:
    """A plugin that could not be loaded comes back by itself once the file is right and the cool-down is over."""
    house.write("late.py", "raise RuntimeError('not yet')\n")

    async def scene() -> None:
        await house.start()
        assert house.tools == set()
        await house.clock.advance(40)
        assert house.trouble()["late"][0] == "quarantined"
        house.write("late.py", TOOL.format(name="late", tool="say", says="at last"))
        await house.clock.advance(90)
        assert await house.call("say") == ["at last"]

    play(house, scene())


def test_a_quarantined_plugin_is_reloaded_after_its_rest(house: House) -> None:
    """Two tools crashed open by two people: the plugin rests, is built anew, probed by one call, and works again."""
    house.write(
        "shaky.py",
        '''
from kernel import Plugin
plugin = Plugin("shaky")
@plugin.tool(risk="read")
async def one() -> str:
    """One."""
    raise RuntimeError("one")
@plugin.tool(risk="read")
async def two() -> str:
    """Two."""
    raise RuntimeError("two")
''',
    )

    async def scene() -> None:
        await house.start()
        for user in ("1", "2", "3"):
            await house.call("one", "two", user=user, key=f"{user}")
        assert house.trouble()["shaky"][0] == "quarantined"
        [refused] = await house.call("one", user="4", key="4")
        assert "is quarantined for" in refused
        house.write("shaky.py", TOOL.format(name="shaky", tool="one", says="mended"))
        await house.clock.advance(40)
        assert await house.call("one", user="5", key="5") == ["mended"]
        assert house.trouble()["shaky"][0] == "probation"

    play(house, scene())


def test_a_namesake_costs_the_healthy_plugin_nothing(house: House) -> None:
    """The second plugin of a name is refused under its path; the first keeps its tools and its health."""
    house.write("first.py", TOOL.format(name="same", tool="one", says=1))
    house.write("second.py", TOOL.format(name="same", tool="two", says=2))

    async def scene() -> None:
        await house.start()
        assert house.tools == {"one"}
        [(name, trouble)] = house.trouble().items()
        assert name.startswith("same (")
        assert name.endswith("second.py)")
        assert "same" in trouble[1]
        assert await house.call("one") == ["1"]

    play(house, scene())


def test_a_plugin_under_two_names_is_one(house: House) -> None:
    """`bot = plugin = Plugin(…)` is not two plugins."""
    house.write("alias.py", TOOL.format(name="alias", tool="one", says=1) + "\nother = plugin\n")

    async def scene() -> None:
        await house.start()
        assert house.tools == {"one"}

    play(house, scene())


def test_a_plugins_test_beside_it_is_no_plugin(house: House) -> None:
    """`plugins/test_weather.py` is a good place for a test, and is not loaded."""
    house.write("weather.py", TOOL.format(name="weather", tool="one", says=1))
    for name in ("test_weather.py", "conftest.py", "_draft.py", ".hidden.py"):
        house.write(name, "raise AssertionError('loaded')\n")

    async def scene() -> None:
        await house.start()
        assert house.tools == {"one"}
        assert house.trouble() == {}

    play(house, scene())


@pytest.mark.parametrize("setup", ["def life(handle):\n    raise SystemExit(3)", "def life():\n    yield"])
def test_a_setup_that_is_no_generator_of_one_handle_is_a_fault(house: House, setup: str) -> None:
    """Also what it raises when it is merely called; the next plugin is loaded."""
    house.write("bad.py", TOOL.format(name="bad", tool="one", says=1) + f"\n@plugin.setup\n{setup}\n")
    house.write("well.py", TOOL.format(name="well", tool="two", says=2))

    async def scene() -> None:
        await house.start()
        assert house.tools == {"two"}
        assert house.trouble()["bad"][1].startswith("set-up: ")

    play(house, scene())


@pytest.mark.parametrize("name", ["", "a b", "x" * 65, "a/b", "名", 3])
def test_a_plugin_has_a_plain_name(name: Any) -> None:
    """It is part of tasks' names, health rows and the record."""
    with pytest.raises(PluginFault, match="must match"):
        Plugin(name)
