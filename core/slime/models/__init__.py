"""What a model family is made of, and the policy that is assembled of it.

A bridge (`.bridge`) reads a HF config.json (`.config_reader`) into Megatron-core's keywords, maps the checkpoint's
tensors (`.mapping`, `.rules`), and gives the specs of its layers. Its building blocks state the shapes of their
parameters and what they cost (`.blocks`, `.shapes`), and what they ask of the trainer (`.traits`); `slime plan` needs
all that, so it imports no torch. Layers read their packs in `.packed`. The blocks themselves are distributions.
"""
