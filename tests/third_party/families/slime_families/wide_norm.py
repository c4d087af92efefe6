"""A norm over all heads together, of which a tensor-parallel rank has some."""

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel.mappings import (
    copy_to_tensor_model_parallel_region,
    reduce_from_tensor_model_parallel_region,
)
from megatron.core.transformer.spec_utils import ModuleSpec

from slime_megatron.train.model.linear import device_of


class WideNorm(torch.nn.Module):
    def __init__(self, config, hidden_size, eps, keyword):
        super().__init__()
        self.eps, self.size = eps, getattr(config, keyword) * hidden_size
        # Whole on every rank, because Megatron-core adds up over the ranks the gradients of what lies in these slots.
        self.weight = torch.nn.Parameter(torch.ones(self.size, dtype=config.params_dtype, device=device_of(config)))

    def forward(self, x):
        """[tokens, heads of this rank, head size] -> the same shape."""
        squares = x.float().square().sum(dim=(1, 2), keepdim=True)
        # Every rank's output depends on the whole sum, so its gradient is summed over the ranks as well.
        squares = copy_to_tensor_model_parallel_region(reduce_from_tensor_model_parallel_region(squares))
        normed = x.float() * torch.rsqrt(squares / self.size + self.eps)
        of_rank = self.weight.view(-1, *x.shape[1:])[parallel_state.get_tensor_model_parallel_rank()]
        return normed.to(x.dtype) * of_rank


def with_wide_norms(attention):
    """`specs.gqa`, with these norms in the slots of those of each head."""
    for slot, keyword in (("q_layernorm", "num_attention_heads"), ("k_layernorm", "num_query_groups")):
        setattr(attention.submodules, slot, ModuleSpec(module=WideNorm, params={"keyword": keyword}))
    return attention
