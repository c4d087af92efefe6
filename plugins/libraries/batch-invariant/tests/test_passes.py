"""The forward pass has our products and values, the backward pass is the ordinary one."""

import torch
import torch.nn.functional as F

from batch_invariant.passes import forward_pass, instead, is_on
from batch_invariant.products import product


def test_products_inside_and_the_gradient_outside():
    x, weight = torch.randn(3, 384), torch.randn(130, 384, requires_grad=True)
    with forward_pass():
        assert is_on()
        found = F.linear(x, weight)
    assert not is_on()
    assert torch.equal(found, product(x, weight.detach().t()))
    found.sum().backward()
    torch.testing.assert_close(weight.grad, x.sum(0).expand_as(weight))
    with forward_pass(False):
        assert not is_on()


def test_a_value_has_the_ordinary_gradient():
    x, asked = torch.randn(5, requires_grad=True), []

    def ordinary(x):
        asked.append(x)
        return x.square()

    found = instead(ordinary, lambda x: x.square() + 1, x)
    assert torch.equal(found, x.detach().square() + 1)
    found.sum().backward()
    torch.testing.assert_close(x.grad, 2 * x.detach())
    with torch.no_grad():
        assert not instead(ordinary, lambda x: x + 1, x).requires_grad
    assert len(asked) == 1
