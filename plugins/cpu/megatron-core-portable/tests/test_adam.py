import pytest
import torch

from megatron_core_portable.adam import FusedAdam


def parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(5, 3, generator=generator)) for _ in range(2)]


def set_gradients(params: list[torch.nn.Parameter], step: int) -> None:
    generator = torch.Generator().manual_seed(step)
    for param in params:
        param.grad = torch.randn(param.shape, generator=generator)


@pytest.mark.parametrize(("adam_w_mode", "reference"), [(True, torch.optim.AdamW), (False, torch.optim.Adam)])
def test_steps_are_those_of_torch(adam_w_mode: bool, reference: type[torch.optim.Optimizer]) -> None:
    options = {"lr": 1e-2, "betas": (0.8, 0.95), "eps": 1e-7, "weight_decay": 0.1}
    ours, theirs = parameters(), parameters()
    adam, wanted = FusedAdam(ours, adam_w_mode=adam_w_mode, **options), reference(theirs, fused=True, **options)
    for step in range(5):
        for params, optimizer in ((ours, adam), (theirs, wanted)):
            set_gradients(params, step)
            optimizer.step()
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)  # the same kernel


def test_state_has_the_shape_of_apex() -> None:
    params = parameters()
    adam = FusedAdam(params)
    set_gradients(params, 0)
    adam.step()
    assert [group["step"] for group in adam.param_groups] == [1]
    assert all(set(adam.state[param]) == {"exp_avg", "exp_avg_sq"} for param in params)


def test_forgetting_makes_the_next_step_the_first() -> None:
    fresh, used = parameters(), parameters()
    adam = FusedAdam(used)
    set_gradients(used, 0)
    adam.step()
    adam.forget()
    with torch.no_grad():
        for param, value in zip(used, fresh, strict=True):
            param.copy_(value)
    for params, optimizer in ((fresh, FusedAdam(fresh)), (used, adam)):
        set_gradients(params, 1)
        optimizer.step()
    torch.testing.assert_close(used, fresh, rtol=0, atol=0)
