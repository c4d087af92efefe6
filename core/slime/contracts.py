"""What a plugin implements: small Protocols. None of them needs torch to be imported."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from megatron.core.transformer.spec_utils import ModuleSpec
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules
    from megatron.core.transformer.transformer_config import TransformerConfig

    from slime.models.traits import Traits
    from slime.types import Decision, Group, RunStatus, Sample, TrackedRun, Verdict
    from slime.weights.megatron.mapping import WeightMapping

HfConfig = Mapping[str, Any]
"""The parsed `config.json` of a Hugging Face checkpoint folder."""
SampleRow = Mapping[str, Any]
"""One sample, as a line of `samples/*.jsonl` has it (docs/run-directory.md)."""
SampleTables = Mapping[str, Sequence[SampleRow]]
"""What is kept of a step: `rollout/samples`, and `eval/samples` where the held-out prompts were scored."""


@runtime_checkable
class ModelBridge(Protocol):
    """One model family: from its HF config to Megatron-core and back.

    `transformer_config` and `model_kwargs` return plain values and must not import torch: `slime plan` calls them.
    """

    family: str
    """The HF `model_type` this bridge serves."""

    def transformer_config(self, hf: HfConfig) -> dict[str, Any]:
        """Keywords of Megatron's `TransformerConfig` (or `MLATransformerConfig` when `multi_latent_attention`).

        Architecture only: sizes, norms, rotary, router. Parallelism and precision are the user's (`train.megatron`).
        """

    def model_kwargs(self, hf: HfConfig) -> dict[str, Any]:
        """Keywords of Megatron's `GPTModel` beside the config: rotary_percent, rotary_base, tied embeddings."""

    def block_spec(self, config: TransformerConfig, vp_stage: int | None) -> TransformerBlockSubmodules:
        """Layer specs of this pipeline stage, assembled from `slime.models.specs`."""

    def weight_mapping(self, hf: HfConfig) -> WeightMapping:
        """The declarative HF <-> Megatron table."""


@runtime_checkable
class MtpBridge(ModelBridge, Protocol):
    """A family with a multi-token prediction layer: its `transformer_config` says `mtp_num_layers`, its
    `weight_mapping` has `slime.models.mtp.rules`."""

    def mtp_spec(self, config: TransformerConfig) -> ModuleSpec:
        """The prediction layer, `slime.models.specs.mtp_layer` around the family's decoder layer."""


@runtime_checkable
class TraitsBridge(ModelBridge, Protocol):
    """A family with building blocks that ask something of the code around the model, as `slime.models.mtp` does."""

    def traits(self, hf: HfConfig) -> Sequence[Traits]:
        """Of the blocks that this model has; must not import torch."""


@runtime_checkable
class PlanBridge(ModelBridge, Protocol):
    """A family with rules of its own for parallel layouts; those of all families are in `slime.plan.rules`."""

    def plan_problems(self, hf: HfConfig, megatron: Mapping[str, Any]) -> Sequence[str]:
        """The rules that this layout breaks, a sentence each. Asked of layouts that break none of the common ones."""


@runtime_checkable
class EngineBridge(ModelBridge, Protocol):
    """A family whose model in SGLang lacks something; what all models need is in `slime.topology.sglang_rules`."""

    def engine_problems(self, hf: HfConfig, sglang: Mapping[str, Any]) -> Sequence[str]:
        """What an engine group's fields of `ServerArgs` ask of the model that it does not do, a sentence each."""


@runtime_checkable
class RewardModel(Protocol):
    """Scores one sample. Runs in a worker process that may be killed at its time or memory limit."""

    def score(self, sample: Sample) -> Verdict:
        """Judge `sample.response` against `sample.prompt.label`. May raise: that becomes an ERROR verdict.

        `sample` comes without log-probs, loss mask and weight spans. What `score` starts is killed when it returns.
        """


@runtime_checkable
class SampleFilter(Protocol):
    """Keeps or drops a rewarded group before training."""

    def decide(self, group: Group) -> Decision:
        """Keep, or drop with a reason."""


@runtime_checkable
class BufferPolicy(Protocol):
    """Holds groups between steps: what is stored, for how long, and in which order it comes out.

    A step stores what it began and did not train on: groups aborted when it had enough, and finished ones that came
    too late. The next step asks for these before it takes new prompts. `slime.rollout.buffer` has functions that turn
    groups into plain values and back.
    """

    def put(self, group: Group, version: int) -> Decision:
        """Store a group aborted while the engines served weight `version`; or refuse it with a reason, which becomes
        the metric `buffer/drop/<reason>`. The group is not to be changed."""

    def take(self, count: int, version: int) -> list[Group]:
        """At most `count` groups to continue under weight `version`, removed from the buffer. Fewer, or none, are no
        fault: new prompts make up for them."""

    def __len__(self) -> int:
        """Groups held, the metric `rollout/buffered_groups`."""

    def state_dict(self) -> dict[str, Any]:
        """A copy of the contents for the checkpoint: JSON's values, or the others that `slime.driver_state` holds."""

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Hold exactly the groups of `state`, whatever was held before."""


@runtime_checkable
class Tracker(Protocol):
    """Shows a run's metrics somewhere else than in metrics.jsonl. Lives in the driver, and is called between steps."""

    def start(self, run: TrackedRun) -> None:
        """Connect, before anything expensive starts. Raising stops the run: nobody wants to miss its metrics.

        A run that continues starts again with the same `run.folder`, where the tracker finds what it left there.
        """

    def resume(self, stage: str, step: int) -> None:
        """The run continues after this step. Later ones that were logged run again, and come again."""

    def log(self, stage: str, step: int, time: float, values: Mapping[str, float]) -> None:
        """All metrics of a step, which may be not finite; `time` is in Unix seconds.

        Raising is told in a line, once, and the run goes on: the same row comes again with a later one.
        """

    def finish(self, status: RunStatus) -> None:
        """The last call; nobody waits for the devices any more."""


@runtime_checkable
class SampleTracker(Tracker, Protocol):
    """A tracker that shows what the model answered, too."""

    def log_samples(self, stage: str, step: int, time: float, samples: SampleTables) -> None:
        """The same that `samples/` keeps, after `log` of the step. `slime.observe.samples` has functions that choose
        among the rows, and that make a table of them.

        Raising is told in a line, once, and these samples do not come again.
        """
