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
from slime.config.choices import LossMean as LossMean
from slime.config.choices import LrDecay as LrDecay
from slime.config.choices import Placement as Placement
from slime.config.choices import Resume as Resume
from slime.config.choices import Role as Role
from slime.config.choices import Transport as Transport
from slime.config.observe import ObserveConfig as ObserveConfig
from slime.config.weights import WeightsConfig as WeightsConfig

OPTIMIZER_DEFAULTS = {"optimizer": "adam", "lr": 1e-6, "min_lr": 0.0, "weight_decay": 0.0}
"""What slime puts in the place of Megatron-core's own defaults, which are made for pre-training."""


@dataclass
class RunConfig:
    name: str = "${model.name}-${cluster.name}"
    """Name of the run; the run directory is `dir`/`name`."""
    dir: str = "runs"
    """Parent folder of run directories, relative to where slime is started."""
    seed: int = 1234
    """Seed of everything random: weights, shuffling, sampling."""
    num_steps: int = MISSING
    """Reinforcement-learning steps (generate, reward, train, publish) of the whole run."""
    resume: Resume = Resume.auto
    """auto: continue from the newest good checkpoint if there is one; never: refuse a directory that holds a run;
    must: refuse to start from nothing."""
    progress: bool = True
    """Show progress bars on a terminal; off prints one line a step."""


@dataclass
class ModelConfig:
    name: str = MISSING
    """What the model is called in run names and logs."""
    family: str = MISSING
    """HF `model_type`; the plugin that serves it must be installed (`slime plugins`)."""
    path: str = MISSING
    """HF folder with config.json, tokenizer and safetensors; `pkg://package/folder`: of an installed package."""
    source: str | None = None
    """Hugging Face id of the checkpoint; named where `path` is missing, with the command that fetches it."""
    config: str | None = None
    """Folder with the published config.json, which `slime plan` reads while `path` is missing."""
    task: str | None = None
    """Task (`task=`) that is taken if none is chosen."""
    tokenizer: str | None = None
    """HF folder of the tokenizer; empty: that of `path`."""
    weights: str | None = None
    """Megatron-core checkpoint (torch_dist) that the weights, and the reference's, are taken from in place of the
    safetensors of `path`, in any layout: a folder that `slime convert hf-to-dist` wrote, or `checkpoints/step-...` of
    another run."""
    init: Init = Init.checkpoint
    """checkpoint: load the safetensors of `path`; random: initialise from config.json alone."""
    num_layers: int | None = None
    """Cut the model to this many layers (first ones kept); needs `init: random` or a checkpoint that has them."""


@dataclass
class ClusterConfig:
    name: str = MISSING
    """What the cluster is called in run names and recipes."""
    device: Device = Device.cpu
    """cpu: gloo and the CPU platform of SGLang; cuda: NCCL and GPUs."""
    placement: Placement = Placement.disaggregated
    """colocated: engines and trainers share devices and take turns; disaggregated: each has its own."""
    num_nodes: int = 1
    """Hosts the run holds."""
    devices_per_node: int = 1
    """GPUs a host (on cpu: trainer slots a host)."""
    num_trainers: int = 1
    """Trainer ranks over all hosts; the product of the parallel sizes must divide it."""
    device_memory_mb: int | None = None
    """MiB of memory of one GPU, as `nvidia-smi` shows it; empty: `slime plan` compares no phase with it."""
    host_memory_gb: float | None = None
    """GiB of memory of one host; empty: `slime plan` compares no phase with it."""
    socket_interface: str | None = None
    """Network interface of every process (GLOO_, TP_ and NCCL_SOCKET_IFNAME); empty: the libraries choose."""
    ib_devices: list[str] = field(default_factory=list)
    """InfiniBand or RoCE devices over which prefill engines send KV caches (`mlx5_0`, ...)."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Environment variables of every trainer and engine process."""
    ray_address: str | None = None
    """Address of a running Ray cluster to attach to; empty starts one for this run."""
    hostfile: str | None = None
    """File with the hosts' addresses, a line each, this one's too: for this run Ray starts on the others over ssh."""
    start_timeout_s: float = 300.0
    """Seconds an actor or engine may take to come up before the run stops with its log."""
    hang_timeout_s: float = 900.0
    """Seconds a remote call may take before the run stops with every process's stack."""


@dataclass
class CheckpointConfig:
    interval: int | None = 20
    """Save every this many steps and at the end of each stage; 0 saves only there, empty never."""
    keep: int = 2
    """How many checkpoints stay on disk."""
    export_hf: bool = True
    """Write the final model as an HF folder that transformers loads."""


