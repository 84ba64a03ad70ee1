"""The plugin host: finds, loads, sets up, tears down and reloads plugins, and owns every task they start."""

import asyncio
import importlib.util
import logging
import sys
from collections.abc import AsyncGenerator, Coroutine, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from kernel.errors import PluginFault
from kernel.fence import Fence, Late, Raised, Returned, describe, place_of
from kernel.health import HealthRegistry
from kernel.output import Output
from kernel.plugin import Handle, Plugin, Setup
from kernel.ports import Channel, Clock, Gateway
from kernel.rulebook import Rulebook
from kernel.stages import Stages
from kernel.toolbox import Toolbox
from kernel.tools import where_of

SETUP_SECONDS = 30.0
TEARDOWN_SECONDS = 5.0

log = logging.getLogger("qiwo.host")


@dataclass(slots=True, eq=False)
class Loaded:
    """One generation of one plugin, with all that has to be undone when it goes. Owned by the host."""

    plugin: Plugin
    path: Path
    module: str
    undo: ExitStack = field(default_factory=ExitStack)
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    running: list[AsyncGenerator[None, None]] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Services:
    """What plugins get to work with, and where their registrations go."""

    toolbox: Toolbox
    stages: Stages
    output: Output
    health: HealthRegistry
    fence: Fence
    clock: Clock
    gateway: Gateway
    rulebook: Rulebook


class PluginHandle:
    """`kernel.plugin.Handle` of one loaded plugin."""

    def __init__(self, services: Services, loaded: Loaded, *, trusted: bool) -> None:
        self._services = services
        self._loaded = loaded
        self._trusted = trusted

    @property
    def name(self) -> str:
        return self._loaded.plugin.name

    @property
    def clock(self) -> Clock:
        return self._services.clock

    @property
    def log(self) -> logging.Logger:
        return logging.getLogger(f"qiwo.plugin.{self.name}")

    @property
    def gateway(self) -> Gateway:
        if not self._trusted:
            raise PluginFault(f"plugin {self.name!r} did not come with Qiwo, so it may not speak for users")
        return self._services.gateway

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.create_task(self._watched(work, name), name=f"plugin {self.name}: {name}")
        self._loaded.tasks.add(task)
        task.add_done_callback(self._loaded.tasks.discard)

    def add_channel(self, channel: Channel) -> None:
        output, toolbox = self._services.output, self._services.toolbox
        self._loaded.undo.callback(output.add(channel))
        for tool in output.tools(channel, self.name):
            self._loaded.undo.callback(toolbox.add(tool))

    async def _watched(self, work: Coroutine[Any, Any, None], name: str) -> None:
        result = await self._services.fence.run(lambda: work, None)
        if isinstance(result, Raised):
            log.error("plugin %s: task %s: %s at %s", self.name, name, result.summary, result.where)
            self._services.health.crashed(self.name, f"task:{name}", result.summary, result.where)


