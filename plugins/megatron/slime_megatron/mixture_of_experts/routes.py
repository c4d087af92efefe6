"""The experts that engines chose, in place of the router's own choice of a pass."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Routes:
    """Where Megatron-core's router asks for its top-k, the experts that were recorded are the answer. Scores and their
    gradients are the router's own. Shape letters: t tokens, e experts, k experts of a token.

    Args:
        recorded: [t, k]; the first two are equal where nothing was recorded, which engines never choose.
        readers: see `slime_megatron.mixture_of_experts.router.Pass`.

    Attributes:
        num_replayed, num_different: tokens, and tokens' shares of experts that the router would not have chosen, each
            as often as it is read; once it was asked.
    """

    num_replayed: Tensor
    num_different: Tensor

    def __init__(self, recorded: Tensor, readers: Tensor | None = None) -> None:
        self._experts, self._readers = recorded.long(), readers
        self._is_known = self._experts[:, :1] != self._experts[:, 1:2]

    def get_replay_topk(
        self,
        scores: Tensor,
        topk: int,
        num_groups: int | None,
        group_topk: int | None,
        live: Callable[..., tuple[Tensor, Tensor]],
    ) -> tuple[Tensor, Tensor]:
        """[t, k] scores and numbers of the experts; `live`, from scores [t, e], is the router's own choice."""
        _, own = live(scores, topk, num_groups=num_groups, group_topk=group_topk)
        experts = torch.where(self._is_known, self._experts, own)
        is_other = ~(own[:, :, None] == experts[:, None, :]).any(dim=-1)
        self.num_replayed, self.num_different = (
            self._count(self._is_known[:, 0]),
            self._count(is_other.float().mean(-1)),
        )
        return scores.gather(1, experts), experts

    def _count(self, of_tokens: Tensor) -> Tensor:
        return of_tokens.sum() if self._readers is None else of_tokens.float() @ self._readers

    def counted(self, routing_map: Tensor) -> Tensor:
        """[t, e]: which experts tokens are sent to, of a map of the router's own choices."""
        sent = torch.zeros_like(routing_map).scatter(
            1, self._experts, torch.ones_like(self._experts, dtype=routing_map.dtype)
        )
        return torch.where(self._is_known, sent, routing_map)


class Own:
    """The router's own choice, made before (`batch_invariant.experts.choose`), where Megatron-core's router asks for
    its top-k; where there are `routes`, they are the answer.

    Args:
        experts: [t, k].
    """

    def __init__(self, experts: Tensor, routes: Routes | None) -> None:
        self._experts, self._routes = experts, routes

    def get_replay_topk(
        self, scores: Tensor, topk: int, num_groups: int | None, group_topk: int | None, live: object
    ) -> tuple[Tensor, Tensor]:
        """As `Routes.get_replay_topk`, without the use of `live`."""
        if self._routes is not None:
            return self._routes.get_replay_topk(scores, topk, num_groups, group_topk, self._own)
        return self._own(scores)

    def _own(self, scores: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        return scores.gather(1, self._experts), self._experts
