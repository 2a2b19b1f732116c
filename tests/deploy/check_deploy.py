"""examples/deploy: the Kubernetes manifests are well-formed and agree with each other, and what they and the Slurm script start
does form a job: their commands run here, with this machine in place of a cluster.

Usage: check_deploy.py REPOSITORY REFIT. What stands in: a kubectl that keeps Secrets as folders; srun and scontrol that know one
host; 127.0.0.1 for pods and nodes. Shown by it: keys reach who needs them and nobody else, the commands are accepted, both replicas
serve a version. Not shown: that a cluster admits the manifests.
"""
import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile

import yaml

ROOT, REFIT = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
sys.path.insert(0, str(ROOT / "tests/support"))
import part_process  # noqa: E402

KUBERNETES, SLURM = ROOT / "examples/deploy/kubernetes", ROOT / "examples/deploy/slurm/refit.sbatch"

# What may stand in each map, as far as these manifests go, and (capitals) what must.
META, SELECTOR = {"NAME", "labels"}, {"MATCHLABELS"}
CONTAINER = {"NAME", "IMAGE", "COMMAND", "args", "env", "ports", "securityContext", "resources", "readinessProbe", "volumeMounts"}
POD = {"securityContext", "initContainers", "CONTAINERS", "VOLUMES", "restartPolicy"}
KINDS = {
    "Service": ("v1", {"clusterIP", "publishNotReadyAddresses", "SELECTOR", "PORTS"}),
    "StatefulSet": ("apps/v1", {"SERVICENAME", "REPLICAS", "SELECTOR", "TEMPLATE", "volumeClaimTemplates"}),
    "Job": ("batch/v1", {"backoffLimit", "TEMPLATE"}),
}
QUANTITY = re.compile(r"\d+(m|Ki|Mi|Gi)?")


class Loader(yaml.SafeLoader):
    """The second of two equal keys is an error, not the winner."""

    def construct_mapping(self, node, deep=False):
        names = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(names) == len(set(names)), f"line {node.start_mark.line + 1}: a key stands twice in {names}"
        return super().construct_mapping(node, deep)


def fields(where, found, allowed):
    known = {name.lower(): name for name in allowed}
    for name in found:
        assert name.lower() in known, f"{where}: '{name}' is not known here"
    missing = {name for name in allowed if name.isupper()} - {name.upper() for name in found}
    assert not missing, f"{where}: {missing} is missing"


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)(\w*)", quantity).groups()
    return int(number) * {"": 1, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}[unit]


def check_container(where, container, volumes):
    fields(where, container, CONTAINER)
    for mount in container.get("volumeMounts", []):
        fields(where, mount, {"NAME", "MOUNTPATH", "readOnly"})
        assert mount["name"] in volumes, f"{where}: there is no volume '{mount['name']}'"
    limits = container["securityContext"]
    assert limits["allowPrivilegeEscalation"] is False and limits["readOnlyRootFilesystem"] is True and limits["capabilities"] == {"drop": ["ALL"]}, where
    for group in container.get("resources", {}).values():
        assert all(QUANTITY.fullmatch(str(q)) for q in group.values()), f"{where}: {group}"
    words = container["command"] + container.get("args", [])
    assert all(isinstance(w, str) for w in words), f"{where}: an argument is no text: {words}"
    declared = {e["name"] for e in container.get("env", [])}
    used = {name for w in words for name in re.findall(r"\$\((\w+)\)", w)}
    assert used <= declared, f"{where}: {used - declared} is not in env"


def check_pod(where, pod, claims, labels, secrets):
    fields(where, pod, POD)
    assert pod["securityContext"]["runAsNonRoot"] is True and pod["securityContext"]["runAsUser"] > 0, where
    volumes = {v["name"]: v for v in pod["volumes"]} | {name: {} for name in claims}
    for container in pod.get("initContainers", []) + pod["containers"]:
        check_container(f"{where}/{container['name']}", container, volumes)
    mounted = {m["name"] for c in pod.get("initContainers", []) + pod["containers"] for m in c["volumeMounts"]}
    assert mounted == set(volumes), f"{where}: volumes without a mount: {set(volumes) - mounted}"
    memory = bytes_of(pod["containers"][0]["resources"]["limits"]["memory"])
    for volume in pod["volumes"]:
        if "secret" in volume:
            assert volume["secret"]["secretName"] in secrets, f"{where}: secrets.sh makes no '{volume['secret']['secretName']}'"
            assert volume["secret"]["defaultMode"] & 0o7 == 0, f"{where}: others may read the Secret"
        if volume.get("emptyDir", {}).get("medium") == "Memory":
            assert bytes_of(volume["emptyDir"]["sizeLimit"]) < memory, f"{where}: '{volume['name']}' may take all the pod's memory"
    secret_users = [c["name"] for c in pod["containers"] if "secret" in {m["name"] for m in c["volumeMounts"]}]
    assert not secret_users, f"{where}: {secret_users} mount the Secret itself, whose files are not private"


