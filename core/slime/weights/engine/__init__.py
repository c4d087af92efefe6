"""In SGLang's processes: taking weight versions in, and proving what came."""
