"""The policy in force: the operator's file before the sheets of the plugins and the kernel's own."""

import logging
from collections.abc import Callable
from pathlib import Path

from kernel.policy import Policy, Sheet, load, read

log = logging.getLogger("qiwo.policy")


class Rulebook:
    """Owns the sheets. A plugin's sheet counts while the plugin stands."""

    def __init__(self, operators: Path) -> None:
        self._operators = operators
        self._sheets: list[Sheet] = []
        self.problem = ""
        """What is wrong with the operator's file, or ""."""
        self._policy = self._composed()

    def current(self) -> Policy:
        return self._policy

    def add(self, path: Path) -> Callable[[], None]:
        """Put a plugin's sheet before the kernel's. Raises ConfigError; the result takes it out again."""
        sheet = read(path)
        self._sheets.append(sheet)
        self._policy = self._composed()

        def undo() -> None:
            self._sheets.remove(sheet)
            self._policy = self._composed()

        return undo

    def _composed(self) -> Policy:
        loaded = load(self._operators, self._sheets)
        if loaded.problem and loaded.problem != self.problem:
            log.error("%s", loaded.problem)
        self.problem = loaded.problem
        return loaded.policy
