"""OpenVINO GenAI's speed, for peers.py, in a Python that has openvino_genai.

usage: peer_openvino.py FOLDER THREADS PROMPT CONTEXT STEPS BATCH[,BATCH...]
Prints {"version": ..., "rows": [[name, sequences, tokens/s of all together]]}. A decode row is the
time of STEPS + 1 tokens less that of one: prefill, loading and the first draw are in neither.
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


def main():
    folder, threads, prompt, context, steps = sys.argv[1], *map(int, sys.argv[2:6])
    batch = [int(x) for x in sys.argv[6].split(",")]
    sched = genai.SchedulerConfig()
    sched.max_num_batched_tokens, sched.max_num_seqs, sched.cache_size = 2048, max(batch), 2
    sched.enable_prefix_caching = False
    pipe = genai.ContinuousBatchingPipeline(folder, sched, "CPU", {"INFERENCE_NUM_THREADS": threads})
    seconds(pipe, 1, prompt, 2)
    rows = [["prefill", 1, prompt / seconds(pipe, 1, prompt, 1)]]
    for b in batch:
        seconds(pipe, b, context, 2)
        rows.append(["decode", b, b * steps / (seconds(pipe, b, context, steps + 1) - seconds(pipe, b, context, 1))])
    print(json.dumps({"version": genai.__version__, "rows": rows}))


main()
