"""What a model family states of itself. No torch.

A bridge (`.bridge`) reads a HF config.json (`.config_reader`) into Megatron-core's keywords, maps the checkpoint's
tensors (`.mapping`, `.rules`), and gives the specs of its layers. Its building blocks state the shapes of their
parameters and what they cost (`.blocks`, `.shapes`), which `slime plan` sums, and what they ask of the trainer
(`.traits`). The blocks themselves are distributions, and the model that is assembled of them is the trainer's.
"""
