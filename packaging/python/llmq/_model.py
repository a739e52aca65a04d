"""A model in this process: llmq.load."""
import contextlib
import ctypes as c
import json
import os
import threading
import time
import weakref

import numpy as np

from . import _library as L
from ._job import Job

lib = L.lib
TEXT, MESSAGE, MESSAGES = 0, 1, 2
_FINISH = {1: "stop", 2: "length"}


def options_of(named):
    """Keyword arguments as the library's options: max_model_len=512 is {"max-model-len": 512}."""
    return json.dumps({k.replace("_", "-"): v for k, v in named.items() if v is not None}).encode()


def on_progress(f, job=None):
    """A callback of the library's from f(what, done, total), which may return False to stop; NULL for None."""
    if f is None and job is None:
        return L.ON_PROGRESS()

    def call(_user, what, done, total):
        if job is not None and job.stopped:
            return 1
        try:
            return int(f is not None and f(what.decode(), done, total) is False)
        except BaseException as e:
            if job is not None:
                job.failed(e)
            return 1

    return L.ON_PROGRESS(call)


def _array(pointer, shape, kind):
    """The library's memory as an array, without a copy: it is freed with the array."""
    size = 1
    for n in shape:
        size *= n
    buffer = (kind * size).from_address(pointer.value or 0) if size else (kind * 0)()
    out = np.ctypeslib.as_array(buffer).reshape(shape)
    weakref.finalize(buffer, lib.llmq_free, pointer.value)
    return out


def _ids(ids):
    given = np.asarray(ids)
    if given.ndim != 1:
        raise ValueError(f"ids: expected one dimension, found {given.ndim}")
    if given.size and given.dtype.kind not in "iu":
        raise TypeError(f"ids: expected integers, found {given.dtype}")
    a = np.ascontiguousarray(given, dtype=np.int32)
    if (a != given).any():
        raise ValueError(f"ids: expected 32 bits, found {given[a != given][0]}")
    return a, a.ctypes.data_as(c.POINTER(c.c_int32))


class Generation:
    """An answer as it comes: iterate over its pieces of text. Then `text`, `finish_reason` ("stop" or
    "length"), `prompt_tokens`, `cached_tokens`, `output_tokens`. It ends when nobody refers to it."""

    def __init__(self, model, prompt, kind, sampling):
        self.text, self.finish_reason = "", None
        self.prompt_tokens = self.cached_tokens = self.output_tokens = 0
        self._usage, sampling = L.Usage(size=c.sizeof(L.Usage)), _sampling(kind, sampling)
        self._job = Job(self._caller(model, L.text_of("prompt", prompt), sampling, self._usage))
        self._pieces = iter(self._job)

    @staticmethod
    def _caller(model, prompt, sampling, usage):
        """The job's function. It does not hold the Generation: one that nobody refers to ends."""

        def call(error, job):
            def piece(_user, text, n):
                job.put(c.string_at(text, n).decode())
                return int(job.stopped)

            with model._using() as m:
                return lib.llmq_generate(m, prompt, c.byref(sampling), L.ON_TEXT(piece), None, c.byref(usage),
                                         c.byref(error))

        return call

    def __iter__(self):
        return self

    def __next__(self):
        try:
            piece = next(self._pieces)
        except StopIteration:
            u = self._usage
            self.finish_reason = _FINISH.get(u.finish)
            self.prompt_tokens, self.cached_tokens = u.prompt_tokens, u.cached_tokens
            self.output_tokens = u.output_tokens
            raise
        self.text += piece
        return piece

    def close(self):
        """End the answer here."""
        self._job.stop()
        self._pieces.close()

    def __del__(self):
        job = getattr(self, "_job", None)
        if job is not None:
            job.stopped = True

    def result(self):
        """All of its text."""
        for _ in self:
            pass
        return self.text


def _sampling(kind, given):
    known = {name for name, _ in L.Sampling._fields_} - {"size", "prompt", "stop", "n_stop"} | {"stop"}
    if given.get("max_tokens") == 0:  # it would be the struct's default
        raise ValueError("max_tokens: expected 1 or more, found 0")
    unknown = set(given) - known
    if unknown:
        raise TypeError(f"unexpected {', '.join(sorted(unknown))}: expected {', '.join(sorted(known))}")
    stop = given.pop("stop", None) or []
    stop = [stop] if isinstance(stop, str) else list(stop)
    s = L.Sampling(size=c.sizeof(L.Sampling), prompt=kind, n_stop=len(stop),
                   **{k: int(v) if isinstance(v, bool) else v for k, v in given.items() if v is not None})
    s.stop = (c.c_char_p * len(stop))(*[L.text_of("stop", x) for x in stop])
    return s


