"""The files of deploy/kubernetes, and what `handover --emit` writes, against the schemas that their projects publish:
Kubernetes' by kubernetes-validate, KServe's by its SDK, Docker Compose's by compose-spec. LLMQ_CRDS names a folder of
definitions of custom resources (those of mpi-operator, kserve, kuberay, ...), which their kinds are then held against too.

    python3 -m venv v && v/bin/pip install pytest kubernetes-validate kserve compose-spec && v/bin/python -m pytest \
        tests/interop/test_kubernetes.py
"""
import os
import pathlib
import subprocess

import pytest

from harness import ROOT

yaml = pytest.importorskip("yaml", reason="PyYAML is not installed")
FOLDER = ROOT / "deploy/kubernetes"
VERSION = "1.34"
NO_OBJECT = {"kustomization.yaml", "prometheus-adapter.yaml"}
OBJECTS = [(p.name, doc) for p in sorted(FOLDER.glob("*.yaml")) if p.name not in NO_OBJECT
           for doc in yaml.safe_load_all(p.read_text())]
CORE = {"apps/v1", "v1", "batch/v1", "policy/v1", "autoscaling/v2"}


def named(objects):
    return {"argvalues": objects, "ids": [f"{name}-{doc['kind']}" for name, doc in objects]}


@pytest.fixture(scope="module")
def emitted(llmq, draft, tmp_path_factory):
    """(engine, form) -> documents"""
    folder = tmp_path_factory.mktemp("emitted")
    llmq("quantize", draft, "-o", folder / "m.llmq", "--method", "rtn", "--group-size", "32")
    made = {}
    for engine, form in [(e, f) for e in ("vllm", "sglang") for f in ("ray", "kserve", "compose")] + [("vllm", "llm-d")]:
        out = folder / f"{engine}-{form}.yaml"
        subprocess.run([llmq.path, "handover", engine, "m.llmq", "--emit", form, "--tensor-parallel-size", "2", "-o", out],
                       cwd=folder, check=True, capture_output=True)
        made[engine, form] = list(yaml.safe_load_all(out.read_text()))
    return made


def core(doc):
    validate = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validate.validate(doc, VERSION, strict=True)


@pytest.mark.parametrize("name, doc", **named([x for x in OBJECTS if x[1]["apiVersion"] in CORE]))
def test_kubernetes_own_kinds(name, doc):
    core(doc)


