"""The building blocks of plain decoders, a folder or file each.

`<block>` reads a HF config.json into Megatron-core's keywords (`keywords`), maps the checkpoint's tensor names
(`rules`), and states the shapes of its parameters and what it costs (`BLOCK`, see `slime.models.blocks`); no torch. The
modules are in `<block>.module`, their specs gathered in `.specs`; Triton kernels lie beside them. `.attention` is what
all kinds of attention share.
"""
