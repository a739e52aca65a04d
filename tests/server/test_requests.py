"""Requests of programs that no test runs, with all the fields that they send: each is answered (the text-completion ones of
llama.vim, llama.vscode and SillyTavern with llama.cpp: test_fim.py)."""
import pytest

from helpers import http

MESSAGES = [{"role": "user", "content": "Say hi."}]
CHAT = "/v1/chat/completions"

REQUESTS = {
    "Open WebUI": (CHAT, {
        "stream": True, "messages": MESSAGES, "max_tokens": 8, "stream_options": {"include_usage": True}, "temperature": 0.8,
        "top_p": 0.9, "top_k": 40, "min_p": 0, "frequency_penalty": 0, "presence_penalty": 0, "repeat_penalty": 1.1,
        "repeat_last_n": 64, "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5, "tfs_z": 1, "seed": 1, "stop": ["x"],
        "num_ctx": 2048, "num_keep": 24, "think": False, "logit_bias": {"5": 1}, "reasoning_effort": "medium",
        "function_calling": "native"}),
    "Open WebUI, a title": (CHAT, {
        "messages": MESSAGES, "stream": False, "max_completion_tokens": 10, "metadata": {"task": "title_generation", "chat_id": "x"}}),
    "Open WebUI, Ollama": ("/api/chat", {
        "messages": MESSAGES, "stream": True, "keep_alive": "5m", "metadata": {"x": 1}, "options": {
            "temperature": 0.8, "mirostat": 0, "mirostat_eta": 0.1, "mirostat_tau": 5.0, "num_ctx": 2048, "repeat_last_n": 64,
            "repeat_penalty": 1.1, "tfs_z": 1, "num_predict": 8, "top_k": 40, "top_p": 0.9, "min_p": 0, "num_keep": 24,
            "num_batch": 512, "num_gpu": 0, "use_mmap": True, "use_mlock": False, "num_thread": 4}}),
    "SillyTavern, vLLM": ("/v1/completions", {
        "prompt": "Hello", "max_tokens": 8, "max_new_tokens": 8, "temperature": 0.7, "top_p": 1, "typical_p": 1, "typical": 1,
        "sampler_seed": -1, "min_p": 0, "repetition_penalty": 1, "frequency_penalty": 0, "presence_penalty": 0, "top_k": -1,
        "skew": 0, "min_tokens": 0, "add_bos_token": True, "smoothing_factor": 0, "smoothing_curve": 1, "dry_allowed_length": 2,
        "dry_multiplier": 0, "dry_base": 1.75, "dry_sequence_breakers": '["\\n"]', "dry_penalty_last_n": 0, "max_tokens_second": 0,
        "stopping_strings": ["\nUser:"], "stop": ["\nUser:"], "truncation_length": 8192, "ban_eos_token": False,
        "skip_special_tokens": True, "include_reasoning": True, "top_a": 0, "tfs": 1, "mirostat_mode": 0, "mirostat_tau": 5,
        "mirostat_eta": 0.1, "custom_token_bans": "", "banned_strings": [], "api_type": "vllm", "n": 1, "ignore_eos": False,
        "spaces_between_special_tokens": True, "seed": -1, "guided_grammar": "", "grammar": "", "rep_pen": 1, "rep_pen_range": 0,
        "repetition_penalty_range": 0, "encoder_repetition_penalty": 1, "no_repeat_ngram_size": 0, "penalty_alpha": 0,
        "temperature_last": True, "do_sample": True, "speculative_ngram": False, "sampler_priority": [], "min_temp": 0,
        "max_temp": 0, "dynatemp_range": 0, "dynatemp_exponent": 1, "dynamic_temperature": False, "legacy_api": False}),
    "the page of llama.cpp's server": (CHAT, {
        "messages": MESSAGES, "stream": True, "reasoning_format": "auto", "temperature": 0.8, "max_tokens": -1, "dynatemp_range": 0,
        "dynatemp_exponent": 1, "top_k": 40, "top_p": 0.95, "min_p": 0.05, "xtc_probability": 0, "xtc_threshold": 0.1, "typ_p": 1,
        "repeat_last_n": 64, "repeat_penalty": 1, "presence_penalty": 0, "frequency_penalty": 0, "dry_multiplier": 0,
        "dry_base": 1.75, "dry_allowed_length": 2, "dry_penalty_last_n": -1, "timings_per_token": True, "return_progress": True,
        "cache_prompt": True, "samplers": ["top_k", "typ_p", "top_p", "min_p", "temperature"], "stop": [" "]}),
    "LM Studio's SDK": (CHAT, {"messages": MESSAGES, "temperature": 0.7, "max_tokens": -1, "stream": False, "stop": [" "]}),
    "lm-eval, log-likelihoods": ("/v1/completions", {
        "prompt": [[5, 6, 7, 8]], "max_tokens": 1, "logprobs": 1, "temperature": 0, "seed": 1234, "echo": True}),
    "JetBrains": ("/v1/completions", {
        "prompt": "fun main() {", "max_tokens": 8, "stream": True,
        "stop": ["\n\n", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", "<|repo_name|>", "<|file_sep|>", "<|endoftext|>",
                 "<|im_start|>", "<|im_end|>", "</s>", "```", "// File:"]}),
    "Claude Code, a count": ("/v1/messages/count_tokens?beta=true", {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]}]}),
}


@pytest.mark.parametrize("name", REQUESTS)
def test_it_is_answered(server, name):
    path, body = REQUESTS[name]
    r = http("POST", server.url + path, json={"model": "tiny", **body})
    assert r.status_code == 200 and '"error"' not in r.text, r.text
