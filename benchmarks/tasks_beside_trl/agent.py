"""For TRL: the two questions of examples/agent, written again as a `rollout_func`, which generates and keeps tokens."""

import re

import torch
from beside.reward import score
from datasets import load_dataset
from trl import GRPOConfig, GRPOTrainer, ModelConfig, ScriptArguments, TrlParser


def attempts(prompts, trainer):
    """The second question follows the first answer in one conversation, since an attempt has one sequence."""
    tokenizer, model = trainer.processing_class, trainer.accelerator.unwrap_model(trainer.model)

    def encode(*texts):
        said = [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(texts)]
        return tokenizer.apply_chat_template(said, add_generation_prompt=True, return_dict=False)

    def ask(contexts):
        batch = tokenizer.pad({"input_ids": contexts}, padding_side="left", return_tensors="pt")
        with torch.no_grad():
            found = model.generate(**batch, do_sample=True, max_new_tokens=16)[:, batch["input_ids"].shape[1] :]
        ends = [(row == tokenizer.eos_token_id).nonzero().flatten().tolist() for row in found]
        return [row[: end[0] + 1 if end else None].tolist() for row, end in zip(found, ends)]

    numbers = [re.findall(r"\d+", prompt[-1]["content"]) for prompt in prompts]
    questions = [f"{first}+{second}=" for first, second, _ in numbers]
    asked = [encode(question) for question in questions]
    answers = ask(asked)
    texts = tokenizer.batch_decode(answers, skip_special_tokens=True)
    again = []
    for question, context, answer, text, (*_, third) in zip(questions, asked, answers, texts, numbers):
        sums = re.findall(r"\d+", text)
        whole = encode(question, text, f"{sums[-1]}+{third}=") if sums else []
        again.append(whole[len(context) + len(answer) :])
    lasts = ask([context + answer + question for context, answer, question in zip(asked, answers, again)])
    lasts = [last if question else [] for last, question in zip(lasts, again)]
    parts = list(zip(answers, again, lasts))
    return {
        "prompt_ids": asked,
        "completion_ids": [answer + question + last for answer, question, last in parts],
        "env_mask": [[1] * len(answer) + [0] * len(question) + [1] * len(last) for answer, question, last in parts],
        "logprobs": None,
        "last": tokenizer.batch_decode([last or answer for answer, _, last in parts], skip_special_tokens=True),
    }


def score_last(completions, last, label, **columns):
    return score([[{"content": text}] for text in last], label)


if __name__ == "__main__":
    script, config, model = TrlParser((ScriptArguments, GRPOConfig, ModelConfig)).parse_args_and_config()
    rows = load_dataset(script.dataset_name, split="train")
    GRPOTrainer(model.model_name_or_path, score_last, config, rows, rollout_func=attempts).train()
