"""Every key of a slime run, with its type, default, unit and meaning. `docs/config.md` is generated from here.

The docstring under each field is its documentation (read with `ast`, so it costs nothing at start-up).
Keys under `train.megatron`, `train.optimizer`, `train.ddp` and `rollout.sglang` are not ours: they pass through to
Megatron-core's and SGLang's own dataclasses by their own names and are checked against the installed versions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from omegaconf import II, MISSING

from slime.config.algorithm import AlgoConfig as AlgoConfig
from slime.config.choices import ControlTokens as ControlTokens
from slime.config.choices import Device as Device
from slime.config.choices import Importance as Importance
from slime.config.choices import ImportanceTokens as ImportanceTokens
from slime.config.choices import Init as Init
from slime.config.choices import KlEstimator as KlEstimator
from slime.config.choices import KlIn as KlIn
from slime.config.choices import LossMean as LossMean
from slime.config.choices import LrDecay as LrDecay
from slime.config.choices import Placement as Placement
from slime.config.choices import Repeated as Repeated
from slime.config.choices import Resume as Resume
from slime.config.choices import Role as Role
from slime.config.cluster import ClusterConfig as ClusterConfig
from slime.config.declare import BATCH, MAX_LAYERS, PERIOD, RATE, ROWS, SAMPLES, SHARE, STEPS, TOKENS, TOP_K, Bound, key
from slime.config.rollout import EngineGroupConfig as EngineGroupConfig
from slime.config.rollout import ProgramConfig as ProgramConfig
from slime.config.rollout import RolloutConfig as RolloutConfig
from slime.config.rollout import SamplingConfig as SamplingConfig
from slime.config.train import OPTIMIZER_DEFAULTS as OPTIMIZER_DEFAULTS
from slime.config.train import CheckpointConfig as CheckpointConfig
from slime.config.train import TrainConfig as TrainConfig
from slime.config.weights import WeightsConfig as WeightsConfig


@dataclass
class RunConfig:
    name: str = key("${model.name}-${cluster.name}", may_change=True)
    """Name of the run; the run directory is `dir`/`name`. Where none is set, what is typed beside model and cluster and
    decides what is learned stands behind: `<model>-<cluster>-ppo-seed_7`."""
    dir: str = key("runs", may_change=True, known_as="save output_dir")
    """Parent folder of run directories, relative to where slime is started."""
    seed: int = key(1234, Bound(0, 2**31 - 1))
    """Seed of everything random: weights, shuffling, sampling."""
    num_steps: int = key(MISSING, STEPS, may_change=True, known_as="trainer.total_epochs max_steps steps num_rollout")
    """Reinforcement-learning steps (generate, reward, train, publish) of the whole run."""
    stop_at: str | None = key(None, may_change=True, known_as="exit_duration_in_mins")
    """Time from which no further step begins, nor one that would end after it: the run saves, and ends with exit code
    75. Unix seconds; `3h50m` from the start of the command; or `2030-01-31T08:00`; empty: none."""
    resume: Resume = key(Resume.auto, may_change=True, known_as="trainer.resume_mode resume_from_checkpoint load")
    """auto: continue from the newest good checkpoint if there is one; never: refuse a directory that holds a run;
    must: refuse to start from nothing; restart: move what is there to a folder beside it, and start from nothing."""
    progress: bool = key(True, may_change=True)
    """Show progress bars on a terminal; off prints one line a step."""


@dataclass
class ModelConfig:
    name: str = MISSING
    """What the model is called in run names and logs."""
    family: str = MISSING
    """HF `model_type`; the plugin that serves it must be installed (`slime plugins`)."""
    path: str = key(MISSING, known_as="hf_checkpoint")
    """HF folder with config.json, tokenizer and safetensors; `pkg://package/folder`: of an installed package."""
    source: str | None = None
    """Hugging Face id of the checkpoint; named where `path` is missing, with the command that fetches it."""
    config: str | None = None
    """Folder with the published config.json, which `slime plan` reads while `path` is missing."""
    task: str | None = None
    """Task (`task=`) that is taken if none is chosen."""
    tokenizer: str | None = None
    """HF folder of the tokenizer; empty: that of `path`."""
    weights: str | None = key(None, known_as="ref_load")
    """Megatron-core checkpoint (torch_dist) of any layout that the weights, and the reference's, are taken from,
    not from `path`: a folder that `slime convert hf-to-dist` wrote, or `checkpoints/step-...` of another run."""
    init: Init = Init.checkpoint
    """checkpoint: load the safetensors of `path`; random: initialise from config.json alone."""
    num_layers: int | None = key(None, Bound(1, MAX_LAYERS))
    """Cut the model to this many layers (first ones kept); needs `init: random` or a checkpoint that has them."""
    fp32_lm_head: bool = key(False, known_as="cast_lm_head_to_fp32")
    """Logits in fp32, in trainers and engines alike, which the model's precision would round: less difference between
    their log-probs, for time and memory (docs/troubleshooting.md)."""
    batch_invariant: bool = key(False, known_as="true_on_policy_mode")
    """Engines and trainers compute by the same batch-invariant operators: their log-probs of a token are equal, for
    time. Of dense models and of mixtures of experts with ordinary attention (docs/batch-invariant.md)."""


@dataclass
class SftConfig:
    path: str | None = None
    """Files as of `data.path` with demonstrations (`messages`, assistant's answer last) or, for an objective of pairs,
    with a `chosen` and a `rejected` answer; empty: no supervised stage."""
    limit: int | None = key(None, ROWS)
    """Read this many rows of `path`, the first ones; empty: all."""
    eval_path: str | None = None
    """Rows as of `path`, on which the supervised stage measures its loss before the first step, with every checkpoint
    and after the last step: metrics `eval/loss` and the objective's others; empty: none."""
    num_steps: int = key(0, STEPS)
    """Optimizer steps of the supervised stage that precedes reinforcement learning."""
    batch_size: int = key(64, BATCH)
    """Demonstrations an optimizer step."""
    lr: float = key(1e-5, RATE)
    """Peak learning rate of the supervised stage; warm-up and decay over `num_steps`."""
    lr_warmup_steps: int = key(0, STEPS)
    """Optimizer steps of linear warm-up of the supervised stage, as `train.lr_warmup_steps`."""
    lr_decay: LrDecay = LrDecay.cosine
    """Decay of the supervised stage's learning rate."""


@dataclass
class SetConfig:
    path: str = MISSING
    """Its files, as of `data.path`."""
    source: str | None = None
    """Hugging Face id of the data set; named where `path` is missing, with the command that fetches it."""
    prompt_key: str = II("data.prompt_key")
    """Column with the chat messages or a plain string."""
    label_key: str | None = II("data.label_key")
    """Column the reward compares with, as `data.label_key`; empty if rows have none."""
    limit: int | None = key(None, ROWS)
    """Read this many rows, the first ones; empty: all."""
    system_prompt: str | None = II("data.system_prompt")
    """System message in front of each prompt; empty: none."""
    reward: str | None = None
    """Installed reward that judges this set; empty: the run's, with its options. Limits are those of `reward`."""
    reward_options: dict[str, Any] = field(default_factory=dict)
    """The reward's own keys."""
    program: str | None = None
    """Installed program that makes the attempts of this set; empty: the run's, with its options."""
    program_options: dict[str, Any] = field(default_factory=dict)
    """The program's own keys."""


@dataclass
class TrainSetConfig(SetConfig):
    share: float = key(1.0, Bound(0, 10**6, strict=True))
    """Prompts taken of this set for each `data.share` of the first."""


@dataclass
class DataConfig:
    source: str | None = None
    """Hugging Face id of the data set; named where `path` is missing, with the command that fetches it."""
    path: str = key(MISSING, known_as="data.train_files train_dataset prompt_data")
    """Prompt set: a file of rows, a folder, one of several splits in it (`folder:train`), or a pattern
    (`folder/train-*.parquet`); `hf://owner/name:train`: of the Hugging Face hub; `pkg://package/file`: inside an
    installed package."""
    limit: int | None = key(None, ROWS, known_as="data.train_max_samples max_samples max_train_samples")
    """Read this many rows of `path`, the first ones; empty: all."""
    prompt_key: str = key("prompt", known_as="input_key")
    """Column with the chat messages (a list of {role, content}) or a plain string."""
    label_key: str | None = "label"
    """Column the reward compares with, `a.b` for the field b of the column a; empty if rows have none.
    `messages.-1.content`, with the column of the prompt in front: the text of its last turn, which is cut off."""
    shuffle: bool = True
    """New random order every epoch, from `run.seed`."""
    skip_long_prompts: bool = False
    """Leave out and count prompts over `rollout.max_prompt_tokens` instead of stopping."""
    control_tokens: ControlTokens = ControlTokens.refuse
    """Prompts and demonstrations that hold a special token of the tokenizer, or one that opens a turn: refuse stops
    and names the row; skip leaves such rows out and counts them; allow lets the token end or open a turn."""
    repeated: Repeated = Repeated.keep
    """Rows whose prompt and label an earlier row of the set has, of held-out sets too: keep takes all of them; once
    leaves them out and counts them, without tokenizing them."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keywords for the tokenizer's chat template (enable_thinking, ...)."""
    system_prompt: str | None = None
    """System message in front of each prompt, of held-out ones too; empty: none. A prompt must not bring its own."""
    share: float = key(1.0, Bound(0, 10**6, strict=True))
    """Prompts taken of `path` for each `share` of a set in `sets`."""
    sets: dict[str, TrainSetConfig] = field(default_factory=dict)
    """Further prompt sets to train on, by name: each has its share of the prompts that are begun, and may have a reward
    and a program of its own. Metrics of each are `rollout/<name>/...`, those of `path` `rollout/main/...`."""

    def named(self) -> dict[str, TrainSetConfig]:
        return {f"data.sets.{name}": own for name, own in self.sets.items()}


@dataclass
class EvalSamplingConfig(SamplingConfig):
    temperature: float = key(II("rollout.sampling.temperature"), Bound(0, 10))
    """0 takes the most likely token always."""
    top_p: float = key(II("rollout.sampling.top_p"), RATE)
    """Top-p (nucleus) sampling; 1 samples from all tokens."""
    top_k: int = key(II("rollout.sampling.top_k"), TOP_K)
    """Keep the k most likely tokens; -1 keeps all."""
    max_response_tokens: int = key(II("rollout.sampling.max_response_tokens"), TOKENS)
    """Limit of generated tokens a sample."""
    max_sequence_tokens: int | None = key(II("rollout.sampling.max_sequence_tokens"), TOKENS)
    """Limit of prompt and response together; empty: none but those of the two."""
    stop: list[str] = field(default=II("rollout.sampling.stop"))
    """Stop strings beside the model's end-of-sequence tokens."""


@dataclass
class EvalSetSamplingConfig(EvalSamplingConfig):
    temperature: float = key(II("eval.sampling.temperature"), Bound(0, 10))
    top_p: float = key(II("eval.sampling.top_p"), RATE)
    top_k: int = key(II("eval.sampling.top_k"), TOP_K)
    max_response_tokens: int = key(II("eval.sampling.max_response_tokens"), TOKENS)
    max_sequence_tokens: int | None = key(II("eval.sampling.max_sequence_tokens"), TOKENS)
    stop: list[str] = field(default=II("eval.sampling.stop"))


@dataclass
class EvalSetConfig(SetConfig):
    samples_per_prompt: int = key(II("eval.samples_per_prompt"), SAMPLES)
    """Responses a prompt of this set."""
    pass_threshold: float = key(II("eval.pass_threshold"), Bound(-(10**6), 10**6))
    """pass@k counts a response whose reward is this or more."""
    sampling: EvalSetSamplingConfig = field(default_factory=EvalSetSamplingConfig)


@dataclass
class EvalConfig:
    path: str | None = key(None, known_as="data.val_files eval_dataset eval_prompt_data")
    """Held-out prompt set, same format as `data.path`; empty means no evaluation."""
    limit: int | None = key(None, ROWS, known_as="data.val_max_samples max_eval_samples")
    """Read this many rows of `path`, the first ones; empty: all."""
    source: str | None = None
    """Hugging Face id of the held-out set; named where `path` is missing, with the command that fetches it."""
    interval: int = key(10, PERIOD, known_as="trainer.test_freq eval_steps eval_interval")
    """Evaluate before the first step, every this many steps, and after the last; never with eval.path=null."""
    samples_per_prompt: int = key(
        1, SAMPLES, known_as="rollout.val_kwargs.n num_generations_eval n_samples_per_eval_prompt"
    )
    """Responses a held-out prompt."""
    pass_threshold: float = key(1.0, Bound(-(10**6), 10**6))
    """pass@k counts a response whose reward is this or more."""
    sampling: EvalSamplingConfig = field(default_factory=EvalSamplingConfig)
    sets: dict[str, EvalSetConfig] = field(default_factory=dict)
    """Further held-out sets beside `path`, by name; metrics of each are `eval/<name>/...`. Each may have a reward, a
    program and a sampling of its own."""

    def named(self) -> dict[str, EvalSetConfig]:
        return {f"eval.sets.{name}": own for name, own in self.sets.items()}

    def all(self) -> dict[str, EvalConfig | EvalSetConfig]:
        """Every held-out set, by its key; none without evaluation."""
        return {"eval": self, **self.named()} if self.path else {}


@dataclass
class RewardConfig:
    name: str = MISSING
    """Installed reward (`slime plugins`). `reward.path=FILE.py:FUNCTION` takes a function, `reward.parts` several."""
    options: dict[str, Any] = field(default_factory=dict)
    """The reward's own keys, typed by the schema its plugin registers."""
    num_workers: int = key(1, Bound(1, 4096), may_change=True)
    """Worker processes that score samples."""
    timeout_s: float = key(10.0, Bound(0.001, 10**7), may_change=True)
    """Wall-clock seconds a sample may take, or a group that is judged together; then its worker is killed and the
    verdict is `timeout`."""
    memory_mb: int = key(2048, Bound(16, 10**7), may_change=True)
    """MiB by which a worker, all it starts and its files in /dev/shm and TMPDIR may grow; beyond: `error`."""
    environment: list[str] = field(default_factory=list)
    """Variables of the driver's environment that rewards get although they look like secrets, OPENAI_API_KEY for
    instance: those with KEY, TOKEN, PASSWORD and the like in their name are withheld."""
    max_failed_share: float = key(0.1, SHARE, may_change=True)
    """Share of a step's samples without a value (invalid, timeout, error) above which the run stops."""


@dataclass
class FilterConfig:
    name: str = "none"
    """Installed filter (`slime plugins`), or `filter.path=FILE.py:FUNCTION`; none keeps every group that has at least
    two values, or its only one where `rollout.samples_per_prompt` is 1. A group of equal rewards
    teaches nothing and yet counts in `algo.loss_mean`: `rollout/zero_variance_share` tells how many there are."""
    options: dict[str, Any] = field(default_factory=dict)
    """The filter's own keys, typed by the schema its plugin registers."""
    then: dict[str, Any] = key(make=dict, known_as="reward_model.overlong_buffer")
    """Filters that are asked next, one after another as they stand here, of the groups that those before keep: name ->
    their options, or true. One that changes rewards does so before those behind it are asked."""


@dataclass
class BufferConfig:
    name: str = "fifo"
    """Installed buffer policy (`slime plugins`), or `buffer.path=FILE.py:FUNCTION`."""
    options: dict[str, Any] = field(default_factory=dict)
    """The policy's own keys, typed by the schema its plugin registers."""


@dataclass
class ObserveConfig:
    trackers: dict[str, Any] = key(make=dict, known_as="trainer.logger report_to use_wandb")
    """What shows the metrics beside metrics.jsonl (`slime plugins`): a tracker's name, true or false, or
    `<name>.<option>=<value>` of its own options. `tensorboard` is on where `slime-observers` is installed."""
    samples_mb: float = key(200.0, Bound(0, 10**7))
    """Megabytes of what the model answered that `samples/` keeps of the whole run, in 2,000 files. A step, or an
    evaluation, takes a hundredth at most; as the run gets longer, files between first and newest go. 0 keeps none."""
    replay_mb: float = key(100.0, Bound(0, 10**7))
    """Megabytes of what steps trained on, token by token, that `replay/` keeps for `slime replay` (docs/debugging.md):
    the newest steps that fit, 2,000 at most. A step takes about 8 bytes a token; one that is larger than that is left
    out. 0 keeps none."""
    prometheus: str | None = None
    """`PORT`, or `HOST:PORT`, at which the driver serves the newest metrics for Prometheus (docs/debugging.md). A port
    alone is one of the loopback address; 0 takes any. `targets.json` in the run directory has what it became."""
    trace: bool = False
    """Each process of the run records in `logs/spans/` what it does when: a line for each request, phase and
    micro-batch, which `slime trace` draws (docs/debugging.md)."""
    zero_variance_steps: int = key(20, STEPS)
    """Steps in a row in which every group has equal rewards (`rollout/zero_variance_share` is 1), after which the run
    saves a checkpoint and stops, because nothing is learnt from them; 0 never. A run that continues counts again."""
    logprob_alarm: float | None = key(None, Bound(0, 100))
    """Mean absolute difference (nats a token) between the engine's and the trainer's log-probs of the
    same tokens above which the run stops and says why; 0 only measures. Empty: 0.05, or 0.2 under `rollout.fp8`
    (docs/one-step.md)."""
    routing: bool = key(False, may_change=True)
    """Engines record which experts they choose, although the trainer chooses for itself, so that the alarm says what it
    costs that both choose differently (docs/routing-replay.md). With `train.routing_replay` they record it anyway."""


@dataclass
class SlimeConfig:
    """The whole run, one dataclass a section."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    cluster: ClusterConfig = key(make=ClusterConfig, may_change=True)
    train: TrainConfig = field(default_factory=TrainConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    data: DataConfig = field(default_factory=DataConfig)
    eval: EvalConfig = key(make=EvalConfig, may_change=True)
    reward: RewardConfig = field(default_factory=RewardConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    weights: WeightsConfig = key(make=WeightsConfig, may_change=True)
    observe: ObserveConfig = key(make=ObserveConfig, may_change=True)
