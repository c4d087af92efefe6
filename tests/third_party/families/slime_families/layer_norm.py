"""A norm that subtracts the mean and has a bias (Ba et al. 2016): torch's own, in Megatron-core's slots."""

import torch

from slime_megatron.train.model.linear import device_of


class LayerNorm(torch.nn.LayerNorm):
    def __init__(self, config, hidden_size, eps):
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype, device=device_of(config))
        for parameter in self.parameters():
            parameter.sequence_parallel = config.sequence_parallel
