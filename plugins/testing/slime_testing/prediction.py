"""Multi-token prediction from its formula, in float64: what the training of the layer is compared with.

(DeepSeek-AI 2024), arXiv 2412.19437, section 2.2, for one sequence at a time:
h'_i = M [RMSNorm(Emb(t_i+1)); RMSNorm(h_i)] through a decoder layer and a norm to the output head, cross-entropy with
t_i+2. The decoder layer is transformers' own, which computes routers and some norms in fp32 whatever it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from slime import plugins
from slime.models.bridge import HfConfig
from slime.types import TrainSample
from slime_testing import models
from slime_testing.engines import hf_tensors


class PredictionReference:
    """See `slime.models.traits.Reference`."""

    def completed(self, model: Any, hf: HfConfig) -> Any:
        """transformers has no multi-token prediction: the model gets one more decoder layer, and that the rest of the
        prediction layer, where checkpoints have it. It is no part of the model's forward pass. A class that has
        `mtp_layers` of its own is left alone."""
        return model if hasattr(model.model, "mtp_layers") else _with_one_more_layer(hf)

    def loss_and_gradients(self, hf: HfConfig, batch: Sequence[TrainSample]) -> tuple[float, Mapping[str, Any]]:
        return Prediction(hf).loss_and_gradients(batch)


def _with_one_more_layer(hf: HfConfig) -> Any:
    num_layers, size = hf["num_hidden_layers"], hf["hidden_size"]
    model = models.transformers_model({**hf, "num_hidden_layers": num_layers + 1})
    layer = model.model.layers[num_layers]
    layer.enorm, layer.hnorm = torch.nn.RMSNorm(size), torch.nn.RMSNorm(size)  # their weights; nobody calls them
    layer.eh_proj, layer.shared_head = torch.nn.Linear(2 * size, size, bias=False), torch.nn.Module()
    layer.shared_head.norm = torch.nn.RMSNorm(size)
    model.config.update(models.transformers_config(hf).to_dict())  # the forward pass runs as many layers as it says
    return model


class Prediction:
    """The prediction layer of `slime_testing.models.random_model`; one of a class of the family's own that says
    `hidden_first` takes M [hidden state; embedding] instead.

    Args:
        hf: its config.json.
    """

    def __init__(self, hf: HfConfig) -> None:
        self.hf = hf
        self.model = models.random_model(hf).double()
        if self.model._can_set_experts_implementation():
            self.model.set_experts_implementation("eager")  # the grouped product knows no float64
        names = plugins.load().models.create(hf["model_type"]).weight_mapping(hf).by_megatron_name
        self._own = {module: names[f"mtp.layers.0.{module}.weight"].hf[0] for module in _MODULES}
        self._layer = self.model.get_submodule(self._own["eh_proj"].rsplit(".", 2)[0])
        self._hidden_first = getattr(self._layer, "hidden_first", False)

    def loss_and_gradients(self, batch: Sequence[TrainSample]) -> tuple[float, Mapping[str, Any]]:
        """Mean loss over the batch's loss tokens, and its gradients by HF name."""
        num_loss_tokens = sum(int(np.count_nonzero(sample.loss_mask)) for sample in batch)
        loss = torch.stack([self._loss(sample) for sample in batch]).sum() / num_loss_tokens
        torch.autograd.backward(loss)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.copy_(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad)
        return loss.item(), {name: tensor.numpy() for name, tensor in hf_tensors(self.model)}

    def _loss(self, sample: TrainSample) -> Tensor:
        """Scalar: sum over the sample's loss tokens."""
        tokens = torch.from_numpy(sample.tokens)[None]
        with torch.no_grad():
            hidden = self.model.model(tokens).last_hidden_state[:, :-2]
            embedded = self.model.model.embed_tokens(tokens[:, 1:-1])
        pair = [self._norm("enorm", embedded), self._norm("hnorm", hidden)]
        joined = torch.cat(pair[::-1] if self._hidden_first else pair, dim=-1) @ self._weight("eh_proj").T
        output = self._norm("final_layernorm", self._through_layer(joined))
        logits = output @ self.model.lm_head.weight.detach().T
        mask = torch.zeros(sample.num_tokens, dtype=torch.float64)
        mask[-sample.num_response_tokens :] = torch.from_numpy(sample.loss_mask != 0).double()
        return F.cross_entropy(logits[0], tokens[0, 2:], reduction="none") @ mask[2:]

    def _weight(self, module: str) -> Tensor:
        return self.model.get_parameter(self._own[module])  # type: ignore[no-any-return]

    def _norm(self, module: str, x: Tensor) -> Tensor:
        return self._weight(module) * x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.hf["rms_norm_eps"])

    def _through_layer(self, x: Tensor) -> Tensor:
        positions = torch.arange(x.size(1))[None]
        angles = self.model.model.rotary_emb(x, positions)
        output = self._layer(x, attention_mask=None, position_ids=positions, position_embeddings=angles)
        result: Tensor = output[0] if isinstance(output, tuple) else output
        return result


_MODULES = ("enorm", "hnorm", "eh_proj", "final_layernorm")