class Model:
    """A loaded model with its engine. Any number of threads may use it at once; their requests share the
    engine's steps, and each answer is the same as alone. Use it as a context manager, or `close` it."""

    def __init__(self, path, progress=None, **options):
        """path: a .llmq or .gguf file, or a Hugging Face folder. options: those of `llmq batch` that concern
        model and engine, threads=2, max_model_len=4096, kv_cache_dtype="int8", device="cuda:0", ...
        progress(what, done, total) is told how far loading has come; False stops it."""
        self.path, self._lock, self._open, self._users = str(path), threading.Lock(), None, 0
        self._process = os.getpid()
        m = c.c_void_p()
        job = Job(lambda error, job: self._load(m, path, options, on_progress(progress, job), error))
        job.wait()
        self._open = m

    def _load(self, m, path, options, progress, error):
        o = L.Options(size=c.sizeof(L.Options), options=options_of(options), progress=progress)
        return lib.llmq_open(c.byref(m), L.text_of("path", path), c.byref(o), c.byref(error))

    @contextlib.contextmanager
    def _using(self):
        """The model for one call: `close` waits for those that run."""
        if self._process != os.getpid():  # the engine's threads are not in a fork
            raise ValueError(f"the model is of process {self._process}: load it in this one")
        with self._lock:
            if self._open is None:
                raise ValueError("the model is closed")
            self._users += 1
            m = self._open
        try:
            yield m
        finally:
            with self._lock:
                self._users -= 1

    def close(self):
        """Frees the model once the calls that run have ended. Answers that nobody reads go on until then:
        close those first. In a fork it does nothing."""
        if self._process != os.getpid():
            return
        with self._lock:
            m, self._open = self._open, None
        while self._users:  # a Condition's lock would stay locked where Ctrl-C comes at the wrong moment
            time.sleep(0.01)
        if m is not None:
            lib.llmq_close(m)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __del__(self):
        if getattr(self, "_open", None) is not None:
            self.close()

    # ---- text ----

    def generate(self, prompt, **sampling):
        """An answer to text, as it comes: iterate over the result, or take its `result()`. sampling:
        max_tokens (128), temperature (0: the likeliest token each time), top_p, top_k, min_p, seed, stop (a
        text or several), min_tokens, ignore_eos, repetition_penalty, presence_penalty, frequency_penalty."""
        return Generation(self, str(prompt), TEXT, sampling)

    def chat(self, messages, **sampling):
        """The same of a user's message, or of a conversation [{"role": "user", "content": "..."}, ...], by the
        model's chat template."""
        if isinstance(messages, str):
            return Generation(self, messages, MESSAGE, sampling)
        return Generation(self, json.dumps(messages), MESSAGES, sampling)

    def request(self, route, body):
        """What `llmq serve` answers to POST route with the JSON `body`: (status, document). All that the HTTP
        API can do, without HTTP."""
        data, ident = json.dumps(body).encode(), c.c_uint64()
        error, answer = L.ErrorText(), L.Answer(size=c.sizeof(L.Answer))
        with self._using() as m:
            L.check(lib.llmq_submit(m, L.text_of("route", route), data, len(data), c.byref(ident), c.byref(error)), error)
            while not answer.id:
                L.check(lib.llmq_poll(m, ident, c.byref(answer), 200, c.byref(error)), error)
        text = c.string_at(answer.json, answer.n)
        lib.llmq_free(answer.json)
        return answer.status, json.loads(text)

    # ---- numbers ----

    def _call(self, function, *arguments):
        """function(model, *arguments, &pointer, &size, &error): the pointer and the size."""
        out, n, error = c.c_void_p(), c.c_size_t(), L.ErrorText()
        with self._using() as m:
            L.check(function(m, *arguments, c.byref(out), c.byref(n), c.byref(error)), error)
        return out, n.value

    def tokenize(self, text, special=False):
        """Token ids, int32 [n]. special: with the tokens that the tokenizer puts around a text."""
        data = text.encode()
        ids, n = self._call(lib.llmq_tokenize, data, len(data), int(special))
        return _array(ids, (n,), c.c_int32)

    def detokenize(self, ids, special=False):
        """Text of ids [n]. special: with that of special tokens."""
        a, p = _ids(ids)
        text, n = self._call(lib.llmq_detokenize, p, len(a), int(special))
        out = c.string_at(text, n).decode(errors="replace")
        lib.llmq_free(text)
        return out

    def embed(self, text):
        """The embedding of a text, float32 [dims], of length 1."""
        data = text.encode()
        v, n = self._call(lib.llmq_embed, data, len(data))
        return _array(v, (n,), c.c_float)

    def logits(self, ids, exact=True):
        """Logits at every position of ids [n]: float32 [n, vocabulary], the library's memory without a copy.
        exact: computed in float32; else as the engine computes."""
        a, p = _ids(ids)
        out, vocab = self._call(lib.llmq_logits, p, len(a), int(exact))
        return _array(out, (len(a), vocab), c.c_float)
