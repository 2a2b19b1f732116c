"""The example loop learns, its synchronizer and mover taken from its YAML alone: its mean reward rises.

Usage: rl_loop.py BUILD_DIR [STEPS]"""
import json
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import support  # noqa: E402


def main():
    site = support.installed(pathlib.Path(sys.argv[1]).resolve())
    sys.path.insert(0, str(site))
    import refit

    steps = int(sys.argv[2]) if len(sys.argv) > 2 else 15
    config = (support.ROOT / "examples/rl_loop.yaml").read_text()
    # What stands in the file, what is put there, and the mover that comes of it.
    for old, new, mover in [("", "", "tcp"), ("refit_transport: null ", "refit_transport: vllm_zmq_sparse ", "zmq_sparse"), ("colocated: {enabled: false}", "colocated: {enabled: true}", "shm")]:
        assert old in config
        folder = pathlib.Path(tempfile.mkdtemp(prefix="refit-rl-"))
        out, written = folder / "rewards.json", folder / "rl_loop.yaml"
        written.write_text(config.replace(old, new, 1))
        assert (transport := refit.Decision(written).facts["mover"]) == mover, transport
        command = [sys.executable, str(support.ROOT / "examples/rl_loop.py"), "--steps", str(steps), "--config", str(written), "--out", str(out)]
        done = subprocess.run(command, env=support.os.environ | {"PYTHONPATH": str(site)}, capture_output=True, text=True, timeout=400)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        rewards = json.loads(out.read_text())
        first, last = sum(rewards[:3]) / 3, sum(rewards[-3:]) / 3
        assert len(rewards) == steps and last > first + 0.15, rewards
        assert done.stdout.count("proven live") == steps, done.stdout
        print(f"ok: over {transport}: {steps} refits, mean reward {first:.2f} -> {last:.2f}", flush=True)
    print("passed")


if __name__ == "__main__":
    main()
