"""For TRL: GSM8K's columns and answers, which `task=gsm8k` has, and adapters by --use_peft."""

import re

from beside.reward import score
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser, get_peft_config


def prompt(row):
    return {"prompt": [{"role": "user", "content": row["question"]}], "label": row["answer"].split("#### ")[-1]}


def last_number(completions, label, **columns):
    found = [re.findall(r"-?\d+", one[-1]["content"].replace(",", "")) for one in completions]
    return score([[{"content": numbers[-1] if numbers else ""}] for numbers in found], label)


if __name__ == "__main__":
    script, config, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    rows = load_dataset(script.dataset_name, script.dataset_config, split="train").map(prompt)
    GRPOTrainer(model.model_name_or_path, last_number, config, rows, peft_config=get_peft_config(model)).train()
