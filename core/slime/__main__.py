"""`slime`: from the command line to a verb. The one place that prints errors.

Nothing heavy is imported before a run is known to be right, so that `--help`, `plugins` and `plan` answer at once.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import slime
from slime.errors import SlimeError, did_you_mean

if TYPE_CHECKING:
    from slime.config.compose import Composed

EXIT_ERROR, EXIT_INTERRUPTED, EXIT_PIPE = 2, 130, 141  # the last two as shells count death by SIGINT and SIGPIPE

USAGE = """\
slime post-trains large language models with reinforcement learning: generate, reward, train, publish.

  slime [train] +model=<model> +cluster=<cluster> [key=value ...]   train
  slime plan      ...same...   what would run where, and what is wrong; starts nothing
  slime preflight ...same...   whether every host has what the run needs; loads nothing
  slime probe     ...same...   one step at full length with random weights: seconds and memory beside the plan's
  slime eval      ...same...   score the model on eval.path
  slime plugins                what is installed and what each plugin brings
  slime samples --help         what the model answered, step by step
  slime convert --help         checkpoints into other formats: FP8, BF16, Megatron-core, HF

  slime plan ... --config    print the resolved config as YAML
  slime plan ... --json      the plan for programs (docs/plan.md)
  slime plan ... --fit       layouts that fit the cluster, the fastest first
  slime --help, --version

Keys are in docs/config.md. Keys under train.megatron, train.optimizer, train.ddp and rollout.sglang are the installed
Megatron-core's and SGLang's own. What can be chosen here:
"""
PLAN_FLAGS = ("--config", "--json", "--fit")
SWEEP_FLAGS = ("--multirun", "-m")
CONFIG_FLAGS = ("--cfg", "-c", "--config-name", "--config-path", "--config-dir", "--info", "--resolve")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one verb; 0 if it went well, 2 after an error that is the user's, printed as a line."""
    try:
        code = _report_errors(list(sys.argv[1:] if argv is None else argv))
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        if not _reader_has_left():
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for what Python still writes at its end
        return EXIT_PIPE


def _reader_has_left() -> bool:
    """Whether nobody reads standard output any more, as in `slime plan | head`: no other pipe may end so quietly."""
    output = select.poll()
    output.register(sys.stdout.fileno(), 0)
    return any(events & select.POLLERR for _, events in output.poll(0))


def _report_errors(argv: list[str]) -> int:
    try:
        return _dispatch(argv)
    except SlimeError as error:
        print(f"slime: {error}", file=sys.stderr)
        return EXIT_ERROR
    except KeyboardInterrupt as interrupt:
        print("; ".join(["slime: interrupted", *getattr(interrupt, "__notes__", [])]), file=sys.stderr)
        return EXIT_INTERRUPTED


def _dispatch(argv: list[str]) -> int:
    verb = argv.pop(0) if argv and argv[0] in VERBS else None
    if verb in ("convert", "samples"):
        return VERBS[verb](argv)
    if "--help" in argv or "-h" in argv or (verb is None and not argv):
        return _help()
    if "--version" in argv:
        print(f"slime {slime.__version__}")
        return 0
    _refuse_strangers(verb, argv)
    return VERBS[verb or "train"](argv)


def _refuse_strangers(verb: str | None, argv: Sequence[str]) -> None:
    for word in argv:
        if word in SWEEP_FLAGS:
            raise SlimeError(f"'{word}': a command is one run", todo="Start several, for instance in a shell loop.")
        if word in CONFIG_FLAGS:
            todo = "'slime plan --config' prints the resolved config."
            raise SlimeError(f"'{word}' is a flag of Hydra that slime does not take", todo=todo)
        if word.startswith("-") and not (word in PLAN_FLAGS and verb == "plan"):
            raise SlimeError(
                f"there is no flag '{word}'", todo=did_you_mean(word, ["--help", "--version", *PLAN_FLAGS])
            )
        if "=" not in word and word[0] not in "~-":
            todo = "The verb comes first." if word in VERBS else did_you_mean(word, VERBS)
            if "." in word or word[0] == "+":
                todo = f"Write {word}=<value>."
            raise SlimeError(f"'{word}' is neither a verb nor key=value", todo=todo)


