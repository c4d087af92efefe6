"""The publisher's connection to one engine: blocking, a thread each, small requests."""

from __future__ import annotations

import base64
import http
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from slime.errors import NoAnswer, SlimeError
from slime.net import Endpoint
from weight_buckets.receipt import NOTE_KEY

Summary = dict[str, Any]
"""An engine's word on what it has received of a version: `Fingerprint.summary` and the version."""

READ_LOG = "Read {} log in the run directory, then restart: the run resumes from its last checkpoint."


class EngineLink:
    """Talks to one engine, in the words of SGLang's server (docs/writing-an-engine.md), `timeout_s` a request at most.

    Args:
        flushes: the engine forgets its prefix cache with the version; if not, no request of a later version may find in
            it what older weights left.

    Raises (every method):
        SlimeError: naming the engine: it is gone, refused the bucket, or answered without a receipt.
    """

    def __init__(self, endpoint: Endpoint, version: int, timeout_s: float, *, flushes: bool = True) -> None:
        self.url, self.version, self.timeout_s, self._flushes = endpoint.url, version, timeout_s, flushes
        self._headers = endpoint.headers | {"Content-Type": "application/json"}
        self.num_ranks = 0
        self._path = ""
        self._connection: HTTPConnection | None = None

    def connect(self) -> None:
        """Learn how many tensor-parallel ranks the engine has."""
        self.num_ranks = int(self.request("/server_info")["tp_size"])

    def join(self, master: tuple[str, int], first_rank: int, world_size: int, group: str, backend: str) -> None:
        """Make the engine's ranks `first_rank`, ... of a process group whose rank 0 listens at `master`."""
        meeting = {"master_address": master[0], "master_port": master[1], "group_name": group, "backend": backend}
        self.request("/init_weights_update_group", meeting | {"rank_offset": first_rank, "world_size": world_size})

    def load(self, payloads: Sequence[bytes], last: bool) -> Summary:
        """Hand over a bucket, as one payload for all ranks of the engine or one for each.

        Returns the receipt's summary so far. The last bucket sets the weight version.
        """
        encoded = [base64.b64encode(payload).decode() for payload in payloads]
        body = {
            "serialized_named_tensors": encoded if len(encoded) > 1 else encoded * self.num_ranks,
            "load_format": "flattened_bucket",
            "disable_draft_model": True,  # slime's hook in the engine hands it on to the draft model
        }
        return self._receipt(self.request("/update_weights_from_tensor", self._with_version(body, last)), last)

    def ask(self, transport: str, told: Mapping[str, Any], group: str = "") -> None:
        """Have the engine take a whole version. The answer comes when it has: `received`.

        Args:
            transport: whose receiver takes it (entry points of group `slime_receivers`).
            told: what that needs to know, JSON's values.
            group: a process group that the engine's ranks joined; empty: none is needed.
        """
        note = json.dumps({NOTE_KEY: {"transport": transport, **told}})
        body = {"names": [], "dtypes": [], "shapes": [], "group_name": group, "load_format": note}
        self._send("/update_weights_from_distributed", self._with_version(body, last=True))

    def received(self) -> Summary:
        """The receipt of the version that it was asked to take."""
        return self._receipt(self._answer(), last=True)

    def require_receipt(self, receipt: Summary, published: Mapping[str, Any]) -> None:
        """Stop unless the engine says that it holds what was published."""
        expected = {"version": self.version, **published}
        if receipt != expected:
            what = f"the engine's receipt {receipt} is not the publisher's {expected}"
            todo = "Publish again; if it stays, engine and trainer run different versions of slime."
            raise SlimeError(what, where=f"publish to engine {self.url}", todo=todo)

    def weight_version(self) -> str:
        """The version that the engine serves; a number if a publish brought it."""
        return str(self.request("/model_info")["weight_version"])

    def _with_version(self, body: dict[str, Any], last: bool) -> dict[str, Any]:
        return body | {"flush_cache": last and self._flushes, "weight_version": str(self.version) if last else None}

    def _receipt(self, answer: dict[str, Any], last: bool) -> Summary:
        message = str(answer["message"])
        if NOTE_KEY not in message:
            todo = "Install slime-sglang where the engine runs."
            raise SlimeError(f"the engine keeps no receipts, it answered '{message}'", where=self._where, todo=todo)
        receipt, end = json.JSONDecoder().raw_decode(message)
        if last and f"updated to {self.version}." not in message[end:]:
            raise self._error(f"does not say that it serves version {self.version} from now on: '{message[end:]}'")
        summary: Summary = receipt[NOTE_KEY]
        return summary

    def request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        """The engine's answer in JSON; without a body it is asked by GET."""
        self._send(path, body)
        return self._answer()

    def _send(self, path: str, body: dict[str, Any] | None) -> None:
        """Open a connection and leave a request there, for `_answer` to await."""
        data = None if body is None else json.dumps(body).encode()
        self._path, self._connection = path, HTTPConnection(urlsplit(self.url).netloc, timeout=self.timeout_s)
        with self._naming_faults():
            method = "GET" if data is None else "POST"
            self._connection.request(method, path, data, self._headers)

    def _answer(self) -> dict[str, Any]:
        assert self._connection
        with closing(self._connection) as connection, self._naming_faults():
            response = connection.getresponse()
            text = response.read().decode(errors="replace")
        if response.status != http.HTTPStatus.OK:
            raise self._error(_reason(text))
        answer: dict[str, Any] = json.loads(text or "{}")
        return answer

    @contextmanager
    def _naming_faults(self) -> Iterator[None]:
        try:
            yield
        except TimeoutError as error:
            raise self._error(f"did not answer {self._path} within {self.timeout_s:g} s", NoAnswer) from error
        except (OSError, HTTPException) as error:  # refused, reset, or gone in the middle of an answer
            raise self._error(f"is not reachable at {self._path}: {error}") from error

    def hang_up(self) -> None:
        """Let the request fail that another thread waits for."""
        if self._connection and self._connection.sock:
            with suppress(OSError):  # it ended by itself
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    @property
    def _where(self) -> str:
        return f"publish of weight version {self.version} to engine {self.url}"

    def _error(self, what: str, kind: type[SlimeError] = SlimeError) -> SlimeError:
        return kind(what, where=self._where, todo=READ_LOG.format("that engine's"))


def _reason(body: str) -> str:
    """The engine's message, once: SGLang repeats it for every data-parallel rank."""
    try:
        return " | ".join(dict.fromkeys(str(json.loads(body)["message"]).split(" | ")))
    except (ValueError, KeyError, TypeError):  # a body that is not SGLang's own JSON
        return body
