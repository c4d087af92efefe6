"""The section `rollout` of `slime.config.schema`: how samples are generated.

Without omegaconf, because a plugin's keys of the section are known before a config is composed.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from slime.config.choices import Publish, Role, Surplus
from slime.config.declare import BATCH, DEVICES, RATE, SAMPLES, SECONDS, STEPS, TOKENS, TOP_K, Bound, key


@dataclass
class ProgramConfig:
    name: str = key("single", known_as="custom_generate_function_path environment_factory")
    """Installed program (`slime plugins`): what the model is asked for one sample. single: one response."""
    options: dict[str, Any] = field(default_factory=dict)
    """The program's own keys, typed by the schema its plugin registers."""
    timeout_s: float = key(600.0, Bound(0.001, 10**7), may_change=True)
    """Seconds that a program may take of its own between two responses; then it is cancelled, its attempt has no value
    and counts in `rollout/reward_timeout`. How long responses take is not limited."""
    num_workers: int | None = key(None, Bound(1, 10**5), may_change=True)
    """Worker processes of the program at most, one attempt each; further attempts wait. Empty: as many as attempts are
    being made. Programs that slime brings for this run in the driver (docs/writing-a-program.md)."""
    memory_mb: int = key(2048, Bound(16, 10**7), may_change=True)
    """MiB by which a worker, all it starts and its files in /dev/shm and TMPDIR may grow; beyond: `error`."""
    environment: list[str] = field(default_factory=list)
    """Variables of the driver's environment that workers get although they look like secrets."""


@dataclass
class SamplingConfig:
    temperature: float = key(1.0, Bound(0, 10), known_as="rollout.temperature rollout_temperature")
    """Samples are drawn from softmax(logits / temperature); training takes every log-prob of the same distribution."""
    top_p: float = key(1.0, RATE)
    """Top-p (nucleus) sampling. Below 1 training needs a `top_k` (docs/algorithms.md); `eval.sampling`'s is free."""
    top_k: int = key(-1, TOP_K)
    """Keep the k most likely tokens; -1 keeps all. Training with fewer, or with `top_p` below 1, takes every log-prob
    and entropy of the same tokens as the engine drew each from."""
    max_response_tokens: int = key(
        1024, TOKENS, known_as="data.max_response_length max_completion_length rollout_max_response_len"
    )
    """Limit of generated tokens a sample; a sample that reaches it is `truncated`."""
    max_sequence_tokens: int | None = key(None, TOKENS, known_as="rollout_max_context_len")
    """Limit of prompt and response together: a response that reaches it is `truncated`. Empty: those of the two."""
    stop: list[str] = field(default_factory=list)
    """Stop strings beside the model's end-of-sequence tokens."""


@dataclass
class EngineGroupConfig:
    role: Role = Role.regular
    """regular: an engine does prefill and decode; prefill, decode: engines of the two groups work in pairs."""
    devices: int | None = key(None, DEVICES, known_as="rollout_num_gpus")
    """Devices of all engines of the group. Empty, for an only group: those of the trainers (colocated), those that the
    trainers and frozen groups leave (disaggregated), or those of one engine (cpu). Of a frozen group: one engine's."""
    devices_per_engine: int | None = key(None, DEVICES)
    """Devices of one engine, which may span hosts; empty: tp_size x pp_size of its SGLang fields."""
    sglang: dict[str, Any] = field(default_factory=dict)
    """Fields of SGLang's ServerArgs for this group; they win over `rollout.sglang`."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Environment variables of this group's processes; they win over `cluster.environment`."""
    model: str | None = None
    """HF folder of a model of its own. The group is frozen then: its engines load these weights and keep them, on
    devices of their own, and answer rewards (`reward=judge` or `reward=reward-model`, `reward.options.engines=NAME`) or
    teach (`algo.options.teacher_engines=NAME`). Empty: they sample from the trained model."""


