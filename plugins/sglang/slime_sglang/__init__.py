"""SGLang as the engines of slime: its servers, what it refuses, engines that return, and weights that reach them."""
