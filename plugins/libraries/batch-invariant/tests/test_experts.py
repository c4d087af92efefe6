"""Mixtures of experts: against float64 and transformers, and no bit of a token depends on the other tokens."""

import pytest
import torch
import torch.nn.functional as F

from batch_invariant import experts
from batch_invariant.experts import Routing

TOKENS, NUM_EXPERTS, HIDDEN, SIZE, TOPK = 64, 12, 96, 130, 3
PARTS = [slice(0, 1), slice(3, 5), slice(7, 12), slice(16, 49)]
ROUTINGS = {
    "sigmoid": Routing(TOPK, True, True, 2.5),
    "softmax of the chosen": Routing(TOPK, False, True),
    "softmax of all": Routing(TOPK, False, False, 1.5),
    "one": Routing(1, True, False),
}
LOGITS, BIAS = 2 * torch.randn(TOKENS, NUM_EXPERTS), 0.3 * torch.randn(NUM_EXPERTS)


def bias_of(routing):
    return BIAS if routing.sigmoid else None


def exact(routing):
    """Weights [t, e] in float64, 0 of experts that are not chosen."""
    logits = LOGITS.double()
    scores = logits.sigmoid() if routing.sigmoid else logits.softmax(1)
    _, best = (scores + BIAS.double() if routing.sigmoid else scores).topk(routing.topk)
    weights = scores.gather(1, best)
    weights = weights / weights.sum(1, keepdim=True) if routing.normalised else weights
    return torch.zeros_like(scores).scatter(1, best, weights * routing.scale)


@pytest.mark.parametrize("name", ROUTINGS)
def test_choice_and_weights(name):
    routing = ROUTINGS[name]
    chosen = experts.choose(LOGITS, routing, bias_of(routing))
    weights = experts.weigh(LOGITS, chosen, routing)
    assert (chosen.diff() > 0).all()
    found = torch.zeros(TOKENS, NUM_EXPERTS).scatter(1, chosen, weights)
    torch.testing.assert_close(found.double(), exact(routing), rtol=1e-6, atol=1e-7)
    for part in PARTS:
        assert torch.equal(experts.choose(LOGITS[part].clone(), routing, bias_of(routing)), chosen[part])
        assert torch.equal(experts.weigh(LOGITS[part].clone(), chosen[part], routing), weights[part])


def test_the_choice_is_that_of_transformers():
    from transformers import Glm4MoeConfig
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeMoE

    sizes = {"hidden_size": HIDDEN, "moe_intermediate_size": SIZE, "n_routed_experts": NUM_EXPERTS, "n_group": 1}
    sizes |= {"num_experts_per_tok": TOPK, "routed_scaling_factor": 2.5, "topk_group": 1}
    block = Glm4MoeMoE(Glm4MoeConfig(**sizes)).double()
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    block.gate.e_score_correction_bias.copy_(BIAS)
    hidden, routed = torch.randn(TOKENS, HIDDEN).double(), block.experts
    with torch.no_grad():
        wanted = block(hidden[None])[0] - block.shared_experts(hidden)
        logits = F.linear(hidden, block.gate.weight).float()
        chosen = experts.choose(logits, ROUTINGS["sigmoid"], BIAS)
        weights = experts.weigh(logits, chosen, ROUTINGS["sigmoid"])
        matrices = (each.float().transpose(1, 2) for each in (routed.gate_up_proj, routed.down_proj))
        found = experts.mixture(hidden.float(), chosen, weights, *matrices)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


def test_of_experts_that_tie_the_first_are_chosen():
    tied = torch.tensor([[0.0, 1, 1, 1, 0, 1]]).repeat(40, 1)
    for routing in (Routing(2, True, True), Routing(2, False, True)):
        assert experts.choose(tied, routing).tolist() == [[1, 2]] * 40


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_mixtures(dtype):
    random = torch.Generator().manual_seed(1)
    hidden = torch.randn(TOKENS, HIDDEN, generator=random).to(dtype)
    gate_up, down = (
        (0.2 * torch.randn(NUM_EXPERTS, *shape, generator=random)).to(dtype)
        for shape in ((HIDDEN, 2 * SIZE), (SIZE, HIDDEN))
    )
    routing = ROUTINGS["sigmoid"]
    chosen = experts.choose(LOGITS, routing, BIAS)
    weights = experts.weigh(LOGITS, chosen, routing)
    found = experts.mixture(hidden, chosen, weights, gate_up, down)
    wide = hidden.double()
    of_all = []
    for first, second in zip(gate_up.double(), down.double(), strict=True):
        gate, up = (wide @ first).chunk(2, dim=1)
        of_all.append((F.silu(gate) * up) @ second)
    wanted = (torch.stack(of_all, dim=1) * exact(routing)[:, :, None]).sum(1)
    near = {"rtol": 0, "atol": 0.05} if dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-5}
    torch.testing.assert_close(found.double() / wanted.std(), wanted / wanted.std(), **near)
    for part in PARTS:
        alone = experts.mixture(hidden[part].clone(), chosen[part], weights[part], gate_up, down)
        assert torch.equal(alone, found[part])
    other = (each.transpose(1, 2).contiguous().transpose(1, 2) for each in (gate_up, down))
    assert torch.equal(experts.mixture(hidden, chosen, weights, *other), found), "how weights lie"
    assert experts.mixture(hidden[:0], chosen[:0], weights[:0], gate_up, down).shape == (0, HIDDEN)