@dataclass
class TrainConfig:
    megatron: dict[str, Any] = field(default_factory=dict)
    """Fields of Megatron-core's TransformerConfig / MLATransformerConfig: parallel sizes, precision, ..."""
    optimizer: dict[str, Any] = field(default_factory=lambda: dict(OPTIMIZER_DEFAULTS))
    """Fields of Megatron-core's OptimizerConfig: lr, min_lr, weight_decay, adam_beta1, clip_grad, ...; where slime has
    no default, Megatron-core's holds. clip_grad bounds the norm over all parameters that learn, a multi-token
    prediction layer and a sparse-attention indexer among them: their gradients take part in scaling the policy's."""
    ddp: dict[str, Any] = field(default_factory=dict)
    """Fields of Megatron-core's DistributedDataParallelConfig."""
    max_tokens_per_micro_batch: int = 4096
    """Strict cap on the tokens of a packed micro-batch on one context-parallel group (padding included)."""
    share_prompts: bool | None = None
    """Pack the samples of a group behind one copy of their prompt, which is computed once: exact but for rounding. Not
    for mixtures of experts, sparse attention, multi-token prediction layers or context parallelism. Empty: on a CPU,
    where the model can."""
    steps_per_rollout: int = 1
    """Optimizer steps the samples of one rollout are split into."""
    logprob_chunk_tokens: int = 1024
    """Tokens whose logits are alive at once in log-prob, entropy and loss; bounds memory, changes no result."""
    mtp_loss_scale: float | None = None
    """Weight of the multi-token prediction layer's loss, which trains that layer alone; 0.2 is usual. Its gradients
    count in `train.optimizer.clip_grad`, as the policy's do. Empty: a layer that the checkpoint has stays as it is,
    also in what is exported and published."""
    lr_warmup_steps: int = 0
    """Optimizer steps w of linear warm-up: step n has n / (w + 1) of the peak, so that no step has 0."""
    lr_decay: LrDecay = LrDecay.constant
    """How the learning rate falls from `lr` to `min_lr` after warm-up."""
    lr_decay_steps: int | None = None
    """Optimizer steps at which the decay ends; empty means the whole run."""
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)


@dataclass
class SftConfig:
    path: str | None = None
    """jsonl or parquet with demonstrations (`messages`, assistant's answer last); empty means no supervised stage."""
    num_steps: int = 0
    """Optimizer steps of the supervised stage that precedes reinforcement learning."""
    batch_size: int = 64
    """Demonstrations an optimizer step."""
    lr: float = 1e-5
    """Peak learning rate of the supervised stage; warm-up and decay over `num_steps`."""
    lr_warmup_steps: int = 0
    """Optimizer steps of linear warm-up of the supervised stage, as `train.lr_warmup_steps`."""
    lr_decay: LrDecay = LrDecay.cosine
    """Decay of the supervised stage's learning rate."""


@dataclass
class SamplingConfig:
    temperature: float = 1.0
    """Samples are drawn from softmax(logits / temperature); training takes every log-prob of the same distribution."""
    top_p: float = 1.0
    """Nucleus sampling mass; what is trained on is drawn from all of it (1)."""
    top_k: int = -1
    """Keep the k most likely tokens; -1 keeps all, which is what training needs."""
    max_response_tokens: int = 1024
    """Limit of generated tokens a sample; a sample that reaches it is `truncated`."""
    max_sequence_tokens: int | None = None
    """Limit of prompt and response together: a response that reaches it is `truncated`. Empty: none but those of the
    two."""
    stop: list[str] = field(default_factory=list)
    """Stop strings beside the model's end-of-sequence tokens."""


@dataclass
class EngineGroupConfig:
    role: Role = Role.regular
    """regular: an engine does prefill and decode; prefill, decode: engines of the two groups work in pairs."""
    devices: int | None = None
    """Devices of all engines of the group. Empty, for an only group: those of the trainers (colocated), those that the
    trainers leave (disaggregated), or those of one engine (cpu)."""
    devices_per_engine: int | None = None
    """Devices of one engine, which may span hosts; empty: tp_size x pp_size of its SGLang fields."""
    sglang: dict[str, Any] = field(default_factory=dict)
    """Fields of SGLang's ServerArgs for this group; they win over `rollout.sglang`."""
    environment: dict[str, Any] = field(default_factory=dict)
    """Environment variables of this group's processes; they win over `cluster.environment`."""


@dataclass
class RolloutConfig:
    prompts_per_step: int = 32
    """Groups that each step trains on, after filtering."""
    samples_per_prompt: int = 8
    """Responses a group."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    max_prompt_tokens: int = 1024
    """A longer prompt is an error that names its row, unless `data.skip_long_prompts`."""
    fp8: str | None = None
    """block: engines hold the weights in FP8 (E4M3) with a scale for each 128 x 128 block; a folder: as the
    `quantization_config` of its config.json says, which weights stay as they are and how scales are rounded. It needs
    no weights: each publish quantises the trained ones. Empty: as they are trained."""
    max_requests_per_engine: int = 256
    """Requests in flight at one engine; of prefill and decode engines, at one that decodes."""
    over_sampling: float = 1.0
    """Groups started for each group needed; above 1 the surplus is aborted, goes to the buffer and is continued in the
    next step, so that what is trained on was sampled in part by older weights: `algo.importance` corrects these tokens.
    In the first steps the trained responses are shorter than average, because the long ones are still on their way."""
    max_weight_lag: int | None = 4
    """Tokens sampled by weights more than this many versions older than those that train on them stay in their response
    and take no part in the loss; empty trains on all."""
    request_timeout_s: float = 600.0
    """Seconds after which an engine counts as hung that neither answers a request of control nor, while it has prompts
    to work on, generates a token. How long a response takes, or waits for its turn, is not limited."""
    sglang: dict[str, Any] = field(default_factory=dict)
    """Fields of SGLang's ServerArgs of every engine: tp_size, mem_fraction_static, attention_backend, ..."""
    engines: dict[str, EngineGroupConfig] = field(default_factory=dict)
    """Groups of equal engines by name; empty: one group `default` of regular engines. Each has the keys `role`,
    `devices`, `devices_per_engine`, `sglang` and `environment`."""