def manifests(secrets):
    """[(name, kind, object)] of all files, each checked."""
    found = []
    for path in sorted(KUBERNETES.glob("*.yaml")):
        for item in yaml.load_all(path.read_text(), Loader):
            where = f"{path.name}:{item['kind']}/{item['metadata']['name']}"
            fields(where, item, {"APIVERSION", "KIND", "METADATA", "SPEC"})
            version, spec = KINDS[item["kind"]]
            assert item["apiVersion"] == version, where
            fields(where, item["metadata"], META)
            fields(where, item["spec"], spec)
            if "template" in item["spec"]:
                labels = item["spec"]["template"]["metadata"]["labels"]
                claims = [c["metadata"]["name"] for c in item["spec"].get("volumeClaimTemplates", [])]
                check_pod(where, item["spec"]["template"]["spec"], claims, labels, secrets)
                if "selector" in item["spec"]:
                    fields(where, item["spec"]["selector"], SELECTOR)
                    assert item["spec"]["selector"]["matchLabels"].items() <= labels.items(), where
            if item["kind"] == "Job":
                assert item["spec"]["template"]["spec"]["restartPolicy"] in ("Never", "OnFailure"), where
            found.append(item)
    services = {i["metadata"]["name"]: i for i in found if i["kind"] == "Service"}
    for item in found:
        if item["kind"] == "StatefulSet":
            service = services[item["spec"]["serviceName"]]
            assert service["spec"]["selector"].items() <= item["spec"]["template"]["metadata"]["labels"].items(), item["metadata"]
    assert sorted(i["kind"] for i in found) == ["Job", "Service", "Service", "StatefulSet", "StatefulSet", "StatefulSet"]
    return found


def stand_in(folder, name, text):
    folder.mkdir(exist_ok=True)
    (folder / name).write_text("#!/usr/bin/env bash\nset -eu\n" + text)
    (folder / name).chmod(0o755)


def make_secrets(home, env):
    stand_in(home / "bin", "kubectl", f"""
[ "$1 $3 $4 $5" = "--namespace create secret generic" ] || {{ echo "kubectl: $*" >&2; exit 1; }}
mkdir -p "{home}/secret/$6"
for a in "${{@:7}}"; do cp "${{a#--from-file=}}" "{home}/secret/$6/"; done
""")
    subprocess.run([KUBERNETES / "secrets.sh", "team"], env=env, check=True, capture_output=True, timeout=60)
    return {p.name: sorted(f.name for f in p.iterdir()) for p in (home / "secret").iterdir()}


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def run_kubernetes(home, env, stack):
    secrets = make_secrets(home, env)
    assert secrets == {"refit-coordinator": ["client-0.0.key", "coordinator.key", "members.pub"], "refit-trainer": ["source-0.0.key", "source-0.1.key"],
                       "refit-rollout-0": ["target-0.0.key"], "refit-rollout-1": ["target-1.0.key"]}, secrets
    port, parts, probes = free_port(), {}, []
    for item in manifests(set(secrets)):
        if item["kind"] == "Service":
            continue
        pod, name = item["spec"]["template"]["spec"], item["metadata"]["name"]
        place, secret = home / name, next(v["secret"]["secretName"] for v in pod["volumes"] if "secret" in v)
        (place / "keys").mkdir(parents=True, mode=0o700)
        paths = {"/secret": home / "secret" / secret, "/keys": place / "keys", "/journal": place / "journal", "/models": home / "models"}

        def here(word):
            word = word.replace("$(POD_IP)", "127.0.0.1").replace("tcp://refit-coordinator:7000", f"tcp://127.0.0.1:{port}").replace(":7000", f":{port}")
            word = {"refit-coordinator": "127.0.0.1", "0.0.0.0": "127.0.0.1", "7000": str(port)}.get(word, word)
            return re.sub(r"^(/secret|/keys|/journal|/models)(?=/|$)", lambda m: str(paths[m[0]]), word)

        install = pod["initContainers"][0]["command"]
        subprocess.run([install[0], install[1], re.sub(r"/(secret|keys)/", lambda m: f"{paths['/' + m[1]]}/", install[2])], check=True, timeout=20)
        container = pod["containers"][0]
        assert container["command"][0] == "refit"
        words = [here(w) for w in container["command"][1:] + container["args"]]
        assert "--json" in words, words
        parts[name] = part_process.Part(REFIT, *(w for w in words if w != "--json"))
        stack.callback(parts[name].end)
        if "readinessProbe" in container:
            probe = container["readinessProbe"]["exec"]["command"]
            assert probe[0] == "refit"
            probes.append([str(REFIT), *(here(w) for w in probe[1:])])
            parts[name].event("ADDR")
    for step in (0, 1):  # the model that all start with, then a checkpoint that appears
        if step:
            shutil.move(home / "made/step-1", home / "models/steps/step-1")
        for replica in ("refit-rollout-0", "refit-rollout-1"):
            parts[replica].event("serves", step=step)
    assert len(probes) == 1
    for probe in probes:
        done = subprocess.run(probe, capture_output=True, text=True, timeout=20)
        assert done.returncode == 0, done.stderr


