"""What the verbs are and take: their help, their flags, and what is said about a word that none of them takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from slime.errors import SlimeError, did_you_mean

VERBS: Mapping[str, str] = {
    "train": "train, or continue a run; may be left out",
    "plan": "what would run where, and what is wrong; starts nothing",
    "preflight": "whether every host has what the run needs; loads nothing",
    "probe": "one step at full length with random weights: seconds and memory beside the plan's",
    "eval": "score a run's checkpoint, or an HF folder, on held-out prompts",
    "plugins": "what is installed and what each plugin brings",
    "samples": "what the model answered, step by step",
    "follow": "engines outside a run take in the weights that it publishes to a folder",
    "report": "a run on one page: plots, summary, samples and config",
    "convert": "checkpoints into other formats: FP8, BF16, Megatron-core, HF",
    "completion": "print a script that completes commands in bash, zsh or fish",
}
"""Verb -> what it does, in a line."""

OWN_PARSER = ("eval", "samples", "report", "follow", "convert", "completion")
"""Verbs that take arguments of their own instead of keys, and answer `--help` themselves."""

CONVERSIONS: Mapping[str, str] = {
    "random": "random weights for a config.json, as an HF folder",
    "fp8-to-bf16": "an FP8 checkpoint (blocks, channels, tensors) in BF16",
    "bf16-to-fp8": "a checkpoint in FP8 (E4M3)",
    "check": "compare the files of a converted folder with its manifest",
    "hf-to-dist": "an HF folder as a Megatron-core checkpoint (torch_dist)",
    "dist-to-hf": "a run's checkpoint, or what hf-to-dist wrote, as an HF folder",
}
"""What `slime convert` takes first -> what it does."""

FLAGS: Mapping[str, Mapping[str, str]] = {
    "plan": {
        "--config": "print the resolved config as YAML",
        "--json": "print the plan for programs (docs/plan.md)",
        "--fit": "propose layouts that fit the cluster, the fastest first",
    },
    "plugins": {"--json": "print the list for programs"},
}
"""Verb -> flag -> what it does."""

_DETAILS: Mapping[str, str] = {
    "train": """\
Trains. If the run directory (run.dir/run.name) holds a checkpoint of the same run, training continues from the newest
one. Ctrl-C stops it; the same command continues.""",
    "plan": """\
Checks everything that can be known before a process starts: names, types and rules of every key, the first rows of the
data, the run directory, the layout, the memory of devices and hosts. Exit code 2 if something is wrong.
'slime plan convert ...' says what a conversion of checkpoints would read, write and take.""",
    "preflight": """\
Looks at every host: software, GPUs, memory, disk, run directory, model, clock. Exit code 2 if a host is not ready.""",
    "probe": """\
Runs one step at full length on the real config, with random weights and no data, in a directory that is removed.""",
    "plugins": """\
Lists every plugin with its version and what it brings, the broken ones too. Exit code 2 if one is broken.""",
}
_KEYS = """
  +model=, +cluster=    what is trained, and on which machines; both are needed
  task=, reward=, ...   other choices; 'slime --help' lists what is installed
  key=value             any key of docs/config.md, for instance rollout.prompts_per_step=64
"""
_HYDRAS = ("--cfg", "-c", "--config-name", "--config-path", "--config-dir", "--info", "--resolve")
_SWEEPS = ("--multirun", "-m")


def overview() -> str:
    """The first page of help, without the choices, which depend on what is installed."""
    verbs = [f"  slime {verb:<11} {text}" for verb, text in VERBS.items()]
    return "\n".join(
        [
            "slime post-trains large language models with reinforcement learning: generate, reward, train, publish.",
            "",
            "  slime [train] +model=<model> +cluster=<cluster> [key=value ...]",
            "",
            *verbs,
            "",
            "  slime <verb> --help   what a verb takes",
            "  slime --version",
            "",
            "Keys are in docs/config.md. Keys under train.megatron, train.optimizer, train.ddp and rollout.sglang are",
            "Megatron-core's and SGLang's own. What can be chosen here:",
        ]
    )


def page(verb: str) -> str:
    """The help of one verb that has no parser of its own."""
    takes = "" if verb == "plugins" else " +model=<model> +cluster=<cluster> [key=value ...]"
    flags = FLAGS.get(verb, {})
    shown = "".join(f" [{flag}]" for flag in flags)
    lines = [f"slime {verb}{takes}{shown}", "", _DETAILS[verb], *([_KEYS.rstrip("\n")] if takes else [])]
    return "\n".join([*lines, *([""] if flags else []), *(f"  {flag:<21} {text}" for flag, text in flags.items())])


def refuse_strangers(verb: str | None, argv: Sequence[str], groups: Sequence[str]) -> None:
    """Raise for the first word that is neither a key=value nor a flag of `verb`; None: none was given.

    Args:
        groups: the config groups, which people write as flags.
    """
    flags = FLAGS.get(verb or "train", {})
    for word in argv:
        if word in _SWEEPS:
            raise SlimeError(f"'{word}': a command is one run", todo="Start several, for instance in a shell loop.")
        if word in _HYDRAS:
            todo = "'slime plan --config' prints the resolved config."
            raise SlimeError(f"'{word}' is a flag of Hydra that slime does not take", todo=todo)
        if word.startswith("-") and word not in flags:
            raise SlimeError(f"there is no flag '{word}'", todo=_instead_of_flag(word, groups))
        if "=" not in word and word[0] not in "~-":
            todo = "The verb comes first." if word in VERBS else did_you_mean(word, VERBS)
            if "." in word or word[0] == "+":
                todo = f"Write {word}=<value>."
            raise SlimeError(f"'{word}' is neither a verb nor key=value", todo=todo)
    _refuse_seconds(argv)


def _refuse_seconds(argv: Sequence[str]) -> None:
    """Raise where one key is given twice: Hydra would take the last one without a word."""
    given: dict[str, str] = {}
    for word in argv:
        key = word.partition("=")[0].lstrip("+~")
        if key in given and not word.startswith("~"):
            raise SlimeError(f"'{given[key]}' and '{word}' set the same key", todo="Keep one of them.")
        given[key] = word


def _instead_of_flag(word: str, groups: Sequence[str]) -> str:
    """What somebody meant who wrote `--model`, `--run.seed=1`, or a flag of another verb."""
    key, equals, value = word.lstrip("-").partition("=")
    if key in groups or "." in key:
        return f"Write {'+' if key in ('model', 'cluster') else ''}{key}={value if equals else '<value>'}."
    takers = [f"'slime {verb}'" for verb, flags in FLAGS.items() if word in flags]
    if takers:
        return f"It belongs to {' and '.join(takers)}."
    return did_you_mean(word, ["--help", "--version", *{flag for flags in FLAGS.values() for flag in flags}])
