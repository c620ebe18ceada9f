// What the server says: answers to questions, and the word that something has changed. The token comes in the address once and
// is sent in a header from then on, so that no other page and no other user of this machine can ask.

const STORE = "slipway-token";
/// The server says something every five seconds.
const SILENCE = 15_000;
const LONGEST_PAUSE = 10_000;
let token = null;

export class Refused extends Error {
  constructor(status, message, signIn = false) {
    super(message);
    this.status = status;
    /// Whether a token of one's own would help.
    this.signIn = signIn;
  }
}

/// Goes on with a token that somebody typed. It is kept for this tab alone.
export function signIn(typed) {
  token = typed.trim();
  try {
    sessionStorage.setItem(STORE, token);
  } catch {
    // It holds until the page is loaded again.
  }
}

/// Takes the token out of the address, so that it stays in no history and no screenshot.
export function takeToken() {
  const given = /^#token=([A-Za-z0-9_-]+)$/.exec(location.hash);
  if (given) {
    token = given[1];
    try {
      localStorage.setItem(STORE, token);
    } catch {
      // Without a store it holds until the page is loaded again.
    }
    history.replaceState(null, "", "#/");
    return;
  }
  try {
    token ??= sessionStorage.getItem(STORE) ?? localStorage.getItem(STORE);
  } catch {
    token ??= null;
  }
}

const headers = () => (token ? { Authorization: `Bearer ${token}` } : {});

export async function ask(path, parameters = {}, signal = undefined) {
  const query = new URLSearchParams(parameters).toString();
  const answer = await fetch(`/api/${path}${query ? `?${query}` : ""}`, { headers: headers(), cache: "no-store", signal });
  const body = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Refused(answer.status, body.message ?? `the server answered ${answer.status}`, body.signIn);
  return body;
}

/// Calls `changed` with what the server says of itself whenever something changed, and `connection` with
/// "connecting", "live", "lost" (and when it is tried again) or "refused".
export function follow({ changed, connection }) {
  let pause = 500;
  let wake = null;
  const sleep = (time) =>
    new Promise((resolve) => {
      const timer = setTimeout(resolve, time);
      wake = () => {
        clearTimeout(timer);
        resolve();
      };
    });
  const again = () => {
    pause = 500;
    wake?.();
  };
  window.addEventListener("online", again);
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) again();
  });
  const run = async () => {
    let was = false;
    for (;;) {
      connection(was ? "lost" : "connecting", null);
      try {
        await stream((word) => {
          pause = 500;
          was = true;
          connection("live", null);
          changed(word);
        });
      } catch (error) {
        if (error instanceof Refused && (error.status === 401 || error.status === 403)) {
          connection("refused", null, error);
          // Nothing is asked before somebody has signed in, or has come by another address.
          await sleep(LONGEST_PAUSE);
          continue;
        }
      }
      connection("lost", Date.now() + pause);
      await sleep(pause);
      pause = Math.min(pause * 2, LONGEST_PAUSE);
    }
  };
  run();
  return again;
}

/// Reads server-sent events until they end.
async function stream(said) {
  const stop = new AbortController();
  let silent = null;
  const heard = () => {
    clearTimeout(silent);
    silent = setTimeout(() => stop.abort(), SILENCE);
  };
  heard();
  try {
    const answer = await fetch("/api/watch", { headers: headers(), cache: "no-store", signal: stop.signal });
    if (!answer.ok) {
      const body = await answer.json().catch(() => ({}));
      throw new Refused(answer.status, body.message ?? `the server answered ${answer.status}`, body.signIn);
    }
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let text = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      heard();
      text += value;
      const parts = text.split("\n\n");
      text = parts.pop();
      const data = parts.flatMap((part) => part.split("\n").filter((line) => line.startsWith("data: ")));
      // Only what was said last counts.
      if (data.length) said(JSON.parse(data.at(-1).slice(6)));
    }
  } finally {
    clearTimeout(silent);
  }
}
