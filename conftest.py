"""What holds for every test, the plugins' own included, also where they are run alone."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import time
import tomllib
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from slime.imports import importing
from slime_testing.patience import Patience, family

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as in the background of a script; children inherit it
    signal.signal(signal.SIGINT, signal.default_int_handler)


_collection = ExitStack()
_collection.enter_context(importing())  # tests are imported in it, and torch with them


@pytest.hookimpl(wrapper=True)
def pytest_collection_finish(session):
    """Ends the imports of tests. And xdist tells who deals out tests of their groups by their ids, `a.py::b@group`:
    version 3.8 writes that where pytest 9.2 no longer reads it, and each process would make what a group shares."""
    _collection.close()
    for item in session.items:
        groups = {mark.args[0] for mark in item.iter_markers("xdist_group")}
        suffix = f"@{'_'.join(sorted(groups))}"
        if groups and session.config.getoption("loadgroup", default=False) and not item.nodeid.endswith(suffix):
            from _pytest.nodeid import coerce_node_id

            item._id = coerce_node_id(f"{item.nodeid}{suffix}")
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """No garbage is collected while a failure is told, for which pytest parses the test. A task that nobody waited for
    tells its own failure as it is collected, and parses too: Python 3.11 mixes up the two, and pytest ends."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        return (yield)
    finally:
        if enabled:
            gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    """A file that leaves a process group behind fails in its last test, not the next file that needs one. And SIGUSR2,
    which a command that ran in this process holds back, reaches children of other tests."""
    yield
    signal.pthread_sigmask(signal.SIG_UNBLOCK, [signal.SIGUSR2])
    distributed = sys.modules.get("torch.distributed")
    if distributed and (nextitem is None or nextitem.path != item.path) and distributed.is_initialized():
        distributed.destroy_process_group()
        pytest.fail(f"{item.path.name} left a process group of torch behind")


SLOW_UNTIL = "SLOW_TESTS_UNTIL"
"""Environment variable: seconds since the epoch, after which no slow test begins. `.ci/run` sets it, as a slow machine
would be stopped in the middle, and would tell nothing."""
TOO_LATE = "too late for a slow test"


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item):
    if item.get_closest_marker("slow") and time.time() > float(os.environ.get(SLOW_UNTIL, "inf")):
        pytest.skip(TOO_LATE)


def pytest_terminal_summary(terminalreporter):
    """Which slow tests did not run, of each file how many."""
    skipped = terminalreporter.stats.get("skipped", [])
    late = Counter(report.nodeid.partition("::")[0] for report in skipped if TOO_LATE in report.longreprtext)
    if late:
        files = "\n".join(f"  {number} of {file}" for file, number in sorted(late.items()))
        terminalreporter.write_line(f"NOT RUN, {TOO_LATE} ({SLOW_UNTIL}): {late.total()}\n{files}", red=True)


LOOK_AGAIN_S = 5.0


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item, settings):
    """The limit of a test leaves out the time for which it, or what it started, had no core: a busy machine would fail
    healthy tests."""
    if settings.method != "signal":
        return None
    from pytest_timeout import timeout_sigalrm

    patience = Patience(settings.timeout, lambda: family(os.getpid()))

    def look(signum, frame):
        __tracebackhide__ = True
        if patience.is_over():
            timeout_sigalrm(item, settings)

    def cancel():
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)

    item.cancel_timeout = cancel
    signal.signal(signal.SIGALRM, look)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, LOOK_AGAIN_S)
    return True


@pytest.fixture
def device():
    """Where Triton kernels run: the GPU if there is one, else Triton's interpreter."""
    import torch

    if torch.cuda.is_available():
        return torch.device("cuda")
    if os.environ.get("TRITON_INTERPRET") != "1":
        pytest.skip(
            "no GPU, and not in Triton's interpreter (tests/models/test_kernels_interpreted.py runs this there)"
        )
    return torch.device("cpu")


SHARED = ("finished", "bare", "demonstrated")
"""Fixtures of a session that take seconds to make: who needs one runs where it is, in one process of several. The first
are the longest, and begin first."""


