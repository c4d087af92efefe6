"""The page in a real Chromium: with a run in progress, frozen, narrow, in the dark, and with texts that mean harm."""

import json
import signal

import pytest

from plugins.tools.tests.watch.conftest import COLOURS, LAID_OUT, PATIENCE_MS, WIDTHS, drawn, row, sample
from slime_tools.watch import report
from slime_tools.watch.view import RunView
from tests.running import NO_CHECKPOINTS, Run

pytestmark = pytest.mark.slow
EVIL = "<img src=x onerror=\"document.title='harmed'\"></script><script>document.title='harmed'</script>"


def test_a_run_in_progress_is_followed_to_its_end(tmp_path, watching, opened):
    """As on a laptop: real engines, real trainer, and the page beside them."""
    run = Run(tmp_path, settings={"run.num_steps": 6, "eval.interval": 3, **NO_CHECKPOINTS}, forked=True).start()
    run.until(lambda: (run.path / "logs/now.json").exists())
    run.process.send_signal(signal.SIGSTOP)  # the page may take longer than the run's start
    found = opened(watching(run.path))
    found.page.wait_for_selector(".state.running")
    found.until("document.querySelector('.doing').textContent.includes('starting')")
    run.process.send_signal(signal.SIGCONT)
    run.until(lambda: run.has_step("rl", 2))
    found.until("/ · rl [2-6]$/.test(document.title)")
    assert "of 6" in found.text(".tile")
    run.succeed()
    found.page.wait_for_selector(".state.finished")
    assert "rl 6" in found.page.title()
    plots = drawn(found)
    assert {"Reward", "Seconds of a step", "Log-prob gap, engine to trainer", "Supervised loss"} <= plots.keys()
    assert all(plots.values())
    assert found.page.locator("option", has_text="newest: training, step 6").count() == 1
    assert found.page.locator(".card").count() > 0
    assert not (run.path / "logs/now.json").exists()
    host = found.page.url.partition("#")[0]
    assert all(url.startswith(host) for url in found.asked)


@pytest.mark.parametrize("colours", COLOURS)
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_or_covered_and_the_dark_is_dark(make_run, opened, tmp_path, width, colours):
    parts = {"rollout/reward_part/format": 0.5, "rollout/reward_part/answer": 0.25, "rollout/reward_error": 2.0}
    rows = [row(step, **parts, **{f"seconds/phase_{number}": 0.1 for number in range(9)}) for step in range(6, 30)]
    samples = [sample("a", 1.0, "x" * 3000), sample("a", 0.0, EVIL, parts={"format": 1.0}), sample("b", None, "y")]
    folder = make_run(5, samples, rows=rows)
    (folder / "status.json").write_text(json.dumps({"state": "failed", "said": f"it died {'x' * 300}"}))
    report.write(folder / "report.html", [RunView(folder)])
    found = opened(f"file://{folder}/report.html", width, colours)
    laid_out = found.page.evaluate(LAID_OUT)
    assert laid_out["width"] == width
    assert laid_out["right"] <= width
    assert laid_out["back"] == COLOURS[colours]
    assert laid_out["legends"] == 0
    assert all(drawn(found).values())
    assert len(found.asked) == 1


def test_what_a_sample_contains_is_text(make_run, watching, opened):
    turns = [{"role": "assistant", "content": "", "tool_calls": [{"name": EVIL}]}, {"role": "tool", "content": EVIL}]
    samples = [
        sample("a", 1.0, EVIL, asked=EVIL),
        sample("a", 0.0, EVIL, turns=[*turns, {"role": EVIL, "content": EVIL}]),
    ]
    folder = make_run(3, samples, name="evil<img src=x>")
    (folder / "status.json").write_text(json.dumps({"state": "failed", "said": EVIL}))
    report.write(folder / "report.html", [RunView(folder)])
    for url in (watching(folder), f"file://{folder}/report.html".replace("<", "%3C").replace(">", "%3E")):
        found = opened(url)
        found.page.wait_for_selector(".card")
        assert found.page.locator(".turn .text", has_text="<img src=x onerror=").count() >= 4
        assert "harmed" not in found.page.title()
        assert found.page.locator("main img, main script").count() == 0
        assert found.page.locator(".turn details[open]").count() == 0
        assert found.page.locator(".turn details").count() == 2


