"""A stand-in for an SGLang server (0.5.23): its endpoints for weights with their schemas and rules of state, without a model.
tests/sglang/serve.py asks the same SCRIPT of a real server and compares."""

import base64
import io
import json
import pathlib
import pickle
import threading
import urllib.parse

import numpy as np
from stand_in import StandIn

SESSION = "update_weights_from_{} must run between begin_weight_update() and end_weight_update()"

# (method, path, body): calls whose status, keys and message a real server and the stand-in share, in this order.
SCRIPT = [
    ("GET", "/no_such_route", None),
    ("POST", "/end_weight_update", {}),
    ("POST", "/update_weights_from_tensor", {"serialized_named_tensors": ["gAJdLg=="]}),
    ("POST", "/update_weights_from_tensor", {}),
    ("POST", "/update_weights_from_distributed", {"names": [], "dtypes": [], "shapes": []}),
    ("POST", "/begin_weight_update", {"selector": "none of these"}),
    ("POST", "/begin_weight_update", {}),
    ("POST", "/begin_weight_update", {}),
    ("POST", "/end_weight_update", {}),
    ("POST", "/destroy_weights_update_group", {"group_name": "nobody"}),
    ("POST", "/pause_generation", {"mode": "never heard of"}),
    ("POST", "/pause_generation", {"mode": "retract"}),
    ("POST", "/flush_cache?timeout=0.1", None),
    ("POST", "/continue_generation", {}),
    ("POST", "/update_weight_version", {"new_version": "seven", "abort_all_requests": False}),
    ("POST", "/update_weight_version", {}),
]


class _Bytes(pickle.Unpickler):
    """What the driver's payloads may name, and nothing else."""

    def find_class(self, module, name):
        if (module, name) == ("torch", "ByteTensor"):
            return lambda numbers: np.array(numbers, np.uint8)
        raise pickle.UnpicklingError(f"{module}.{name}")


class SglangStandIn(StandIn):
    """worker: called with (rank, named tensors) of each custom load, on a thread a rank, as SGLang's processes do."""

    def __init__(self, model, ranks=1, worker=None, admin_key=None, sessions=True):
        self.paused, self.session, self.running, self.label, self.groups = None, False, 0, "default", set()
        self.model, self.ranks, self.worker, self.admin_key, self.sessions = model, ranks, worker, admin_key, sessions
        self.asleep, self.flushes = set(), 0
        super().__init__()

    def answer(self, method, path, body, headers):
        url = urllib.parse.urlsplit(path)
        if self.admin_key and headers.get("Authorization") != f"Bearer {self.admin_key}":
            return 401, '{"error":"Unauthorized"}'
        step = getattr(type(self), "_" + url.path.strip("/"), None)
        if step is None or (not self.sessions and url.path in ("/begin_weight_update", "/end_weight_update")):
            return 404, '{"detail":"Not Found"}'
        try:
            return step(self, body or {}, dict(urllib.parse.parse_qsl(url.query)))
        except (KeyError, ValueError) as e:
            return 400, json.dumps({"object": "error", "message": f"1 validation error: {e}", "type": "Bad Request", "param": None, "code": 400})

    @staticmethod
    def _said(success, message, **more):
        return (200 if success else 400), json.dumps({"success": success, "message": message, **more})

    def _server_info(self, body, query):
        return 200, json.dumps({"version": "0.5.23", "tp_size": self.ranks, "pp_size": 1, "dp_size": 1, "model_path": str(self.model)})

    def _model_info(self, body, query):
        return 200, json.dumps({"model_path": str(self.model), "weight_version": self.label})

    def _begin_weight_update(self, body, query):
        if body.get("selector", "all") not in ("all", "target", "draft"):
            raise ValueError("selector")
        if self.session:
            return self._said(False, "a weight-update session is already open; call end_weight_update() first")
        self.session = True
        return self._said(True, "Success")

    def _end_weight_update(self, body, query):
        if not self.session:
            return self._said(False, "no weight-update session is open; call begin_weight_update() first")
        self.session = False
        return self._said(True, "Success")

    def _update_weights_from_tensor(self, body, query):
        payloads = body["serialized_named_tensors"]
        if self.sessions and not self.session:
            return self._said(False, SESSION.format("tensor"))
        if body.get("load_format") == "refit.sglang.load" and self.worker:
            each = [threading.Thread(target=self.worker, args=(r, _Bytes(io.BytesIO(base64.b64decode(p))).load())) for r, p in enumerate(payloads)]
            for t in each:
                t.start()
            for t in each:
                t.join()
        return self._said(True, "Success")

    def _update_weights_from_distributed(self, body, query):
        for key in ("names", "dtypes", "shapes"):
            body[key]
        if self.sessions and not self.session:
            return self._said(False, SESSION.format("distributed"))
        if body.get("group_name") not in self.groups:
            return self._said(False, f"Failed to receive weights: Group {body.get('group_name')} not in {sorted(self.groups)}.")
        return self._said(True, "Succeeded to update parameter online.")

    def _update_weights_from_disk(self, body, query):
        there = pathlib.Path(body["model_path"]).is_dir()
        return self._said(there, "Succeeded to update model weights." if there else "Failed to get weights iterator", num_paused_requests=0)

    def _update_weights_from_ipc(self, body, query):
        body["zmq_handles"]
        return self._said(True, "IPC weight update completed successfully")

    def _init_weights_update_group(self, body, query):
        for key in ("master_address", "master_port", "rank_offset", "world_size"):
            body[key]
        self.groups.add(body.get("group_name"))
        return self._said(True, "Succeeded to initialize custom process group.")

    def _destroy_weights_update_group(self, body, query):
        if body.get("group_name") not in self.groups:
            return self._said(False, "The group to be destroyed does not exist.")
        self.groups.discard(body["group_name"])
        return self._said(True, "Succeeded to destroy custom process group.")

    def _pause_generation(self, body, query):
        mode = body.get("mode", "abort")
        if mode not in ("abort", "retract", "in_place"):
            raise ValueError("mode")
        self.paused = mode
        if mode == "abort":
            self.running = 0
        return 200, '{"message":"Generation paused successfully.","status":"ok"}'

    def _continue_generation(self, body, query):
        self.paused = None
        return 200, '{"message":"Generation continued successfully.","status":"ok"}'

    def _flush_cache(self, body, query):
        if self.running:
            self.running -= 1  # one of them ends meanwhile
            return 400, "Flush cache failed.\n"
        self.flushes += 1
        return 200, "Cache flushed.\nPlease check backend logs for more details. (When there are running or waiting requests, the operation will not be performed.)\n"

    def _update_weight_version(self, body, query):
        self.label = body["new_version"]
        if body.get("abort_all_requests", True):
            self.running = 0
        return self._said(True, f"Weight version updated to {self.label}", new_version=self.label)

    def _release_memory_occupation(self, body, query):
        if self.running:
            return 400, json.dumps({"error": {"message": "release_memory_occupation should be called only when server is idle."}})
        self.asleep |= set(body.get("tags") or ["weights", "kv_cache", "cuda_graph"])
        return 200, "null"

    def _resume_memory_occupation(self, body, query):
        tags = body.get("tags") or ["weights", "kv_cache", "cuda_graph"]
        if not set(tags) <= self.asleep:
            return 400, json.dumps({"error": {"message": "not asleep"}})
        self.asleep -= set(tags)
        return 200, "null"
