"""`slime`: from the command line to a verb. The one place that prints errors.

Nothing heavy is imported before a run is known to be right, so that `--help`, `plugins` and `plan` answer at once.
"""

from __future__ import annotations

import dataclasses
import json
import os
import select
import sys
import textwrap
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import slime
from slime import usage
from slime.errors import SlimeError
from slime.imports import importing

if TYPE_CHECKING:
    from slime.config.compose import Composed

EXIT_ERROR, EXIT_INTERRUPTED, EXIT_PIPE = 2, 130, 141  # the last two as shells count death by SIGINT and SIGPIPE


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
    if argv[:1] == ["help"]:
        argv = [*argv[1:], "--help"]
    if argv[:2] == ["plan", "convert"]:
        argv = [*argv[1:], "--plan"]
    verb = argv.pop(0) if argv and argv[0] in VERBS else None
    if verb in usage.OWN_PARSER:
        return VERBS[verb](argv)
    if "--help" in argv or "-h" in argv or (verb is None and not argv):
        return _help(verb)
    if "--version" in argv:
        print(f"slime {slime.__version__}")
        return 0
    from slime.config.groups import DECLARED

    usage.refuse_strangers(verb, argv, DECLARED)
    return VERBS[verb or "train"](argv)


def _help(verb: str | None) -> int:
    if verb is not None:
        print(usage.page(verb))
        return 0
    from slime import plugins
    from slime.config import groups

    print(usage.overview())
    options = groups.scan(plugins.load())
    for group in groups.DECLARED:
        names = textwrap.wrap(", ".join(options.names(group)), 106, break_on_hyphens=False)
        print(f"  {group}=".ljust(12) + "\n".ljust(13).join(names))
    return 0


def _train(argv: Sequence[str]) -> int:
    from slime.config.compose import compose
    from slime.run_dir import RunDir

    cfg = compose(argv)
    if obstacle := RunDir.obstacle(cfg):  # before data and model are read
        raise obstacle
    with importing():
        from slime.run import train

    print(f"\n{train(cfg)}", end="")
    return 0


def _eval(argv: Sequence[str]) -> int:
    from slime.tools.evaluate import main as evaluate

    evaluate(argv)
    return 0


def _plan(argv: Sequence[str]) -> int:
    from slime import plugins
    from slime.config.compose import examine, to_yaml
    from slime.plan.document import document
    from slime.plan.report import report
    from slime.run_dir import RunDir

    composed = examine([word for word in argv if word not in usage.FLAGS["plan"]])
    if not composed.problems and (obstacle := RunDir.obstacle(composed.cfg)):
        composed = dataclasses.replace(composed, needs=[*composed.needs, obstacle])
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
    from slime.tools.plugins import as_json, listing

    if strangers := [word for word in argv if word not in usage.FLAGS["plugins"]]:
        raise SlimeError(f"'plugins' takes no keys, got '{strangers[0]}'", todo="Leave it out.")
    installed = plugins.load()
    print((as_json if argv else listing)(installed, groups.scan(installed)))
    for problem in installed.problems:
        print(f"slime: {problem}", file=sys.stderr)
    return EXIT_ERROR if installed.problems else 0


def _completion(argv: Sequence[str]) -> int:
    from slime.tools.completion import main as completion

    completion(argv)
    return 0


def _convert(argv: Sequence[str]) -> int:
    from slime.tools.convert import main as convert

    convert(argv)
    return 0


def _report(argv: Sequence[str]) -> int:
    from slime.tools.report import main as report

    report(argv)
    return 0


def _samples(argv: Sequence[str]) -> int:
    from slime.tools.samples import main as show

    show(argv)
    return 0


def _follow(argv: Sequence[str]) -> int:
    from slime.tools.follow import main as follow

    follow(argv)
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
    "report": _report,
    "follow": _follow,
    "completion": _completion,
}

if __name__ == "__main__":
    sys.exit(main())
