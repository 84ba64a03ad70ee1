"""The tools that can be called right now. Registering returns its own undo."""

from collections.abc import Callable, Iterator

from kernel.errors import PluginFault
from kernel.tools import Tool


class Toolbox:
    """Name to tool; owned by the plugin host, read by the door and the agent."""

    def __init__(self) -> None:
        self._tools: dict[str, Tool] = {}

    def add(self, tool: Tool) -> Callable[[], None]:
        """Raises PluginFault (file:line) when the name is taken: two tools of one name make a server refuse all."""
        taken = self._tools.get(tool.name)
        if taken is not None:
            raise PluginFault(f"tool {tool.name!r} exists already, from plugin {taken.plugin!r}", tool.where)
        self._tools[tool.name] = tool

        def undo() -> None:
            if self._tools.get(tool.name) is tool:
                del self._tools[tool.name]

        return undo

    def get(self, name: str) -> Tool | None:
        return self._tools.get(name)

    def __iter__(self) -> Iterator[Tool]:
        return iter(tuple(self._tools.values()))

    def __len__(self) -> int:
        return len(self._tools)
