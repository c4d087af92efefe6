"""A run directory as a run leaves it, in a few rows."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest

PATIENCE_MS = 120_000
"""For a machine that other programs keep busy."""
WIDTHS, COLOURS = (1280, 390), {"light": "rgb(247, 247, 245)", "dark": "rgb(18, 20, 23)"}
LAID_OUT = """(bottom => ({
  width: document.documentElement.scrollWidth,
  right: Math.max(...[...document.querySelectorAll("main *")].filter(each => !each.closest(".scroll"))
    .map(each => each.getBoundingClientRect().right)),
  back: getComputedStyle(document.documentElement).backgroundColor,
  legends: [...document.querySelectorAll(".plot:not([hidden])")].filter(plot =>
    bottom(plot, ".legend") > plot.querySelector(".canvas").getBoundingClientRect().top).length,
}))((plot, selector) => plot.querySelector(selector).getBoundingClientRect().bottom)"""


def row(step, **values):
    names = {"rollout/reward_mean": step / 100, "train/logprob_diff_mean": 1e-6, "seconds/step": 2.0}
    return {"stage": "rl", "step": step, "time": 1.0, **names, "seconds/generate": 1.5, "seconds/train": 0.5, **values}


def sample(prompt, reward, response, asked="1+1=", **more):
    messages = [{"role": "user", "content": asked}]
    known = {"finish": "completed", "num_tokens": 3, "label": "2", "messages": messages, "weight_versions": [[1, 3]]}
    return {"prompt": prompt, "reward": reward, "response": response, **known, **more}


def lines(rows):
    return "".join(json.dumps(each) + "\n" for each in rows)


@pytest.fixture
def make_run(tmp_path):
    """Writes a run of `num_steps` steps and `rows` behind them, with the samples of step 2."""

    def write(num_steps, samples=(), rows=(), name="it"):
        folder = tmp_path / name
        (folder / "samples").mkdir(parents=True, exist_ok=True)
        made = [{"stage": "sft", "step": 1, "train/loss": 3.0}, *(row(step) for step in range(1, num_steps + 1)), *rows]
        (folder / "metrics.jsonl").write_text(lines(made))
        if samples:
            (folder / "samples/step-000002.jsonl").write_text(lines(samples))
        (folder / "config.yaml").write_text("run: {seed: 7}\ncluster: {environment: {HF_TOKEN: hf_secret}}\n")
        return folder

    return write


class Opened:
    """A page, with what the browser said and asked for meanwhile."""

    def __init__(self, browser, width, colours):
        self.context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=colours)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.said, self.asked = [], []
        self.page.on("console", lambda message: self.said.append(message.text))
        self.page.on("pageerror", lambda error: self.said.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def until(self, expression):
        """Wait for a JavaScript expression to be true; not by Playwright's own, which the page's policy forbids."""
        deadline = time.monotonic() + PATIENCE_MS / 1000
        while not self.page.evaluate(expression):
            assert time.monotonic() < deadline, expression
            time.sleep(0.1)

    def text(self, selector):
        return " ".join(self.page.locator(selector).all_inner_texts())


@pytest.fixture
def opened(chromium):
    """Opens an address at a width, in light or dark; afterwards nothing may have gone wrong in the browser."""
    pages = []

    def open_(url, width=1280, colours="light"):
        found = Opened(chromium, width, colours)
        pages.append(found)
        found.page.goto(url)
        found.page.wait_for_selector("h1")
        return found

    yield open_
    for each in pages:
        each.context.close()
    assert [line for each in pages for line in each.said] == []


@pytest.fixture
def watching():
    """Starts `slime watch` as a user does; gives its address."""
    started = []

    def start(*folders):
        command = [sys.executable, "-m", "slime", "watch", *map(str, folders)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        watched, address, tunnel = (process.stdout.readline() for _ in range(3))
        assert str(folders[0]) in watched
        port = re.search(r"http://127\.0\.0\.1:(\d+)/#\S+", address)[1]
        assert f"ssh -N -L {port}:127.0.0.1:{port} " in tunnel
        return address.split()[-1]

    yield start
    for process in started:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def drawn(found):
    """Titles of the plots that are there, each with ink in its canvas."""
    found.until("!undrawn.size")
    script = """() => [...document.querySelectorAll(".plot:not([hidden])")].map(plot => {
      const canvas = plot.querySelector("canvas");
      const drawn = canvas?.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data;
      return [plot.querySelector("h2").textContent, drawn ? drawn.some(each => each) : null];
    })"""
    return dict(found.page.evaluate(script))
