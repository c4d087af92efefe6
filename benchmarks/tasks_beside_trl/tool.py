"""For TRL: a tool, the same function as in examples/tool."""

from beside.reward import score
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser

from examples.tool.my_tools import calculator

if __name__ == "__main__":
    script, config, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    rows = load_dataset(script.dataset_name, split="train")
    GRPOTrainer(model.model_name_or_path, score, config, rows, tools=[calculator]).train()
