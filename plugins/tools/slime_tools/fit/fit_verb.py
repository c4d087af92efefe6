"""`slime plan --fit +model=... +cluster=...`: layouts that fit the cluster, the fastest first."""

from __future__ import annotations

import json
from argparse import Namespace

from slime import plugins
from slime.arguments import ArgumentParser
from slime.printable import printable
from slime.verbs.plan import examine_with_run_dir


def add_arguments(parser: ArgumentParser) -> None:
    parser.description = "Proposes layouts that fit the cluster, the fastest first (docs/plan.md)."
    parser.add_keys()
    parser.add_argument("--json", action="store_true", help="print them for programs")


def run(args: Namespace) -> None:
    from slime_tools.fit.search import fit
    from slime_tools.fit.text import fit_document, fit_report

    composed = examine_with_run_dir(args.keys)
    fitted = fit(composed, plugins.load())
    text = json.dumps(fit_document(composed, fitted), indent=1) if args.json else fit_report(composed, fitted)
    print(printable(text))