@pytest.mark.parametrize("name, doc", **named([x for x in OBJECTS if x[1]["kind"] in ("MPIJob", "RayService", "ServingRuntime")]))
def test_pods_inside_of_other_kinds(name, doc):
    spec = doc["spec"]
    if doc["kind"] == "MPIJob":
        templates = [r["template"] for r in spec["mpiReplicaSpecs"].values()]
    elif doc["kind"] == "RayService":
        cluster = spec["rayClusterConfig"]
        templates = [r["template"] for r in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"])]
    else:
        templates = [{"spec": {k: spec[k] for k in ("containers", "volumes") if k in spec}}]
    for t in templates:
        core({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, **t})


SDK = {("v1alpha1", "ServingRuntime"): "V1alpha1ServingRuntime", ("v1beta1", "InferenceService"): "V1beta1InferenceService",
       ("v1alpha2", "LLMInferenceService"): "V1alpha2LLMInferenceService"}


def known_to(models, kind, doc, at):
    """Every key of doc is a field of the SDK's class of that name, and so on below."""
    cls = getattr(models, kind, None)
    if cls is None or not isinstance(doc, dict):
        return
    by_key = {v: k for k, v in cls.attribute_map.items()}
    assert set(doc) <= set(by_key), f"{at}: {set(doc) - set(by_key)}"
    for key, value in doc.items():
        below = cls.openapi_types[by_key[key]]
        for i, one in enumerate(value if below.startswith("list[") else [value]):
            known_to(models, below.removeprefix("list[").rstrip("]"), one, f"{at}.{key}[{i}]")


def by_sdk(doc):
    pytest.importorskip("kserve", reason="kserve is not installed")
    from kserve import models
    kind = SDK[doc["apiVersion"].split("/")[1], doc["kind"]]
    known_to(models, kind, doc, kind)


@pytest.mark.parametrize("name, doc", **named([x for x in OBJECTS if x[1]["apiVersion"].startswith("serving.kserve.io")]))
def test_kserves_kinds(name, doc):
    by_sdk(doc)


def test_what_handover_emits_for_kserve(emitted):
    for (engine, form), docs in emitted.items():
        for doc in docs if form in ("kserve", "llm-d") else []:
            by_sdk(doc)


def test_what_handover_emits_for_compose(emitted):
    spec = pytest.importorskip("compose_spec", reason="compose-spec is not installed")
    for engine in ("vllm", "sglang"):
        doc, = emitted[engine, "compose"]
        spec.PyCompose.from_yaml(yaml.safe_dump(doc)).validate()
        with pytest.raises(ValueError, match="shm_sizes"):  # it tells
            spec.PyCompose.from_yaml(yaml.safe_dump(doc).replace("shm_size", "shm_sizes")).validate()


def test_what_handover_emits_for_ray(emitted):
    schema = pytest.importorskip("ray.serve.schema", reason="ray[serve] is not installed")
    for engine in ("vllm", "sglang"):
        doc, = emitted[engine, "ray"]
        schema.ServeDeploySchema(**doc)


def test_what_deploys_llmq_in_ray(monkeypatch):
    schema = pytest.importorskip("ray.serve.schema", reason="ray[serve] is not installed")
    monkeypatch.syspath_prepend(ROOT / "deploy/ray")
    import llmq_serve
    service = next(doc for _, doc in OBJECTS if doc["kind"] == "RayService")
    for text in ((ROOT / "deploy/ray/config.yaml").read_text(), service["spec"]["serveConfigV2"]):
        app, = schema.ServeDeploySchema(**yaml.safe_load(text)).applications
        assert app.import_path == "llmq_serve:app" and llmq_serve.app(llmq_serve.Args(**app.args))


@pytest.fixture(scope="module")
def definitions():
    """(apiVersion, kind) -> schema"""
    folder = os.environ.get("LLMQ_CRDS")
    if not folder:
        pytest.skip("LLMQ_CRDS names no folder of definitions of custom resources")
    found = {}
    load = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for path in sorted(pathlib.Path(folder).glob("*.yaml")):
        for doc in yaml.load_all(path.read_text().replace("{{", "").replace("}}", ""), load):
            if doc and doc["kind"] == "CustomResourceDefinition":
                for v in doc["spec"]["versions"]:
                    found[f"{doc['spec']['group']}/{v['name']}", doc["spec"]["names"]["kind"]] = v["schema"]["openAPIV3Schema"]
    return found


def strict(schema):
    """As the API server takes it with strict fields: unknown ones are an error."""
    if isinstance(schema, list):
        return [strict(x) for x in schema]
    if not isinstance(schema, dict):
        return schema
    s = {k: strict(v) for k, v in schema.items()}
    if s.get("x-kubernetes-int-or-string"):
        return {"type": ["integer", "string"]}
    if isinstance(s.get("properties"), dict) and s.get("type") == "object" and not s.get("x-kubernetes-preserve-unknown-fields"):
        s.setdefault("additionalProperties", False)
    return s


def test_kinds_of_others_against_their_definitions(definitions, emitted):
    jsonschema = pytest.importorskip("jsonschema", reason="jsonschema is not installed")
    looked = 0
    for name, doc in OBJECTS + [(f"{e}-{f}", d) for (e, f), docs in emitted.items() if f in ("kserve", "llm-d") for d in docs]:
        schema = definitions.get((doc["apiVersion"], doc["kind"]))
        if schema:
            s = strict(schema)
            s["properties"]["metadata"] = {"type": "object"}
            jsonschema.validate(doc, s)
            looked += 1
    assert looked
