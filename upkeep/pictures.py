"""Takes the pictures of the live page in docs/images again, in the system's Chromium.

slime +model=glm4-tiny +cluster=local      # in another terminal: of a run that goes on the page shows more
python upkeep/pictures.py runs/glm4-tiny-local
"""

from __future__ import annotations

import base64
import shutil
import signal
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

IMAGES = Path(__file__).resolve().parents[1] / "docs/images"
HEIGHT = 1130
WHOLE, SAMPLES = "body", "section:has(> .card, > div > .card)"
PICTURES = {
    "watch-light": (1280, "light", WHOLE),
    "watch-dark": (1280, "dark", WHOLE),
    "watch-phone-light": (390, "light", WHOLE),
    "watch-phone-dark": (390, "dark", WHOLE),
    "watch-samples": (1280, "light", SAMPLES),
}
"""File -> width of the window, colours, and what of the page is in it, down to `HEIGHT` pixels."""
DRAWN = "!undrawn.size && !!document.querySelector('.plot.large canvas') && !!document.querySelector('.card')"
SETTLE_MS = 500
QUALITY = 80
"""Of a WebP, in percent: below it texts fray."""


def take(browser: Browser, address: str, name: str) -> bytes:
    """A picture of `PICTURES`, as WebP."""
    width, colours, what = PICTURES[name]
    context = browser.new_context(viewport={"width": width, "height": HEIGHT})
    page = context.new_page()
    page.emulate_media(color_scheme="dark" if colours == "dark" else "light")
    page.goto(address)
    while not page.evaluate(DRAWN):
        page.wait_for_timeout(SETTLE_MS)
    page.wait_for_timeout(SETTLE_MS)
    box = page.locator(what).first.bounding_box()
    assert box, what
    clip = {**box, "height": min(box["height"], HEIGHT), "scale": 1}
    asked = {"format": "webp", "quality": QUALITY, "clip": clip, "captureBeyondViewport": True}
    taken = context.new_cdp_session(page).send("Page.captureScreenshot", asked)
    context.close()
    return base64.b64decode(taken["data"])


def main(run: Path, to: Path = IMAGES) -> None:
    watch = subprocess.Popen([sys.executable, "-m", "slime", "watch", run], stdout=subprocess.PIPE, text=True)
    try:
        assert watch.stdout
        _, opened, _ = (watch.stdout.readline() for _ in range(3))
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            for name in PICTURES:
                (to / f"{name}.webp").write_bytes(take(browser, opened.split()[-1], name))
            browser.close()
    finally:
        watch.send_signal(signal.SIGINT)
        watch.wait()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
