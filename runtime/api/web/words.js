// The texts of the page in each language, and putting them where they belong.

const WORDS = {
    en: {
        skip: "To the message field", chat: "Chat", live: "Live", views: "Views",
        chats: "Conversations", language: "Language", theme: "Theme: {0}", key: "API key",
        auto: "system", light: "light", dark: "dark",
        newChat: "New conversation", conversation: "Conversation", untitled: "New conversation",
        remove: "Delete \"{0}\"", removeSure: "Delete \"{0}\" from this browser?",
        prompt: "Message", promptHint: "Write a message", send: "Send", stop: "Stop",
        empty: "Ask something. Conversations stay in this browser.",
        regenerate: "Regenerate", copy: "Copy", copied: "Copied", copyFailed: "Copying failed",
        you: "You", model: "Model", thoughts: "Thoughts", thinking: "Thinking …", stopped: "stopped",
        cut: "ended by the token limit", done: "Answer complete", answering: "Answering",
        usage: "{0} + {1} tokens", first: "first after {0} s", speed: "{0} tokens/s",
        cached: "{0} from the cache", context: "{0} of {1} tokens of context",
        parameters: "Parameters", close: "Close", modelName: "Model", system: "System message",
        thinkingParam: "Thinking", temperature: "Temperature", top_p: "Top-p", top_k: "Top-k", min_p: "Min-p",
        typical_p: "Typical p", top_n_sigma: "Top-n-sigma", xtc_probability: "XTC: probability",
        xtc_threshold: "XTC: threshold", dry_multiplier: "DRY: multiplier", dynatemp_range: "Dynamic temperature: range",
        mirostat: "Mirostat (0 or 2)", max_tokens: "Most tokens of an answer", repetition_penalty: "Repetition penalty",
        seed: "Seed", stopTexts: "Stop strings, one a line", byDefault: "the server's default",
        plain: "Continue the text instead of chatting", reset: "Back to defaults",
        frequency_penalty: "Frequency penalty", presence_penalty: "Presence penalty",
        on: "on", off: "off", tools: "Tools, as JSON", probabilities: "Probabilities of the tokens",
        toolsWrong: "The tools are no JSON: {0}",
        search: "Search", noMatch: "No conversation has this.", rename: "Rename \"{0}\"", newTitle: "Title",
        exports: "Export and import", exportMd: "This one, as Markdown", exportJson: "This one, as JSON",
        exportAll: "All, as JSON", import: "Import JSON", importNone: "{0} has no conversations.",
        keptPrompts: "Kept system messages", keep: "Keep", forget: "Forget",
        attach: "Attach text files", files: "Files", detach: "Take {0} away", chars: "{0} characters",
        fileLong: "{0} is larger than 1 MiB.", fileNoText: "{0} is no text in UTF-8.",
        edit: "Edit", editMessage: "Edit the message", removeMessage: "Delete",
        removeMessageSure: "Delete this message and what follows it?",
        version: "{0} of {1}", versionBefore: "Version before", versionAfter: "Next version",
        notSent: "The messages above are not sent any more.", dropOldest: "Leave out the oldest turns",
        newWithQuestion: "Ask in a new conversation", tooLong: "This message alone is longer than the context.",
        calls: "calls {0}", arguments: "Arguments of {0}", toolResult: "Result of {0}", sendResults: "Send the results",
        probs: "Probabilities", percentOf: "{0} %",
        probsHint: "Point at a token, or use the arrow keys, to see what else was likely.",
        code: "Code", formula: "Formula", table: "Table",
        keys: "Keys", keySend: "send", keyLine: "new line", keyStop: "stop, or close a panel",
        keyEdit: "in an empty field: edit the last question", keySearch: "search", keyNew: "new conversation",
        keyTitle: "This server asks for a key", ok: "Continue", cancel: "Cancel",
        keyText: "It is kept until this tab is closed and sent to this server alone.",
        keyWrong: "The server does not accept this key.", keyNone: "The server needs an API key.",
        offline: "The server cannot be reached.", broken: "The connection ended early.",
        full: "This browser has no room left; older conversations must be deleted first.",
        loading: "The server is not ready: {0}", updated: "Live, every second",
        throughput: "Throughput", generated: "generated", prompts: "prompts", tokS: "tokens/s",
        ttft: "Time to first token", itl: "Between tokens", ms: "ms", median: "median", p95: "95 %",
        queue: "Requests", running: "running", waiting: "waiting",
        kv: "KV cache", used: "in use", wasted: "of it empty", cache: "Prompt tokens from the cache", limit: "Share of the machine's limit",
        fromCache: "More than 100 %: weights came from the processor's cache, not from memory.",
        memory: "memory", arithmetic: "arithmetic", percent: "%", guesses: "Guessed tokens that were right",
        seconds: "{0} s", now: "now", noValue: "–",
    },
    ko: {
        skip: "메시지 입력란으로", chat: "대화", live: "실시간", views: "보기",
        chats: "대화 목록", language: "언어", theme: "테마: {0}", key: "API 키",
        auto: "시스템", light: "밝게", dark: "어둡게",
        newChat: "새 대화", conversation: "대화", untitled: "새 대화",
        remove: "\"{0}\" 삭제", removeSure: "이 브라우저에서 \"{0}\" 대화를 삭제할까요?",
        prompt: "메시지", promptHint: "메시지를 입력하세요", send: "보내기", stop: "중지",
        empty: "무엇이든 물어보세요. 대화는 이 브라우저에 저장됩니다.",
        regenerate: "다시 생성", copy: "복사", copied: "복사됨", copyFailed: "복사하지 못했습니다",
        you: "나", model: "모델", thoughts: "생각", thinking: "생각하는 중…", stopped: "중지됨",
        cut: "토큰 한도에서 끝남", done: "답변이 끝났습니다", answering: "답변 중",
        usage: "토큰 {0} + {1}개", first: "첫 토큰 {0}초", speed: "초당 {0}토큰",
        cached: "캐시에서 {0}개", context: "문맥 {1}토큰 중 {0} 사용",
        parameters: "매개변수", close: "닫기", modelName: "모델", system: "시스템 메시지",
        thinkingParam: "생각하기", temperature: "온도", top_p: "Top-p", top_k: "Top-k", min_p: "Min-p",
        typical_p: "Typical p", top_n_sigma: "Top-n-sigma", xtc_probability: "XTC 확률", xtc_threshold: "XTC 문턱값",
        dry_multiplier: "DRY 배수", dynatemp_range: "동적 온도 범위", mirostat: "Mirostat (0 또는 2)",
        max_tokens: "답변의 최대 토큰 수", repetition_penalty: "반복 페널티",
        seed: "시드", stopTexts: "중지 문자열 (한 줄에 하나)", byDefault: "서버 기본값",
        plain: "대화 대신 글을 이어서 쓰기", reset: "기본값으로",
        frequency_penalty: "빈도 페널티", presence_penalty: "등장 페널티",
        on: "켬", off: "끔", tools: "도구 (JSON)", probabilities: "토큰 확률",
        toolsWrong: "도구가 올바른 JSON이 아닙니다: {0}",
        search: "검색", noMatch: "일치하는 대화가 없습니다.", rename: "\"{0}\" 이름 바꾸기", newTitle: "제목",
        exports: "내보내기와 가져오기", exportMd: "이 대화를 Markdown으로", exportJson: "이 대화를 JSON으로",
        exportAll: "모든 대화를 JSON으로", import: "JSON 가져오기", importNone: "{0}에 대화가 없습니다.",
        keptPrompts: "보관한 시스템 메시지", keep: "보관", forget: "보관 해제",
        attach: "텍스트 파일 첨부", files: "파일", detach: "{0} 빼기", chars: "{0}자",
        fileLong: "{0} 파일이 1 MiB보다 큽니다.", fileNoText: "{0} 파일은 UTF-8 텍스트가 아닙니다.",
        edit: "편집", editMessage: "메시지 편집", removeMessage: "삭제",
        removeMessageSure: "이 메시지와 그 뒤의 내용을 삭제할까요?",
        version: "{1}개 중 {0}번째", versionBefore: "이전 버전", versionAfter: "다음 버전",
        notSent: "위의 메시지는 더 이상 보내지 않습니다.", dropOldest: "가장 오래된 대화 빼기",
        newWithQuestion: "새 대화에서 묻기", tooLong: "이 메시지만으로도 문맥보다 깁니다.",
        calls: "{0} 호출", arguments: "{0}의 인수", toolResult: "{0}의 결과", sendResults: "결과 보내기",
        probs: "확률", percentOf: "{0} %",
        probsHint: "토큰을 가리키거나 화살표 키를 쓰면 다른 후보가 보입니다.",
        code: "코드", formula: "수식", table: "표",
        keys: "단축키", keySend: "보내기", keyLine: "줄 바꿈", keyStop: "중지 또는 창 닫기",
        keyEdit: "빈 입력란에서 마지막 질문 편집", keySearch: "검색", keyNew: "새 대화",
        keyTitle: "이 서버에는 키가 필요합니다", ok: "계속", cancel: "취소",
        keyText: "키는 이 탭을 닫을 때까지만 보관되며 이 서버에만 전송됩니다.",
        keyWrong: "서버가 이 키를 받아들이지 않습니다.", keyNone: "서버에 API 키가 필요합니다.",
        offline: "서버에 연결할 수 없습니다.", broken: "연결이 중간에 끊어졌습니다.",
        full: "이 브라우저의 저장 공간이 가득 찼습니다. 오래된 대화를 먼저 삭제하세요.",
        loading: "서버가 준비되지 않았습니다: {0}", updated: "실시간, 1초마다 갱신",
        throughput: "처리량", generated: "생성", prompts: "프롬프트", tokS: "토큰/초",
        ttft: "첫 토큰까지의 시간", itl: "토큰 사이 시간", ms: "ms", median: "중앙값", p95: "95 %",
        queue: "요청", running: "실행 중", waiting: "대기 중",
        kv: "KV 캐시", used: "사용 중", wasted: "그중 빈 자리", cache: "캐시에서 찾은 프롬프트 토큰", limit: "기계 한계 대비",
        fromCache: "100 % 초과: 가중치를 메모리가 아니라 프로세서 캐시에서 읽었습니다.",
        memory: "메모리", arithmetic: "연산", percent: "%", guesses: "맞힌 추측 토큰",
        seconds: "{0}초", now: "지금", noValue: "–",
    },
};

