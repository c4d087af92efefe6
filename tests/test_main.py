"""The verbs: quick, without heavy imports, and the one place that prints errors."""

import json
import os
import signal
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from typing import Any

import pytest

from slime import command
from slime.errors import EXIT_ERROR, SlimeError
from slime.verbs import plan
from slime_cluster.ray.gpus import read_gpus
from slime_testing.patience import run_within
from tests.site import Site

HEAVY = ("torch", "ray", "sglang", "transformers", "megatron.core", "numpy", "pyarrow", "matplotlib")
COMPOSING = (
    "omegaconf",
    "hydra",
    "yaml",
    "slime.config.schema",
    "asyncio",
    "rich",
    "packaging",
    "statistics",
    "difflib",
)
"""What a verb does without that looks at no config."""
RUN = ["+model=glm4-tiny", "+cluster=local"]
PROBE = """
import json, sys
from slime.__main__ import main
code = main({argv!r})
print(json.dumps({{"code": code, "modules": sorted(sys.modules)}}))
"""


@pytest.mark.parametrize(
    ("argv", "unused"),
    [
        (["--help"], (*HEAVY, *COMPOSING)),
        (["plugins"], (*HEAVY, *COMPOSING)),
        (["plugins", "--json"], (*HEAVY, *COMPOSING)),
        (["plan", "--help"], (*HEAVY, *COMPOSING)),
        (["plan", *RUN], HEAVY),
        (["plan", "+model=glm4.7-flash", "+cluster=h100x8"], tuple(name for name in HEAVY if name != "numpy")),
        (["plan", "--config", *RUN], HEAVY),
    ],
)
def test_a_quick_verb_imports_nothing_heavy(argv: list[str], unused: tuple[str, ...]) -> None:
    """Imports are nearly all that it takes; benchmarks/startup.py shows the seconds. Where ranks wait for each other, a
    plan packs (`slime-tools`), which takes numpy."""
    seen = probe(argv)
    assert seen["code"] == 0
    assert [name for name in unused if name in seen["modules"]] == []


def test_what_looks_at_hosts_and_drives_a_run_takes_no_torch_with_it() -> None:
    """A second of processor time; a run's tokenizer still brings it."""
    program = "import sys, slime.run; print([name for name in ('torch', 'ray', 'transformers') if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("words", [["plan", *RUN], ["--help"], ["plan", *RUN, "run.seed=-1"]])
