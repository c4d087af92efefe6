"""The documentation's site as a reader sees it, in a real Chromium: on a desk, on a phone, in light and in dark."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

import pytest

from tests.test_site import ROOT, build

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
WIDTHS = (1280, 1920, 390)
TABLES = """async width => {
  await new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)));
  const tables = [...document.querySelectorAll(".md-typeset table")].map(table => {
    const box = table.closest(".md-typeset__scrollwrap");
    const look = getComputedStyle(box), [first] = table.rows, last = first.cells[first.cells.length - 1];
    const scrolls = box.scrollWidth > box.clientWidth;
    box.scrollLeft = box.scrollWidth;
    const reached = last.getBoundingClientRect().right <= Math.min(box.getBoundingClientRect().right, width) + 1;
    return {head: first.innerText, scrolls, reached,
            shown: look.overflowX === "auto" && look.backgroundImage.split("linear-gradient").length === 5,
            spilt: [...table.querySelectorAll("td, th")].some(cell => cell.scrollWidth > cell.clientWidth + 1)};
  });
  return {tables, wider: document.documentElement.scrollWidth - document.documentElement.clientWidth};
}"""
CONTRASTS = """() => {
  const canvas = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
  const over = (colours) => {
    canvas.clearRect(0, 0, 1, 1);
    for (const colour of colours) { canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1); }
    return [...canvas.getImageData(0, 0, 1, 1).data].slice(0, 3);
  };
  const texts = document.createTreeWalker(document.querySelector(".md-container"), NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    const text = texts.currentNode.textContent.trim(), seen = {visibilityProperty: true, opacityProperty: true};
    if (!text || !element.checkVisibility(seen)) continue;
    const look = getComputedStyle(element), behind = [];
    for (let each = element; each; each = each.parentElement) behind.unshift(getComputedStyle(each).backgroundColor);
    const size = parseFloat(look.fontSize);
    found.push({text: text.slice(0, 40), back: over(behind), ink: over([...behind, look.color]),
                large: size >= 24 || size >= 18.66 && look.fontWeight >= 700});
  }
  return found;
}"""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the built site is served."""
    site = tmp_path_factory.mktemp("built")
    assert build(ROOT, site).returncode == 0
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.parametrize("width", WIDTHS)
def test_every_column_of_every_table_is_seen(address: str, chromium: Any, width: int) -> None:
    """Without scrolling on a desk; on a phone a table may scroll in a box with a shadow where columns go on. And no
    request leaves the site."""
    pages = [path for path in sorted((ROOT / "docs").glob("*.md")) if "\n|--" in path.read_text(encoding="utf-8")]
    page, seen, asked = chromium.new_page(viewport={"width": width, "height": 900}), 0, set()
    page.on("request", lambda request: asked.add(request.url))
    for name in (page.stem for page in pages):
        page.goto(address if name == "index" else f"{address}{name}/")
        laid_out = page.evaluate(TABLES, width)
        assert laid_out["wider"] <= 0, name
        for table in laid_out["tables"]:
            assert table["reached"], (name, table)
            assert table["shown"] if width == 390 else not table["scrolls"], (name, table)
            assert not table["spilt"], (name, table)
        seen += len(laid_out["tables"])
    page.close()
    assert seen > 100
    assert {url for url in asked if not url.startswith(address)} == set()


def luminance(colour: list[int]) -> float:
    """WCAG 2.2, "relative luminance"."""
    parts = [value / 255 for value in colour]
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: list[int], other: list[int]) -> float:
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_contrast_is_that_of_wcag() -> None:
    """Black on white has 21, and #767676 on white is known as the lightest gray that has 4.5."""
    white = [255, 255, 255]
    assert contrast([0, 0, 0], white) == pytest.approx(21)
    assert contrast([0x76] * 3, white) > 4.5 > contrast([0x77] * 3, white)


@pytest.mark.parametrize(("scheme", "back"), [("light", [255, 255, 255]), ("dark", [30, 33, 41])])
def test_text_can_be_read_in_both_schemes(address: str, chromium: Any, scheme: str, back: list[int]) -> None:
    """4.5 to its background, large text 3: level AA of WCAG 2.2. The reader's system chooses the scheme."""
    page = chromium.new_page(viewport={"width": 1280, "height": 900}, color_scheme=scheme)
    for name in ("", "your-own/", "first-run/", "troubleshooting/"):
        page.goto(f"{address}{name}")
        texts = page.evaluate(CONTRASTS)
        assert len(texts) > 100
        assert back in [text["back"] for text in texts]
        faint = [text for text in texts if contrast(text["ink"], text["back"]) < (3 if text["large"] else 4.5)]
        assert faint == []
    page.close()


def test_search_finds_a_page_without_asking_another_host(address: str, chromium: Any) -> None:
    page, asked = chromium.new_page(viewport={"width": 1280, "height": 900}), set()
    page.on("request", lambda request: asked.add(request.url))
    page.goto(address)
    page.locator(".md-search__input").click()
    page.keyboard.type("max_staleness")
    page.wait_for_selector(".md-search-result__link[href*=asynchrony]", timeout=120_000)
    page.close()
    assert {url for url in asked if not url.startswith(address)} == set()
