"""What it costs that engines and trainer choose other experts: the explanation `routing-gap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.contracts import Cause, Explanation
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime_megatron.train.local_batch import LocalMicroBatch
    from slime_megatron.train.trainer import Trainer


class RoutingGap:
    """Of runs whose engines record their experts (`observe.routing`, `train.routing_replay`); of others it has nothing
    to say."""

    causes: Mapping[str, Cause] = {
        "gap/routing": Cause(
            "other experts", "The trainer chooses other experts than the engine: set train.routing_replay=true."
        ),
        "gap/same_experts": Cause(
            "all else", "Other experts do not explain it: compare {settings}, attention and MoE backends."
        ),
    }

    def measure(self, trainer: Trainer, micro_batches: Sequence[LocalMicroBatch]) -> Mapping[str, float]:
        """See `slime_megatron.routing_gap.gap.explain`; of some of these samples."""
        from slime.topology.quantization import weight_format
        from slime.topology.recordings import recordings_of
        from slime_megatron.routing_gap.gap import explain
        from slime_megatron.train.gaps import few

        cfg = trainer.cfg
        if not recordings_of(cfg):
            return {}
        some = few(micro_batches, cfg.train.max_tokens_per_micro_batch, trainer.micro_batch_multiple)
        is_quantized = weight_format(cfg.model, cfg.rollout) is not None
        return explain(trainer.model, some, replays=cfg.train.routing_replay, is_quantized=is_quantized)


@hookimpl
def slime_explanations() -> Mapping[str, Callable[[], Explanation]]:
    return {"routing-gap": RoutingGap}
