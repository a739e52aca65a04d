// The second tab: figures of /metrics, once a second while it is shown. Rates and percentiles are
// of what happened between readings: latencies over the last WINDOW of them.

import { Chart } from "./charts.js";
import { metrics } from "./server.js";
import { t } from "./words.js";

const LENGTH = 120, WINDOW = 15, EVERY_MS = 1000;

let timer = 0, model = () => "", last = "", history = [], node = null, status = null, shown = [];

const total = (m, n) => (m[n] || []).reduce((sum, s) => sum + s.value, 0);

// How much the sums of these counters grew a second.
function rate(a, b, n) { return (total(b.m, n) - total(a.m, n)) / (b.at - a.at); }

function ratio(a, b, part, whole)
{
    const all = total(b.m, whole) - total(a.m, whole);
    return all > 0 ? (total(b.m, part) - total(a.m, part)) / all : NaN;
}

// The p-quantile of a histogram's growth, linear inside a bucket as Prometheus has it.
function quantile(a, b, n, p)
{
    const read = x => (x.m[n + "_bucket"] || []).map(s => s.value), before = read(a);
    const counts = read(b).map((v, i) => v - (before[i] || 0)), all = counts.at(-1);
    if (!(all > 0)) return NaN;
    const ends = b.m[n + "_bucket"].map(s => Number(/le="([^"]*)"/.exec(s.labels)[1].replace("+Inf", "Infinity")));
    const i = counts.findIndex(c => c >= p * all);
    const low = i ? ends[i - 1] : 0, under = i ? counts[i - 1] : 0;
    if (!Number.isFinite(ends[i])) return low;
    return low + (ends[i] - low) * (p * all - under) / (counts[i] - under);
}

// Each chart and its values: a the reading before, w the one at the window's start, b this one.
const CHARTS = [
    [{ title: "throughput", unit: "tokS", lines: ["generated", "prompts"], digits: 1 },
     (a, w, b) => [rate(a, b, "vllm:generation_tokens_total"), rate(a, b, "vllm:prompt_tokens_total")]],
    [{ title: "ttft", unit: "ms", lines: ["median", "p95"], digits: 1 },
     (a, w, b) => [0.5, 0.95].map(p => 1e3 * quantile(w, b, "vllm:time_to_first_token_seconds", p))],
    [{ title: "itl", unit: "ms", lines: ["median", "p95"], digits: 1 },
     (a, w, b) => [0.5, 0.95].map(p => 1e3 * quantile(w, b, "vllm:inter_token_latency_seconds", p))],
    [{ title: "queue", unit: "", lines: ["running", "waiting"] },
     (a, w, b) => [total(b.m, "vllm:num_requests_running"), total(b.m, "vllm:num_requests_waiting")]],
    [{ title: "kv", unit: "percent", lines: ["used", "wasted"], digits: 1, top: 100 },
     (a, w, b) => ["vllm:kv_cache_usage_perc", "llmq:kv_waste_perc"].map(n => 100 * total(b.m, n))],
    [{ title: "limit", unit: "percent", lines: ["memory", "arithmetic"], digits: 1, top: 100,
       beyond: "fromCache" },
     (a, w, b) => [["llmq:weights_read_bytes_total", "llmq:limit_read_bytes_per_second"],
                   ["llmq:matmul_flops_total", "llmq:limit_flops_per_second"]].map(([did, limit]) =>
         100 * ratio(a, b, did, "llmq:step_seconds_total") / (total(b.m, limit) || NaN))],
    [{ title: "cache", unit: "percent", lines: [""], digits: 0, top: 100 },
     (a, w, b) => [100 * ratio(w, b, "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total")]],
    [{ title: "guesses", unit: "percent", lines: [""], digits: 0, top: 100 },
     (a, w, b) => [100 * ratio(w, b, "vllm:spec_decode_num_accepted_tokens_total",
                               "vllm:spec_decode_num_draft_tokens_total")]],
];

async function read()
{
    try {
        if (model() !== last) history = []; // the figures are another model's
        last = model();
        const b = { m: await metrics(last), at: performance.now() / 1000 }, a = history.at(-1);
        // A server that began anew counts from zero.
        if (a && total(b.m, "llmq:http_requests_total") < total(a.m, "llmq:http_requests_total"))
            history = [];
        else if (a) shown.forEach(([chart, values]) => chart.add(values(a, history[0], b)));
        history.push(b);
        if (history.length > WINDOW) history.shift();
        status.textContent = t("updated");
        node.dataset.readings = history.length;
    } catch (e) {
        status.textContent = e.message;
    }
    if (timer) timer = setTimeout(read, EVERY_MS);
}

// of: the name of the model whose figures are shown, where the server has several; else "".
export function start(into, state, of)
{
    model = of;
    node = into;
    status = state;
    if (!shown.length) {
        shown = CHARTS.map(([o, values]) => [new Chart(o, LENGTH), values]);
        node.append(...shown.map(([chart]) => chart.node));
    }
    history = [];
    timer ||= setTimeout(read, 0);
}

export function stop()
{
    clearTimeout(timer);
    timer = 0;
}

export function redraw() { for (const [chart] of shown) chart.draw(); }
