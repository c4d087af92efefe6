"""A server in the form of the Hugging Face hub, as far as its client asks: repositories of files in memory."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest


class Hub(ThreadingHTTPServer):
    """Files by repository and branch, `{"datasets/owner/name": {"main": {path: bytes}}}`.

    Attributes:
        uploaded: objects of Git LFS that were sent, by their SHA-256.
        asked: method and path of every request.
        private: repositories that were created as private ones.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.repositories: dict[str, dict[str, dict[str, bytes]]] = {}
        self.uploaded: dict[str, bytes] = {}
        self.asked: list[str] = []
        self.private: list[str] = []
        self.refuses = 0  # a status for every request, if not 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def branch(self, repository: str, revision: str) -> dict[str, bytes] | None:
        """The files at a branch's name or at the commit that it is at."""
        branches = self.repositories.get(repository, {})
        return next((files for name, files in branches.items() if revision in (name, commit(files))), None)


def _mode(path: str) -> dict[str, Any]:
    return {"path": path, "uploadMode": "lfs" if path.endswith(".safetensors") else "regular", "shouldIgnore": False}


def commit(files: dict[str, bytes]) -> str:
    return hashlib.sha1(repr(sorted(files.items())).encode()).hexdigest()


class Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        self._answer()

    do_HEAD = do_POST = do_PUT = do_GET

    def _answer(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        path = unquote(urlsplit(self.path).path).strip("/")
        self.server.asked.append(f"{self.command} {path}")
        parts = path.split("/")
        match parts:
            case _ if self.server.refuses:
                self._send(self.server.refuses, {"error": "not now"})
            case ["api", "repos", "create"]:
                self._create(json.loads(body))
            case ["api", kind, owner, name]:
                self._info(f"{kind}/{owner}/{name}", "main")
            case ["api", kind, owner, name, "revision", *rest]:
                self._info(f"{kind}/{owner}/{name}", "/".join(rest))
            case ["api", kind, owner, name, "tree", revision]:
                self._tree(f"{kind}/{owner}/{name}", revision)
            case ["api", _, _, _, "preupload", _]:
                self._send(200, {"files": [_mode(each["path"]) for each in json.loads(body)["files"]]})
            case [_, name, "info", "lfs", "objects", "batch"] if name.endswith(".git"):
                upload = f"{self.server.url}/object/"
                objects = json.loads(body)["objects"]
                sends = [{**each, "actions": {"upload": {"href": upload + each["oid"]}}} for each in objects]
                self._send(200, {"transfer": "basic", "objects": sends})
            case ["object", oid]:
                assert hashlib.sha256(body).hexdigest() == oid
                self.server.uploaded[oid] = body
                self._send(200, {})
            case ["api", kind, owner, name, "commit", branch]:
                self._commit(f"{kind}/{owner}/{name}", branch, body)
            case ["datasets", owner, name, "resolve", revision, *rest]:
                self._file(f"datasets/{owner}/{name}", revision, "/".join(rest))
            case [owner, name, "resolve", revision, *rest]:
                self._file(f"models/{owner}/{name}", revision, "/".join(rest))
            case ["api", "validate-yaml"]:
                self._send(200, {"errors": [], "warnings": []})
            case _:
                self._send(404, {"error": f"no such path: {path}"})

    def _create(self, asked: dict[str, Any]) -> None:
        name = f"{asked['organization']}/{asked['name']}" if asked.get("organization") else asked["name"]
        is_new = f"models/{name}" not in self.server.repositories
        if is_new and (asked.get("private") or asked.get("visibility") == "private"):
            self.server.private.append(name)
        self.server.repositories.setdefault(f"models/{name}", {"main": {}})
        self._send(200 if is_new else 409, {"url": f"{self.server.url}/{name}"})

    def _info(self, repository: str, revision: str) -> None:
        name = repository.partition("/")[2]
        if repository not in self.server.repositories:
            self._send(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})
        elif (files := self.server.branch(repository, revision)) is None:
            self._send(404, {"error": "Invalid rev id"}, {"X-Error-Code": "RevisionNotFound"})
        else:
            private, siblings = name in self.server.private, [{"rfilename": path} for path in files]
            self._send(200, {"id": name, "sha": commit(files), "siblings": siblings, "private": private, "tags": []})

    def _tree(self, repository: str, revision: str) -> None:
        files = self.server.branch(repository, revision)
        assert files is not None
        oids = {path: hashlib.sha1(content).hexdigest() for path, content in files.items()}
        self._send(200, [{"type": "file", "path": p, "size": len(files[p]), "oid": oid} for p, oid in oids.items()])

    def _file(self, repository: str, revision: str, path: str) -> None:
        files = self.server.branch(repository, revision)
        assert files is not None
        etag = {"ETag": f'"{hashlib.sha1(files[path]).hexdigest()}"', "X-Repo-Commit": commit(files)}
        self._send(200, files[path], etag)

    def _commit(self, repository: str, branch: str, body: bytes) -> None:
        files = self.server.repositories[repository][branch]
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.server.uploaded[value["oid"]]
        url = f"{self.server.url}/{repository.partition('/')[2]}/commit/{commit(files)}"
        self._send(200, {"success": True, "commitUrl": url, "commitOid": commit(files), "hookOutput": ""})

    def _send(self, status: int, content: Any, headers: dict[str, str] | None = None) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """The server, which the client takes for the hub, and an empty cache."""
    from huggingface_hub import constants

    with Hub() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        # The client reads its environment when it is imported.
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        monkeypatch.setattr(
            constants, "HUGGINGFACE_CO_URL_TEMPLATE", server.url + "/{repo_id}/resolve/{revision}/{filename}"
        )
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)  # another protocol, of a library in Rust
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub-cache"))
        monkeypatch.setenv("HF_TOKEN", "hf_of_a_test")
        yield server
        server.shutdown()
