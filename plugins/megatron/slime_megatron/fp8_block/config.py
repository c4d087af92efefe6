"""FP8 weights: what the `quantization_config` of a config.json says of them. No torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from slime.config.hf import QUANTIZATION
from slime.errors import SlimeError
from slime.topology.quantization import Part

if TYPE_CHECKING:
    from slime.topology.engines import EngineGroup

BLOCK = 128
"""Rows and columns of a block."""
SCALE = "_scale_inv"
"""What a weight's name ends with to name its scales. Despite it they multiply: value = weight x scale."""
_POWERS_OF_TWO = "ue8m0"
LOGPROB_ALARM = 0.2
"""Nats a token. Weights in E4M3 alone cost 0.073 on the tiny mixture of experts, a third of it by tokens that other
experts take (`benchmarks/results/fp8-gap.md`), activations in E4M3 too 0.05 and 0.15 on two narrow random ones on an
H200; a router or an output projection of one layer that stays at other weights brings the first to 0.29 and 0.35.
Random experts that tie pass either limit without a fault."""

PLAIN = ("lm_head", "embed_tokens", "mlp.gate", "eh_proj", "shared_head.head", "indexer.weights_proj")
"""Matrices that no published checkpoint quantises, whether it names them or not: embeddings, output heads, routers,
the projection of a prediction layer and the head weights of sparse attention."""

_FUSED_IN_BF16 = ".indexer.wk."
"""SGLang keeps the keys' projection of sparse attention's indexer in bf16, fused with another, whatever the checkpoint
has. From FP8 it would make it of weight and scale, and drop a weight whose scale comes in another call."""

_CONVERT = "Make a folder of 128 x 128 blocks by 'slime convert fp8-to-bf16' and 'slime convert bf16-to-fp8'."


@dataclass(frozen=True)
class Fp8Format:
    """Weights in E4M3, with an fp32 scale for each block of 128 x 128.

    Attributes:
        powers_of_two: scales are rounded up to powers of two (`scale_fmt: ue8m0`).
        ignored: modules that keep their weights, by whole dotted names or runs of parts of them (`mlp.gate`).
    """

    powers_of_two: bool = False
    ignored: Sequence[str] = PLAIN

    block = (BLOCK, BLOCK)
    bytes_a_weight = 1 + 4 / BLOCK**2
    quantizer = "slime_megatron.fp8_block.quantizer:Fp8Quantizer"

    def is_quantized(self, name: str, shape: Sequence[int]) -> bool:
        """Whether engines get it in FP8."""
        return self.quantizes(name, shape) and _FUSED_IN_BF16 not in name

    def parts(self, shape: Sequence[int]) -> list[Part]:
        """The matrix in E4M3, and an fp32 scale for each block."""
        rows, columns = shape
        blocks = -(-rows // BLOCK), -(-columns // BLOCK)
        return [Part("", (rows, columns), "float8_e4m3fn"), Part(SCALE, blocks, "float32")]

    def problems(self, group: EngineGroup, model: Mapping[str, Any]) -> Iterator[SlimeError]:
        """What SGLang's `quantization/fp8.py` demands of an engine's ranks, and its kernels of an engine's fields."""
        from slime_megatron.fp8_block.rules import problems

        yield from problems(group, model, BLOCK, self.quantizes)

    def quantizes(self, name: str, shape: Sequence[int]) -> bool:
        """Whether a checkpoint of this format holds the tensor `name` in FP8: a matrix of a module not ignored.

        Names are matched as SGLang matches them (`layers/quantization/utils.py`): by whole parts, with or without
        `model.` in front.
        """
        module, dot, kind = name.rpartition(".")
        if not dot or kind != "weight" or len(shape) != 2:
            return False
        return not any(f".{each}." in f".{module}." for each in (*PLAIN, *self.ignored))

    def to_config(self) -> dict[str, Any]:
        """The `quantization_config` that SGLang, vLLM and transformers read."""
        config: dict[str, Any] = {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [BLOCK, BLOCK],
            "modules_to_not_convert": list(self.ignored),
        }
        return config | ({"scale_fmt": _POWERS_OF_TWO} if self.powers_of_two else {})


def fp8_format(config: Mapping[str, Any], where: str) -> Fp8Format:
    """What a `quantization_config` says.

    Args:
        where: the file or key it comes from, for the message.

    Raises:
        SlimeError: it is not E4M3 in blocks of 128 x 128 with scales found as the engine runs. Engines lay weights
            of one scale a channel into another layout while they load them, which a later publish cannot write to.
    """
    method, block = config.get("quant_method"), config.get("weight_block_size")
    if method == "compressed-tensors":
        what = "is compressed-tensors (one scale a channel), and running engines take no new weights in that format"
        raise SlimeError(what, where=f"{where}: {QUANTIZATION}.quant_method", todo=_CONVERT)
    if method != "fp8":
        raise SlimeError(f"is '{method}', not 'fp8'", where=f"{where}: {QUANTIZATION}.quant_method", todo=_CONVERT)
    if block is None or list(block) != [BLOCK, BLOCK]:
        what = f"is {block}, but live engines take new weights only in blocks of [{BLOCK}, {BLOCK}]"
        raise SlimeError(what, where=f"{where}: {QUANTIZATION}.weight_block_size", todo=_CONVERT)
    known = {"fmt": ("e4m3",), "activation_scheme": ("dynamic",), "scale_fmt": (_POWERS_OF_TWO, "float32", None)}
    for key, values in known.items():
        if config.get(key, values[0]) not in values:
            raise SlimeError(
                f"is '{config[key]}', not '{values[0]}'", where=f"{where}: {QUANTIZATION}.{key}", todo=_CONVERT
            )
    ignored = config.get("ignored_layers") or config.get("modules_to_not_convert") or ()
    names = tuple(dict.fromkeys(name.removeprefix("model.").rstrip(".") for name in ignored))
    return Fp8Format(config.get("scale_fmt") == _POWERS_OF_TWO, names)


def gpu_problem(name: str, capability: float) -> SlimeError | None:
    """Why engines on this GPU take no FP8 publishes: SGLang changes the layout of FP8 weights while they load, on
    Blackwell with scales rounded to powers of two, on GPUs before Ada for kernels that multiply in bf16. A publish
    would not reach what it made."""
    if 8.9 <= capability < 10:
        return None
    what = f"{name}: SGLang changes the layout of FP8 weights there, where no publish reaches"
    todo = "Use GPUs of Hopper or Ada, or rollout.fp8=null: to run a checkpoint in FP8, convert it to bf16."
    return SlimeError(what, where="rollout.fp8", todo=todo)


class Fp8Blocks:
    """The quantization `fp8` (`slime.topology.quantization.Quantization`)."""

    presets = {"block": Fp8Format().to_config()}
    logprob_alarm = LOGPROB_ALARM

    def read(self, config: Mapping[str, Any], where: str) -> Fp8Format:
        return fp8_format(config, where)