def _help() -> int:
    from slime import plugins
    from slime.config import groups

    print(USAGE)
    options = groups.scan(plugins.load())
    for group in groups.DECLARED:
        print(f"  {group}=".ljust(12) + ", ".join(options.names(group)))
    return 0


def _train(argv: Sequence[str]) -> int:
    from slime.config.compose import compose

    cfg = compose(argv)
    from slime.run import train

    print(f"\n{train(cfg)}", end="")
    return 0


def _eval(argv: Sequence[str]) -> int:
    from slime.config.compose import compose

    cfg = compose(argv)
    if cfg.eval.path is None:
        raise SlimeError("there is no held-out prompt set", where="eval.path", todo="Set eval.path=<jsonl or parquet>.")
    from slime.run import evaluate

    for name, value in sorted(evaluate(cfg).items()):
        print(f"{name:<32}{value:>12.4f}")
    return 0


def _plan(argv: Sequence[str]) -> int:
    from slime import plugins
    from slime.config.compose import examine, to_yaml
    from slime.plan.document import document
    from slime.plan.report import report

    composed = examine([word for word in argv if word not in PLAN_FLAGS])
    if "--fit" in argv:
        return _fit(composed, as_json="--json" in argv)
    if "--json" in argv:
        print(json.dumps(document(composed, plugins.load()), indent=1))
        return EXIT_ERROR if composed.problems else 0
    if "--config" in argv:
        print(to_yaml(composed.cfg), end="")
    elif not composed.problems:
        print(report(composed, plugins.load()))
    for problem in composed.problems:
        print(f"slime: {problem}", file=sys.stderr)
    for need in composed.needs:
        print(f"slime: before it can run: {need}", file=sys.stderr)
    return EXIT_ERROR if composed.problems else 0


def _probe(argv: Sequence[str]) -> int:
    from slime.probe import probe

    print(probe(argv))
    return 0


def _fit(composed: Composed, *, as_json: bool) -> int:
    from slime import plugins
    from slime.plan.fit import fit
    from slime.plan.fit_text import fit_document, fit_report

    fitted = fit(composed, plugins.load())
    print(json.dumps(fit_document(composed, fitted), indent=1) if as_json else fit_report(composed, fitted))
    return 0


def _preflight(argv: Sequence[str]) -> int:
    from slime.config.compose import compose

    cfg = compose(argv)
    from slime.cluster.preflight import complaint, preflight
    from slime.run_dir import RunDir

    with RunDir.open(Path(cfg.run.dir) / cfg.run.name) as run:
        found = preflight(cfg, run)
    for host, seen in found.items():
        print(f"{host:<20} {'not ready' if seen.faults else 'ready'}")
        for name, value in seen.facts.items():
            print(f"  {name:<20} {value}")
    if error := complaint(found):
        raise error
    return 0


def _plugins(argv: Sequence[str]) -> int:
    from slime import plugins
    from slime.config import groups

    if argv:
        raise SlimeError(f"'plugins' takes no arguments, got '{argv[0]}'", todo="Leave it out.")
    installed = plugins.load()
    options = groups.scan(installed)
    for plugin in installed.installed:
        print(f"{plugin.distribution} {plugin.version} ({plugin.name}){'  BROKEN' if plugin.problem else ''}")
        for kind, names in plugin.brings().items():
            print(f"  {kind:<8} {', '.join(names)}")
        for group, names in options.of(plugin.distribution).items() if not plugin.problem else ():
            print(f"  choose   {' '.join(f'{group}={name}' for name in names)}")
    for problem in installed.problems:
        print(f"slime: {problem}", file=sys.stderr)
    return EXIT_ERROR if installed.problems else 0


def _convert(argv: Sequence[str]) -> int:
    from slime.tools.convert import main as convert

    convert(argv)
    return 0


def _samples(argv: Sequence[str]) -> int:
    from slime.tools.samples import main as show

    show(argv)
    return 0


VERBS: Mapping[str, Callable[[list[str]], int]] = {
    "train": _train,
    "eval": _eval,
    "plan": _plan,
    "preflight": _preflight,
    "probe": _probe,
    "plugins": _plugins,
    "convert": _convert,
    "samples": _samples,
}

if __name__ == "__main__":
    sys.exit(main())
