"""What `slime_testing.ranks` imports once for all ranks, in the server that forks them."""

from slime.imports import importing

with importing():
    import transformers  # noqa: F401

    import slime_megatron.train.trainer
    import slime_megatron.train.weights.export
    import slime_megatron.train.weights.load  # noqa: F401
    from slime import plugins
    from slime.lifetime import end_with_parent

    plugins.load()
    plugins.load.cache_clear()  # a rank may find others on its own path; their modules are imported

end_with_parent()