@dataclass
class RolloutConfig:
    prompts_per_step: int = key(32, BATCH, known_as="data.train_batch_size generation_batch_size rollout_batch_size")
    """Groups that each step trains on, after filtering."""
    samples_per_prompt: int = key(8, SAMPLES, known_as="rollout.n num_generations n_samples_per_prompt")
    """Responses a group."""
    program: ProgramConfig = field(default_factory=ProgramConfig)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_prompt_tokens: int = key(1024, TOKENS, known_as="data.max_prompt_length rollout_max_prompt_len")
    """A longer prompt is an error that names its row, unless `data.skip_long_prompts`."""
    max_requests_per_engine: int = key(256, Bound(1, 10**5), may_change=True, known_as="server_concurrency")
    """Requests in flight at one engine; of prefill and decode engines, at one that decodes."""
    over_sampling: float = key(1.0, Bound(1, 100), may_change=True, known_as="over_sampling_batch_size")
    """Groups started for each group needed; `surplus` says what becomes of the others when the step has enough."""
    surplus: Surplus = key(Surplus["continue"], may_change=True, known_as="rollout.partial")
    """Of `over_sampling`: what becomes of groups that a step started and did not need. continue: the next step goes on
    with them (partial rollouts), so that some of its tokens are of older weights, which `algo.importance` corrects;
    finished: it has those that are finished, and long responses are never trained on; drop: it has none, and every step
    is on-policy, with the same bias. `rollout/dropped_groups` counts what is dropped."""
    fixed_prompts: bool = key(False, may_change=True)
    """Of `over_sampling`, train on the groups that were begun first, not on those that finish first: the step waits for
    them, and has no bias towards short answers (`rollout/length_bias`)."""
    max_weight_lag: int | None = key(4, STEPS)
    """Tokens sampled by weights more than this many versions older than those that train on them stay in their response
    and take no part in the loss; empty trains on all."""
    max_staleness: int = key(0, Bound(0, 100), may_change=True, known_as="staleness_threshold max_weight_staleness")
    """Asynchrony: how many steps ahead prompts are begun at most. The groups of the next steps are generated while one
    trains, and no token that is trained on is of weights that are more versions older. Where fewer than these keep the
    trainers from waiting, fewer are begun. 0: a step generates, then trains."""
    publish: Publish = key(Publish.retract, may_change=True)
    """With `max_staleness`, what becomes of responses that are being generated when new weights come. retract: they go
    on under these, and their keys and values are computed again; keep: they go on on those of older weights; abort:
    they are ended, and the rest of each is asked for again."""
    request_timeout_s: float = key(600.0, SECONDS, may_change=True)
    """Seconds after which an engine counts as hung that neither answers a request of control nor, while it has prompts
    to work on, generates a token. How long a response takes, or waits for its turn, is not limited."""
    restarts: int = key(3, Bound(0, 1000), may_change=True)
    """Times within `restart_window_s` that an engine which has died is started again; meanwhile the others take its
    requests. One more death ends the run, and with 0 the first. Engines that stay on GPUs beside trainers are never
    started again."""
    restart_window_s: float = key(3600.0, SECONDS, may_change=True)
    """Seconds for which a death of an engine counts."""
    backend: str = key("sglang", known_as="rollout.name")
    """The inference server that engines run, by the name of its plugin (docs/writing-an-engine.md). Another one than
    SGLang takes of `rollout.sglang` what it knows."""
    sglang: dict[str, Any] = key(make=dict, may_change="*")
    """Fields of SGLang's ServerArgs of every engine: tp_size, mem_fraction_static, attention_backend, ..."""
    engines: dict[str, EngineGroupConfig] = field(default_factory=dict)
    """Groups of equal engines by name; if none samples: one more, `default`, of regular engines. Each has the keys
    `role`, `devices`, `devices_per_engine`, `sglang`, `environment` and `model`."""
    addresses: list[str] = key(make=list, may_change=True)
    """SGLang servers that somebody else started, `http://host:port` each, or files with an address a line, which may
    change while the run lasts. They sample in the place of engines of the run (docs/outside-engines.md)."""

    @property
    def oldest_trained(self) -> int | None:
        """Tokens of weights more versions older than this take no part in the loss; None: all do."""
        return self.max_staleness or self.max_weight_lag

    @property
    def continues(self) -> bool:
        """Whether groups go on under newer weights, or wait for them, so that some tokens are of older ones."""
        return self.max_staleness > 0 or (self.over_sampling > 1 and self.surplus is not Surplus["drop"])
