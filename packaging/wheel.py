#!/usr/bin/env python3
"""Packs the program, the library and the Python module over it as a wheel (PEP 427); the same files give the
same bytes.

usage: packaging/wheel.py PROGRAM LIBRARY FOLDER [TAG]
TAG: of the platform, manylinux_2_28_x86_64 where the portable build made them (default: this machine's, linux_x86_64).
"""
import base64
import hashlib
import pathlib
import re
import sys
import sysconfig
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NAME = "llmq_runtime"
SUMMARY = "Quantize, convert and serve language models: the program llmq and a Python module"
TIME = (1980, 1, 1, 0, 0, 0)


def metadata(version):
    text = (ROOT / "packaging/python/README.md").read_text()
    return (f"Metadata-Version: 2.1\nName: llmq-runtime\nVersion: {version}\nSummary: {SUMMARY}\nLicense: Apache-2.0\n"
            "Requires-Python: >=3.9\nRequires-Dist: numpy\nClassifier: Operating System :: POSIX :: Linux\n"
            "Classifier: Programming Language :: Python :: 3\nDescription-Content-Type: text/markdown\n\n" + text)


def main():
    if len(sys.argv) not in (4, 5) or "--help" in sys.argv:
        print(__doc__, file=sys.stderr)
        return 2
    program, library, folder = map(pathlib.Path, sys.argv[1:4])
    tag = sys.argv[4] if len(sys.argv) == 5 else sysconfig.get_platform().replace("-", "_").replace(".", "_")
    version = re.search(r'LLMQ_VERSION "(.*)"', (ROOT / "base/version.h").read_text()).group(1)
    info, wheel = f"{NAME}-{version}.dist-info", f"py3-none-{tag}"
    files = {f"llmq/{p.name}": p.read_bytes() for p in sorted((ROOT / "packaging/python/llmq").glob("*.py"))}
    files["llmq/py.typed"] = b""
    files["llmq/libllmq.so.0"] = library.read_bytes()
    files[f"{NAME}-{version}.data/scripts/llmq"] = program.read_bytes()
    files[f"{info}/METADATA"] = metadata(version).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: llmq\nRoot-Is-Purelib: false\nTag: {wheel}\n".encode()
    licenses = {"LICENSE": ROOT / "LICENSE", "NOTICE": ROOT / "NOTICE"}
    inside = program.parent / "licenses"  # of the portable build: those of the libraries inside too
    if inside.is_dir():
        licenses.update({"NOTICE": program.parent / "NOTICE", **{p.name: p for p in sorted(inside.iterdir())}})
    for name, path in licenses.items():
        files[f"{info}/licenses/{name}"] = path.read_bytes()
    record = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        record += f"{name},sha256={digest},{len(data)}\n"
    files[f"{info}/RECORD"] = (record + f"{info}/RECORD,,\n").encode()
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"{NAME}-{version}-{wheel}.whl"
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as z:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name, TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if "/scripts/" in name or ".so" in name else 0o100644) << 16
            z.writestr(entry, data)
    print(out)
    return 0


sys.exit(main())
