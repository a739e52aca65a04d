#!/usr/bin/env python3
"""What a built llmq consists of, as SPDX 2.3 JSON on stdout.

usage: scripts/sbom.py PROGRAM [VERSIONS] > PROGRAM.spdx.json     (make sbom)

The program is asked, not a list: readelf names the libraries that it links to itself, ldd those that
come with them and where they lie; the system's package manager says of which package and version each
is. The CUDA run time, linked into the program, is found by the text of its version; the libraries of
the page at / are those of scripts/vendor-page.sh. Of the portable
program, VERSIONS has the source packages of the libraries inside it, as lines of a name and a version
(packaging/portable/sources.sh writes it); the C library is whichever the user has. The time is
SOURCE_DATE_EPOCH or the last commit's, so that the same build has the same SBOM."""
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import time
from urllib.parse import quote

ROOT = pathlib.Path(__file__).resolve().parents[1]
# Of the libraries that llmq links to itself; others carry their licences in their packages.
LICENSES = {"libcjson": "MIT", "libxxhash": "BSD-2-Clause", "libopenblas": "BSD-3-Clause",
            "liblapacke": "BSD-3-Clause", "libpcre2-8": "BSD-3-Clause", "libutf8proc": "MIT",
            "libmicrohttpd": "LGPL-2.1-or-later", "libcurl": "curl", "libgnutls": "LGPL-2.1-or-later",
            "libnettle": "LGPL-3.0-or-later OR GPL-2.0-or-later",
            "libedit": "BSD-3-Clause", **dict.fromkeys(("libc", "libm", "libpthread", "libdl", "librt"), "LGPL-2.1-or-later")}
# Of the source packages that the portable program has inside.
SOURCE_LICENSES = {"cjson": "MIT", "xxhash": "BSD-2-Clause", "utf8proc": "MIT", "pcre2": "BSD-3-Clause",
                   "gmp": "LGPL-3.0-or-later OR GPL-2.0-or-later", "nettle": "LGPL-3.0-or-later OR GPL-2.0-or-later",
                   "gnutls28": "LGPL-2.1-or-later", "libmicrohttpd": "LGPL-2.1-or-later", "curl": "curl",
                   "openblas": "BSD-3-Clause", "ncurses": "X11-distribute-modifications-variant", "libedit": "BSD-3-Clause"}


def output(*args):
    """What a program prints, or "" where it is not there or fails."""
    try:
        return subprocess.run(args, capture_output=True, text=True, cwd=ROOT,
                              env={**os.environ, "LC_ALL": "C"}).stdout
    except FileNotFoundError:
        return ""


def sha256(path):
    with open(path, "rb") as f:
        return hashlib.sha256(f.read()).hexdigest()


def created():
    epoch = os.environ.get("SOURCE_DATE_EPOCH") or output("git", "log", "-1", "--format=%ct") or "0"
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(int(epoch)))


def needed(path):
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-dW", path))


def resolved(program):
    """{name as linked: path} of every library that the loader brings."""
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", output("ldd", program), re.M))
    loader = re.search(r"^\s*(/\S*/(ld-\S+)) \(", output("ldd", program), re.M)
    return {**found, **({loader[2]: loader[1]} if loader else {})}


def distribution():
    try:
        return re.search(r'^ID="?([^"\n]*)', pathlib.Path("/etc/os-release").read_text(), re.M)[1]
    except (OSError, TypeError):
        return "linux"


def packages_of(paths):
    """{path: (package, version, purl)} of those that the system's package manager knows."""
    known, asked = {}, {}
    for path in paths:  # a file may be known by its name before /lib became a link to /usr/lib
        for p in (os.path.realpath(path), path, path.replace("/usr/lib", "/lib", 1)):
            asked.setdefault(p, path)
            asked.setdefault(p.replace("/usr/lib", "/lib", 1), path)
    owners = {}
    for line in output("dpkg-query", "-S", *asked).splitlines():
        owner, _, path = line.partition(": ")
        if path in asked:
            owners[asked[path]] = owner.split(",")[0]
    versions = {} if not owners else {
        f[0]: f[1:] for f in map(str.split, output(
            "dpkg-query", "-W", "-f", "${binary:Package} ${Package} ${Version} ${Architecture}\n",
            *sorted(set(owners.values()))).splitlines())}
    for path, owner in owners.items():
        name, version, arch = versions.get(owner) or versions[owner.split(":")[0]]
        known[path] = name, version, f"pkg:deb/{distribution()}/{name}@{quote(version)}?arch={arch}"
    for path in set(paths) - set(known):
        f = output("rpm", "-qf", "--qf", "%{NAME} %{VERSION}-%{RELEASE} %{ARCH}", path).split()
        if len(f) == 3:
            known[path] = f[0], f[1], f"pkg:rpm/{distribution()}/{f[0]}@{quote(f[1])}?arch={f[2]}"
    return known


# Of the libraries that the page at / is made of.
PAGE_LICENSES = {"@highlightjs/cdn-assets": "BSD-3-Clause"}


def page_libraries():
    """[(package of npm, version)] that are embedded in the program."""
    rows = re.findall(r"^(\S+) ([\d.]+) \S+ \S+ [0-9a-f]{64}$", (ROOT / "scripts/vendor-page.sh").read_text(), re.M)
    return sorted(set(rows))