def run_slurm(home, env):
    text = SLURM.read_text()
    directives = re.findall(r"^#SBATCH (.*)$", text, re.M)
    assert len(directives) >= 4 and all(re.fullmatch(r"--(job-name|nodes|ntasks-per-node|time|output)=\S+", d) for d in directives), directives
    stand_in(home / "bin", "scontrol", '[ "$1 $2 $3" = "show hostnames h[0-2]" ]\nprintf "%s\\n" 127.0.0.1 127.0.0.1 127.0.0.1\n')
    stand_in(home / "bin", "srun", 'while [ "${1#--}" != "$1" ]; do case $1 in --nodes=1|--ntasks=1|--overlap|--exact|--nodelist=127.0.0.1) shift;; *) exit 3;; esac; done\nexec "$@"\n')
    more = {"SLURM_JOB_NODELIST": "h[0-2]", "MODEL": str(home / "models/base"), "CHECKPOINTS": str(home / "none"), "UNTIL_STEP": "0", "REFIT_WORK": str(home)}
    done = subprocess.run([SLURM], env=env | more, capture_output=True, text=True, timeout=60, cwd=home)
    assert done.returncode == 0, (done.returncode, done.stdout[-2000:], done.stderr[-2000:])
    served = re.findall(r'"who":"target:(\d)\.0","event":"serves".*?"step":0\b', done.stdout)
    assert sorted(served) == ["0", "1"], done.stdout[-3000:]
    assert not list(home.glob("refit-job-*")), "keys were left behind"
    lone = subprocess.run([SLURM], env=env | {"SLURM_JOB_NODELIST": "h[0-2]"}, capture_output=True, text=True, timeout=20, cwd=home)
    assert lone.returncode != 0 and "MODEL" in lone.stderr, lone.stderr


def main():
    for script in (SLURM, KUBERNETES / "secrets.sh"):
        subprocess.run(["bash", "-n", script], check=True)
    with tempfile.TemporaryDirectory(prefix="refit-deploy-") as scratch, contextlib.ExitStack() as stack:
        home = pathlib.Path(scratch)
        env = os.environ | {"PATH": f"{home}/bin:{REFIT.parent}:{os.environ['PATH']}", "TMPDIR": scratch}
        subprocess.run([sys.executable, ROOT / "examples/tiny_checkpoint.py", home / "made", "--steps", "1"], check=True)
        shutil.copytree(home / "made/step-0", home / "models/base")
        for folder in ("models/steps", "none"):
            (home / folder).mkdir()
        run_kubernetes(home, env, stack)
        run_slurm(home, env)
    print("the deployments form a job")


if __name__ == "__main__":
    main()
