"""The building blocks that model families share, a folder or file each, and the policy that is assembled of them.

A block has three sides. `slime.models.<block>` reads a HF config.json into Megatron-core's keywords (`keywords`) and
maps the checkpoint's tensor names (`rules`); `slime plan` needs both, so it imports no torch. The modules are in
`slime.models.<block>.module`, their specs gathered in `slime.models.specs`; Triton kernels lie beside them.
"""