def page_library(name, version):
    return {"SPDXID": identifier("npm-" + name), "name": name, "versionInfo": version,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
            "licenseDeclared": PAGE_LICENSES.get(name, "MIT"), "copyrightText": "NOASSERTION",
            "primaryPackagePurpose": "LIBRARY",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:npm/{quote(name)}@{version}"}]}


def identifier(name):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", name)


def library(name, path, package):
    entry = {"SPDXID": identifier(name), "name": name, "downloadLocation": "NOASSERTION",
             "filesAnalyzed": False, "licenseConcluded": "NOASSERTION",
             "licenseDeclared": LICENSES.get(name.split(".so")[0], "NOASSERTION"),
             "copyrightText": "NOASSERTION", "primaryPackagePurpose": "LIBRARY"}
    if path:
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": sha256(path)}]
    if package:
        entry["versionInfo"] = package[1]
        entry["sourceInfo"] = f"package {package[0]} of the system"
        entry["externalRefs"] = [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                                  "referenceLocator": package[2]}]
    return entry


def source_package(name, version):
    return {"SPDXID": identifier("src-" + name), "name": name, "versionInfo": version, "downloadLocation": "NOASSERTION",
            "filesAnalyzed": False, "licenseConcluded": "NOASSERTION", "licenseDeclared": SOURCE_LICENSES[name],
            "copyrightText": "NOASSERTION", "primaryPackagePurpose": "LIBRARY",
            "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                              "referenceLocator": f"pkg:deb/{distribution()}/{name}@{quote(version)}?arch=source"}]}


def cuda_runtime(program):
    """The version of the CUDA run time that is linked into the program; None: there is none in it."""
    if "cudaGetErrorString" not in output("readelf", "-sW", program):
        return None
    return (re.findall(r"release ([0-9.]+)", output("nvcc", "--version")) or ["unknown"])[0]


def document(program, inside=()):
    """inside: (name, version) of each source package in a portable program; () where the system has its libraries."""
    version = re.search(r'LLMQ_VERSION "(.*)"', (ROOT / "base/version.h").read_text())[1]
    digest = sha256(program)
    libraries = dict.fromkeys(needed(program)) if inside else resolved(program)
    compiler = re.findall(r"\] +(.*)", output("readelf", "-p", ".comment", program))
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-llmq")]
    packages = [{"SPDXID": "SPDXRef-llmq", "name": "llmq", "versionInfo": version,
                 "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                 "checksums": [{"algorithm": "SHA256", "checksumValue": digest}],
                 "licenseConcluded": "Apache-2.0", "licenseDeclared": "Apache-2.0",
                 "copyrightText": "Copyright 2026 the llmq authors",
                 "primaryPackagePurpose": "APPLICATION",
                 "sourceInfo": "compiled by " + "; ".join(sorted(set(compiler)))}]
    known = packages_of([] if inside else libraries.values())
    packages += [library(n, libraries[n], known.get(libraries[n])) for n in sorted(libraries)]
    for owner, path in [("SPDXRef-llmq", program), *((identifier(n), libraries[n])
                                                     for n in sorted(libraries) if libraries[n])]:
        relations += [(owner, "DYNAMIC_LINK", identifier(n)) for n in sorted(needed(path))
                      if n in libraries]
    for name, number in inside:
        packages.append(source_package(name, number))
        relations.append(("SPDXRef-llmq", "STATIC_LINK", packages[-1]["SPDXID"]))
    for name, number in page_libraries():
        packages.append(page_library(name, number))
        relations.append(("SPDXRef-llmq", "CONTAINS", packages[-1]["SPDXID"]))
    cuda = cuda_runtime(program)
    if cuda:
        packages.append({"SPDXID": "SPDXRef-cudart", "name": "libcudart_static", "versionInfo": cuda,
                         "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
                         "licenseConcluded": "NOASSERTION",
                         "licenseDeclared": "LicenseRef-NVIDIA-CUDA-EULA",
                         "copyrightText": "NOASSERTION", "primaryPackagePurpose": "LIBRARY"})
        relations.append(("SPDXRef-llmq", "STATIC_LINK", "SPDXRef-cudart"))
    return {"spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0", "SPDXID": "SPDXRef-DOCUMENT",
            "name": f"llmq-{version}",
            "documentNamespace": f"https://spdx.org/spdxdocs/llmq-{version}-{digest}",
            "creationInfo": {"created": created(), "creators": [f"Tool: llmq-sbom-{version}"]},
            "documentDescribes": ["SPDXRef-llmq"], "packages": packages,
            **({"hasExtractedLicensingInfos": [{
                "licenseId": "LicenseRef-NVIDIA-CUDA-EULA",
                "name": "End User License Agreement of the NVIDIA CUDA Toolkit",
                "extractedText": "https://docs.nvidia.com/cuda/eula/"}]} if cuda else {}),
            "relationships": [{"spdxElementId": a, "relationshipType": t, "relatedSpdxElement": b}
                              for a, t, b in relations]}


if __name__ == "__main__":
    if len(sys.argv) not in (2, 3) or not os.path.isfile(sys.argv[1]):
        sys.exit("sbom: expected the path of a built llmq")
    inside = [tuple(line.split()) for line in pathlib.Path(sys.argv[2]).read_text().splitlines()] if len(sys.argv) == 3 else ()
    json.dump(document(os.path.abspath(sys.argv[1]), inside), sys.stdout, indent=1)
    print()