TESTS = Path(__file__).parent / "tests"
DAY = tuple(name for each in tomllib.loads((TESTS / "day.toml").read_text())["day"] for name in each["tests"])
"""Files, tests and cases of slow tests that `make test` runs; the others carry the mark `nightly`."""
SECONDS = tomllib.loads((TESTS / "durations.toml").read_text())["seconds"]
"""What the tests of a file take together, by its path."""


def _is_of_the_day(nodeid):
    return any(nodeid == name or nodeid.startswith((f"{name}::", f"{name}[")) for name in DAY)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config, items):
    _skip_without_devices(items)
    for item in items:
        if item.get_closest_marker("slow") and not _is_of_the_day(item.nodeid):
            item.add_marker("nightly")
    if config.getoption("loadgroup", default=False):
        for item in items:
            for name in SHARED:
                if name in getattr(item, "fixturenames", ()):
                    item.add_marker(pytest.mark.xdist_group(name))
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: _turn(item, slow))


def _turn(item, slow):
    """The longest group begins first, and long files before short ones, which fill the end. Of slow ones those of fresh
    environments come last: a slow machine can best leave them out."""
    longest = SHARED[0] in getattr(item, "fixturenames", ())
    seconds = sum(SECONDS.get(item.nodeid.partition("::")[0], (0.0, 0.0)))
    return not longest, item.path not in slow, "third_party" in item.path.parts, -seconds


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Of `--dist loadgroup`: what is in no group goes file by file, for the sake of fixtures of modules."""
    from xdist.scheduler import LoadGroupScheduling

    class GroupOrFile(LoadGroupScheduling):
        def _split_scope(self, nodeid):
            return super()._split_scope(nodeid).partition("::")[0]

    return GroupOrFile(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.hookimpl(tryfirst=True)
def pytest_sessionfinish(session):
    """A session that left tests out is an interrupted one: after too many crashes xdist starts no further process, and
    the exit code tells of failures alone."""
    several = session.config.pluginmanager.getplugin("dsession")
    ended = session.exitstatus in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED)
    if several and ended and not several.sched.tests_finished:
        session.exitstatus = pytest.ExitCode.INTERRUPTED
        told = session.config.pluginmanager.getplugin("terminalreporter")
        told.write_line("\nnot every test ran: too many processes of tests crashed", red=True)


def _skip_without_devices(items):
    """`gpu` tests run where there are enough CUDA devices: one, or as many as the mark says, `gpu(2)`."""
    marked = [(item, mark) for item in items if (mark := item.get_closest_marker("gpu"))]
    if not marked or os.environ.get("TRITON_INTERPRET") == "1":
        return
    import torch

    for item, mark in marked:
        need, have = mark.args[0] if mark.args else 1, torch.cuda.device_count()
        if have < need:
            item.add_marker(pytest.mark.skip(reason=f"needs {need} CUDA device(s), there are {have}"))


@pytest.fixture
def memory_folder(tmp_path):
    """A folder in memory where there is one: hundreds of syncs to a disk would take most of a minute."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else tmp_path) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def tiny_model():
    """HF folder of the smallest model: config and tokenizer, no weights."""
    from slime.config.paths import resolve

    return resolve("pkg://slime_plugin_glm4/assets/glm4-tiny")


@pytest.fixture(scope="session")
def engine(tiny_model, tmp_path_factory):
    """A real SGLang engine on the CPU for `tiny_model`, started by the first test that asks; publish before use."""
    from slime_testing.engines import running_engine

    with running_engine(tiny_model, Path(tmp_path_factory.mktemp("engine")) / "engine.log") as process:
        yield process


@pytest.fixture(scope="session")
def endpoint(engine):
    return engine.endpoint


@pytest.fixture(scope="session")
def hf_model():
    """`hf_model(folder, seed)`: transformers' own model of a folder's config.json, fp32, with random weights."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    def build(folder, seed=0):
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            return AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float().eval()

    return build


@pytest.fixture(scope="module")
def chromium():
    """The system's Chromium, steered by Playwright, whose event loop runs in this thread until the fixture ends."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if found is None:
        pytest.skip("there is no Chromium here: apt-get install chromium")
    playwright_api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed: make setup")
    with playwright_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield browser
        browser.close()
