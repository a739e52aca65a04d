"""What a release is made of: hardened, from equal sources equal bytes, with a bill of what it links."""
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile

import pytest

from harness import ROOT, SANITIZED

pytestmark = pytest.mark.skipif(SANITIZED, reason="a sanitized build is no release")
readelf_there = pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf here")


def readelf(option, path):
    return subprocess.run(["readelf", option, path], capture_output=True, text=True, check=True,
                          env={**os.environ, "LC_ALL": "C"}).stdout


@readelf_there
def test_the_program_is_hardened(llmq):
    """Position-independent, its tables read-only and bound at start, no executable stack, canaries,
    and calls of the C library that know how much room there is."""
    segments = readelf("-lW", llmq.path)
    dynamic = readelf("-dW", llmq.path)
    symbols = set(re.findall(r"UND (\w+)", readelf("-sW", llmq.path)))
    assert re.search(r"Type:\s+DYN", readelf("-hW", llmq.path))
    assert "GNU_RELRO" in segments
    assert re.search(r"GNU_STACK.*\sRW\s", segments) and not re.search(r"\sRWE\s", segments)
    assert "BIND_NOW" in dynamic and re.search(r"FLAGS_1.*NOW PIE", dynamic)
    assert not re.search(r"RPATH|RUNPATH|TEXTREL", dynamic)
    assert "__stack_chk_fail" in symbols
    assert {"__snprintf_chk", "__memcpy_chk", "__read_chk"} & symbols


def test_nothing_in_the_program_tells_where_or_when_it_was_built(llmq):
    with open(llmq.path, "rb") as f:
        program = f.read()
    assert str(ROOT).encode() + b"/" not in program
    assert b"tmpxft" not in program, "nvcc's names of temporary files"
    assert not re.search(rb"_GLOBAL__N__[0-9a-f]{8}", program), "nvcc's names by the folder's, of what is in a namespace without a name"
    for folder in ("formats", "kernels", "runtime", "calib", "quantize", "convert", "publish", "tools"):
        for path in (ROOT / folder).rglob("*.[ch]"):
            assert not re.search(r"__(DATE|TIME|TIMESTAMP)__", path.read_text()), path


@pytest.fixture(scope="module")
def release(llmq, tmp_path_factory):
    if subprocess.run(["git", "-C", ROOT, "rev-parse"], capture_output=True).returncode:
        pytest.skip("not a checkout of git")
    out = tmp_path_factory.mktemp("release") / "dist"
    subprocess.run([ROOT / "scripts/dist.sh", out], check=True, capture_output=True,
                   env={**os.environ, "PYTHON": sys.executable, "SOURCE_DATE_EPOCH": "1700000000"})
    return out


