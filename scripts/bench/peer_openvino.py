"""OpenVINO GenAI's speed, for peers.py, in a Python that has openvino_genai.

usage: peer_openvino.py FOLDER THREADS run PROMPT CONTEXT STEPS BATCH[,BATCH...]
       peer_openvino.py FOLDER THREADS serve CLIENTS INPUT OUTPUT
Prints {"version": ..., "rows": [[name, sequences, tokens/s of all together]]}. A decode row is the
time of STEPS + 1 tokens less that of one: prefill, loading and the first draw are in neither. The
row of serve is 2 * CLIENTS requests of INPUT and OUTPUT tokens, at most CLIENTS of them at a time,
through the pipeline's continuous batching in this process: no HTTP.
"""
import json
import sys
import time

import numpy as np
import openvino
import openvino_genai as genai


def seconds(pipe, sequences, tokens, new):
    """Greedy, never ended early; every sequence has other tokens, so that nothing is shared."""
    config = genai.GenerationConfig()
    config.max_new_tokens, config.ignore_eos, config.do_sample = new, True, False
    ids = [openvino.Tensor(np.random.default_rng(i).integers(3, 30000, (1, tokens), dtype=np.int64))
           for i in range(sequences)]
    t = time.perf_counter()
    pipe.generate(ids, [config] * sequences)
    return time.perf_counter() - t


def pipeline(folder, threads, sequences):
    sched = genai.SchedulerConfig()
    sched.max_num_batched_tokens, sched.max_num_seqs, sched.cache_size = 2048, sequences, 2
    sched.enable_prefix_caching = False
    return genai.ContinuousBatchingPipeline(folder, sched, "CPU", {"INFERENCE_NUM_THREADS": threads})


def run(folder, threads, prompt, context, steps, batch):
    pipe = pipeline(folder, threads, max(batch))
    seconds(pipe, 1, prompt, 2)
    rows = [["prefill", 1, prompt / seconds(pipe, 1, prompt, 1)]]
    for b in batch:
        seconds(pipe, b, context, 2)
        rows.append(["decode", b, b * steps / (seconds(pipe, b, context, steps + 1) - seconds(pipe, b, context, 1))])
    return rows


def serve(folder, threads, clients, tokens, new):
    pipe = pipeline(folder, threads, clients)
    seconds(pipe, clients, tokens, 2)
    return [["serve", clients, 2 * clients * new / seconds(pipe, 2 * clients, tokens, new)]]


def main():
    folder, threads, what, *more = sys.argv[1:]
    if what == "run":
        rows = run(folder, int(threads), *map(int, more[:3]), [int(x) for x in more[3].split(",")])
    else:
        rows = serve(folder, int(threads), *map(int, more))
    print(json.dumps({"version": genai.__version__, "rows": rows}))


main()
