"""The publisher's connection to one engine: blocking, a thread each, small requests."""

from __future__ import annotations

import base64
import http
import json
import socket
from collections.abc import Sequence
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException
from typing import Any
from urllib.parse import urlsplit

from slime.errors import SlimeError
from slime.weights.receipt import NOTE_KEY

Summary = dict[str, Any]
"""What an engine says it has received of a version: `Fingerprint.summary` and the version."""

_READ_LOG = "Read that engine's log in the run directory, then restart: the run resumes from its last checkpoint."


class EngineLink:
    """Talks to the SGLang server at `url`; `timeout_s` bounds every request.

    Raises (every method):
        SlimeError: naming the engine: it is gone, refused the bucket, or answered without a receipt.
    """

    def __init__(self, url: str, version: int, timeout_s: float) -> None:
        self.url, self.version, self.timeout_s = url, version, timeout_s
        self.num_ranks = 0
        self._connection: HTTPConnection | None = None

    def connect(self) -> None:
        """Learn how many tensor-parallel ranks the engine has."""
        self.num_ranks = int(self._request("/server_info")["tp_size"])

    def join(self, master: tuple[str, int], first_rank: int, world_size: int, group: str, backend: str) -> None:
        """Make the engine's ranks `first_rank`, ... of a process group whose rank 0 listens at `master`."""
        address, port = master
        self._request(
            "/init_weights_update_group",
            {
                "master_address": address,
                "master_port": port,
                "rank_offset": first_rank,
                "world_size": world_size,
                "group_name": group,
                "backend": backend,
            },
        )

    def load(self, payloads: Sequence[bytes], last: bool) -> Summary:
        """Hand over a bucket, as one payload for all ranks of the engine or one for each.

        Returns the receipt's summary so far. The last bucket sets the weight version.
        """
        encoded = [base64.b64encode(payload).decode() for payload in payloads]
        body = {
            "serialized_named_tensors": encoded if len(encoded) > 1 else encoded * self.num_ranks,
            "load_format": "flattened_bucket",
            "disable_draft_model": True,  # the ledger hands it on to that one
        }
        return self._update("/update_weights_from_tensor", body, last)

    def receive(self, group: str, store: tuple[str, int]) -> Summary:
        """Take a whole version from broadcasts of the process group `group`, as the TCPStore at `store` tells."""
        address, port = store
        stream = {"host": address, "port": port, "timeout_s": self.timeout_s}
        body = {
            "names": [],
            "dtypes": [],
            "shapes": [],
            "group_name": group,
            "load_format": json.dumps({NOTE_KEY: stream}),
        }
        return self._update("/update_weights_from_distributed", body, last=True)

    def _update(self, path: str, body: dict[str, Any], last: bool) -> Summary:
        version = str(self.version) if last else None
        answer = self._request(path, body | {"flush_cache": last, "weight_version": version})
        return self._receipt(str(answer["message"]))

    def check_version(self) -> None:
        """The engine must answer with the published version from now on."""
        served = self._request("/model_info")["weight_version"]
        if served != str(self.version):
            raise self._error(f"serves weight version '{served}' after the publish of version {self.version}")

    def _receipt(self, message: str) -> Summary:
        if NOTE_KEY not in message:
            todo = "Install slime in the engine's environment: SGLang finds its ledger as an entry point."
            raise SlimeError(f"the engine keeps no receipts, it answered '{message}'", where=self._where, todo=todo)
        receipt, _ = json.JSONDecoder().raw_decode(message)
        summary: Summary = receipt[NOTE_KEY]
        return summary

    def _request(self, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        data = None if body is None else json.dumps(body).encode()
        try:
            status, text = self._exchange(path, data)
        except TimeoutError as error:
            raise self._error(f"did not answer {path} within {self.timeout_s:g} s") from error
        except (OSError, HTTPException) as error:  # refused, reset, or gone in the middle of an answer
            raise self._error(f"is not reachable at {path}: {error}") from error
        if status != http.HTTPStatus.OK:
            raise self._error(_reason(text))
        answer: dict[str, Any] = json.loads(text)
        return answer

    def _exchange(self, path: str, data: bytes | None) -> tuple[int, str]:
        self._connection = HTTPConnection(urlsplit(self.url).netloc, timeout=self.timeout_s)
        with closing(self._connection) as connection:
            connection.request("GET" if data is None else "POST", path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read().decode(errors="replace")

    def hang_up(self) -> None:
        """Let the request fail that another thread waits for."""
        if self._connection and self._connection.sock:
            with suppress(OSError):  # it ended by itself
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    @property
    def _where(self) -> str:
        return f"publish of weight version {self.version} to engine {self.url}"

    def _error(self, what: str) -> SlimeError:
        return SlimeError(what, where=self._where, todo=_READ_LOG)


def _reason(body: str) -> str:
    try:
        return str(json.loads(body)["message"])
    except (ValueError, KeyError, TypeError):  # a body that is not SGLang's own JSON
        return body