@dataclass
class DataConfig:
    source: str | None = None
    """Hugging Face id of the data set; named where `path` is missing, with the command that fetches it."""
    path: str = MISSING
    """Prompt set: jsonl or parquet; `pkg://package/file` names a file inside an installed package."""
    prompt_key: str = "prompt"
    """Column with the chat messages (a list of {role, content}) or a plain string."""
    label_key: str | None = "label"
    """Column the reward compares with; empty if rows have none."""
    shuffle: bool = True
    """New random order every epoch, from `run.seed`."""
    skip_long_prompts: bool = False
    """Leave out and count prompts over `rollout.max_prompt_tokens` instead of stopping."""
    control_tokens: ControlTokens = ControlTokens.refuse
    """Prompts and demonstrations that hold a special token of the tokenizer, or one that opens a turn: refuse stops
    and names the row; skip leaves such rows out and counts them; allow lets the token end or open a turn."""
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    """Keywords for the tokenizer's chat template (enable_thinking, ...)."""


@dataclass
class EvalSamplingConfig(SamplingConfig):
    temperature: float = field(default=II("rollout.sampling.temperature"))
    """0 takes the most likely token always."""
    top_p: float = field(default=II("rollout.sampling.top_p"))
    """Nucleus sampling mass."""
    top_k: int = field(default=II("rollout.sampling.top_k"))
    """Keep the k most likely tokens; -1 keeps all."""
    max_response_tokens: int = field(default=II("rollout.sampling.max_response_tokens"))
    """Limit of generated tokens a sample."""
    max_sequence_tokens: int | None = field(default=II("rollout.sampling.max_sequence_tokens"))
    """Limit of prompt and response together; empty: none but those of the two."""
    stop: list[str] = field(default=II("rollout.sampling.stop"))
    """Stop strings beside the model's end-of-sequence tokens."""


@dataclass
class EvalConfig:
    path: str | None = None
    """Held-out prompt set, same format as `data.path`; empty means no evaluation."""
    source: str | None = None
    """Hugging Face id of the held-out set; named where `path` is missing, with the command that fetches it."""
    interval: int = 10
    """Evaluate before the first step, every this many steps, and after the last."""
    samples_per_prompt: int = 1
    """Responses a held-out prompt."""
    sampling: EvalSamplingConfig = field(default_factory=EvalSamplingConfig)


@dataclass
class RewardConfig:
    name: str = MISSING
    """Installed reward (`slime plugins`)."""
    options: dict[str, Any] = field(default_factory=dict)
    """The reward's own keys, typed by the schema its plugin registers."""
    num_workers: int = 1
    """Worker processes that score samples."""
    timeout_s: float = 10.0
    """Wall-clock seconds a sample may take; then its worker is killed and the verdict is `timeout`."""
    memory_mb: int = 2048
    """MiB by which a worker and what its reward starts may grow together; beyond it the verdict is `error`."""
    max_failed_share: float = 0.1
    """Share of a step's samples without a value (invalid, timeout, error) above which the run stops."""


@dataclass
class FilterConfig:
    name: str = "none"
    """Installed filter (`slime plugins`); none keeps every group that has at least two values. A group of equal rewards
    teaches nothing and yet counts in `algo.loss_mean`: `rollout/zero_variance_share` tells how many there are."""
    options: dict[str, Any] = field(default_factory=dict)
    """The filter's own keys, typed by the schema its plugin registers."""


@dataclass
class BufferConfig:
    name: str = "fifo"
    """Installed buffer policy (`slime plugins`)."""
    options: dict[str, Any] = field(default_factory=dict)
    """The policy's own keys, typed by the schema its plugin registers."""


@dataclass
class SlimeConfig:
    """The whole run, one dataclass a section."""

    run: RunConfig = field(default_factory=RunConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    sft: SftConfig = field(default_factory=SftConfig)
    algo: AlgoConfig = field(default_factory=AlgoConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    data: DataConfig = field(default_factory=DataConfig)
    eval: EvalConfig = field(default_factory=EvalConfig)
    reward: RewardConfig = field(default_factory=RewardConfig)
    filter: FilterConfig = field(default_factory=FilterConfig)
    buffer: BufferConfig = field(default_factory=BufferConfig)
    weights: WeightsConfig = field(default_factory=WeightsConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
