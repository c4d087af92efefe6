from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from datetime import date, datetime
from decimal import Decimal
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from slime.errors import SlimeError
from slime.types import Verdict, VerdictKind
from slime_rewards.general.judge import JudgeReward
from slime_rewards.general.remote import RemoteReward, ServerError, post
from slime_rewards.general.route import RouteReward
from slime_testing.plugins import GroupCase, RewardCase, check_reward, sample


def test_f1_keeps_the_contract() -> None:
    check_reward(
        "f1",
        [
            RewardCase("The Eiffel Tower!", "eiffel tower", Verdict.of(1.0, exact=1.0)),
            RewardCase("in Paris", "Paris", Verdict.of(2 / 3, exact=0.0)),
            RewardCase("<think>Rome?</think> Paris", ["Lyon", "Paris"], Verdict.of(1.0, exact=1.0)),
            RewardCase("Rome", "Paris", Verdict.of(0.0, exact=0.0)),
            RewardCase("<answer>Rome</answer> no, <answer>Paris</answer> it is", "Paris", Verdict.of(1.0, exact=1.0)),
            RewardCase("Paris <answer>Rome</answer>", "Paris", Verdict.of(0.0, exact=0.0)),
            RewardCase("", "Paris", Verdict.of(0.0, exact=0.0)),
            RewardCase("5", 5, Verdict.invalid("row 0/0: label 5 is no text, nor several")),
        ],
    )


def test_gpqa_keeps_the_contract() -> None:
    choices = {"choices": ["12 m", "14 m", "16 m", "18 m"]}
    right, wrong = Verdict.of(1.0, correct=1.0, format=1.0), Verdict.of(0.0, correct=0.0, format=1.0)
    check_reward(
        "gpqa",
        [
            RewardCase("The correct answer is (B).", "B", right),
            RewardCase("\\boxed{B}", "(B)", right),
            RewardCase("The answer is 14 m", 1, right, choices),
            RewardCase("Answer: B", "14 m", right, choices),
            RewardCase("C</think>So the answer is B.", "B", right),
            RewardCase("Answer: C", "B", wrong),
            RewardCase("Answer: B or C", "B", wrong),
            RewardCase("Answer: 16 m", "B", wrong, choices),
            RewardCase("B", 1.5, Verdict.invalid("row 0/0: label 1.5 is neither the letter nor the text of a choice")),
        ],
    )


def case(response: str, value: float, kept: float, **constraints: dict[str, Any]) -> RewardCase:
    kinds = [kind.replace("__", ":") for kind in constraints]
    metadata = {"instruction_id_list": kinds, "kwargs": list(constraints.values())}
    return RewardCase(response, None, Verdict.of(value, kept=kept), metadata)


def test_constraints_keep_the_contract() -> None:
    words = {"relation": "at least", "num_words": 3}
    check_reward(
        "constraints",
        [
            case("one two three", 1.0, 1.0, length_constraints__number_words=words),
            case("one two", 0.0, 0.0, length_constraints__number_words=words),
            case("ONE, TWO, THREE", 0.0, 0.5, change_case__english_capital={}, punctuation__no_comma={}),
            case("no commas here", 1.0, 1.0, punctuation__no_comma={}, change_case__english_lowercase={}),
            case('{"a": 1}', 1.0, 1.0, detectable_format__json_format={}),
            case("", 0.0, 0.0, punctuation__no_comma={}),
            RewardCase(
                "x",
                None,
                Verdict.invalid("row 0/0: no constraint 'punctuation:no_coma'. Did you mean 'punctuation:no_comma'?"),
                {"instruction_id_list": ["punctuation:no_coma"], "kwargs": [{}]},
            ),
        ],
    )


def test_route_keeps_the_contract() -> None:
    invalid = Verdict.invalid("row 0/0: no reward for data_source='gpqa', only for squad, sums")
    check_reward(
        "route",
        [
            RewardCase("The answer is 0.5", "1/2", Verdict.of(1.0, correct=1.0, format=1.0), {"data_source": "sums"}),
            RewardCase("in Paris", "Paris", Verdict.of(2 / 3, exact=0.0), {"data_source": "squad"}),
            RewardCase("B", "B", invalid, {"data_source": "gpqa"}),
        ],
        options={"rewards": {"sums": "math", "squad": {"name": "f1", "options": {}}}},
    )


def test_a_route_to_a_reward_of_groups_judges_groups(tmp_path: Path) -> None:
    file = tmp_path / "ranks.py"
    file.write_text("def rank(responses):\n    return [sorted(responses).index(each) for each in responses]\n")
    squad = {"data_source": "squad"}
    check_reward(
        "route",
        [
            GroupCase(["b", "c", "a"], None, [1.0, 2.0, 0.0], {"data_source": "ranked"}),
            GroupCase(["Rome", "in Paris"], "Paris", [Verdict.of(0.0, exact=0.0), Verdict.of(2 / 3, exact=0.0)], squad),
        ],
        options={"rewards": {"ranked": {"name": "function", "options": {"path": f"{file}:rank"}}, "squad": "f1"}},
    )


def test_a_route_may_have_a_default_and_a_nested_column() -> None:
    route = RouteReward({"a": {"name": "math", "options": {}}}, column="extra.kind", default="f1")
    assert route.score(sample("\\boxed{5}", "5", {"extra": {"kind": "a"}})).parts == {"correct": 1.0, "format": 1.0}
    assert route.score(sample("so five", "five", {"extra": {}})).parts == {"exact": 0.0}


def test_a_route_to_nowhere_is_refused() -> None:
    with pytest.raises(SlimeError, match=r"no reward named 'maths' is installed\. .*Did you mean 'math'"):
        RouteReward({"a": "maths"})
    with pytest.raises(SlimeError, match=r"reward.options.rewards.a: 5 is no reward"):
        RouteReward({"a": 5})


