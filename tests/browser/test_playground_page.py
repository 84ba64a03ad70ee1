"""The playground in a real Chromium: `uv run --group browser pytest tests/browser`. Skipped where there is none."""

import re
import shutil
from collections.abc import Iterator

import pytest
from tests.page import link_in
from tests.stage import ROOT

from kernel.adapters.model.demo import PROMPTS
from kernel.testkit import BotProcess

api = pytest.importorskip("playwright.sync_api", reason="needs the dependency group `browser`")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
FLAGS = (
    "--no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync"
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")


@pytest.fixture
def bot() -> Iterator[BotProcess]:
    with BotProcess(ROOT) as one:
        yield one


@pytest.fixture
def browser() -> Iterator["api.Browser"]:
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS.split())
        yield browser
        browser.close()


@pytest.mark.parametrize("width", [1280, 390])
def test_a_newcomer_sees_it_all_by_clicking(bot: BotProcess, browser: "api.Browser", width: int) -> None:
    """Every card does what it says, nothing is asked of another host, and nothing is wider than the screen."""
    clock, state, two, crash, slow = (text for _, text in PROMPTS)
    context = browser.new_context(viewport={"width": width, "height": 844}, locale="zh-CN")
    page = context.new_page()
    problems: list[str] = []
    asked: set[str] = set()
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: asked.add(request.url))
    page.goto(link_in(bot))
    page.wait_for_url("**/playground")
    page.get_by_text("已接上机器人").wait_for()

    def click(text: str, answer: str) -> None:
        before = page.locator("#log .bot", has_text=answer).count()
        page.locator(f"[data-say='{text}']").first.click()
        api.expect(page.locator("#log .bot", has_text=answer)).to_have_count(before + 1)

    page.get_by_text("私聊", exact=True).click()
    page.locator(".who span", has_text="阿宁").click()
    click(clock, "time_now 的结果是")
    click(state, "被拒绝")
    click(two, "这一句由 output_send__qq 发出")
    for _ in range(3):
        click(crash, "崩溃了")
    click(crash, "正在熔断")
    api.expect(page.locator("#alert")).to_contain_text(re.compile(r"熔断：crash_now（.*的私聊），还有 \d+ 秒"))
    api.expect(page.locator("#trouble .open").last).to_contain_text(re.compile(r"还有 \d+ 秒"))
    page.locator(f"[data-say='{slow}']").click()
    api.expect(page.locator("#busy")).to_be_visible()
    click("/stop", "已停下")
    page.locator(".who span", has_text="站长").click()
    click(state, '"role": "operator"')
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    assert problems == []
    assert all(url.startswith(f"{bot.url}/") for url in asked)


def test_the_link_works_from_another_site(bot: BotProcess, browser: "api.Browser") -> None:
    """A browser holds strict cookies back after a redirect from elsewhere: the welcome page moves on by itself."""
    page = browser.new_page()
    page.set_content(f"<a href='{link_in(bot)}'>open</a>")
    page.click("a")
    page.wait_for_url("**/playground")
    api.expect(page).to_have_title("企窝体验场")