def test_a_reader_that_leaves_ends_a_verb_quietly(words: list[str]) -> None:
    """As in `slime plan ... | head`; the last one has an error to tell."""
    reader, writer = os.pipe()
    os.close(reader)
    run = subprocess.run([sys.executable, "-m", "slime", *words], stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    told = "run.seed" in words[-1]
    assert run.returncode == (EXIT_ERROR if told else command.EXIT_PIPE)
    assert run.stderr.count("\n") == told, run.stderr


@pytest.mark.parametrize("words", [["plan", *RUN], ["--version"]])
def test_a_full_disk_ends_a_verb_in_one_line(words: list[str]) -> None:
    """As in `slime plan ... > plan.txt`."""
    with Path("/dev/full").open("w") as full:
        run = subprocess.run([sys.executable, "-m", "slime", *words], stdout=full, stderr=subprocess.PIPE, text=True)
    assert run.returncode == EXIT_ERROR
    assert run.stderr.startswith("slime: standard output")
    assert run.stderr.endswith("no space is left on the device. Free some: 'df -h' says where.\n")
    assert run.stderr.count("\n") == 1


def probe(argv: list[str]) -> dict[str, Any]:
    """Exit code and imported modules of one verb in a fresh process."""
    shown = subprocess.run([sys.executable, "-c", PROBE.format(argv=argv)], capture_output=True, text=True, check=True)
    return json.loads(shown.stdout.splitlines()[-1])


def test_user_error_is_one_line_and_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["plan"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("slime: no model is chosen. Choose one of ")
    assert shown.err.count("\n") == 1


def test_a_file_that_may_not_be_read_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file, user = tmp_path / "rows.jsonl", os.geteuid()
    file.touch(mode=0)

    def read(args: Namespace) -> None:
        if user == 0:  # who may read all
            os.seteuid(65534)
        try:
            file.read_text()
        finally:
            os.seteuid(user)

    monkeypatch.setattr(plan, "run", read)
    assert command.main(["plan", *RUN]) == 2
    said = f"slime: {file}: permission denied. Give this user the right to it, or name another.\n"
    assert capsys.readouterr().err == said


def test_programming_error_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "run", lambda args: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        command.main(["plan", *RUN])


def test_interrupt_has_its_own_exit_code(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(args: Namespace) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(plan, "run", interrupted)
    assert command.main(["plan", *RUN]) == 130
    assert capsys.readouterr().err == "slime: interrupted\n"


FORKING = """
import os, signal, sys, time
from slime import __main__
from slime.verbs import plan

def run(args):
    if os.fork():  # Python ignores what is raised after it
        os.wait()
        time.sleep(60)
    os._exit(0)

os.register_at_fork(after_in_parent=lambda: signal.raise_signal(signal.{name}))
plan.run = run
sys.exit(__main__.main(["plan"]))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_that_python_ignores_comes_again(name: str) -> None:
    program = [sys.executable, "-c", FORKING.format(name=name)]
    done = run_within(50, program, check=False)
    assert (done.returncode, done.stderr) == (130, "slime: interrupted\n")


LOADING = """
import signal, sys
from importlib import abc

class Interrupting(abc.MetaPathFinder):
    def find_spec(self, name, *_):
        if name == "slime.verbs":
            signal.raise_signal(signal.{name})

sys.meta_path.insert(0, Interrupting())
"""
UNLOADING = """
import atexit, signal, sys
atexit.register(signal.raise_signal, signal.{name})
"""
PLAN = """
import runpy
sys.argv[1:] = ["plan", "--help"]
runpy.run_module("slime", run_name="__main__")
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("when", [LOADING, UNLOADING], ids=["loading", "unloading"])
def test_an_interrupt_while_python_loads_or_unloads_is_no_stack(when: str, name: str) -> None:
    program = [sys.executable, "-c", when.format(name=name) + PLAN]
    done = run_within(50, program, check=False)
    assert done.stderr == ""
    assert -done.returncode in (signal.SIGINT, signal.SIGTERM)


INSTEAD = """
import os, signal, sys, time
from slime import command
from slime.verbs import plan

def run(args):
    if {where} == "a child":
        ready, begun = os.pipe()
        if pid := os.fork():
            os.read(ready, 1)
            os.kill(pid, signal.{name})
            os.wait()
        else:
            os.write(begun, b".")
            while True:
                time.sleep(0.01)
    try:
        if {where} == "here":
            signal.raise_signal(signal.{name})
    finally:
        {{}}["a library's state"]

plan.run = run
sys.exit(command.main(["plan"]))
"""


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_error_in_the_place_of_an_interrupt_is_one(name: str) -> None:
    """As OmegaConf raises in a clean-up, and Python itself while it loads a library of C."""
    program = [sys.executable, "-c", INSTEAD.format(name=name, where="'here'")]
    done = run_within(50, program, check=False)
    assert done.stderr == 'slime: interrupted; KeyError("a library\'s state")\n'
    assert done.returncode == 130


def test_a_file_that_an_interrupt_cuts_off_is_no_problem_of_the_file(tmp_path: Path) -> None:
    """By the second one; a library may raise what it likes then, and a plan would list that."""
    code = """\
import os, signal
try:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)
except KeyboardInterrupt:
    raise ImportError("half a library")
async def run(task, model): ...
"""
    (tmp_path / "mine.py").write_text(code)
    words = [sys.executable, "-m", "slime", "plan", *RUN, f"rollout.program.path={tmp_path}/mine.py:run"]
    done = run_within(100, words, check=False)
    assert (done.stderr, done.returncode) == ("slime: interrupted\n", 130)


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM"])
def test_an_interrupt_of_a_child_is_none_of_ours(name: str) -> None:
    program = [sys.executable, "-c", INSTEAD.format(name=name, where="'a child'")]
    done = run_within(50, program, check=False)
    assert done.stderr.splitlines()[-1] == 'KeyError: "a library\'s state"'
    assert done.returncode == 1


def test_nothing_but_the_program_name_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main([]) == 0
    assert "  model=    " in capsys.readouterr().out


def test_plugins_lists_the_broken_beside_the_sound(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("acme-reward", "@hookimpl\ndef slime_rewards(): return {'acme': dict}")
    site.add("acme-broken", "import no_such_package", version="0.3")
    assert command.main(["plugins"]) == 2
    shown = capsys.readouterr()
    assert "acme-reward 1.0 (acme-reward)\n  reward   acme\n" in shown.out
    assert "acme-broken 0.3 (acme-broken)  BROKEN\n" in shown.out
    assert shown.err.startswith("slime: plugin acme-broken 0.3: 'acme_broken' does not import (ModuleNotFoundError")


def test_plugins_for_programs_has_what_the_listing_has(site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    site.add("acme-reward", "@hookimpl\ndef slime_rewards(): return {'acme': dict}")
    site.add("acme-broken", "import no_such_package", version="0.3")
    assert command.main(["plugins", "--json"]) == 2
    shown = json.loads(capsys.readouterr().out)
    found = {plugin["distribution"]: plugin for plugin in shown["plugins"]}
    assert (shown["schema"], found["acme-reward"]["brings"]) == (1, {"reward": ["acme"]})
    assert "local" in found["slime-rl"]["choices"]["cluster"]
    assert "does not import" in found["acme-broken"]["problem"]["what"]


def test_a_plan_says_what_stands_in_the_run_directory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The plan is shown, as with anything else that is missing here; the run itself is refused at once."""
    words = [*RUN, f"run.dir={tmp_path}", "run.resume=must"]
    assert command.main(["plan", *words]) == 0
    said = f"{tmp_path}/glm4-tiny-local: there is no checkpoint to resume from. Use `run.resume=auto`.\n"
    assert capsys.readouterr().err == f"slime: before it can run: {said}"
    assert command.main(words) == 2
    assert capsys.readouterr().err == f"slime: {said}"


@pytest.mark.parametrize("verb", [[], ["train"], ["plan"]])
def test_no_run_starts_beside_a_broken_plugin(site: Site, verb: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    site.add("acme-broken", "import no_such_package")
    assert command.main([*verb, *RUN]) == 2
    assert "plugin acme-broken 1.0: 'acme_broken' does not import" in capsys.readouterr().err


def test_a_refused_run_leaves_no_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert command.main([*RUN, "run.seed=-1"]) == 2
    assert list(tmp_path.iterdir()) == []


def test_slime_error_is_one_line_whatever_its_parts() -> None:
    assert "\n" not in str(SlimeError("two\nlines", where="a\nb", todo="do\nit"))


@pytest.mark.skipif(bool(read_gpus()), reason="this host has GPUs")
@pytest.mark.parametrize("verb", [[], ["probe"]])
def test_a_run_on_gpus_is_refused_on_a_host_without_before_ray_starts(verb: list[str], tmp_path: Path) -> None:
    words = [*verb, "+model=glm4-tiny", "+cluster=h200x1", f"run.dir={tmp_path}"]
    program = f"import sys; from slime.__main__ import main; print(main({words!r}), 'ray' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"
    assert done.stderr.startswith("slime: cluster.device: no GPU is to be seen on this host (")
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
