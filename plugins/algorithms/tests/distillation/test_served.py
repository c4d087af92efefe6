"""A teacher that a server has: its log-probs against transformers', and what is said where it does not answer. Whole
runs with it, and with the same one in a folder."""

from __future__ import annotations

import dataclasses
import json
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from safetensors.torch import load_file

from slime.algo.stages import made_by, with_columns
from slime.checkpoints import CheckpointStore
from slime.compose.compose import examine
from slime.config.paths import resolve
from slime.digest import facts_of
from slime.errors import SlimeError
from slime.objective import Source
from slime.types import TrainSample
from slime_algorithms.distillation import served
from slime_algorithms.distillation.opd import TEACHER_LOGPROBS, TOP_IDS, TOP_LOGPROBS, Opd
from slime_algorithms.distillation.served import Server, asked_of
from slime_testing.engines import running_engine
from slime_testing.models import random_model, write_checkpoint
from slime_testing.objectives import check_objective
from slime_testing.publishing import publish
from slime_testing.recorded import recorded_samples
from tests.running import NO_CHECKPOINTS, NO_STOP, Run, end_all

TINY = resolve("pkg://slime_plugin_glm4/assets/glm4-tiny")
HF = json.loads((TINY / "config.json").read_text())
LAPTOP = ["+model=glm4-tiny", "+cluster=local", "algo=opd"]


KEY = "TEACHER_KEY"


@pytest.fixture(autouse=True)
def _no_strays() -> Iterator[None]:
    yield
    end_all()


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with random weights."""
    folder = tmp_path_factory.mktemp("teacher")
    write_checkpoint(HF, folder, seed=1)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(TINY / name, folder)
    return folder


@pytest.fixture(scope="module")
def url(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a real SGLang server with this teacher, which asks for a key and computes long sequences in parts."""
    with running_engine(teacher, tmp_path_factory.mktemp("log") / "engine.log", chunked_prefill_size=16) as engine:
        publish(iter(load_file(teacher / "model.safetensors").items()), [engine.endpoint], 0, 1 << 26)
        with pytest.MonkeyPatch.context() as environment:
            environment.setenv(KEY, str(engine.endpoint.key))
            yield engine.endpoint.url


def logprobs_of(server: Server, samples: list[TrainSample]) -> list[np.ndarray]:
    return [logprobs for (logprobs,) in asked_of([server], samples)]


