"""The client of the Hugging Face hub, and its errors in one line."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from slime.errors import SlimeError

INSTALL = "pip install huggingface_hub"


def client(where: str) -> ModuleType:
    """The library; SlimeError where it is missing."""
    try:
        import huggingface_hub
    except ModuleNotFoundError:
        raise SlimeError("huggingface_hub is not installed", where=where, todo=f"Run '{INSTALL}'.") from None
    return huggingface_hub


@contextmanager
def told(where: str, kind: str, name: str) -> Iterator[None]:
    """A context in which what the hub refuses is a SlimeError.

    Args:
        kind: `model` or `data set`.
        name: of the repository.
    """
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError:
        todo = f"Ask for it on its page on the hub, then run 'hf auth login': {name}."
        raise SlimeError(f"the {kind} is given to those who ask for it", where=where, todo=todo) from None
    except errors.RevisionNotFoundError:
        todo = "Name a branch, a tag or a commit behind '@', or leave it out."
        raise SlimeError(f"the {kind} '{name}' has no such revision", where=where, todo=todo) from None
    except errors.RepositoryNotFoundError:
        todo = "Check the name; for a private one run 'hf auth login'."
        raise SlimeError(f"the hub has no {kind} '{name}' that you may see", where=where, todo=todo) from None
    except errors.HFValidationError as error:
        raise SlimeError(f"'{name}' is no name of the hub: {error}", where=where, todo="Write owner/name.") from None
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]  # refused, or not reached
        reason = " ".join(str(error).split())[:300].rstrip(".") or type(error).__name__
        response = getattr(error, "response", None)
        denied = response is not None and response.status_code in (401, 403)
        todo = (
            "Run 'hf auth login' with a token that may do it." if denied else "Try again; HF_ENDPOINT names a mirror."
        )
        raise SlimeError(f"the hub does not do it: {reason}", where=where, todo=todo) from None
