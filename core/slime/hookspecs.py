"""The hooks of plugins (pluggy project name `slime`, entry-point group `slime`). docs/hooks.md, generated from this
file, tells what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, Protocol

import pluggy

if TYPE_CHECKING:
    from slime.config import schema
    from slime.contracts import BufferPolicy, Explanation, Program, Reward, SampleFilter, Tracker, VerbFactory
    from slime.errors import SlimeError
    from slime.estimator import Estimator
    from slime.events import Subscriber
    from slime.models.bridge import ModelBridge
    from slime.objective import Objective

hookspec = pluggy.HookspecMarker("slime")
hookimpl = pluggy.HookimplMarker("slime")

Factory = Callable[..., Any]


def later(path: str, *, every_session: bool = False) -> Factory:
    """A factory that is imported when it is called: `module:name`, of a function or a class. `every_session` as of
    `slime_subscribers`."""

    def factory(*arguments: Any, **options: Any) -> Any:
        return resolve_name(path)(*arguments, **options)

    vars(factory)["every_session"] = every_session
    return factory


class SlimeHooks(Protocol):
    """Every hook, with its exact signature."""

    @hookspec
    def slime_models(self) -> Mapping[str, Callable[[], ModelBridge]]:
        """Model families: `{HF model_type: factory of a ModelBridge}`."""

    @hookspec
    def slime_rewards(self) -> Mapping[str, Callable[..., Reward]]:
        """Rewards: `{name: factory}`, selected by `reward=<name>`; `reward.options` become the factory's keywords. One
        with `score_group` judges the samples of a prompt together."""

    @hookspec
    def slime_programs(self) -> Mapping[str, Callable[..., Program]]:
        """Programs: `{name: factory}`, selected by `rollout.program.name`; its `options` become keywords."""

    @hookspec
    def slime_conversations(self) -> Mapping[str, Factory]:
        """Conversations that keep their tokens, and workers in which programs run: `{name: factory}`. One is installed,
        and that is taken. A factory returns a `slime.sampling.programs.ProgramKit`."""

    @hookspec
    def slime_rollouts(self) -> Mapping[str, Factory]:
        """Rollouts that go on while trainers work, which `rollout.max_staleness` asks for: `{name: factory}`. One is
        installed, and that is taken. A factory returns a `slime.sampling.loop.Ahead`."""

    @hookspec
    def slime_prompt_sets(self) -> Mapping[str, Callable[[str], Path]]:
        """Prompt sets by address: `{scheme: function}`. A key such as `data.path` may then be `<scheme>://...`; the
        function gets the whole address, and returns a file of rows, the same ones each time, or a resumed run is
        refused. A `SlimeError` says what is wrong with an address."""

    @hookspec
    def slime_row_formats(self) -> Mapping[str, Factory]:
        """Formats of data sets beside jsonl: `{suffix: factory}`, such as `.parquet`. A factory returns a
        `slime.data.rows.RowReader`."""

    @hookspec
    def slime_filters(self) -> Mapping[str, Callable[..., SampleFilter]]:
        """Filters: `{name: factory}`, selected by `filter=<name>`; `filter.options` become the factory's keywords."""

    @hookspec
    def slime_buffers(self) -> Mapping[str, Callable[..., BufferPolicy]]:
        """Buffer policies: `{name: factory}`, selected by `buffer=<name>`; `buffer.options` become keywords."""

    @hookspec
    def slime_objectives(self) -> Mapping[str, Callable[..., Objective]]:
        """Objectives, that is losses: `{name: factory}`, selected by `algo=<name>`; `algo.options` become keywords, and
        so do the keys of `algo` that the options' schema has fields for, `clip_low` for instance."""

    @hookspec
    def slime_estimators(self) -> Mapping[str, Callable[..., Estimator]]:
        """Estimators of advantages: `{name: factory}`, selected by `algo.advantage=<name>`; `algo.advantage_options`
        become keywords, and keys of `algo` as in `slime_objectives`."""

    @hookspec
    def slime_explanations(self) -> Mapping[str, Callable[[], Explanation]]:
        """Explanations of why engine and trainer differ: `{name: factory}`. Every installed one is asked when
        `observe.logprob_alarm` rings."""

    @hookspec
    def slime_trackers(self) -> Mapping[str, Callable[..., Tracker]]:
        """Trackers: `{name: factory}`, selected by `observe.trackers.<name>`, whose keys become keywords.

        A factory with the attribute `by_default = True` is selected if it is installed, unless the run says
        `observe.trackers.<name>=false`: for trackers that need no account and no server."""

    @hookspec
    def slime_subscribers(self) -> Mapping[str, Callable[..., Subscriber]]:
        """Subscribers: `{name: factory}`. Each installed one is told of every run that trains: its factory gets the
        keyword `run` (a `slime.types.TrackedRun`) once the run directory is open, and returns a function that is called
        with each event of `slime.events`, between steps and while samples are generated. If that raises, a line is
        logged, and it is told nothing more; the run goes on. A factory that raises stops the start.

        A factory with the attribute `every_session = True` is told of every session, `slime eval` too, from its first
        event, before the run directory is open. It gets the keyword `events` as well (a `slime.events.Events`), to
        publish more and to stop the run."""

    @hookspec
    def slime_verbs(self) -> Mapping[str, VerbFactory]:
        """Verbs of the command line: `{name: VerbFactory(help, module)}`, called as `slime <name> ...`. The module has
        `add_arguments(parser)` and `run(args)` (`slime.contracts.Verb`).

        A name of two words gives an installed verb an option with a parser of its own: `slime plan ... --fit` calls
        `"plan --fit"`, where the flag may be anywhere after the verb, and `slime plan convert ...` calls
        `"plan convert"`. `slime_testing.verbs.check_verb` tests a verb; `tests/third_party/lengths` is an example."""

    @hookspec
    def slime_transports(self) -> Mapping[str, Factory]:
        """Transports of weight versions to the engines: `{name: factory}`, selected by `weights.transport=<name>`. A
        factory returns a `slime.topology.transport_protocol.Transport` (`docs/publishing.md`). The schema
        `transport/<name>` adds its fields to the section `weights`."""

    @hookspec
    def slime_quantizations(self) -> Mapping[str, Factory]:
        """Quantizations, in which engines hold weights: `{name: factory}`, selected by the key `rollout.<name>`, which
        the schema `quantization/<name>` adds to the section `rollout`. A factory returns a
        `slime.topology.quantization.Quantization` (`docs/quantization.md`)."""

    @hookspec
    def slime_adapters(self) -> Mapping[str, Factory]:
        """Adapters: `{name: factory}`, small weights that learn while the model's own stay as they are. A factory gets
        the section `train`, to which the schema `adapter/<name>` adds keys, and returns a
        `slime.topology.adapters.Adapters`, or None where these keys choose none."""

    @hookspec
    def slime_launchers(self) -> Mapping[str, Factory]:
        """Launchers, which bring Ray up on the run's other hosts, and take it down with the driver: `{name: factory}`,
        selected by `cluster.launcher=<name>`. A factory returns a `slime.topology.launcher.Launcher`."""

    @hookspec
    def slime_ray_starters(self) -> Mapping[str, Factory]:
        """What brings Ray up for a run, or joins it: `{name: function}`. One is installed, and that is taken;
        `slime-rl[gpu]` and `slime-rl[cpu]` bring it. `slime.cluster.ray_starter.ray_here` says what it does."""

    @hookspec
    def slime_engine_returns(self) -> Mapping[str, Factory]:
        """The return of engines that died: `{name: factory}`. One is installed, and that is taken; without one the
        death of an engine ends the run. `slime-rl[gpu]` and `slime-rl[cpu]` bring it. A factory returns a
        `slime.cluster.engine_return.EngineReturn`."""

    @hookspec
    def slime_recordings(self) -> Mapping[str, Factory]:
        """Numbers that engines tell of each token that they sample: `{name: factory}`. Each installed one is asked for
        in every rollout: it is the metric `rollout/<name>`, and a column of that name for objectives. A factory
        returns a `slime.models.traits.Recording`; `slime_sglang.engine.told.Told` is one that SGLang can answer."""

    @hookspec
    def slime_engine_checks(self) -> Mapping[str, Factory]:
        """Rules of the engines' software, asked of each layout before anything starts: `{name: function}`. It gets the
        topology, keywords of Megatron's TransformerConfig and the model's blocks, and returns an error for each key."""

    @hookspec
    def slime_advisers(self) -> Mapping[str, Factory]:
        """Better ways out of a config's problems: `{name: function}`. Each gets the problems, the config before values
        were derived, and its rules, and returns the same problems in their order, some with another `todo`."""

    @hookspec
    def slime_memory_estimates(self) -> Mapping[str, Factory]:
        """Estimates of what devices and hosts will hold: `{device: factory}`, selected by `cluster.device`. The factory
        gets the keyword `sizes` (a `slime.sizes.model.ModelSizes`) and returns a
        `slime.sizes.estimate.MemoryEstimate`. What does not fit is refused before anything starts; without an estimate
        a plan says that memory is not known."""

    @hookspec
    def slime_plan_parts(self) -> Mapping[str, Factory]:
        """Parts of a plan: `{name: factory}`. Each installed one is asked of a model whose sizes are known; the factory
        gets the keyword `sizes` (a `slime.sizes.model.ModelSizes`) and returns a `slime.sizes.estimate.PlanPart`."""

    @hookspec
    def slime_preflights(self) -> Mapping[str, Factory]:
        """Looks at the hosts of a run: `{name: function}`. Every installed one is asked once Ray is up, before anything
        of the run starts. It gets the topology, the run's `slime.run_dir.RunDir`, Ray's ids of the hosts, and whether
        the run will write checkpoints, and raises a `SlimeError` with all that hosts lack."""

    @hookspec
    def slime_config_paths(self) -> Sequence[str]:
        """Importable folders with config groups, as `pkg://package.conf` (the folder needs an `__init__.py`)."""

    @hookspec
    def slime_config_schemas(self) -> Mapping[str, type]:
        """Dataclasses that type a contribution's options: `{"reward/<name>": MyOptions, "filter/<name>": ...}`, and so
        `program/<name>`, `buffer/<name>`, `algo/<name>`, `estimator/<name>` and `tracker/<name>`. A contribution that
        is itself a dataclass needs none. The schema of `transport/<name>` is a subclass of
        `slime.config.weights.WeightsConfig`, that of `quantization/<name>` one of `slime.config.schema.RolloutConfig`,
        that of `adapter/<name>` one of `slime.config.schema.TrainConfig`."""

    @hookspec
    def slime_check(
        self,
        cfg: schema.SlimeConfig,
        run: schema.RunConfig,
        model: schema.ModelConfig,
        cluster: schema.ClusterConfig,
        train: schema.TrainConfig,
        sft: schema.SftConfig,
        algo: schema.AlgoConfig,
        rollout: schema.RolloutConfig,
        data: schema.DataConfig,
        eval: schema.EvalConfig,
        reward: schema.RewardConfig,
        filter: schema.FilterConfig,
        buffer: schema.BufferConfig,
        weights: schema.WeightsConfig,
        observe: schema.ObserveConfig,
    ) -> Sequence[str | SlimeError]:
        """Problems of a run that the plugin sees, before any process starts: a sentence each, or an error that says
        where and what to do. An implementation has those of the arguments that it reads, such as
        `slime_check(rollout, cluster)`: sections of the config by their names, or `cfg`, all of it."""
