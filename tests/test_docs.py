"""The documents keep their word: their plugins load, their settings exist, their links lead somewhere."""

import re
from pathlib import Path

import pytest

from kernel.host import import_by_path
from kernel.plugin import Plugin
from kernel.settings import KEYS

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", ROOT / "README.en.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    for number, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", [block for block in BLOCKS if "plugin = Plugin(" in str(block.values[0])])
def test_the_plugins_in_the_pages_load(block: str, tmp_path: Path) -> None:
    """As printed, and each declares something."""
    path = tmp_path / "page.py"
    path.write_text(block, encoding="utf-8")
    module = import_by_path(path, "plugins.page__g1")
    [plugin] = [value for value in vars(module).values() if isinstance(value, Plugin)]
    assert plugin.tools or plugin.hooks or plugin.setups


@pytest.mark.parametrize("block", BLOCKS)
def test_every_block_is_python(block: str) -> None:
    """No slip of the pen."""
    compile(block, "page", "exec")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_settings_and_links_exist(page: Path) -> None:
    """A QIWO_ key that a page names is a setting; a relative link leads to a file."""
    text = page.read_text(encoding="utf-8")
    assert {key for key in re.findall(r"\bQIWO_[A-Z_]+\b", text) if key not in KEYS} == set()
    links = [link for link in re.findall(r"\]\(([^)#]+)\)", text) if not link.startswith("http")]
    assert [link for link in links if not (page.parent / link).exists()] == []


def test_the_pages_can_be_read_in_ten_minutes() -> None:
    """docs/DESIGN.md has at most 300 lines; none is longer."""
    assert max(len(page.read_text(encoding="utf-8").splitlines()) for page in PAGES) <= 300
