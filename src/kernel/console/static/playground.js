"use strict";

const $ = (id) => document.getElementById(id);
const form = $("say"), log = $("log");
const lines = [];
let quoted = null, low = true;

const make = (tag, name, text) => {
  const made = document.createElement(tag);
  if (name) made.className = name;
  if (text !== undefined) made.textContent = text;
  return made;
};

// -- who speaks, and where ----------------------------------------------------------------------------------

const speaker = () => form.querySelector("[name=user]:checked");
const inGroup = () => form.chat.value === "group";
const chat = () => (inGroup() ? "group" : `private:${speaker().value}`);
const KINDS = { friend: "好友的私聊", temp: "从群里开的临时会话，群里的身份在这里不算数", stranger: "陌生人的私聊" };

function settle() {
  for (const choice of form.querySelectorAll("[name=user]")) {
    choice.disabled = inGroup() && !choice.dataset.member;
    choice.parentElement.title = choice.disabled ? "不在群里" : "";
  }
  if (speaker().disabled) form.querySelector("[name=user][value='13']").checked = true;
  form.at.disabled = !inGroup();
  $("text").placeholder = `以 ${speaker().dataset.name} 的身份说话`;
  $("where").textContent = inGroup()
    ? "企窝体验群：不 @ 机器人，它就不回答；命令除外。"
    : `${speaker().dataset.name} 和企窝：${KINDS[speaker().dataset.private]}。`;
  quote(null);
  speaker().parentElement.scrollIntoView({ block: "nearest", inline: "nearest" });
  log.replaceChildren(...lines.filter((line) => line.chat === chat()).map(bubble));
  follow(true);
}

// -- what is said -------------------------------------------------------------------------------------------

function bubble(line) {
  const row = make("li", line.bot ? "bot" : "human");
  const head = make("p", "head", line.name);
  head.append(" ", make("b", "badge", line.badge), " ", make("time", "", clock(line.time)));
  const answer = make("button", "answer", "引用");
  answer.type = "button";
  answer.addEventListener("click", () => quote(line));
  head.append(" ", answer);
  const body = make("div", "body");
  if (line.quote) body.append(make("blockquote", "", `${line.quote.name}：${line.quote.text}`));
  for (const part of line.parts) body.append(make("span", part.kind, part.text));
  row.append(head, body);
  return row;
}

/* The newest line stays in sight unless somebody has scrolled up. */
function follow(now = low) {
  if (now) log.scrollTop = log.scrollHeight;
}

const clock = (seconds) => new Date(seconds * 1000).toLocaleTimeString("zh-CN", { hour12: false });
const text = (line) => line.parts.map((part) => part.text).join("").trim();

function quote(line) {
  quoted = line;
  $("quote").hidden = !line;
  $("quote").firstElementChild.textContent = line ? `引用 ${line.name}：${text(line)}` : "";
  if (line) $("text").focus();
}

async function say(words) {
  const said = { user: Number(speaker().value), chat: form.chat.value, text: words, at: form.at.checked };
  if (quoted) said.quote = quoted.id;
  quote(null);
  $("error").hidden = true;
  try {
    const answer = await fetch("/playground/say", { method: "POST", body: JSON.stringify(said) });
    if (answer.ok) return true;
    fail(answer.status === 422 ? (await answer.json()).error : STALE);
  } catch {
    fail("没有送到：机器人不在运行。");
  }
  return false;
}

function fail(words) {
  $("error").textContent = words;
  $("error").hidden = false;
}

// -- what comes in ------------------------------------------------------------------------------------------

const STALE = "这个页面已经失效：请打开终端里新打印的链接。";
const stream = new EventSource("/playground/events");

stream.addEventListener("line", (event) => {
  const line = JSON.parse(event.data);
  lines.push(line);
  if (line.chat !== chat()) return;
  log.append(bubble(line));
  follow(low || !line.bot);
});

stream.addEventListener("status", (event) => {
  const now = JSON.parse(event.data);
  link(now.connected ? "good" : "", now.connected ? "已接上机器人" : "正在接上机器人…");
  $("busy").hidden = now.running === 0;
  const open = now.trouble.filter((one) => one.open);
  $("alert").hidden = open.length === 0;
  replace("alert", open.map((one) => make("p", "", `熔断：${one.what}（${one.chat}），还有 ${one.seconds} 秒`)));
  const facts = { 模型: now.model === "demo" ? "演示模型" : now.model, 已运行: span(now.uptime), 正在回答: `${now.running} 轮`, 已回答: `${now.answered} 轮` };
  replace("facts", Object.entries(facts).flatMap(([name, value]) => [make("dt", "", name), make("dd", "", value)]));
  replace("trouble", now.trouble.length ? now.trouble.map(trouble) : [make("li", "fine", "没有工具出过故障。")]);
  if (now.policy_problem) $("trouble").append(make("li", "open", "策略文件有错，改好之前只有命令可用。"));
});

stream.addEventListener("error", () => {
  link("bad", stream.readyState === EventSource.CLOSED ? STALE : "连接断了，正在重连…");
});

function trouble(one) {
  const row = make("li", one.open ? "open" : "");
  row.append(make("code", "", one.what), make("b", "badge", one.state), make("span", "", one.chat));
  if (one.crashes) row.append(make("span", "count", `${one.crashes} / ${one.limit} 次`));
  if (one.open) row.append(make("span", "count", `还有 ${one.seconds} 秒`));
  return row;
}

const span = (seconds) => (seconds < 60 ? `${seconds} 秒` : `${Math.floor(seconds / 60)} 分 ${seconds % 60} 秒`);

function link(state, words) {
  $("link").className = `pill ${state}`;
  if ($("link").textContent !== words) $("link").textContent = words;
}

// Untouched when nothing has changed, so that a screen reader is not told the same again each second.
function replace(id, made) {
  const box = make("div");
  box.append(...made);
  if ($(id).innerHTML !== box.innerHTML) $(id).replaceChildren(...made);
}

// -- the hands ----------------------------------------------------------------------------------------------

form.addEventListener("change", (event) => {
  if (event.target.type === "radio") settle();
});
form.addEventListener("submit", async (event) => {
  event.preventDefault();
  const words = $("text").value.trim();
  if (words && (await say(words))) $("text").value = "";
});
for (const chip of document.querySelectorAll("[data-say]")) {
  chip.addEventListener("click", () => say(chip.dataset.say));
}
log.addEventListener("scroll", () => {
  low = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
});
new ResizeObserver(() => follow()).observe(log);
$("quote").lastElementChild.addEventListener("click", () => quote(null));
settle();