@pytest.mark.parametrize("several", [False, True])
def test_names_that_every_object_has_are_names_like_others(make_run, watching, opened, several):
    names = [
        "__proto__",
        "constructor",
        "toString",
        "hasOwnProperty",
        "rollout/reward_part/__proto__",
        "seconds/constructor",
    ]
    samples = [sample("a", 1.0, "an answer", parts={"__proto__": 1.0, "constructor": 2.0})]
    folder = make_run(9, samples, rows=[row(step, **dict.fromkeys(names, float(step))) for step in range(10, 14)])
    folders = [folder, make_run(9, samples, name="other")] if several else [folder]
    report.write(folder / "report.html", [RunView(each) for each in folders])
    for url in (watching(*folders), f"file://{folder}/report.html"):
        found = opened(url)
        found.page.wait_for_selector(".card")
        assert found.text(".chip") == "__proto__ 1 constructor 2"
        assert all(drawn(found).values())
        found.page.locator("summary", has_text="Any metric").click()
        for name in names:
            found.page.get_by_label("metric").select_option(f"rl {name}")
            found.until("document.querySelector('.any .legend').textContent.includes('13')")
            assert found.page.inner_text(".any h2") == name


def test_what_turns_a_text_around_is_shown_by_its_name(make_run, watching, opened):
    steering = "a\u202eb\u2066c\u200fd\x1be\u2028f\u0085g\ud800h\ni\tj"
    named = r"a<U+202E>b<U+2066>c<U+200F>d\x1be<U+2028>f\x85g<U+D800>h"
    folder = make_run(3, [sample(steering, 1.0, steering, asked=steering, label=steering, parts={steering: 1.0})])
    (folder / "status.json").write_text(json.dumps({"state": "failed", "said": steering}))
    report.write(folder / "report.html", [RunView(folder)])
    for url in (watching(folder), f"file://{folder}/report.html"):
        found = opened(url)
        found.page.wait_for_selector(".card")
        assert [text.split("\n") for text in found.page.locator(".turn .text").all_inner_texts()] == [
            [named, "i\tj"]
        ] * 2
        for place in (".notice", ".chip", ".card .note"):
            assert named in found.text(place)
        assert not set("\u202e\u2066\u200f\x1b\u2028\x85") & set(found.text("main") + found.page.title())


def test_a_page_without_the_key_shows_nothing_of_the_run(make_run, watching, opened, chromium):
    url = watching(make_run(3))
    context = chromium.new_context()
    page = context.new_page()
    page.goto(url.partition("#")[0])
    page.wait_for_selector(".notice", timeout=PATIENCE_MS)
    assert "The key is not that of this 'slime watch'" in page.inner_text("body")
    assert page.locator("h1").count() == 0
    context.close()


def test_several_runs_are_laid_over_each_other(make_run, watching, opened):
    folders = [
        make_run(30, [sample("a", 1.0, "of one")], name="one"),
        make_run(20, [sample("a", 0.0, "of two")], name="two"),
    ]
    (folders[1] / "config.yaml").write_text("run: {seed: 8}\n")
    found = opened(watching(*folders))
    assert "2 runs" in found.text("h1")
    assert "one, training 0.280 two, training 0.180" in " ".join(found.text(".plot.large .legend").split())
    assert "run.seed 7 8" in " ".join(found.text(".panel table").split())
    found.until("document.querySelector('.card')?.innerText.includes('of one')")
    found.page.select_option("select[aria-label=run]", label="two")
    found.until("document.querySelector('.card')?.innerText.includes('of two')")


def test_a_reader_looks_closer_at_steps_metrics_and_older_samples(make_run, watching, opened):
    folder = make_run(100, [sample("a", 1.0, "of step two")])
    (folder / "samples/step-000009.jsonl").write_text(json.dumps(sample("a", 1.0, "of step nine")) + "\n")
    found = opened(watching(folder))
    found.until("document.querySelector('.card')?.innerText.includes('of step nine')")
    found.page.select_option("select[aria-label=step]", "step-000002")
    found.until("document.querySelector('.card')?.innerText.includes('of step two')")
    found.page.get_by_text("Any metric").click()
    found.page.select_option("select[aria-label=metric]", "rl seconds/train")
    assert "value 0.5" in " ".join(found.text(".any .legend").split())
    found.page.get_by_text("Summary, versions and config").click()
    found.page.get_by_text("Config: every key").click()
    assert "seed: 7" in found.text(".fold pre")
    found.page.locator(".plot.large").scroll_into_view_if_needed()
    box = found.page.locator(".plot.large .u-over").bounding_box()
    found.page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 20)
    found.until("document.querySelector('.plot.large .unit').textContent.startsWith('step ')")
    found.page.mouse.down()
    found.page.mouse.move(box["x"] + box["width"] * 0.75, box["y"] + 30, steps=4)
    found.page.mouse.up()
    inside = "plot => plot.stage !== 'rl' || (plot.uplot.scales.x.min > 40 && plot.uplot.scales.x.max < 90)"
    found.until(f"[...shownPlots].every({inside})")
    found.page.mouse.dblclick(box["x"] + 50, box["y"] + 20)
    found.until(f"![...shownPlots].every({inside})")
