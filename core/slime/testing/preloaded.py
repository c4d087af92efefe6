"""What `slime.testing.ranks` imports once for all ranks, in the server that forks them."""

import transformers  # noqa: F401

import slime.testing.models
import slime.testing.training
import slime.train.trainer  # noqa: F401
from slime.lifetime import end_with_parent

end_with_parent()
