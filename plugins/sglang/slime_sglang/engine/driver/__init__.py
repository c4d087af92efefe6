"""Of the driver and the hosts' actors: how SGLang's servers start and end, and what they are asked."""