@readelf_there
def test_checksums_of_a_release_cover_it(release, llmq, tmp_path):
    sums = dict(reversed(line.split()) for line in (release / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {p.name for p in release.iterdir()} - {"SHA256SUMS"} and len(sums) == 3
    for name, digest in sums.items():
        assert hashlib.sha256((release / name).read_bytes()).hexdigest() == digest
    program = next(n for n in sums if n.endswith(".tar.gz") and "linux" in n)
    with tarfile.open(release / program) as t:
        assert {(m.uid, m.gid, m.uname, m.mtime) for m in t} == {(0, 0, "", 1700000000)}
        assert {os.path.basename(m.name) for m in t if m.isfile()} == {
            "llmq", "LICENSE", "NOTICE", "README.md", "CHANGELOG.md", "SECURITY.md", "llmq.spdx.json"}
        t.extractall(tmp_path)
    (unpacked,) = tmp_path.glob("*/llmq")
    assert unpacked.read_bytes() == open(llmq.path, "rb").read()


@readelf_there
def test_the_bill_of_materials_says_what_is_linked(release, llmq):
    (path,) = release.glob("*.spdx.json")
    doc = json.loads(path.read_text())
    packages = {p["SPDXID"]: p for p in doc["packages"]}
    assert doc["spdxVersion"] == "SPDX-2.3" and doc["SPDXID"] == "SPDXRef-DOCUMENT"
    assert doc["creationInfo"]["created"] == "2023-11-14T22:13:20Z"
    assert len(packages) == len(doc["packages"])
    assert all(re.fullmatch(r"SPDXRef-[A-Za-z0-9.-]+", i) for i in packages)
    for r in doc["relationships"]:
        assert {r["spdxElementId"], r["relatedSpdxElement"]} <= {*packages, "SPDXRef-DOCUMENT"}, r
    digest = hashlib.sha256(open(llmq.path, "rb").read()).hexdigest()
    assert packages["SPDXRef-llmq"]["checksums"] == [
        {"algorithm": "SHA256", "checksumValue": digest}]
    assert packages["SPDXRef-llmq"]["versionInfo"] == llmq.json("version")["version"]

    direct = {packages[r["relatedSpdxElement"]]["name"] for r in doc["relationships"]
              if r["spdxElementId"] == "SPDXRef-llmq" and r["relationshipType"] == "DYNAMIC_LINK"}
    assert direct == set(re.findall(r"\(NEEDED\).*\[(.*)\]", readelf("-dW", llmq.path)))
    assert all(p["licenseDeclared"] != "NOASSERTION" for p in doc["packages"]
               if p["name"] in direct and not p["name"].startswith("ld-"))
    loaded = set(re.findall(r"(?:/\S*/)?(\S+)(?: => \S+)? \(0x", subprocess.run(
        ["ldd", llmq.path], capture_output=True, text=True, check=True).stdout))
    embedded = {p["name"] for p in doc["packages"] if p["SPDXID"].startswith("SPDXRef-npm-")}
    assert "markdown-it" in embedded and "temml" in embedded
    assert {p["name"] for p in doc["packages"]} - {"llmq", "libcudart_static"} - embedded == {
        n for n in loaded if "vdso" not in n}
    if shutil.which("dpkg-query"):
        assert all(re.fullmatch(r"pkg:deb/\w+/[^@ ]+@[^@ ]+", p["externalRefs"][0]["referenceLocator"])
                   for p in doc["packages"] if p["name"].startswith("libmicrohttpd"))


def test_a_script_that_make_runs_can_be_run():
    named = set(re.findall(r"(?<!sh )\b(?:packaging|scripts)/[\w/-]+\.sh", (ROOT / "Makefile").read_text()))
    assert "packaging/deb.sh" in named
    assert not [n for n in sorted(named) if not os.access(ROOT / n, os.X_OK)]


def test_the_portable_build_knows_each_library_that_it_has_inside(llmq, tmp_path):
    """Each has sources, a recipe, a licence and a line in the bill of materials; the scripts parse."""
    portable = ROOT / "packaging/portable"
    for script in [*sorted(portable.glob("*.sh")), ROOT / "packaging/npm/llmq.sh"]:
        subprocess.run(["sh", "-n", script], check=True)
    names = re.findall(r"^[a-z0-9-]+$", (portable / "packages").read_text(), re.M)
    recipes = re.findall(r"^build_(\w+)\(\)", (portable / "libs.sh").read_text(), re.M)
    assert sorted(names) == sorted(recipes)
    version = llmq.json("version")["version"]
    assert f"Version:        {version}\n" in (ROOT / "packaging/rpm/llmq.spec").read_text()
    assert f'version = "{version}";' in (ROOT / "packaging/nix/flake.nix").read_text()
    (tmp_path / "versions").write_text("".join(f"{n} 1:2.{i}-3\n" for i, n in enumerate(names)))
    doc = json.loads(subprocess.run([sys.executable, ROOT / "scripts/sbom.py", llmq.path, tmp_path / "versions"],
                                    check=True, capture_output=True, text=True).stdout)
    packages = {p["SPDXID"]: p for p in doc["packages"]}
    inside = [packages[r["relatedSpdxElement"]] for r in doc["relationships"] if r["relationshipType"] == "STATIC_LINK"]
    inside = {p["name"]: p for p in inside if p["name"] != "libcudart_static"}
    assert set(inside) == set(names)
    for i, name in enumerate(names):
        assert inside[name]["versionInfo"] == f"1:2.{i}-3" and inside[name]["licenseDeclared"] != "NOASSERTION"
        assert inside[name]["externalRefs"][0]["referenceLocator"].endswith(f"/{name}@1%3A2.{i}-3?arch=source")


def test_the_portable_program_needs_the_c_library_alone():
    """Where it was built: of glibc 2.28 or older, and small."""
    built = list(ROOT.glob("build/portable/*/release/llmq")) + list(ROOT.glob("build/portable/*/release/libllmq.so.0"))
    if not built or not shutil.which("readelf"):
        pytest.skip("make dist was not run here")
    for path in built:
        needed = set(re.findall(r"\(NEEDED\).*\[(.*?)\.so", readelf("-dW", path)))
        assert needed <= {"libc", "libm", "libpthread", "libdl", "librt", "ld-linux-x86-64", "ld-linux-aarch64"}, path
        versions = re.findall(r"GLIBC_2\.(\d+)", readelf("-VW", path))
        assert versions and max(map(int, versions)) <= 28, path
        assert path.stat().st_size < 25 << 20


def test_the_npm_package_brings_the_command(tmp_path):
    built = list((ROOT / "dist").glob("llmq-runtime-*.tgz"))
    if not built or not shutil.which("npm"):
        pytest.skip("make dist was not run here, or there is no npm")
    env = {**os.environ, "npm_config_cache": str(tmp_path / "cache")}
    subprocess.run(["npm", "install", "--offline", "--no-audit", "--no-fund", built[0]], check=True, cwd=tmp_path, env=env)
    said = subprocess.run(["npx", "llmq", "run", "demo", "Once", "--max-tokens", "1"], cwd=tmp_path, env=env, capture_output=True,
                          text=True, check=True).stdout
    assert said.strip()


def test_reproducible_says_how_it_is_called():
    p = subprocess.run(["scripts/reproducible.sh", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert p.returncode == 2 and p.stderr == "usage: scripts/reproducible.sh [FOLDER [TARGET...]]\n"