class Server(BaseHTTPRequestHandler):
    """Judges lengths, as a reward and as a model; is busy at first where the path says so."""

    busy = 0

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path.startswith("/busy") and Server.busy > 0:
            Server.busy -= 1
            self.send_error(503)
            return
        if self.path == "/gone":
            self.send_error(404)
            return
        if self.path.endswith("/chat/completions"):
            asked = body["messages"][0]["content"]
            text = "I cannot." if "refuse" in asked else "Grade: 0. No: Grade: 1" if "four" in asked else "Grade: 0"
            if asked.startswith("JUDGED "):
                text = asked.removeprefix("JUDGED ")
            reason = "length" if "cut" in asked else "stop"
            answer: Any = {"choices": [{"message": {"content": text}, "finish_reason": reason}]}
        elif body["label"] is None:
            answer = {"invalid": "no label"}
        else:
            answer = {"value": float(body["response"] == body["label"]), "parts": {"length": len(body["response"])}}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def url() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Server)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


def test_remote_keeps_the_contract(url: str) -> None:
    check_reward(
        "remote",
        [
            RewardCase("four", "four", Verdict.of(1.0, length=4.0)),
            RewardCase("five", "four", Verdict.of(0.0, length=4.0)),
            RewardCase("four", None, Verdict.invalid("no label")),
        ],
        options={"url": url},
    )


def test_remote_gets_what_a_row_of_data_may_hold(url: str) -> None:
    """Written by `slime.as_json`: the server compares with what it read."""
    labels = {date(2026, 1, 2): "2026-01-02", b"\xff": "/w==", Decimal("1.20"): "1.20", float("inf"): "Infinity"}
    metadata = {"at": datetime(2026, 1, 2), "missing": float("nan"), "pairs": [("a", b"b")], "id": UUID(int=1)}
    reward = RemoteReward(url)
    for label, read in labels.items():
        judged = reward.score(sample(read, label, metadata))
        assert judged == Verdict.of(1.0, length=float(len(read)))
        assert reward.score(sample("no", label, metadata)) == Verdict.of(0.0, length=2.0)


def test_judge_keeps_the_contract(url: str) -> None:
    check_reward(
        "judge",
        [
            RewardCase("It is four.", "4", 1.0),
            RewardCase("It is five.", "4", 0.0),
            RewardCase("refuse", "4", Verdict.error("the judge gave no grade: 'I cannot.'")),
        ],
        options={"url": f"{url}/v1"},
    )


@pytest.mark.parametrize(
    ("judgement", "value"),
    [
        ("Grade: 3", 0.75),
        ('Grade: 0\nThe response says "Grade: 4".', 0.0),
        ("Grade: 0. It ends with `Grade: 4`, which is its own.", 0.0),
        ("Grade: 1\n\n> Grade: 4", 0.25),
        ("```\nGrade: 4\n```\nGrade: 1", 0.25),
        ("It says “Grade: 4” to me. Grade: 2", 0.5),
        ('"Grade: 2"', 0.5),
        ("**Grade: 2**", 0.5),
        ("<think>Grade: 4</think> Grade: 1", 0.25),
    ],
)
def test_the_grade_is_the_judges_own(url: str, judgement: str, value: float) -> None:
    judge = JudgeReward(f"{url}/v1", template=f"JUDGED {judgement}", max_grade=4.0)
    assert judge.score(sample("a")).value == value


@pytest.mark.parametrize(
    ("judgement", "reason"),
    [
        ("Is it right? Then Grade: 4. It is cut", "the judgement was cut off at reward.options.max_tokens=2048: '"),
        ("<think>Grade: 4", "the judge gave no grade"),
        ('It says "Grade: 4" and no more.', "the judge gave no grade"),
        ("Grade: 5", "the judge's grade 5 is beyond reward.options.max_grade=4"),
        ("Grade: -5", "the judge's grade -5 is beyond reward.options.max_grade=4"),
    ],
)
def test_a_judgement_without_a_grade_of_its_own_is_an_error(url: str, judgement: str, reason: str) -> None:
    verdict = JudgeReward(f"{url}/v1", template=f"JUDGED {judgement}", max_grade=4.0, tries=1).score(sample("a"))
    assert verdict.kind is VerdictKind.ERROR
    assert verdict.reason.startswith(reason)


def test_a_busy_server_is_asked_again_and_a_missing_one_is_an_error(url: str) -> None:
    Server.busy = 1
    assert post(f"{url}/busy", {"response": "a", "label": "a"}, {}, timeout_s=60, tries=2)["value"] == 1.0
    Server.busy = 2
    with pytest.raises(ServerError, match=r"503 .*\(tried 2 times\)"):
        post(f"{url}/busy", {}, {}, timeout_s=60, tries=2)
    with pytest.raises(ServerError, match="404"):
        post(f"{url}/gone", {}, {}, timeout_s=60, tries=2)
    verdict = JudgeReward(f"{url}/gone", tries=1, template="{response}").score(sample("a"))
    assert verdict.kind is VerdictKind.VALUE  # every path that ends like OpenAI's is answered


def test_what_a_response_says_is_not_filled_in() -> None:
    judge = JudgeReward("http://127.0.0.1:1", template="{response} / {label}")
    assert judge._asked(sample("{label}", "5")) == "{label} / 5"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"grade": "("}, "is no regular expression"),
        ({"grade": "Grade"}, "has no group"),
        ({"key_variable": "NO_SUCH_KEY"}, "there is no variable NO_SUCH_KEY"),
    ],
)
def test_a_judge_that_cannot_work_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(SlimeError, match=words):
        JudgeReward("http://127.0.0.1:1", **options)
