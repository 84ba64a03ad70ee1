"""A plugin as its author writes it: declarations that the host reads, and a handle to work through once set up."""

import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from typing import Any, Protocol, TypeVar, overload

from kernel.errors import PluginFault
from kernel.ports import Channel, Clock, Gateway
from kernel.stages import Hook, Stage
from kernel.tools import NAME, Risk, Tool, tool_from, where_of

Function = TypeVar("Function", bound=Callable[..., Any])


class Handle(Protocol):
    """What a set-up plugin works through. Everything started here ends with the plugin."""

    @property
    def name(self) -> str: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def log(self) -> logging.Logger: ...

    @property
    def gateway(self) -> Gateway:
        """The way to hand in messages in anybody's name. Raises PluginFault unless the plugin came with Qiwo."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> None:
        """Run beside; a crash is charged to the plugin and stops nothing else."""
        ...

    def add_channel(self, channel: Channel) -> None:
        """Offer a way out: `output_send__NAME` and `output_send__NAME_help`."""
        ...


Setup = Callable[[Handle], AsyncGenerator[None, None]]


class Plugin:
    """The whole plugin; a module has exactly one.

    `reloads=False` declines automatic reloading after a quarantine (for plugins that cannot be built twice).
    """

    def __init__(self, name: str, *, reloads: bool = True) -> None:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise PluginFault(f"plugin name {name!r} must match [A-Za-z0-9_-]{{1,64}}")
        self.name = name
        self.reloads = reloads
        self.tools: list[Tool] = []
        self.hooks: list[Hook] = []
        self.setups: list[Setup] = []

    @overload
    def tool(self, function: Function, /) -> Function: ...

    @overload
    def tool(
        self,
        /,
        *,
        name: str | None = None,
        risk: Risk | str = Risk.EXEC,
        parallel: bool = False,
        idempotent: bool = False,
        taints: bool = False,
        target: str | None = None,
        timeout: float | None = None,
    ) -> Callable[[Function], Function]: ...

    def tool(
        self,
        function: Function | None = None,
        /,
        *,
        name: str | None = None,
        risk: Risk | str = Risk.EXEC,
        **traits: Any,
    ) -> Function | Callable[[Function], Function]:
        """Offer a function to the model. Description and argument texts come from its docstring.

        Undeclared risk counts as `exec`: only an operator may have it called. `parallel`: may run beside others;
        `idempotent`: may run again after a crash; `taints`: its result carries third parties' words; `target`: the
        argument that names another chat; `timeout`: its own deadline in seconds. Raises PluginFault.
        """

        def register(decorated: Function) -> Function:
            try:
                level = Risk(risk)
            except ValueError:
                words = ", ".join(Risk)
                raise PluginFault(f"risk {risk!r} is not one of {words}", where_of(decorated)) from None
            self.tools.append(tool_from(decorated, plugin=self.name, name=name, risk=level, **traits))
            return decorated

        return register if function is None else register(function)

    def stage(self, stage: Stage | str, *, own: bool = False) -> Callable[[Function], Function]:
        """Hook into a stage of every turn; `own=True`: only for calls of its own tools. Raises PluginFault."""

        def register(function: Function) -> Function:
            if not callable(function):
                raise PluginFault(f"{function!r} is not a function, so it cannot be a hook")
            where = where_of(function)
            try:
                name = Stage(stage)
            except ValueError:
                raise PluginFault(f"stage {stage!r} is not one of {', '.join(Stage)}", where) from None
            if own and name not in (Stage.BEFORE_TOOLCALL, Stage.AFTER_TOOLCALL):
                raise PluginFault(f"own=True belongs to the two toolcall stages, not to {name}", where)
            self.hooks.append(Hook(self.name, name, function, own, where))
            return function

        return register

    def setup(self, function: Setup) -> Setup:
        """An async generator: what stands before its `yield` sets up, what follows tears down."""
        self.setups.append(function)
        return function
