// Looks at a running `slipway ui` as somebody at a browser does. The story that starts it changes the world when asked: a line
// "please WHAT" on standard output waits for a line on standard input.
//
// What it needs comes in the environment, as JSON in PAGE: the addresses of the page for two users, the namespace, and where
// pictures go if they are wanted.

import assert from "node:assert/strict";
import fs from "node:fs";
import http from "node:http";
import net from "node:net";
import { createRequire } from "node:module";
import { createInterface } from "node:readline";
import { chromium } from "playwright-core";

const { all, few, many, visitor, namespace, canary, pictures } = JSON.parse(process.env.PAGE);
const AXE = fs.readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const HANG = 60_000;
const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const please = async (what) => {
  console.log(`please ${what}`);
  const { value } = await answers.next();
  assert.equal(value, "done", `${what}: ${value}`);
};
const step = (what) => console.log(`- ${what}`);

/// What stands between the browser and the page, and can be cut: the page goes by its own address all the same.
const proxy = await new Promise((resolve) => {
  const open = new Set();
  let whole = true;
  const server = net.createServer((near) => {
    if (!whole) return near.destroy();
    const far = net.connect(Number(new URL(all).port), "127.0.0.1");
    open.add(near);
    near.pipe(far).pipe(near);
    const end = () => (near.destroy(), far.destroy(), open.delete(near));
    for (const side of [near, far]) side.on("close", end).on("error", end);
    return near;
  });
  const cut = () => {
    whole = false;
    for (const near of open) near.destroy();
  };
  server.listen(0, "127.0.0.1", () => resolve({ port: server.address().port, cut, mend: () => (whole = true) }));
});

