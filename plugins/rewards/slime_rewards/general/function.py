"""Reward `function`: a function of a file or a module, `reward.path=my_file.py:score`, or a class with `score` or
`score_group`.

The function takes what it names: `response` (text), `label`, `messages` (of the prompt), `metadata` (the row's other
columns) or `sample` (all of it). It returns a number, true or false, or a `Verdict`. One that names `responses` or
`samples` judges all samples of a prompt together, and returns as many. Functions for verl, TRL and THUDM/slime are
known by their parameters.
"""

from __future__ import annotations

import ast
import inspect
import numbers
import traceback
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from guarded_workers.wire import FaultError
from slime.by_path.called import PathOptions, check_arguments, imported, parameters_of
from slime.by_path.source import Node, Parameters, arguments_key, examine, members, parameters_in
from slime.errors import SlimeError, did_you_mean
from slime.functions.theirs import Args, SampleView
from slime.types import Sample, Verdict

GIVEN: Mapping[str, Callable[[Sample], Any]] = {
    "sample": lambda sample: sample,
    "response": lambda sample: sample.response,
    "label": lambda sample: sample.prompt.label,
    "messages": lambda sample: sample.prompt.messages,
    "metadata": lambda sample: sample.prompt.metadata,
}
"""Arguments that a function may ask for, by the names of its parameters."""
TOGETHER: Mapping[str, Callable[[Sequence[Sample]], Any]] = {
    "samples": list,
    "responses": lambda samples: [sample.response for sample in samples],
    "label": lambda samples: samples[0].prompt.label,
    "messages": lambda samples: samples[0].prompt.messages,
    "metadata": lambda samples: samples[0].prompt.metadata,
}
"""The same for a function that judges the samples of a prompt together: it names one of the first two."""
VERL: Mapping[str, Callable[[Sample], Any]] = {
    "data_source": lambda sample: sample.prompt.metadata.get("data_source", sample.prompt.set),
    "solution_str": lambda sample: sample.response,
    "ground_truth": lambda sample: sample.prompt.label,
    "extra_info": lambda sample: sample.prompt.metadata.get("extra_info", {}),
}
"""The same by verl's names."""
_VERL_IN_WORDS = {
    "solution_str": "the response",
    "ground_truth": "the label",
    "data_source": "the column of that name",
    "extra_info": "the column of that name",
}
TRL: Mapping[str, Callable[[Sequence[Sample]], Any]] = {
    "completions": lambda samples: [_completion(sample) for sample in samples],
    "prompts": lambda samples: [_prompt(sample) for sample in samples],
}
"""The same of a function for TRL, whose other parameters are columns."""
_LABELS = ("label", "answer", "solution", "ground_truth", "target", "reference")
"""Columns that a function for TRL may mean by the label, where none is called so."""
_ELSEWHERE = {
    "completion": "response",
    "prompt": "messages",
    "prompts": "messages",
    "solution": "label",
    "answer": "label",
    "response_str": "response",
}
"""Names of these in functions for other programs, and their names here."""
_PLURALS = ("samples", "responses")
_NAMES = dict.fromkeys([*GIVEN, *TOGETHER])
KEY = "reward.path"
_METHODS = ("score", "score_group")


@dataclass(frozen=True)
class Reading:
    """How a function is called.

    Attributes:
        given: parameter -> what it gets, of a sample or of those of a prompt.
        together: it judges all samples of a prompt.
        columns: it gets every other column of the row as well, as TRL's do.
        known_as: the other program that it was written for, and what its parameters get.
    """

    given: Mapping[str, Callable[[Any], Any]]
    together: bool = False
    columns: bool = False
    known_as: str = ""


@dataclass
class FunctionReward(PathOptions):
    def __post_init__(self) -> None:
        try:
            found = imported(self.path, self.sha256, KEY)
        except SlimeError as error:
            if error.__cause__ is not None:
                traceback.print_exception(error.__cause__)  # into the log of rewards
            raise
        if inspect.isclass(found):
            made = found(**self.arguments)
            _require_method(dir(made), self.path)
            vars(self).update({name: getattr(made, name) for name in _METHODS if hasattr(made, name)})
            return
        parameters = parameters_of(found)
        self._function, self._reading = found, reading(parameters, self.path, self.arguments)
        known = (*parameters.names, *(self.arguments if parameters.takes_any else ()))
        self._keywords = {name: value for name, value in self.arguments.items() if name in known}
        if self._reading.together:
            self.score_group = self._score_group  # only then is it a `slime.contracts.GroupReward`

    @classmethod
    def check(cls, node: Node, path: str, arguments: Mapping[str, Any], key: str) -> None:
        """Raises SlimeError: the function cannot be called so, or the class has no method that judges."""
        if not isinstance(node, ast.ClassDef):
            reading(parameters_in(node), path, arguments, key)
        elif not node.bases:
            _require_method({*members(node)}, path, key)

    @classmethod
    def known_as(cls, options: Mapping[str, Any]) -> str:
        """The other program that the function was written for, and what its parameters get; empty: it has slime's
        form."""
        node = examine(options["path"], None, KEY)
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            return ""
        return reading(parameters_in(node), options["path"], options["arguments"]).known_as

    def score(self, sample: Sample) -> Verdict:
        return self._verdict(self._answer(sample, sample))

    def _score_group(self, samples: Sequence[Sample]) -> list[Verdict]:
        answers = self._answer(samples, samples[0])
        if isinstance(answers, str | Mapping) or not hasattr(answers, "__len__") or len(answers) != len(samples):
            said = f"{self.path} returned {answers!r:.80}, not a list of {len(samples)}, one for each response"
            return [Verdict.error(said)] * len(samples)
        return [self._verdict(answer) for answer in answers]

    def _answer(self, judged: Any, first: Sample) -> Any:
        given = {name: read(judged) for name, read in self._reading.given.items()}
        if self._reading.columns:
            given = {name: [value] * len(judged) for name, value in first.prompt.metadata.items()} | given
        answer = self._function(**{**given, **self._keywords})
        if inspect.iscoroutine(answer):
            import asyncio  # here, because importing a plugin is to be quick

            answer = asyncio.run(answer)
        return answer

    def _verdict(self, answer: Any) -> Verdict:
        if isinstance(answer, Verdict):
            return answer
        if isinstance(answer, Mapping) and _is_number(answer.get("score")):  # with parts, as verl's functions return
            parts = {str(key): float(value) for key, value in answer.items() if key != "score" and _is_number(value)}
            return Verdict.of(float(answer["score"]), **parts)
        if _is_number(answer):
            return Verdict.of(float(answer))
        if answer is None and TRL.keys() & self._reading.given.keys():
            return Verdict.invalid(f"{self.path} returned None: it does not judge this response")
        what = f"{self.path} returned {answer!r:.80}, neither a number nor a Verdict"
        if isinstance(answer, Mapping):
            return Verdict.error(f"{what}; of an object the key 'score' is the value")
        return Verdict.error(what)


