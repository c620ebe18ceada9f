// Opens the page as often as it is told, and then says of every change when it was on the screen. Lines of JSON on standard output.

import { chromium } from "playwright-core";

const { address, paints } = JSON.parse(process.env.BENCH);
const say = (line) => console.log(JSON.stringify(line));
const browser = await chromium.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"],
});

async function open() {
  const context = await browser.newContext({ viewport: { width: 1360, height: 900 } });
  const page = await context.newPage();
  await page.addInitScript(() => {
    window.rowsAt = null;
    const seen = new Set();
    new MutationObserver(() => {
      const rows = document.querySelectorAll("tbody tr");
      if (rows.length && window.rowsAt === null) window.rowsAt = performance.now();
      for (const [, number] of document.querySelector("tbody")?.textContent.matchAll(/tick-(\d+)\./g) ?? []) {
        if (!seen.has(number)) {
          seen.add(number);
          // When the browser has drawn what was changed.
          requestAnimationFrame(() => setTimeout(() => window.report?.(Number(number), Date.now())));
        }
      }
    }).observe(document, { subtree: true, childList: true, characterData: true });
  });
  await page.exposeFunction("report", (number, at) => say({ tick: number, at }));
  await page.goto(address);
  await page.waitForFunction(() => window.rowsAt !== null, null, { timeout: 120_000 });
  return page;
}

for (let number = 0; number < paints; number += 1) {
  const page = await open();
  const [first, rows] = await page.evaluate(() => [performance.getEntriesByName("first-contentful-paint")[0]?.startTime ?? null, window.rowsAt]);
  say({ firstPaint: first, rows });
  await page.context().close();
}
await open();
say({ watching: true });
process.stdin.resume();
process.stdin.on("end", async () => {
  await browser.close();
  process.exit(0);
});
