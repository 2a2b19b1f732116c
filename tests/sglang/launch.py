"""SGLang's server on several ranks without a GPU: what a group of ranks asks of NCCL is answered with "not available", as where a
group has one rank. Arguments are those of sglang.launch_server. Spawned workers import this file too."""
import runpy
import sys
import types

from sglang.srt.distributed.device_communicators import pynccl

pynccl.PyNcclCommunicator = lambda **_: types.SimpleNamespace(disabled=True, available=False)

if __name__ == "__main__":
    sys.argv[0] = "sglang.launch_server"
    runpy.run_module("sglang.launch_server", run_name="__main__", alter_sys=False)
