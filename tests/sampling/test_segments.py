"""An attempt of several segments: its reward and advantage are the attempt's, its loss and gradients those of one."""

import dataclasses

import numpy as np
import pytest
import torch

from slime.algo.advantages import GroupMean
from slime.algo.grpo import Grpo
from slime.config.schema import AlgoConfig, LossMean
from slime.objective import LossInputs
from slime.sampling.buffer import FifoBuffer
from slime.sampling.samples import spread
from slime.sampling.stats import group_stats, lag_stats, zero_variance
from slime.segments import Segment, WeightSpan
from slime.train.packing import pack
from slime.types import Batch, Group, Prompt, Sample, Status, Verdict
from tests.advantages import to_train_samples

GRPO = GroupMean(normalize_std=True)

VERSION, WRITTEN, VOCABULARY = 4, None, 96
PROMPTS = [Prompt(f"0/{number}", (), (5 + number, 6, 7)) for number in range(2)]
LENGTHS = [((3, 2, 4, 1, 2), 1.0), ((5,), 0.0), ((2, 3, 1), 0.5), ((1, 1, 6, 2, 3, 1, 2), 0.25)]
"""Of each attempt the tokens that were sampled, written, sampled, ...; and its reward."""


def whole(prompt: Prompt, index: int, lengths: tuple[int, ...], reward: float) -> Sample:
    """An attempt of one segment, with tokens of a program between those of the model."""
    generator = np.random.default_rng([index, len(lengths), prompt.tokens[0]])
    spans = [WeightSpan(WRITTEN if turn % 2 else VERSION - turn // 4, count) for turn, count in enumerate(lengths)]
    mask = [int(span.version is not None) for span in spans for _ in range(span.num_tokens)]
    tokens = generator.integers(1, VOCABULARY, len(mask)).tolist()
    logprobs = [-float(generator.random()) if sampled else 0.0 for sampled in mask]
    segment = Segment(prompt.tokens, tokens, logprobs, mask, spans)
    return Sample(prompt, index, [segment], Status.COMPLETED, verdict=Verdict.of(reward))


def cut(sample: Sample) -> Sample:
    """The same attempt with a segment for each of its responses, as a program makes them that begins again with what
    was said before."""
    [segment], segments, start = sample.segments, [], 0
    for span in segment.spans:
        part = slice(start, start + span.num_tokens)
        if span.version is not None:
            context = (*segment.context, *segment.tokens[:start])
            segments.append(
                Segment(context, segment.tokens[part], segment.logprobs[part], segment.loss_mask[part], [span])
            )
        start = part.stop
    return dataclasses.replace(sample, segments=segments)


def groups() -> list[Group]:
    return [
        Group(prompt, [whole(prompt, index, *each) for index, each in enumerate(LENGTHS[shift:] + LENGTHS[:shift])])
        for shift, prompt in enumerate(PROMPTS)
    ]


def all_cut(found: list[Group]) -> list[Group]:
    return [Group(group.prompt, [cut(sample) for sample in group.samples]) for group in found]


def packed(found: list[Group], loss_mean: LossMean, num_steps: int = 1) -> list[Batch]:
    samples = to_train_samples(spread(found, num_steps, VERSION), GRPO, VERSION, None)
    return pack(samples, num_dp=2, align=1, max_tokens=40, loss_mean=loss_mean, max_response_tokens=32,
                num_optimizer_steps=num_steps)  # fmt: skip


class Model(torch.nn.Module):
    """Float64 throughout; transformers' classes compute norms and attention weights in fp32."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.words, self.places = torch.nn.Embedding(VOCABULARY, 32), torch.nn.Embedding(64, 32)
        layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.layers, self.head = torch.nn.TransformerEncoder(layer, 2), torch.nn.Linear(32, VOCABULARY)
        self.double()

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[t, v] log-probs of what follows each of t tokens."""
        future = torch.ones(len(tokens), len(tokens)).triu(1).bool()
        hidden = self.layers((self.words(tokens) + self.places(positions))[None], mask=future)
        scores: torch.Tensor = self.head(hidden)[0].log_softmax(1)
        return scores


def learnt(batch: Batch) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """Loss and gradients of an optimizer step: the built-in objective over a transformer in float64."""
    model = Model()
    fields = {field.name for field in dataclasses.fields(Grpo)}
    objective = Grpo(**{name: value for name, value in vars(AlgoConfig(entropy_coef=0.1)).items() if name in fields})
    total = torch.zeros((), dtype=torch.float64)
    for micro in (micro for of_rank in batch.micro_batches for micro in of_rank):
        scores = []
        for start, end in zip(micro.cu_seqlens[:-1], micro.cu_seqlens[1:], strict=True):
            logp = model(torch.from_numpy(micro.tokens[start:end]), torch.from_numpy(micro.position_ids[start:end]))
            labels = torch.from_numpy(micro.labels[start:end])[:, None]
            scores.append(torch.stack([logp.gather(1, labels)[:, 0], -(logp.exp() * logp).sum(1)]))
        mask = torch.from_numpy(micro.loss_mask).double()
        columns = {name: torch.from_numpy(values).double() for name, values in micro.columns.items()}
        scored = torch.cat(scores, 1) * mask
        columns["old_logprobs"] = scored[0].detach()
        inputs = LossInputs(mask, torch.from_numpy(micro.loss_weights).double(), columns, torch.sum)
        total = total + objective.loss(scored, inputs).loss
    total.backward()  # type: ignore[no-untyped-call]
    return total.detach(), [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("loss_mean", LossMean)
def test_an_attempt_in_segments_has_the_loss_and_gradients_of_one_sequence(loss_mean: LossMean) -> None:
    """The weights of tokens are the same numbers, so what differs is the rounding of float64."""
    (one,), (many,) = packed(groups(), loss_mean), packed(all_cut(groups()), loss_mean)
    assert sum(len(micro.sample_ids) for of_rank in many.micro_batches for micro in of_rank) == 2 * (3 + 1 + 2 + 4)
    assert one.num_loss_tokens == many.num_loss_tokens
    (loss, gradients), (loss_cut, gradients_cut) = learnt(one), learnt(many)
    assert abs(loss) > 1e-3
    torch.testing.assert_close(loss_cut, loss, rtol=1e-12, atol=0)
    assert len(gradients) == len(gradients_cut) > 10
    for gradient, gradient_cut in zip(gradients, gradients_cut, strict=True):
        torch.testing.assert_close(gradient_cut, gradient, rtol=1e-9, atol=1e-14)


def test_segments_do_not_count_in_the_mean_of_their_group() -> None:
    def advantages(found: list[Group]) -> list[float]:
        samples = to_train_samples(found, GRPO, VERSION, None)
        return list({sample.attempt: float(sample.columns["advantages"][0]) for sample in samples}.values())

    assert advantages(groups()) == advantages(all_cut(groups()))
    assert len(advantages(groups())) == 8


@pytest.mark.parametrize("num_steps", [2, 3, 8])
def test_all_segments_of_an_attempt_are_trained_in_one_optimizer_step(num_steps: int) -> None:
    """And those of the attempts that it is in one sequence of."""

    def attempts(found: list[Group]) -> list[set[int | None]]:
        samples = to_train_samples(found, GRPO, VERSION, None)
        batches = pack(samples, num_dp=1, align=1, max_tokens=64, loss_mean=LossMean.sample,
                       num_optimizer_steps=num_steps)  # fmt: skip
        return [
            {samples[i].attempt for of_rank in batch.micro_batches for micro in of_rank for i in micro.sample_ids}
            for batch in batches
        ]

    assert attempts(groups()) == attempts(all_cut(groups()))
    assert sum(map(len, attempts(groups()))) == 8


def test_metrics_of_an_attempt_do_not_depend_on_its_segments() -> None:
    one, many = groups(), all_cut(groups())
    assert group_stats(one) == group_stats(many)
    assert group_stats(one)["rollout/response_length_max"] == 1 + 6 + 3 + 2
    assert lag_stats(one, VERSION, 1) == lag_stats(many, VERSION, 1)
    assert zero_variance(one) == zero_variance(many)


def test_what_a_program_wrote_has_no_loss_and_no_weights() -> None:
    (sample, *_) = groups()[0].samples
    [segment] = sample.segments
    assert (sample.num_sampled, len(segment.tokens)) == (3 + 4 + 2, 3 + 2 + 4 + 1 + 2)
    segment.check()
    segment.loss_mask[3] = 1
    with pytest.raises(AssertionError, match="nobody sampled"):
        segment.check()


def test_segments_come_out_of_a_buffer_as_they_went_in() -> None:
    buffer, resumed = FifoBuffer(), FifoBuffer()
    for group in all_cut(groups()):
        buffer.put(group, VERSION)
    resumed.load_state_dict(buffer.state_dict())
    assert resumed.take(9, VERSION) == all_cut(groups())
