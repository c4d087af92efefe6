"""What makes FP8 engines differ from the trainer, by cause: the explanation `fp8-gap`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from slime.contracts import Cause, Explanation
from slime.hookspecs import hookimpl

if TYPE_CHECKING:
    from slime_megatron.train.local_batch import LocalMicroBatch
    from slime_megatron.train.trainer import Trainer

_IN_BF16 = "keep more modules in BF16, by the quantization_config of an FP8 folder as rollout.fp8, or raise the alarm"


class Fp8Gap:
    """Of runs whose engines hold the weights in FP8 (`rollout.fp8`); of others it has nothing to say."""

    causes: Mapping[str, Cause] = {
        "gap/weights": Cause("weights in FP8", f"This is what E4M3 costs this model: {_IN_BF16}."),
        "gap/experts": Cause("other experts", f"Rounding sends tokens to other experts: {_IN_BF16}."),
        "gap/activations": Cause("activations in FP8", f"Engines round activations too: {_IN_BF16}."),
        "gap/rest": Cause("all else", "FP8 weights do not explain it: compare {settings}, attention and MoE backends."),
    }

    def measure(self, trainer: Trainer, micro_batches: Sequence[LocalMicroBatch]) -> Mapping[str, float]:
        """See `slime_megatron.fp8_gap.gap.explain`; of some of these samples."""
        from slime.topology.quantization import weight_format
        from slime.topology.recordings import recordings_of
        from slime_megatron.fp8_block.config import Fp8Format
        from slime_megatron.fp8_gap.gap import explain, multiplies_fp8
        from slime_megatron.train.gaps import few

        fp8 = weight_format(trainer.cfg.model, trainer.cfg.rollout)
        if not isinstance(fp8, Fp8Format):
            return {}
        some = few(micro_batches, trainer.cfg.train.max_tokens_per_micro_batch, trainer.micro_batch_multiple)
        activations, records = multiplies_fp8(trainer.device), bool(recordings_of(trainer.cfg))
        local = trainer.inventory.local
        return explain(trainer.model, local, fp8, some, activations=activations, records=records)


@hookimpl
def slime_explanations() -> Mapping[str, Callable[[], Explanation]]:
    return {"fp8-gap": Fp8Gap}
