"""`python -m slime_plain.server FOLDER HOST PORT PARENT`: the model of config.json in FOLDER. Its key comes through
standard input, weights by publishes alone.

The first three routes are the trainers', in the words of docs/writing-an-engine.md; the others those of our client.
"""

import asyncio
import base64
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import torch
from aiohttp import web
from transformers import AutoConfig, AutoModelForCausalLM, StoppingCriteria

from slime.lifetime import end_group_with_parent
from slime.net import take_key
from weight_buckets.bucket import Header
from weight_buckets.receipt import NOTE_KEY, BucketNote, Fingerprint
from weight_buckets.views import views


class Server:
    """One request after another, and versions between them, in a thread of their own."""

    def __init__(self, folder):
        self.model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).float().eval()
        self.parameters = dict(self.model.named_parameters())
        self.version, self.taking = None, Fingerprint()
        self.num_aborts = self.num_requests = self.num_tokens = 0
        self._thread = ThreadPoolExecutor(1)

    async def _behind(self, function, *arguments):
        return await asyncio.get_running_loop().run_in_executor(self._thread, function, *arguments)

    async def generate(self, told):
        self.num_requests += 1
        try:
            return await self._behind(self._generate, told["input_ids"], told["sampling"], self.num_aborts)
        finally:
            self.num_requests -= 1

    @torch.no_grad()
    def _generate(self, input_ids, sampling, num_aborts):
        if self.num_aborts > num_aborts:
            return {"tokens": [], "logprobs": [], "finish_reason": "abort", "weight_version": None}
        assert self.version is not None, "no version has been published"
        temperature, ends = sampling.get("temperature", 1.0), sampling.get("stop_token_ids") or []
        torch.manual_seed(sampling.get("sampling_seed", 0))
        drawn = {"top_p": sampling.get("top_p", 1.0), "top_k": max(0, sampling.get("top_k", 0))}
        made = self.model.generate(
            torch.tensor([input_ids]),
            attention_mask=torch.ones(1, len(input_ids), dtype=torch.long),
            max_new_tokens=sampling["max_new_tokens"],
            eos_token_id=ends or None,
            pad_token_id=0,
            stopping_criteria=[Aborted(self, num_aborts)],
            return_dict_in_generate=True,
            output_logits=True,
            do_sample=temperature > 0,
            **({"temperature": temperature, **drawn} if temperature else {}),
        )
        tokens = made.sequences[0, len(input_ids) :]
        distributions = (torch.cat(made.logits).float() / (temperature or 1.0)).log_softmax(-1)
        logprobs = distributions.gather(1, tokens[:, None])[:, 0]
        reason = "abort" if self.num_aborts > num_aborts else "length"
        return {
            "tokens": tokens.tolist(),
            "logprobs": logprobs.tolist(),
            "finish_reason": "stop" if tokens[-1] in ends else reason,
            "weight_version": self.version,
        }

    async def abort(self, told):
        self.num_aborts += 1
        return {}

    async def flush(self, told):
        """Waits its turn; there is no cache to forget."""
        await self._behind(int)
        return {}

    async def load(self, told):
        return {"requests": self.num_requests, "tokens": self.num_tokens}

    async def server_info(self, told):
        return {"tp_size": 1}

    async def model_info(self, told):
        return {"weight_version": str(self.version)}

    async def update(self, told):
        return {"message": await self._behind(self._take, told["serialized_named_tensors"][0])}

    @torch.no_grad()
    def _take(self, serialized):
        """One bucket: into the parameters, and digested from there, so that the receipt is of what is held."""
        bucket = pickle.loads(base64.b64decode(serialized))
        note, header = BucketNote(**bucket[NOTE_KEY]), Header(**bucket["header"])
        if note.index == 0:
            self.version, self.taking = None, Fingerprint()
        for name, tensor in zip(header.names, views(bucket["flattened_tensor"], header.places), strict=True):
            self.parameters[name].copy_(tensor)
        self.taking.add([(name, self.parameters[name]) for name in header.names])
        if not note.last:
            return json.dumps({NOTE_KEY: {}})
        digests = self.taking.digests()
        held = dict(zip(self.taking.names, digests, strict=True))
        wrong = [name for name, digest in zip(held, note.digests, strict=True) if held[name] != digest]
        assert not wrong, f"tensor '{wrong[0]}' has other bytes than the publisher's"
        assert held.keys() == self.parameters.keys(), f"no bytes for {sorted(self.parameters.keys() - held.keys())}"
        self.version = note.version
        receipt = {"version": note.version, **self.taking.summary(digests)}
        return f"{json.dumps({NOTE_KEY: receipt})} Weight version updated to {note.version}."


class Aborted(StoppingCriteria):
    def __init__(self, server, num_aborts):
        self._server, self._num_aborts = server, num_aborts

    def __call__(self, input_ids, scores, **_):
        self._server.num_tokens += 1
        return torch.full((len(input_ids),), self._server.num_aborts > self._num_aborts)


def application(server, key):
    def route(answer):
        async def handle(request):
            if request.headers.get("Authorization") != f"Bearer {key!s}":
                raise web.HTTPUnauthorized
            try:
                return web.json_response(await answer(await request.json() if request.can_read_body else {}))
            except (AssertionError, KeyError, RuntimeError) as fault:  # of a version, which is not this server's end
                return web.json_response({"message": f"{type(fault).__name__}: {fault}"}, status=500)

        return handle

    app = web.Application(client_max_size=2**26)
    app.add_routes(
        [
            web.get("/server_info", route(server.server_info)),
            web.get("/model_info", route(server.model_info)),
            web.post("/update_weights_from_tensor", route(server.update)),
            *(web.post(f"/{name}", route(getattr(server, name))) for name in ("generate", "abort", "flush", "load")),
        ]
    )
    return app


if __name__ == "__main__":
    _, folder, host, port, parent = sys.argv
    end_group_with_parent(int(parent), int)
    web.run_app(application(Server(folder), take_key()), host=host, port=int(port))