def reading(found: Parameters, path: str, arguments: Mapping[str, Any], key: str = KEY) -> Reading:
    """How a function with these parameters is called.

    Raises:
        SlimeError: a parameter gets nothing, or one of `arguments` has no parameter; with the mapping of what other
            programs call so.
    """
    own = [name for name in found.names if name not in arguments]
    if "completions" in own:
        check_arguments(found, path, arguments, key, own)
        wanted = [name for name in own if name in found.required or name in TRL]
        given = {name: TRL.get(name, partial(_column, path, name)) for name in wanted}
        return Reading(given, True, found.takes_any, "TRL: completions and prompts of a group, and columns")
    plural = next((name for name in _PLURALS if name in own), "")
    if "args" in own and (plural == "samples" or "sample" in own):
        views = {
            "args": lambda _: Args(arguments),
            "sample": SampleView,
            "samples": _views,
        }
        _require(found, path, arguments, key, views)
        return Reading(_of(views, own), plural == "samples", False, "THUDM/slime: args are reward.options.arguments")
    alone = [name for name in own if name in {**GIVEN, **VERL} and name not in TOGETHER]
    if alone and plural:
        what = f"{path} takes '{alone[0]}' of one sample, and all samples of a prompt"
        raise SlimeError(what, where=key, todo=f"Leave out {alone[0]}, or {' and '.join(_PLURALS)}.")
    table: Mapping[str, Callable[[Any], Any]] = TOGETHER if plural else {**GIVEN, **VERL}
    _require(found, path, arguments, key, table)
    check_arguments(found, path, arguments, key, _NAMES)
    theirs = [f"{name} is {what}" for name, what in _VERL_IN_WORDS.items() if name in own]
    return Reading(_of(table, own), bool(plural), False, f"verl: {', '.join(theirs)}" if theirs else "")


def _of(table: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: table[name] for name in names if name in table}


def _require(found: Parameters, path: str, arguments: Mapping[str, Any], key: str, table: Mapping[str, Any]) -> None:
    for name in found.required:
        if name not in table and name not in arguments:
            near = f"Call it {_ELSEWHERE[name]}." if name in _ELSEWHERE else did_you_mean(name, _NAMES)
            others = [f"{each} {_ELSEWHERE[each]}" for each in found.required if each in _ELSEWHERE]
            if len(others) > 1:
                near = f"Call {', '.join(others)}."
            todo = f"It gets what it names of {', '.join(_NAMES)}. {near}"
            what = f"{path} takes '{name}', which nobody gives it"
            raise SlimeError(what, where=key, todo=f"{todo} Or set {arguments_key(key)}.{name}=...")


def _require_method(have: Collection[str], path: str, key: str = KEY) -> None:
    if not {*_METHODS} & {*have}:
        what, todo = f"class {path} has neither 'score' nor 'score_group'", "docs/writing-a-reward-plugin.md shows one."
        raise SlimeError(what, where=key, todo=todo)


def _views(samples: Sequence[Sample]) -> list[SampleView]:
    return [SampleView(sample) for sample in samples]


def _completion(sample: Sample) -> Any:
    """A text where the row's prompt is one, else messages."""
    return sample.response if sample.prompt.is_text else [{"role": "assistant", "content": sample.response}]


def _prompt(sample: Sample) -> Any:
    messages = sample.prompt.messages
    return messages[-1]["content"] if sample.prompt.is_text else [*messages]


def _column(path: str, name: str, samples: Sequence[Sample]) -> list[Any]:
    """A column of the row, once for each sample; of the usual names of labels the label."""
    prompt = samples[0].prompt
    if name not in prompt.metadata and name not in _LABELS:
        todo = did_you_mean(name, prompt.metadata) if prompt.metadata else "The row has no further column."
        raise FaultError(f"{path} takes '{name}', and row {prompt.id} has no such column. {todo}")
    return [prompt.metadata.get(name, prompt.label)] * len(samples)


def _is_number(value: Any) -> bool:
    """A number, or an array or tensor of no dimension."""
    has_dimensions = bool(getattr(value, "shape", ()))
    return isinstance(value, numbers.Real) or (hasattr(value, "__float__") and not has_dimensions)
