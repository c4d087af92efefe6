"""For TRL: the world of examples/environment, whose moves are calls of a method."""

from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser


class GuessTheDigit:
    def reset(self, label, **columns):
        self.digit, self.left, self.reward = int(label) % 10, 4, 0.0
        return "I think of a digit."

    def guess(self, number: int) -> str:
        """Guess the digit.

        Args:
            number: From 0 to 9.
        """
        self.left -= 1
        if self.left < 0 or self.reward:
            return "It is over."
        if int(number) == self.digit:
            self.reward = 1.0
            return "Right."
        return "Higher." if int(number) < self.digit else "Lower."

    def get_reward(self):
        return self.reward


if __name__ == "__main__":
    script, config, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    rows = load_dataset(script.dataset_name, split="train")
    GRPOTrainer(model.model_name_or_path, None, config, rows, environment_factory=GuessTheDigit).train()
