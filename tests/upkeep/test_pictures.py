"""The pictures of docs are taken by one command."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from PIL import Image, ImageStat

from tests.running import Run
from upkeep import pictures

PAGE = Path(__file__).parents[2] / "docs/watching.md"
pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


@pytest.mark.skipif(shutil.which("chromium") is None, reason="there is no Chromium here: apt-get install chromium")
def test_the_page_of_a_run_is_taken_light_and_dark_and_on_a_phone(finished: Run, tmp_path: Path) -> None:
    pictures.main(finished.path, tmp_path)
    taken = {}
    for name, (width, _, _) in pictures.PICTURES.items():
        with Image.open(tmp_path / f"{name}.webp") as image:
            assert image.format == "WEBP"
            assert image.width <= width
            assert image.height <= pictures.HEIGHT
            taken[name] = ImageStat.Stat(image.convert("L")).mean[0]
        assert f"images/{name}.webp" in PAGE.read_text()
    for light, dark in (("watch-light", "watch-dark"), ("watch-phone-light", "watch-phone-dark")):
        assert taken[light] > 200 > 60 > taken[dark], "mean brightness, of 255"
