"""The page of a run: in one piece, harmless, and no larger for a longer run."""

import base64
import json
import re
import xml.etree.ElementTree as ElementTree
from html.parser import HTMLParser

import pytest

from slime.__main__ import main
from slime.observe import html

PREFIX = "data:image/svg+xml;base64,"


class Page(HTMLParser):
    """Texts, titles of plots with their SVG, and every tag."""

    def __init__(self, text):
        super().__init__()
        self.text, self.plots, self.tags = "", {}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag == "img":
            self.plots[dict(attributes)["alt"]] = base64.b64decode(dict(attributes)["src"].removeprefix(PREFIX))

    def handle_data(self, data):
        self.text += data


def row(step, **values):
    names = {"rollout/reward_mean": step / 100, "train/logprob_diff_mean": 1e-6, "seconds/step": 2.0}
    return {"stage": "rl", "step": step, "time": 1.0, **names, "seconds/generate": 1.5, "seconds/train": 0.5, **values}


def sample(prompt, reward, response, asked="1+1="):
    messages = [{"role": "user", "content": asked}]
    known = {"finish": "completed", "num_tokens": 3, "label": "2", "messages": messages}
    return {"prompt": prompt, "reward": reward, "response": response, **known}


@pytest.fixture
def run(tmp_path):
    tmp_path = tmp_path / "it"

    def write(num_steps, samples=(), rows=()):
        (tmp_path / "samples").mkdir(parents=True, exist_ok=True)
        made = [{"stage": "sft", "step": 1, "train/loss": 3.0}, *(row(step) for step in range(1, num_steps + 1)), *rows]
        (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in made))
        if samples:
            lines = "".join(json.dumps(each) + "\n" for each in samples)
            (tmp_path / "samples/step-000002.jsonl").write_text(lines)
        (tmp_path / "config.yaml").write_text("run: {seed: 7}\ncluster: {environment: {HF_TOKEN: hf_secret}}\n")
        return tmp_path

    return write


def words(picture):
    return "".join(ElementTree.fromstring(picture).itertext())


def page(folder):
    return Page(html.write(folder, "the summary").read_text())


def test_the_page_has_plots_summary_and_config_and_no_secret(run):
    shown = page(run(5))
    assert list(shown.plots) == [
        "Reward",
        "Supervised loss",
        "Log-prob gap between engine and trainer",
        "Seconds a step",
    ]
    for title, picture in shown.plots.items():
        assert title in words(picture)
    assert {"generate", "train"} <= set(words(shown.plots["Seconds a step"]).split())
    assert "the summary" in shown.text
    assert "seed: 7" in shown.text
    assert "hf_secret" not in shown.text


def test_it_needs_nothing_from_elsewhere(run):
    samples = [sample("a", 1.0, "<script src='http://evil'></script><img src='http://evil'>", asked="<b>&amp;</b>")]
    shown = page(run(3, samples))
    assert "script" not in {tag for tag, _ in shown.tags}
    links = [value for _, attributes in shown.tags for value in attributes.values() if value]
    assert not any(re.match(r"\w+:", link) for link in links if not link.startswith(PREFIX))
    assert "<script src='http://evil'>" in shown.text
    assert "user: <b>&amp;</b>" in shown.text


def test_the_best_and_the_worst_samples(run):
    samples = [sample(str(number), float(reward), f"says {number}") for number, reward in enumerate([0, 3, 1, 2])]
    samples.append({**sample("9", None, "not judged")})
    said = re.findall(r"says \d|best|worst|not judged", page(run(1, samples)).text)
    assert said == ["best", "says 1", "says 3", "worst", "says 0", "says 2"]


def test_a_long_run_makes_no_larger_page(run):
    long = sample("a", 1.0, "x" * 10**6)
    short, other = (len(html.write(run(steps, [long]), "").read_bytes()) for steps in (html.MAX_POINTS, 40_000))
    assert other < 1.5 * short < 10**6


def test_a_point_is_the_mean_of_steps_and_keeps_the_last():
    rows = [row(step) for step in range(1, 1001)]
    steps, values = html.thinned(rows, "rollout/reward_mean")
    assert (steps[0], steps[-1], len(steps)) == (3, 1000, 334)
    assert values[:2] == pytest.approx([0.02, 0.05])


def test_what_is_not_a_number_leaves_a_gap(run):
    rows = [row(6, **{"rollout/reward_mean": "NaN", "train/kl": "Infinity"}), row(7)]
    assert "KL divergence from the reference" in page(run(5, rows=rows)).plots


def test_the_verb_writes_it_and_says_where(run, capsys):
    folder = run(2)
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    text = (folder / "report.html").read_text()
    assert "rl       2 steps" in text
    (folder / "metrics.jsonl").unlink()
    assert main(["report", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"slime: {folder}: there are no metrics. ")
