"""quantize and convert."""
import ctypes as c
import json

from . import _library as L
from ._job import Job
from ._model import on_progress, options_of

lib = L.lib


def _run(function, src, dst, progress, options):
    report = c.c_void_p()

    def call(error, job):
        return function(L.text_of("src", src), None if dst is None else L.text_of("dst", dst), options_of(options),
                        on_progress(progress, job), None, c.byref(report), c.byref(error))

    Job(call).wait()
    text = c.string_at(report) if report.value else b"null"
    lib.llmq_free(report)
    return json.loads(text)


def quantize(src, dst, progress=None, **options):
    """`llmq quantize src -o dst`: src is a Hugging Face folder or an unquantized .llmq file. options: the
    command's, method="awq", bits=4, override=["lm_head=bf16"], ...; progress(what, done, total), where False
    stops it. Returns the command's report. An interrupted run goes on with the same call, to the same bytes."""
    return _run(lib.llmq_quantize, src, dst, progress, options)


def convert(src, dst, to, progress=None, **options):
    """`llmq convert src -o dst --to FORMAT`: "gguf", "safetensors", "gptq", "awq", "compressed-tensors", "llmq".
    Returns the command's report."""
    return _run(lib.llmq_convert, src, dst, progress, {"to": to, **options})