class PluginHost:
    """Owns what is loaded. `builtin` is the folder whose plugins may have a gateway."""

    def __init__(self, services: Services, builtin: Path, others: Iterable[Path] = ()) -> None:
        self._services = services
        self._builtin = builtin
        self._folders = (builtin, *others)
        self._loaded: dict[str, Loaded] = {}
        self._generations: dict[str, int] = {}
        self._reloads: set[asyncio.Task[None]] = set()

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._loaded)

    async def start(self) -> None:
        """Load every plugin; one that fails is quarantined with file:line, the others load."""
        for path in find(self._folders):
            await self.load(path)

    async def load(self, path: Path) -> bool:
        """Import, register and set up. False when it failed: the health registry then says why and where."""
        try:
            loaded = self._build(path)
        except PluginFault as fault:
            self._failed(path.stem, path, fault)
            return False
        return await self._install(loaded)

    async def stop(self) -> None:
        """Tear everything down, the last loaded first."""
        for task in self._reloads:
            task.cancel()
        for loaded in reversed(tuple(self._loaded.values())):
            await self._remove(loaded)

    def reload_soon(self, name: str, token: int) -> None:
        """Reload in a task of the host's own; the health registry hears how it went."""
        task = asyncio.create_task(self._reload(name, token), name=f"reload {name}")
        self._reloads.add(task)
        task.add_done_callback(self._reloads.discard)

    # -- one plugin ------------------------------------------------------------------------------------------

    async def _reload(self, name: str, token: int) -> None:
        """Build the new copy beside the old one; the old goes only when the new one stands."""
        path = self._path_of(name)
        try:
            fresh = self._build(path)
        except PluginFault as fault:
            self._services.health.reloaded(name, token, fault.reason, fault.where)
            return
        old = self._loaded.get(name)
        if old is not None:
            await self._remove(old)
        ok = await self._install(fresh)
        self._services.health.reloaded(name, token, None if ok else "its set-up failed", str(path))

    def _path_of(self, name: str) -> Path:
        loaded = self._loaded.get(name)
        if loaded is not None:
            return loaded.path
        return next((path for path in find(self._folders) if path.stem == name), self._builtin / name)

    def _build(self, path: Path) -> Loaded:
        generation = self._generations[path.stem] = self._generations.get(path.stem, 0) + 1
        name = f"plugins.{path.stem}__g{generation}"
        module = import_by_path(path, name)
        plugins = list({id(value): value for value in vars(module).values() if isinstance(value, Plugin)}.values())
        if len(plugins) != 1:
            raise PluginFault(f"a plugin module needs exactly one Plugin, this one has {len(plugins)}", str(path))
        return Loaded(plugins[0], path, name)

    async def _install(self, loaded: Loaded) -> bool:
        """Register, then set up; what was registered is undone when the set-up fails."""
        plugin, services = loaded.plugin, self._services
        loaded.undo.callback(_forget_modules, loaded.module)
        try:
            if plugin.name in self._loaded:
                raise PluginFault(f"a plugin named {plugin.name!r} is loaded already", str(loaded.path))
            for tool in plugin.tools:
                loaded.undo.callback(services.toolbox.add(tool))
            for hook in plugin.hooks:
                loaded.undo.callback(services.stages.add(hook))
            services.health.register(plugin.name, self._tools_of(plugin), reloads=plugin.reloads)
            self._loaded[plugin.name] = loaded
            trusted = loaded.path.parent == self._builtin
            if trusted and (loaded.path / "policy.toml").is_file():
                loaded.undo.callback(services.rulebook.add(loaded.path / "policy.toml"))
            handle = PluginHandle(services, loaded, trusted=trusted)
            await self._set_up(loaded, handle)
            services.health.register(plugin.name, self._tools_of(plugin), reloads=plugin.reloads)
        except PluginFault as fault:
            await self._remove(loaded)
            self._failed(plugin.name, loaded.path, fault)
            return False
        return True

    def _tools_of(self, plugin: Plugin) -> list[str]:
        return [tool.name for tool in self._services.toolbox if tool.plugin == plugin.name]

    async def _set_up(self, loaded: Loaded, handle: Handle) -> None:
        for setup in loaded.plugin.setups:
            begun: list[AsyncGenerator[None, None]] = []
            match await self._services.fence.run(partial(_begin, setup, handle, begun), SETUP_SECONDS):
                case Raised() as raised:
                    raise PluginFault(f"set-up: {raised.summary}", raised.where)
                case Late(seconds):
                    raise PluginFault(f"set-up: not done after {seconds:g} s", where_of(setup))
                case Returned():
                    loaded.running += begun

    async def _remove(self, loaded: Loaded) -> None:
        """Undo, backwards: tear-downs, tasks, registrations."""
        while loaded.running:
            generator = loaded.running.pop()
            result = await self._services.fence.run(partial(anext, generator, None), TEARDOWN_SECONDS)
            if not isinstance(result, Returned):
                log.error("plugin %s: its tear-down failed: %s", loaded.plugin.name, result)
        for task in tuple(loaded.tasks):
            task.cancel()
        if loaded.tasks:
            await asyncio.wait(tuple(loaded.tasks), timeout=TEARDOWN_SECONDS)
        loaded.undo.close()
        if self._loaded.get(loaded.plugin.name) is loaded:
            del self._loaded[loaded.plugin.name]

    def _failed(self, name: str, path: Path, fault: PluginFault) -> None:
        """A stranger of the same name must not cost the healthy plugin its health."""
        owner = self._loaded.get(name)
        if owner is not None and owner.path != path:
            name = f"{name} ({path})"
        log.error("plugin %s was not loaded: %s", name, fault)
        self._services.health.load_failed(name, fault.reason, fault.where)


async def _begin(setup: Setup, handle: Handle, begun: list[AsyncGenerator[None, None]]) -> None:
    """Run a set-up to its `yield`."""
    generator = setup(handle)
    begun.append(generator)
    await anext(generator)


def find(folders: Iterable[Path]) -> list[Path]:
    """Plugin files and folders, sorted; names that begin with `_` or `.` are not plugins, nor are tests."""
    found: list[Path] = []
    for folder in folders:
        for path in sorted(folder.iterdir()) if folder.is_dir() else ():
            single = path.suffix == ".py"
            package = path.is_dir() and (path / "__init__.py").is_file()
            if (single or package) and not path.name.startswith(("_", ".", "test_", "conftest.")):
                found.append(path)
    return found


def import_by_path(path: Path, name: str) -> ModuleType:
    """Import a file or folder under a name of ours. Raises PluginFault (file:line) for anything that it raises.

    Each generation has its own name: with a stable one, a late import inside the old copy would get new code.
    """
    target = path / "__init__.py" if path.is_dir() else path
    spec = importlib.util.spec_from_file_location(
        name, target, submodule_search_locations=[str(path)] if path.is_dir() else None
    )
    if spec is None or spec.loader is None:
        raise PluginFault("this is not a Python module", str(target))
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except PluginFault:
        _forget_modules(name)
        raise
    except BaseException as error:  # a plugin's module body: SystemExit too must not end the bot
        _forget_modules(name)
        raise PluginFault(describe(error), place_of(error) or str(target)) from error
    return module


def _forget_modules(name: str) -> None:
    for module in [module for module in sys.modules if module == name or module.startswith(f"{name}.")]:
        del sys.modules[module]