const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: [`--host-resolver-rules=MAP ${new URL(all).host} 127.0.0.1:${proxy.port}`, "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

/// A page on which nothing may go wrong unseen.
async function open(address, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 }, colorScheme: "light", permissions: ["clipboard-read", "clipboard-write"], ...options });
  context.setDefaultTimeout(HANG);
  const page = await context.newPage();
  page.wrong = [];
  page.on("pageerror", (error) => page.wrong.push(String(error)));
  page.on("dialog", (dialog) => (page.wrong.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  page.on("console", (message) => {
    // Chromium says itself that a request did not get through.
    if (message.type() === "error" && !/Failed to load resource|net::ERR_/.test(message.text())) page.wrong.push(message.text());
  });
  page.on("request", (request) => {
    if (new URL(request.url()).host !== new URL(address).host) page.wrong.push(`asks ${request.url()}`);
  });
  await page.goto(address);
  return page;
}

async function accessible(page, what) {
  await page.evaluate(AXE);
  const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  const bad = violations.filter(({ impact }) => impact === "serious" || impact === "critical");
  assert.deepEqual(bad.map(({ id, nodes }) => `${id}: ${nodes.map((node) => `${node.target} ${node.failureSummary}`).join(" | ")}`), [], `${what} in axe`);
}

async function picture(page, name) {
  if (pictures) await page.screenshot({ path: `${pictures}/${name}.png`, animations: "disabled" });
}

const whole = (page) => page.evaluate(() => document.body.textContent);
const go = (page, hash) => page.evaluate((to) => (location.hash = to), hash);

step("the fleet is there, and the token is in no address");
const page = await open(all);
await page.getByRole("link", { name: "shop", exact: true }).waitFor();
assert.equal(new URL(page.url()).hash, "#/");
assert.ok(!(await whole(page)).includes(new URL(all).hash.slice(7)), "the token is on the page");
await page.getByText("live", { exact: true }).waitFor();
await accessible(page, "the fleet");
await picture(page, "page-fleet");

step("filters narrow it, by hand and by keyboard");
assert.equal(await page.getByRole("row").count(), 4);
await page.keyboard.press("/");
await page.keyboard.type("calm");
await page.getByRole("link", { name: "shop", exact: true }).waitFor({ state: "detached" });
await page.getByRole("link", { name: "calm", exact: true }).waitFor();
assert.ok(page.url().includes("q=calm"), page.url());
await page.keyboard.press("Escape");
await page.getByRole("button", { name: /stuck/ }).click();
await page.getByRole("link", { name: "calm", exact: true }).waitFor({ state: "detached" });
await page.getByRole("button", { name: "Clear" }).click();

step("what objects say is text");
await go(page, `#/cluster/${namespace}/hostile`);
await page.getByText("<img src=x onerror=", { exact: false }).first().waitFor();
await page.getByRole("button", { name: "Everything" }).click();
await page.getByRole("treeitem").nth(1).waitFor();
assert.equal(await page.evaluate(() => window.ran), undefined, "a message ran as a script");
assert.equal(await page.locator("main img, main script, main iframe").count(), 0);

step("a tree by keyboard alone");
await go(page, `#/cluster/${namespace}/shop`);
const tree = page.getByRole("tree");
await tree.waitFor();
await page.getByRole("treeitem", { name: /^Cluster shop/ }).waitFor();
await accessible(page, "a cluster");
await page.getByRole("button", { name: "Noteworthy" }).focus();
await page.keyboard.press("Tab");
await page.keyboard.press("Tab");
const focused = () => page.evaluate(() => document.activeElement.querySelector(".unseen")?.textContent);
assert.match(await focused(), /^Cluster shop/);
const count = () => page.getByRole("treeitem").count();
const before = await count();
await page.keyboard.press("ArrowLeft");
assert.equal(await count(), 1);
await page.keyboard.press("ArrowRight");
assert.equal(await count(), before);
await page.keyboard.press("ArrowRight");
await page.keyboard.press("End");
await page.keyboard.press("Home");
await page.keyboard.press("m");
assert.match(await focused(), /^Machine/);
await page.keyboard.press("Enter");
await page.getByRole("complementary", { name: "What is selected" }).getByRole("heading", { level: 2 }).filter({ hasText: "work" }).waitFor();
assert.match(page.url(), /o=cluster/);

step("why, down to the first cause, and the command to run next");
const why = page.getByRole("region", { name: "Why it is not ready" }).first();
await why.getByText("first cause").waitFor();
assert.match(await why.textContent(), /EdgeMachine\s*shop-b/);
assert.match(await why.textContent(), /no host is free that has what it asks for/);
const command = await why.locator(".command code").textContent();
assert.match(command, /^kubectl .*get edgehosts$/);
await why.getByRole("button", { name: /Copy/ }).click();
await why.getByText("Copied").waitFor();
assert.equal(await page.evaluate(() => navigator.clipboard.readText()), command);
await page.getByRole("heading", { name: "Timeline" }).waitFor();
await page.getByText("NoRoom").first().waitFor();
await picture(page, "page-cluster");

step("what the manager would do, asked when somebody wants to know; and why not, where nobody answers");
await go(page, `#/cluster/${namespace}/shop?o=${encodeURIComponent(`controlplane.cluster.x-k8s.io~KThreesControlPlane~${namespace}~shop`)}`);
const plan = page.getByRole("region", { name: "Plan" });
await plan.getByRole("button", { name: "What would the manager do now?" }).click();
await plan.getByRole("status").waitFor();
assert.match(await plan.getByRole("status").textContent(), /slipway-asker|manager|forbidden|not found/i);
await accessible(page, "a plan");

step("a change is followed to its end, and said");
await please("begin the rollout");
const row = page.getByRole("treeitem", { name: /^MachineDeployment work/ });
await page.getByRole("treeitem", { name: /^MachineDeployment work, progressing.* 1 of 3 machines/ }).waitFor();
assert.equal(await row.locator(".progress").getAttribute("aria-valuenow"), "1");
await please("go on with it");
await page.getByRole("treeitem", { name: /^MachineDeployment work, progressing.* 2 of 3 machines/ }).waitFor();
await please("end the rollout");
await page.getByRole("treeitem", { name: /^MachineDeployment work, ready/ }).waitFor();
await page.getByRole("heading", { level: 1, name: "shop" }).waitFor();
await page.waitForFunction(() => /is ready/.test(document.getElementById("said").textContent));
await why.waitFor({ state: "detached" });

step("a connection is lost, said to be, and found again by itself");
proxy.cut();
await page.getByRole("alert").filter({ hasText: "Connection lost" }).waitFor();
assert.ok(await tree.isVisible(), "what was known stays");
await please("change something meanwhile");
proxy.mend();
await page.getByRole("alert").waitFor({ state: "detached" });
await page.getByRole("treeitem", { name: /^MachineDeployment work, stuck/ }).waitFor();
await page.getByText("live", { exact: true }).waitFor();

step("the other views");
for (const [hash, heading] of [["#/upgrades", "Upgrades"], ["#/autoscaling", "Autoscaling"], ["#/hosts", "Hosts"], ["#/events", "Events"]]) {
  await go(page, hash);
  await page.getByRole("heading", { level: 1, name: heading }).waitFor();
  await page.locator(".loading").waitFor({ state: "detached" });
  await accessible(page, heading);
}
await page.getByText("NoRoom").first().waitFor();

step("an upgrade by its stage, its nodes by their step, those whose wave has not come first");
await go(page, "#/upgrades");
const stage = page.getByRole("region", { name: "Upgrades of clusters" }).locator("[aria-current=step]");
assert.equal(await stage.textContent(), "workers");
const lanes = page.getByRole("region", { name: "Upgrades of nodes by step" });
assert.match(await lanes.getByRole("listitem").filter({ hasText: "Waiting" }).first().textContent(), /^Waiting2calm-5.*wave rest comes after wave first/);
assert.match(await lanes.textContent(), /Draining1calm-41 pod stays: shop\/cart, by its budget/);
await picture(page, "page-upgrades");

step("what nodes cost, asked when somebody wants to know; and why not, where nobody answers");
await go(page, "#/autoscaling");
const cost = page.getByRole("region", { name: "Cost" });
await cost.getByRole("button", { name: "Ask the autoscaler" }).click();
await cost.getByRole("status").waitFor();
assert.match(await cost.getByRole("status").textContent(), /slipway-asker|manager|forbidden|not found/i);
await accessible(page, "what nodes cost");
await go(page, `#/cluster/${namespace}/nobody`);
await page.getByText("It is not there").waitFor();
await go(page, "#/nowhere");
await page.getByText("There is no such page").waitFor();

step("dark, small, and still");
await page.emulateMedia({ colorScheme: "dark", reducedMotion: "reduce" });
await page.setViewportSize({ width: 390, height: 844 });
for (const hash of ["#/", `#/cluster/${namespace}/shop`, `#/cluster/${namespace}/hostile`, "#/events"]) {
  await go(page, hash);
  await page.getByRole("heading", { level: 1 }).waitFor();
  await page.locator(".loading").waitFor({ state: "detached" });
  await accessible(page, `${hash}, dark`);
  const [has, room] = await page.evaluate(() => [document.documentElement.scrollWidth, window.innerWidth]);
  assert.ok(has <= room, `${hash} is ${has} wide of ${room}`);
  assert.equal(await page.evaluate(() => document.getAnimations().length), 0, "something moves");
}
await go(page, `#/cluster/${namespace}/shop`);
await page.getByRole("tree").waitFor();
await page.setViewportSize({ width: 1360, height: 900 });
await picture(page, "page-dark");
await page.getByRole("button", { name: /Colours: system/ }).click();
assert.equal(await page.evaluate(() => document.documentElement.dataset.theme), "light");
assert.deepEqual(page.wrong, []);

step("somebody who may see little sees that, and what is missing");
const other = await open(few);
await other.getByRole("link", { name: "shop", exact: true }).waitFor();
await other.getByText(/Not shown: you are not permitted to list/).click();
await other.getByText(/cannot list resource "machines"/).waitFor();
await go(other, `#/cluster/${namespace}/shop`);
await other.getByRole("treeitem", { name: /^Cluster shop/ }).waitFor();
await accessible(other, "few rights");
assert.deepEqual(other.wrong, []);

step("in a cluster everybody signs in with a token of their own");
const inside = await open(many, { ignoreHTTPSErrors: true });
await inside.getByRole("heading", { level: 1, name: "Sign in" }).waitFor();
await accessible(inside, "signing in");
await picture(inside, "page-sign-in");
await inside.getByLabel("Token").fill("nonsense");
await inside.keyboard.press("Enter");
await inside.getByRole("alert").filter({ hasText: "does not know the token" }).waitFor();
await inside.getByLabel("Token").fill(visitor);
await inside.getByRole("button", { name: "Sign in" }).click();
await inside.getByRole("link", { name: "shop", exact: true }).waitFor();
await inside.getByText("live", { exact: true }).waitFor();
assert.ok(!(await inside.content()).includes(visitor), "the token is on the page");
await inside.reload();
await inside.getByRole("link", { name: "shop", exact: true }).waitFor();
assert.deepEqual(inside.wrong, []);

step("no token, no answer; another name, no page");
const stranger = await open(all.replace(/#.*/, ""));
await stranger.getByText("This page needs the address that slipway ui printed").waitFor();
assert.equal(await stranger.evaluate(() => { try { document.body.innerHTML = "<b>"; return "set"; } catch { return "refused"; } }), "refused", "trusted types");
const asked = (path, headers) =>
  new Promise((resolve, reject) => {
    const { hostname, port } = new URL(all);
    http.get({ hostname, port, path, headers }, (answer) => (answer.resume(), resolve(answer))).on("error", reject);
  });
const token = `Bearer ${new URL(all).hash.slice(7)}`;
const { host } = new URL(all);
for (const [headers, code] of [
  [{ Host: host, Authorization: token }, 200],
  [{ Host: host }, 401],
  [{ Host: host, Authorization: `${token.slice(0, -1)}-` }, 401],
  [{ Host: "evil.example", Authorization: token }, 421],
]) {
  assert.equal((await asked("/api/fleet", headers)).statusCode, code, JSON.stringify(headers.Host));
}
for (const path of ["fleet", `cluster?namespace=${namespace}&name=hostile&all=true`, "events", "kinds?part=host"]) {
  const answer = await (await stranger.request.get(`${new URL(all).origin}/api/${path}`, { headers: { Authorization: token } })).text();
  assert.ok(answer.startsWith("{\"at\"") && !answer.includes(canary), `${path}: ${answer.slice(0, 80)}`);
}
const policy = (await asked("/", { Host: host })).headers["content-security-policy"];
assert.match(policy, /^default-src 'none'; script-src 'self';/);
assert.ok(!policy.includes("unsafe"), policy);

await browser.close();
console.log("seen");
process.exit(0);
