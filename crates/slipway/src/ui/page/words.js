// Times, counts and names as people read them.

export const STATES = ["stuck", "waiting", "progressing", "ready"];

/// What each state means, for titles.
export const MEANINGS = {
  stuck: "Nothing goes on before somebody acts",
  waiting: "Waits for something that comes by itself",
  progressing: "Under way",
  ready: "As it should be",
};

export function span(seconds) {
  const whole = Math.max(0, Math.round(seconds));
  if (whole < 90) return `${whole} s`;
  const minutes = Math.round(whole / 60);
  if (minutes < 90) return `${minutes} min`;
  const hours = Math.round(minutes / 60);
  if (hours < 36) return `${hours} h`;
  return `${Math.round(hours / 24)} d`;
}

export const since = (at, now) => span((now - Date.parse(at)) / 1000);

const CLOCK = new Intl.DateTimeFormat("en-GB", { hour: "2-digit", minute: "2-digit", second: "2-digit" });
const DAY = new Intl.DateTimeFormat("en-GB", { weekday: "short", day: "numeric", month: "short" });
const WHOLE = new Intl.DateTimeFormat("en-GB", { dateStyle: "medium", timeStyle: "long" });

export const clock = (at) => CLOCK.format(new Date(at));
export const day = (at) => DAY.format(new Date(at));
export const whole = (at) => WHOLE.format(new Date(at));

/// What is left of something, in words.
export function left(eta, now) {
  if (!eta) return null;
  if (eta.at) {
    const seconds = (Date.parse(eta.at) - now) / 1000;
    const rest = eta.basis === "usual" ? "at most, as a rule" : "at the pace so far";
    return seconds > 0 ? { short: `${span(seconds)} left`, long: `about ${span(seconds)} left, ${rest}` } : { short: "due now", long: "due now" };
  }
  return { short: "", long: eta.why ? `no estimate: ${eta.why}` : "" };
}

export function versions(one) {
  if (!one.version) return null;
  return one.desiredVersion ? [one.version, one.desiredVersion] : [one.version];
}

export const name = (id) => `${id.kind}/${id.name}`;

/// One text for an object, to compare and to put into addresses.
export const keyOf = (id) => [id.group ?? "", id.kind, id.namespace ?? "", id.name].join("~");

export function ofKey(key) {
  const parts = (key ?? "").split("~");
  if (parts.length !== 4) return null;
  const [group, kind, namespace, called] = parts;
  return { group, kind, namespace, name: called };
}

export const plural = (count, one, many = `${one}s`) => `${count.toLocaleString("en")} ${count === 1 ? one : many}`;
