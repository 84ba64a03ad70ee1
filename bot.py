"""Start Qiwo: `uv run bot.py`."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "src"))  # before any distribution that is named `kernel`

import nonebot

from kernel.settings import server_options
from qiwo.boot import attach, build, load_settings
from qiwo.onebot import OneBotAdapter

settings = load_settings()
nonebot.init(**settings.nonebot())
driver = nonebot.get_driver()
driver.register_adapter(OneBotAdapter)
nonebot.load_from_toml(str(ROOT / "pyproject.toml"))  # plugins from NoneBot's store; ours are loaded by the kernel
attach(driver, build(settings))

if __name__ == "__main__":
    nonebot.run(**server_options())
