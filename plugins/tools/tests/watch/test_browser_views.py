"""What a reader does with the page in a real Chromium: smooths, changes axes, hides runs, saves, searches."""

import csv
import io
import json

import pytest

from plugins.tools.tests.watch.conftest import LAID_OUT, WIDTHS, drawn, row, sample
from slime_tools.watch import report
from slime_tools.watch.view import RunView

pytestmark = pytest.mark.slow


def legend(found, title="Reward"):
    found.until("!undrawn.size")
    card = found.page.locator(".plot", has=found.page.get_by_role("heading", name=title, exact=True))
    return " ".join(card.locator(".legend").inner_text().split())


def saved(found, title, what):
    card = found.page.locator(".plot", has=found.page.get_by_role("heading", name=title, exact=True))
    card.locator(".tools summary").click()
    with found.page.expect_download() as download:
        card.get_by_role("button", name=what).click()
    return download.value.suggested_filename, download.value.path().read_bytes()


def frozen(folder, *others):
    report.write(folder / "report.html", [RunView(each) for each in (folder, *others)])
    return f"file://{folder}/report.html"


def seeded(make_run, name, seed, gain, num_steps=30):
    rows = [row(step, **{"rollout/reward_mean": gain * step + seed}) for step in range(1, num_steps + 1)]
    folder = make_run(0, rows=rows, name=name)
    (folder / "config.yaml").write_text(f"run: {{seed: {seed}, name: {name}, dir: here}}\ntrain: {{lr: {gain}}}\n")
    return folder


@pytest.mark.parametrize("live", [True, False])
def test_smoothing_and_axes_stay_in_the_address_and_what_is_saved_is_what_was_measured(
    make_run, watching, opened, live
):
    values = [(step * 37 % 11) / 10 for step in range(1, 61)]
    rows = [
        row(step, **{"rollout/reward_mean": value, "tokens_per_s": 50.0}) for step, value in enumerate(values, start=1)
    ]
    folder = make_run(0, rows=rows)
    found = opened(watching(folder) if live else frozen(folder))
    slider = found.page.get_by_label("smoothing")
    slider.focus()
    for _ in range(3):
        found.page.keyboard.press("PageUp")
    weight = float(slider.input_value())
    assert 0.1 < weight < 0.99
    powers = [weight ** (60 - step) for step in range(1, 61)]  # bias-corrected, as Adam corrects its means
    expected = sum(power * value for power, value in zip(powers, values, strict=True)) / sum(powers)
    assert legend(found).startswith(f"training, running mean {expected:.3f}")
    found.page.get_by_label("x axis").select_option("tokens")
    found.page.get_by_label("log y axis").check()
    assert all(drawn(found).values())
    address = found.page.url
    assert all(part in address for part in (f"smooth={weight}", "x=tokens", "log=true"))
    name, content = saved(found, "Reward", "Data as CSV")
    assert name == "it-Reward.csv"
    table = list(csv.DictReader(io.StringIO(content.decode())))
    assert [float(each["tokens"]) for each in table] == [100.0 * step for step in range(1, 61)]
    assert [float(each["training, running mean"]) for each in table] == values
    name, content = saved(found, "Reward", "Picture as PNG")
    assert name == "it-Reward.png"
    assert content.startswith(b"\x89PNG")
    found.page.locator(".plot", has_text="Seconds of a step").locator(".tools summary").click()
    found.page.locator(".plot", has_text="Seconds of a step").get_by_role("button", name="Link").click()
    again = opened(found.page.url)
    again.page.wait_for_selector(".plot.chosen")
    assert again.text(".plot.chosen h2") == "Seconds of a step"
    assert legend(again).startswith(f"training, running mean {expected:.3f}")
    assert again.page.get_by_label("x axis").input_value() == "tokens"


@pytest.mark.parametrize("live", [True, False])
def test_runs_are_hidden_by_their_names_and_seeds_put_together(make_run, watching, opened, live):
    folders = [seeded(make_run, f"lr_{gain}-seed_{seed}", seed, gain) for gain in (0.5, 1.0) for seed in (1, 2, 3)]
    found = opened(watching(*folders) if live else frozen(*folders))
    texts = found.text(".panel.first")
    assert "run.seed" in texts
    assert "train.lr" in texts
    assert "run.dir" not in texts
    assert "run.name" not in texts
    assert "lr_0.5-seed_1, training 15 lr_0.5-seed_2, training 16" in legend(found)  # means of the last five steps
    found.page.get_by_label("seeds together").check()
    assert legend(found) == "lr_0.5, 3 seeds 16 lr_1.0, 3 seeds 30"
    _, content = saved(found, "Reward", "Data as CSV")
    last = list(csv.DictReader(io.StringIO(content.decode())))[-1]
    assert last["lr_1.0, 3 seeds, least"] == "29"
    assert last["lr_1.0, 3 seeds, largest"] == "31"
    found.page.get_by_label("seeds together").uncheck()
    found.page.get_by_role("button", name="lr_1.0-seed_2", exact=True).click()
    assert "lr_1.0-seed_2" not in legend(found)
    found.page.locator(".plot.large .legend button", has_text="lr_0.5-seed_3").click()
    assert legend(found).count("lr_") == 4
    assert "6 runs, 4 drawn" in found.text("h1")
    again = opened(found.page.url)
    again.until("document.querySelector('h1').textContent === '6 runs, 4 drawn'")
    assert legend(again) == legend(found)
    again.page.get_by_role("button", name="lr_1.0-seed_2", exact=True).click()
    again.until("document.querySelector('.plot.large .legend').textContent.includes('lr_1.0-seed_2')")


