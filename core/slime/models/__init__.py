"""The building blocks that model families share, a folder or file each, and the policy that is assembled of them.

`slime.models.<block>` reads a HF config.json into Megatron-core's keywords (`keywords`), maps the checkpoint's tensor
names (`rules`), states the shapes of its parameters and what it costs (`slime.models.blocks`), and says what it asks of
the trainer (`slime.models.traits`); `slime plan` needs all that, so it imports no torch. The modules are in
`slime.models.<block>.module`, their specs gathered in `slime.models.specs`; Triton kernels lie beside them.
"""