@pytest.mark.slow
def test_log_probs_are_those_of_transformers(url: str) -> None:
    """fp32 against float64, 1e-4 nats: and whatever was asked before, which is in the server's cache."""
    teacher, samples = random_model(HF, seed=1).double(), recorded_samples(40, HF["vocab_size"])
    whole = dataclasses.replace(samples[0], loss_mask=np.ones(samples[0].num_tokens, np.float32), columns={})
    whole.loss_mask[0] = 0  # nobody predicts a first token
    for _ in range(2):
        found = logprobs_of(Server(f"{url}/", KEY), [*samples, whole])
        for sample, values in zip([*samples, whole], found, strict=True):
            tokens, count = torch.from_numpy(sample.tokens), sample.num_response_tokens
            with torch.no_grad():
                rows = teacher(tokens[None]).logits[0].log_softmax(1)
            wanted = rows[:-1].gather(1, tokens[1:, None])[-count:, 0].numpy()
            assert values.dtype == np.float32
            assert values.shape == (count,)
            np.testing.assert_allclose(values[-len(wanted) :], wanted, atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("top", [1, 7])
def test_the_most_probable_tokens_are_those_of_transformers(url: str, top: int) -> None:
    """fp32 against float64, 1e-4 nats. Of two tokens that are nearer to one another either may be named."""
    teacher, samples = random_model(HF, seed=1).double(), recorded_samples(12, HF["vocab_size"])
    whole = dataclasses.replace(samples[0], loss_mask=np.ones(samples[0].num_tokens, np.float32), columns={})
    whole.loss_mask[0] = 0  # nobody predicts a first token
    for sample, (ids, logprobs) in zip(
        [*samples, whole], asked_of([Server(url, KEY)], [*samples, whole], top), strict=True
    ):
        count = sample.num_response_tokens
        with torch.no_grad():
            rows = teacher(torch.from_numpy(sample.tokens)[None]).logits[0].log_softmax(1)[:-1][-count:]
        assert (ids.dtype, logprobs.dtype) == (np.int32, np.float32)
        assert ids.shape == logprobs.shape == (count, top)
        assert all(len({*place}) == top for place in ids[count - len(rows) :].tolist())
        told = rows.gather(1, torch.from_numpy(ids[count - len(rows) :]).long()).numpy()
        np.testing.assert_allclose(logprobs[count - len(rows) :], told, atol=1e-4)
        np.testing.assert_allclose(np.sort(told)[:, ::-1], rows.topk(top, dim=1).values.numpy(), atol=1e-4)


@pytest.mark.slow
def test_several_servers_share_the_samples(url: str) -> None:
    samples, server = recorded_samples(7, HF["vocab_size"]), Server(url, KEY)
    for top in (None, 4):
        for found, alone in zip(asked_of([server] * 3, samples, top), asked_of([server], samples, top), strict=True):
            for values, wanted in zip(found, alone, strict=True):
                np.testing.assert_allclose(values, wanted, atol=1e-5)


@pytest.mark.slow
def test_samples_get_them_as_a_column(url: str) -> None:
    samples = recorded_samples(3, HF["vocab_size"])
    objective = opd(teacher_url=url, teacher_key_env=KEY)
    assert made_by(objective) == (TEACHER_LOGPROBS,)
    found = with_columns(objective, samples)
    for sample, values, before in zip(found, logprobs_of(Server(url, KEY), samples), samples, strict=True):
        np.testing.assert_allclose(sample.columns[TEACHER_LOGPROBS], values, atol=1e-5)
        assert sample.columns.keys() - before.columns.keys() == {TEACHER_LOGPROBS}
    objective = opd(teacher_url=url, teacher_key_env=KEY, teacher_top_k=3)
    assert made_by(objective) == (TOP_IDS, TOP_LOGPROBS)
    for sample, before in zip(with_columns(objective, samples), samples, strict=True):
        assert sample.columns.keys() - before.columns.keys() == {TOP_IDS, TOP_LOGPROBS}
        assert {sample.columns[name].shape for name in (TOP_IDS, TOP_LOGPROBS)} == {(sample.num_response_tokens, 3)}


@pytest.mark.slow
def test_the_server_is_looked_at_before_a_run_starts(url: str, teacher: Path, tmp_path: Path) -> None:
    """Its tokens too where its tokenizer is on another machine: here, in a folder of another name."""
    Server(url, KEY).require_tokens_of(TINY)
    tokenizer = json.loads((TINY / "tokenizer.json").read_text())
    first, second = list(tokenizer["model"]["vocab"])[-2:]
    tokenizer["model"]["vocab"] |= {first: 1000, second: 1001}
    (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
    with pytest.raises(SlimeError, match="has other tokens"):
        Server(url, KEY).require_tokens_of(tmp_path)
    elsewhere = teacher.rename(teacher.with_name("elsewhere"))
    Server(url, KEY).require_tokens_of(TINY)
    with pytest.raises(SlimeError, match=r"status 400: .*token id 1001; valid range is \[0, 128\).*Serve a teacher"):
        Server(url, KEY).require_tokens_of(tmp_path)
    elsewhere.rename(teacher)
    with pytest.raises(SlimeError, match="refused with status 404"):
        Server(f"{url}/v2", KEY).require_tokens_of(TINY)
    with pytest.raises(SlimeError, match="refused with status 401"):
        Server(url).require_tokens_of(TINY)
    with pytest.raises(SlimeError, match="teacher_key_env: the environment has no variable 'NO_KEY'"):
        Server(url, "NO_KEY").require_tokens_of(TINY)


OPD: dict[str, Any] = {"algo": "opd", "eval.path": "null", **NO_STOP}


@pytest.fixture(scope="module")
def held(teacher: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, list[float]]:
    """A finished run whose teacher is in a folder `teacher` beside it, and the divergence from the teacher by step."""
    folder = tmp_path_factory.mktemp("held")
    own = {"algo.teacher.path": shutil.copytree(teacher, folder / "teacher")}
    run = Run(folder, settings={**OPD, **own}, forked=True).start().succeed()
    assert all(row["train/grad_norm"] > 0 for row in run.rows("rl") if "train/teacher_kl" in row)
    return run, divergences(run)


def divergences(run: Run) -> list[float]:
    return [row["train/teacher_kl"] for row in run.rows("rl") if "train/teacher_kl" in row]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_whose_teacher_is_served_is_that_whose_teacher_is_held(
    url: str, held: tuple[Run, list[float]], tmp_path: Path
) -> None:
    own = {"algo.options.teacher_url": url, "algo.options.teacher_key_env": KEY}
    run = Run(tmp_path, settings={**OPD, **own, **NO_CHECKPOINTS}, forked=True).start().succeed()
    assert len(held[1]) == 4
    assert divergences(run) == pytest.approx(held[1], rel=1e-4)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_runs_learn_the_most_probable_tokens_of_a_teacher_that_is_held_and_of_one_that_is_served(
    url: str, teacher: Path, tmp_path: Path
) -> None:
    """The divergence falls, by the same numbers in both: samples have the same seeds, log-probs differ in their last
    digits, and so do weights after a step."""
    common = {**OPD, **NO_CHECKPOINTS, "algo.options.teacher_top_k": 8, "run.num_steps": 8, "train.optimizer.lr": 2e-3}
    held = {"algo.teacher.path": teacher}
    asked = {"algo.options.teacher_url": url, "algo.options.teacher_key_env": KEY}
    found = []
    for name, own in (("held", held), ("served", asked)):
        (tmp_path / name).mkdir()
        run = Run(tmp_path / name, settings={**common, **own}, forked=True).start().succeed()
        assert all(0 < row["train/teacher_rest"] < 1 for row in run.rows("rl") if "train/teacher_rest" in row)
        found.append(divergences(run))
    assert len(found[0]) == 8
    assert found[0][-1] < 0.6 * found[0][0]
    assert found[1] == pytest.approx(found[0], rel=1e-3)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_starts_its_teacher_and_brings_it_back(
    teacher: Path, held: tuple[Run, list[float]], tmp_path: Path
) -> None:
    own = {"algo.options.teacher_engines": "teacher", "rollout.engines.teacher.model": teacher, "rollout.restarts": 1}
    run = Run(tmp_path, settings={**OPD, **own, **NO_CHECKPOINTS}).start()
    run.until(lambda: run.has_step("rl", 1))
    for child in psutil.Process(run.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # it has ended since
            if f'model_path="{teacher}"' in child.cmdline():
                child.kill()
    assert divergences(run.succeed()) == pytest.approx(held[1], rel=1e-4)
    assert "engine-1 starts again (1 of 1)" in run.text()


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_continues_bit_for_bit_with_the_same_teacher_alone(held: tuple[Run, list[float]]) -> None:
    """Its last steps come a second time: what it left behind them is taken away. The teacher's folder has moved; what
    counts is what is in it."""
    run, _ = held
    losses, weights = run.losses(), run.weights()
    newest = sorted((run.path / "checkpoints").iterdir())[-1]
    for folder in (newest, run.path / "export"):
        shutil.rmtree(folder)
    moved = (run.folder / "teacher").rename(run.folder / "moved")
    run.settings = {**run.settings, "algo.teacher.path": moved}
    run.start().succeed()
    assert run.losses() == losses
    assert run.weights() == weights

    kept = CheckpointStore(newest.parent, keep=1).latest()
    assert kept
    held_to = kept.driver_state()["teacher"]["files"]
    assert {name: facts_of(moved / name) for name in held_to} == held_to, "what tests/weights/test_teacher.py refuses"
    assert held_to.keys() == {"config.json", "model.safetensors"}


def test_a_teacher_of_the_run_is_known_before_it_starts(teacher: Path, tmp_path: Path) -> None:
    named, of = "algo.options.teacher_engines=teacher", "rollout.engines.teacher.model"
    assert said(named, f"{of}={teacher}") == []
    [line] = said(named, f"{of}={teacher}", "rollout.sampling.temperature=0.7")
    assert "algo.options.teacher_engines gives log-probs at temperature 1 alone" in line
    assert said(named) == [
        "algo.options.teacher_engines: no engine group 'teacher' has a model of its own. "
        "Set rollout.engines.teacher.model=<HF folder>."
    ]
    [line] = said(named, f"{of}={teacher}", "algo.options.teacher_url=http://teacher")
    assert "teacher_url and teacher_engines both name a teacher" in line
    other = shutil.copytree(teacher, tmp_path / "other")
    tokenizer = json.loads((other / "tokenizer.json").read_text())
    vocabulary = tokenizer["model"]["vocab"]
    vocabulary["other"] = vocabulary.pop(next(token for token in vocabulary if token.isdigit()))
    (other / "tokenizer.json").write_text(json.dumps(tokenizer))
    [line] = said(named, f"{of}={other}")
    assert line.startswith(f"{of}: its tokenizer has other tokens than the model's")
    scores = {**HF, "architectures": ["Glm4ForSequenceClassification"], "id2label": {"0": "reward"}}
    (other / "config.json").write_text(json.dumps(scores))
    [line] = said(named, f"{of}={other}")
    assert line.startswith(f"{of}: is a reward model, which has no log-probs")


def opd(**options: Any) -> Any:
    from slime.algo.stages import objective_of
    from slime.config.schema import AlgoConfig

    return objective_of(AlgoConfig(name="opd", advantage="none", options=options))


def test_who_makes_the_column() -> None:
    for options, source, makes in (
        ({}, Source.teacher, ()),
        ({"teacher_url": "http://teacher"}, Source.rollout, (TEACHER_LOGPROBS,)),
        ({"teacher_engines": "teacher"}, Source.rollout, (TEACHER_LOGPROBS,)),
    ):
        objective = opd(**options)
        assert isinstance(objective, Opd)
        assert objective.needs[-1].source is source
        assert made_by(objective) == makes
    samples = recorded_samples(2, 96)
    assert with_columns(opd(), samples) == samples


def test_nobody_answers() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody else gets it, and it does not listen
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        with pytest.raises(SlimeError, match="no answer to /model_info") as error:
            Server(url).require_tokens_of(TINY)
    assert str(error.value).startswith(f"algo.options.teacher_url={url}: ")


def test_a_connection_that_breaks_off_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """By a listener that hangs up: a server while it ends."""
    monkeypatch.setattr(served, "PAUSE_S", 0.0)
    calls = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def hang_up() -> None:
            while len(calls) < served.TRIES:
                connection, _ = listener.accept()
                calls.append(connection.recv(1 << 16))
                connection.close()

        thread = threading.Thread(target=hang_up)
        thread.start()
        with pytest.raises(SlimeError, match="no answer to /generate"):
            asked_of([Server(f"http://127.0.0.1:{listener.getsockname()[1]}")], recorded_samples(1, 96))
        thread.join()
    assert len(calls) == served.TRIES


def said(*words: str) -> list[str]:
    return [str(problem) for problem in examine([*LAPTOP, *words]).problems]


def test_a_plan_takes_a_served_teacher_at_temperature_1_alone() -> None:
    address = "algo.options.teacher_url=http://127.0.0.1:30000"
    assert said(address) == []
    [line] = said(address, "rollout.sampling.temperature=0.7")
    assert "algo.options.teacher_url gives log-probs at temperature 1 alone" in line
    assert "(it is 0.7)" in line
    [line] = said("algo.options.teacher_url=127.0.0.1:30000")
    assert "must begin with http:// or https://" in line
    [line] = said("algo.options.teacher_key_env=KEY")
    assert "teacher_key_env does nothing without teacher_url" in line
    [line] = said(address, "algo.teacher.path=runs/teacher/export")
    assert line.startswith("algo.teacher.path: does nothing without an objective that has a teacher")


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_contract() -> None:
    check_objective("opd", str(TINY), options={"teacher_url": "http://nobody-is-asked"})
