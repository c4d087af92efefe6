"""The model on a rank: the policy that is assembled of a family's layers, and what these layers share."""
