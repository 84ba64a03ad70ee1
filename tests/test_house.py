"""The house rules that are gates: floors, cycles, function length, broad excepts, tasks, clocks, the surface."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import kernel
import qiwo

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
LONGEST = 60

BROAD = {
    "kernel/adapters/embedded/database.py",  # one batch of nonsense must not end the writer
    "kernel/fence.py",  # where a plugin's code is called
    "kernel/host.py",  # where a plugin's module is imported
    "kernel/session.py",  # a bug of ours must not end a chat
}
"""The only files that may catch whatever comes."""

TASKS = {
    "kernel/app.py",
    "kernel/executor.py",
    "kernel/fence.py",
    "kernel/host.py",
    "kernel/adapters/embedded/dispatch.py",
    "kernel/console/playground.py",
    "kernel/testkit/qq.py",
    "qiwo/onebot.py",
    "plugins/qq/accounts.py",
}
"""The only files that may start a task: each owns what it starts."""

CLOCKS = {"kernel/adapters/embedded/clock.py", "plugins/clock.py"}
"""The only files that may ask the system what time it is."""


def name_of(path: Path) -> str:
    return path.relative_to(ROOT / "src").as_posix()


def trees() -> Iterator[tuple[str, ast.Module]]:
    for path in SOURCES:
        yield name_of(path), ast.parse(path.read_text(encoding="utf-8"))


def test_imports_go_down_only_and_in_no_circle() -> None:
    """The contracts in pyproject.toml hold: floors, no sideways imports, no database or HTTP outside the adapters."""
    lint = [sys.executable, "-c", "from importlinter.cli import lint_imports_command; lint_imports_command()"]
    done = subprocess.run(lint, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_no_function_is_longer_than_a_screen() -> None:
    """Sixty lines at most, all told."""
    long = [
        f"{name}:{node.lineno} {node.name}"
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 > LONGEST
    ]
    assert long == []


def test_only_the_fences_catch_whatever_comes() -> None:
    """`except Exception`, `except BaseException` and a bare `except` stand only where a plugin's code is called."""
    found = {
        name
        for name, tree in trees()
        for node in ast.walk(tree)
        if isinstance(node, ast.ExceptHandler) and is_broad(node.type)
    }
    assert found <= BROAD, found - BROAD


def is_broad(caught: ast.expr | None) -> bool:
    if isinstance(caught, ast.Tuple):
        return any(is_broad(one) for one in caught.elts)
    return caught is None or (isinstance(caught, ast.Name) and caught.id in ("Exception", "BaseException"))


def calls() -> Iterator[tuple[str, str]]:
    """Every dotted call, with its file."""
    for name, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Call):
                yield name, ast.unparse(node.func)


def test_every_task_has_an_owner() -> None:
    """Tasks are started only in files that end them."""
    starters = {name for name, call in calls() if call.endswith(("create_task", "ensure_future"))}
    assert starters <= TASKS, starters - TASKS


def test_time_comes_in_through_the_clock() -> None:
    """Nobody asks the system for the time, and nobody prints, but the adapter and the command line."""
    asking = {name for name, call in calls() if call in ("time.time", "time.monotonic", "datetime.now", "time.sleep")}
    assert asking <= CLOCKS, asking - CLOCKS
    printing = {name for name, call in calls() if call == "print"}
    assert {name for name in printing if not name.startswith("qiwo/")} == set()


def test_no_module_holds_mutable_state() -> None:
    """At top level nothing is a list, a dict or a set that somebody could fill."""
    held = [
        f"{name}:{node.lineno}"
        for name, tree in trees()
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and isinstance(node.value, ast.List | ast.Set | ast.ListComp | ast.SetComp)
        and not ast.unparse(node).startswith("__all__")
    ]
    assert held == []


def test_the_surface_is_what_is_promised() -> None:
    """`kernel.__all__` is sorted, complete, and the same as `qiwo`'s."""
    assert list(kernel.__all__) == sorted(kernel.__all__)
    assert qiwo.__all__ == kernel.__all__
    assert all(hasattr(qiwo, name) for name in qiwo.__all__)
    public = {name for name, value in vars(kernel).items() if not name.startswith("_") and not is_module(value)}
    assert public == set(kernel.__all__)


def is_module(value: object) -> bool:
    return type(value).__name__ == "module"


def test_kernel_is_ours() -> None:
    """A distribution of the same name exists: it must never be the one that is imported."""
    assert Path(kernel.__file__).resolve().is_relative_to(ROOT / "src")


def test_nothing_names_a_machine_or_a_registry() -> None:
    """No home folder and no registry's host stands in any file of the project."""
    listed = subprocess.run(
        ["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    words = ("pypi" + ".org", "pythonhosted" + ".org", "npmjs" + ".org", "/ro" + "ot/", "/wo" + "rk/")
    found = []
    for name in listed.stdout.splitlines():
        path = ROOT / name
        if path.is_file():
            text = path.read_bytes().decode("utf-8", "replace")
            found += [f"{name}: {word}" for word in words if word in text]
    assert found == []