@pytest.mark.parametrize("live", [True, False])
def test_samples_are_searched_and_compared_from_step_to_step(make_run, watching, opened, live):
    before = [sample("0/7", 0.25, "so it is 30 then", asked="what is 17 + 14?"), sample("0/8", 1.0, "else", asked="b")]
    folder = make_run(9, before)
    after = [sample("1/7", 0.75, "so it is 31 then", asked="what is 17 + 14?"), sample("1/8", 0.5, "other", asked="c")]
    (folder / "samples/step-000009.jsonl").write_text("".join(json.dumps(each) + "\n" for each in after))
    found = opened(watching(folder) if live else frozen(folder))
    found.until("document.querySelectorAll('.card').length === 2")
    card = found.page.locator(".card", has_text="17 + 14")
    card.get_by_label("compare with another step").select_option("step-000002")
    found.page.wait_for_selector(".difference")
    assert (found.text(".difference del"), found.text(".difference ins")) == ("30", "31")
    assert "step 2, reward 0.250 → training, step 9, reward 0.750" in found.text(".difference")
    found.page.locator(".card", has_text="other").get_by_label("compare").select_option("step-000002")
    found.until("document.querySelector('.samples, main').innerText.includes('has no sample of this prompt')")
    found.page.get_by_label("step", exact=True).select_option("all steps")
    for field, value in (("find samples", "IT IS"), ("least reward", "0.5")):
        found.page.get_by_label(field).fill(value)
        found.page.keyboard.press("Enter")
    found.until("document.querySelectorAll('.card').length === 1")
    assert "training, step 9" in found.text(".card")
    found.page.get_by_label("most reward").fill("0.6")
    found.page.keyboard.press("Enter")
    found.until("document.querySelectorAll('.card').length === 0")


def test_supervised_steps_have_something_to_see(make_run, watching, opened):
    folder = make_run(0)
    rows = [
        {
            "stage": "sft",
            "step": step,
            "time": 1.0,
            "train/loss": 3 - step / 10,
            "tokens_per_s": 100.0,
            "seconds/step": 2.0,
        }
        for step in range(1, 9)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(each) + "\n" for each in rows))
    (folder / "config.yaml").write_text("sft: {num_steps: 20}\n")
    (folder / "logs").mkdir()
    shown = {"where": "rows.jsonl line 1", "messages": [{"role": "user", "content": "1+1="}]}
    shown["answers"] = {"answer": {"role": "assistant", "content": "two, as shown"}}
    (folder / "logs/demonstrations.json").write_text(json.dumps([shown]))
    found = opened(watching(folder))
    found.until("document.querySelector('.card')?.innerText.includes('two, as shown')")
    assert drawn(found).keys() >= {"Supervised loss", "Supervised throughput", "Supervised steps"}
    assert found.text(".plot.large:not([hidden]) h2") == "Supervised loss"
    tiles = dict(
        zip(
            found.page.locator(".tile dt").all_inner_texts(),
            found.page.locator(".tile .value").all_inner_texts(),
            strict=True,
        )
    )
    assert (tiles["Supervised loss"], tiles["Tokens seen"], tiles["Tokens a second"]) == (
        "2.900 → 2.200",
        "1,600",
        "100",
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_a_folder_of_runs_is_a_list_to_draw_from(make_run, watching, opened, tmp_path, width):
    for number in range(15):
        folder = make_run(5, name=f"group/run-{number:02d}-of-a-long-name-{'x' * 40}")
        (folder / "status.json").write_text(json.dumps({"state": "finished", "started": 100.0 + number}))
    found = opened(watching(tmp_path), width)
    found.until("document.querySelector('h1').textContent === '15 runs, 6 drawn'")
    assert all(drawn(found).values())
    laid_out = found.page.evaluate(LAID_OUT)
    assert (laid_out["width"], laid_out["legends"]) == (width, 0)
    assert laid_out["right"] <= width
    found.page.get_by_label("find runs").fill("run-0")
    found.until("document.querySelectorAll('button.name').length === 10")
    found.page.get_by_role("button", name="draw these").click()
    found.until("document.querySelector('h1').textContent === '15 runs'")
    found.until("[...shownPlots].every(({ lines, element }) => lines.length >= 15 && !element.hidden)")
    assert "Seconds of a step" in drawn(found)
    found.until("document.querySelector('.plot.large .legend').textContent.includes('run-00')")
    found.page.get_by_role("button", name="draw none of these").click()
    found.until("document.querySelector('h1').textContent.includes('5 drawn')")
    found.page.get_by_role("button", name="run", exact=True).click()
    found.until("document.querySelector('button.name').textContent.includes('run-00')")
    assert found.page.locator("th[aria-sort=ascending]").inner_text().startswith("run")


def test_the_keyboard_reaches_all_and_moves_the_cursor(make_run, watching, opened):
    found = opened(watching(make_run(30, [sample("a", 1.0, "x")])))
    assert drawn(found)
    reached = []
    for _ in range(60):
        found.page.keyboard.press("Tab")
        reached.append(
            found.page.evaluate(
                "(each => each.getAttribute('aria-label') || each.type || each.tagName)(document.activeElement)"
            )
        )
        if str(reached[-1]).startswith("Reward") and reached[-1] not in reached[:-1]:
            found.page.keyboard.press("ArrowLeft")
            found.page.keyboard.press("ArrowLeft")
            found.until("document.querySelector('.plot.large .unit').textContent.startsWith('step 29')")
    assert {"range", "checkbox", "files of Reward", "find samples", "least reward", "step", "SUMMARY"} <= set(reached)
