"""The page of a run in one file: harmless, complete, and no larger for a longer run."""

import base64
import dataclasses
import hashlib
import json
from html.parser import HTMLParser
from importlib import resources

import pytest
from PIL import Image

from plugins.tools.tests.watch.conftest import row, sample
from slime.__main__ import main
from slime.events import Complete, Ended
from slime.observe.status import STATUS, Status
from slime.types import TrackedRun
from slime_observers.console import summary
from slime_testing.plugins import check_subscriber
from slime_testing.verbs import check_verb
from slime_tools.watch import page, report
from slime_tools.watch.view import RunView


class Page(HTMLParser):
    """Every tag, what the page was frozen with, and what its elements `style` and `script` contain."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.inside, self.data, self._tag = [], {}, "", ""
        self.feed(text)
        self.told = json.loads(self.data)
        (self.run, *_) = self.told["runs"]

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        self._tag = "data" if dict(attributes).get("type") == "application/json" else tag

    def handle_data(self, data):
        if self._tag == "data":
            self.data += data
        elif self._tag in ("style", "script"):
            self.inside[self._tag] = self.inside.get(self._tag, "") + data

    def handle_endtag(self, tag):
        self._tag = ""


def page_of(*folders):
    path = folders[0] / "report.html"
    report.write(path, [RunView(folder) for folder in folders])
    return Page(path.read_text())


def texts_of(shown):
    return {part["title"]: part["text"] for part in shown.run["texts"]}


def digest(text):
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def test_the_page_has_curves_summary_and_config_and_no_secret(make_run):
    shown = page_of(make_run(5))
    curves = shown.run["curves"]["rl"]
    assert curves["steps"] == [1, 2, 3, 4, 5]
    assert curves["columns"]["rollout/reward_mean"] == [0.01, 0.02, 0.03, 0.04, 0.05]
    assert shown.run["curves"]["sft"]["columns"] == {"train/loss": [3.0]}
    assert "rl       5 steps" in texts_of(shown)["Summary and files"]
    assert "seed: 7" in texts_of(shown)["Config: every key"]
    assert "hf_secret" not in json.dumps(shown.told)


def test_it_asks_for_nothing_and_runs_nothing_but_its_own(make_run):
    samples = [
        sample("a", 1.0, "</script><script src='http://evil'></script><img src='http://evil'>", asked="<b>&amp;")
    ]
    shown = page_of(make_run(3, samples))
    assert [tag for tag, _ in shown.tags if tag not in ("html", "head", "meta", "title", "body", "main")] == [
        "style",
        "noscript",
        "script",
        "script",
    ]
    assert not {"src", "href", "onload"} & {name for _, attributes in shown.tags for name in attributes}
    policy = next(each["content"] for _, each in shown.tags if each.get("http-equiv") == "Content-Security-Policy")
    allowed = dict(part.split(" ", 1) for part in policy.split("; "))
    assert allowed["default-src"] == "'none'"
    assert allowed["script-src"] == f"'{digest(shown.inside['script'])}'"
    assert allowed["style-src"] == f"'{digest(shown.inside['style'])}'"
    assert "connect-src" not in allowed
    answer = shown.run["samples"]["files"]["step-000002"]["cards"][0]["answers"][0]
    assert answer["turns"][0]["text"].startswith("</script><script src='http://evil'>")


def test_the_library_that_draws_is_the_published_one():
    folder = resources.files(page)
    for name, expected in page.UPLOT.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == expected
    assert "MIT License" in (folder / "uplot/LICENSE").read_text()


def test_a_name_is_no_tag(make_run):
    folder = make_run(1, name="<script>alert(1)<")
    assert [tag for tag, _ in page_of(folder).tags].count("script") == 2


def test_result_and_state(make_run):
    held_out = [row(0, **{"eval/reward_mean": 0.25}), row(3, **{"eval/reward_mean": 0.875})]
    folder = make_run(2, rows=held_out)
    (folder / "config.yaml").write_text(
        "run: {num_steps: 40}\nmodel: {name: tiny}\nsft: {num_steps: 1}\nobserve: {logprob_alarm: 0.1}\n"
    )
    (folder / "checkpoints/step-000003").mkdir(parents=True)
    used = {"algo": {"name": "grpo", "distribution": "slime-rl", "version": "0.1.0"}}
    installed = {"a": {"distribution": "acme", "version": "1.2"}}
    (folder / "plugins.json").write_text(json.dumps({"installed": installed, "used": used}))
    (folder / "lock").touch()
    began = Status("running", started=1795433574.0, host="vm", slime="0.1.0", commit="abc123")
    (folder / STATUS).write_text(json.dumps(dataclasses.asdict(began)))
    shown = page_of(folder)
    head = shown.run["head"]
    assert head["results"]["held_out"] == [[0, 0.25], [3, 0.875]]
    assert (head["state"], head["stage"], head["step"], head["total"]) == ("killed", "rl", 3, 40)
    assert head["checkpoint"]["step"] == "rl 2"
    assert (head["started"], head["host"], head["commit"], head["alarm"]) == (1795433574.0, "vm", "abc123", 0.1)
    assert head["runs_on"] == ["model tiny"]
    assert "seconds_left" not in head
    assert "algo: grpo (slime-rl)" in texts_of(shown)["Versions"]
    assert "acme 1.2" in texts_of(shown)["Versions"]


def test_whether_a_run_is_over_is_said_by_the_run(make_run):
    """Not by its steps: after the last one come the checkpoint and the export, which may fail."""
    folder = make_run(3)
    (folder / "config.yaml").write_text("run: {num_steps: 3}\nalgo: {name: grpo}\n")
    assert page_of(folder).run["head"]["state"] == "not known"
    (folder / STATUS).write_text(json.dumps({"state": "failed", "said": "engine-0: it <died>. Look."}))
    head = page_of(folder).run["head"]
    assert (head["state"], head["said"]) == ("failed", "engine-0: it <died>. Look.")


def test_several_runs_say_what_differs_in_their_configs(make_run):
    runs = [make_run(3, name="a"), make_run(5, name="b")]
    (runs[1] / "config.yaml").write_text(
        "run: {seed: 8}\ntrain: {lr: 0.1}\ncluster: {environment: {HF_TOKEN: other}}\n"
    )
    shown = page_of(*runs)
    assert [run["name"] for run in shown.told["runs"]] == ["a", "b"]
    assert shown.told["differences"] == [
        {"key": "run.seed", "values": ["7", "8"]},
        {"key": "train.lr", "values": ["-", "0.1"]},
    ]


def test_a_long_run_makes_no_larger_page(make_run):
    long = sample("a", 1.0, "x" * 10**6)
    sizes = []
    for steps in (300, 40_000):
        folder = make_run(steps, [long])
        page_of(folder)
        sizes.append((folder / "report.html").stat().st_size)
    assert sizes[1] < 1.5 * sizes[0] < 10**6


def test_the_first_and_the_newest_samples_are_kept(make_run):
    folder = make_run(3, [sample("a", 1.0, "two")])
    for name in ("step-000001", "step-000003", "step-000010", "eval-000000"):
        (folder / f"samples/{name}.jsonl").write_text(json.dumps(sample("a", 1.0, name)) + "\n")
    kept = page_of(folder).run["samples"]
    assert kept["names"] == ["eval-000000", "step-000001", "step-000010"]
    assert kept["files"].keys() == set(kept["names"])


def test_the_contracts(make_run):
    check_verb("report")
    check_verb("watch")
    check_verb("runs")
    check_verb("samples")
    folder = make_run(2)
    check_subscriber("watch", folder)
    assert (folder / "report.html").exists()
    assert not (folder / "logs/now.json").exists()


def test_a_run_that_is_complete_leaves_page_and_picture_before_its_summary(make_run):
    folder = make_run(5, rows=[row(0, **{"eval/reward_mean": 0.25})])
    watch = report.Watch(TrackedRun("it", folder, {}))
    watch(Ended("failed", ValueError("boom")))
    assert not (folder / "report.html").exists()
    watch(Complete())
    assert Page((folder / "report.html").read_text()).run["head"]["state"] == "finished"
    with Image.open(folder / "reward.png") as image:
        assert image.size == (1200, 675)
        colours = {colour for _, colour in image.convert("RGB").getcolors(maxcolors=1 << 20)}
    assert {(0x21, 0x71, 0xB5), (0xE6, 0x55, 0x0D)} <= colours  # running mean and held-out, as drawn
    listed = summary.text([], folder)
    assert "  report.html     the run on one page: plots, samples, config" in listed
    assert "  reward.png      the reward, in training and on held-out prompts" in listed


def test_the_verb_writes_it_and_says_where(make_run, capsys, tmp_path):
    folder, other = make_run(2), make_run(3, name="other")
    assert main(["report", str(folder)]) == 0
    assert capsys.readouterr().out == f"{folder}/report.html\n"
    assert Page((folder / "report.html").read_text()).run["curves"]["rl"]["steps"] == [1, 2]
    assert main(["report", str(folder), str(other)]) == 2
    assert "a page of several runs lies in none of them. Name the file: --output FILE." in capsys.readouterr().err
    assert main(["report", str(folder), str(other), "--output", str(tmp_path / "both.html")]) == 0
    assert len(Page((tmp_path / "both.html").read_text()).told["runs"]) == 2
    (folder / "metrics.jsonl").unlink()
    assert main(["report", str(folder)]) == 2
    assert capsys.readouterr().err.startswith(f"slime: {folder}: there are no metrics. ")


@pytest.mark.parametrize("text", ["{{SCRIPT}}", "\ud800"])
def test_a_text_is_no_place_for_a_part_of_the_page(make_run, text):
    shown = page_of(make_run(1, [sample("a", 1.0, text)]))
    assert shown.inside["script"].count("var uPlot=") == 1
