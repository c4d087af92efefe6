"""TensorBoard: the tracker `tensorboard`, selected by default if it is installed."""
