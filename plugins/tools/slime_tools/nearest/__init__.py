"""The nearest sizes of trainers and engines that a plan takes, as the way out of those that it does not."""