let words = WORDS.en;

export function t(key, ...values)
{
    return values.reduce((text, v, i) => text.replace(`{${i}}`, () => v), words[key]);
}

export function language() { return words === WORDS.ko ? "ko" : "en"; }

export function setLanguage(name)
{
    words = WORDS[name] || WORDS.en;
    document.documentElement.lang = language();
}

// Fills what index.html marks: data-t (text), data-t-label (name), data-t-hint (placeholder).
export function translate(root)
{
    for (const e of root.querySelectorAll("[data-t]")) e.textContent = t(e.dataset.t);
    for (const e of root.querySelectorAll("[data-t-hint]")) e.placeholder = t(e.dataset.tHint);
    for (const e of root.querySelectorAll("[data-t-label]")) name(e, t(e.dataset.tLabel));
}

// What a reader of the screen says and what a pointer sees.
export function name(e, text)
{
    e.setAttribute("aria-label", text);
    if (e.matches("button, select")) e.title = text;
}

export function number(v, digits = 0)
{
    return v.toLocaleString(language(), { maximumFractionDigits: digits, minimumFractionDigits: digits });
}

// element("div", "class", "text", children...): the one way in which this page makes nodes; text is
// never markup.
export function element(tag, className, text, ...children)
{
    const e = document.createElement(tag);
    if (className) e.className = className;
    if (text) e.textContent = text;
    e.append(...children);
    return e;
}

export function button(className, text, click)
{
    const b = element("button", className, text);
    b.type = "button";
    b.addEventListener("click", click);
    return b;
}
