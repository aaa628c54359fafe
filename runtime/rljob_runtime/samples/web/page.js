"use strict";
// Texts of models come in as text nodes and attributes of SVG only; nothing here parses markup.
const data = JSON.parse(document.getElementById("data").textContent);
const byId = (name) => document.getElementById(name);
const CARDS = 40;

function make(name, attributes, ...children) {
  const node = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) node.setAttribute(key, value);
  node.append(...children);
  return node;
}

function draw(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

function short(value) {
  if (Number.isInteger(value) && Math.abs(value) < 1e6) return String(value);
  return Math.abs(value) < 1e-3 || Math.abs(value) >= 1e6 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

// --- curves ---

for (const report of data.reports) {
  report.rules = Object.fromEntries((report.rewardRules || []).map((rule) => [rule.name, rule]));
}
const at = (report, path) => path.split(".").reduce((value, name) => (value === undefined || value === null ? undefined : value[name]), report);
const rules = [...new Set(data.reports.flatMap((report) => Object.keys(report.rules)))];
const CLIPS = ["clip_fraction_low", "clip_fraction_high"];
const losses = [...new Set(data.reports.flatMap((report) => Object.keys(at(report, "training.metrics") || {})))].filter((name) => !CLIPS.includes(name));
const CHARTS = [
  ["Reward", { trained: "reward", scored: "scoredReward" }],
  ["Reward by rule (mean)", Object.fromEntries(rules.map((rule) => [rule, `rules.${rule}.mean`]))],
  ["Deviation of rewards inside groups", { deviation: "groupRewardDeviation" }],
  ["Shares", { "groups of equal rewards": "equalRewardGroups", "cut at the limit": "truncatedResponses" }],
  ["Length in tokens", { p50: "responseTokensP50", p90: "responseTokensP90", p99: "responseTokensP99", mean: "meanResponseTokens", max: "maxResponseTokens" }],
  ["Turns of an episode", { p50: "episodes.turnsP50", p90: "episodes.turnsP90", p99: "episodes.turnsP99", mean: "episodes.turnsMean" }],
  ["Seconds of an episode (mean)", { "in the model": "episodes.modelSeconds", outside: "episodes.outsideSeconds" }],
  ["Share of episodes cut at a limit", { turns: "episodes.truncatedByTurns", tokens: "episodes.truncatedByTokens", seconds: "episodes.truncatedBySeconds", forks: "episodes.truncatedByForks" }],
  ["KL", { "sampler to trainer": "training.mismatch_kl", reference: "training.reference_kl" }],
  ["Entropy", { entropy: "training.entropy" }],
  ["Clipped tokens", { all: "training.clip_fraction", low: "training.metrics.clip_fraction_low", high: "training.metrics.clip_fraction_high", "importance cap": "training.capped_fraction" }],
  ...losses.map((name) => [`Loss metric ${name}`, { [name]: `training.metrics.${name}` }]),
  ["Gradient norm", { norm: "training.grad_norm" }],
  ["Loss", { loss: "training.loss" }],
  ["Learning rate", { rate: "training.learning_rate" }],
  ["Seconds", { round: "seconds", generation: "generationSeconds", training: "trainingSeconds" }],
  ["Idle share of the replicas' time", { tail: "idleTail", environments: "idleEnvironments", rewards: "idleRewards", training: "idleTraining", weights: "idleWeights" }],
  ["Staleness in updates", { mean: "staleness", max: "maxStaleness" }],
];

function frame(svg, least, most, left, right) {
  const [x0, x1, y0, y1] = [38, 312, 8, 116];
  svg.append(draw("line", { class: "axis", x1: x0, x2: x1, y1: y1, y2: y1 }), draw("line", { class: "axis", x1: x0, x2: x0, y1: y0, y2: y1 }));
  for (const [value, y] of [[most, y0 + 4], [least, y1]]) svg.append(draw("text", { x: x0 - 3, y: y, "text-anchor": "end" }, short(value)));
  svg.append(draw("text", { x: x0, y: y1 + 11 }, short(left)), draw("text", { x: x1, y: y1 + 11, "text-anchor": "end" }, short(right)));
  return [x0, x1, y0, y1];
}

function figure(title, svg, legend) {
  return make("figure", {}, make("figcaption", {}, title), svg, legend || make("div", { class: "legend" }));
}

// `errors` has the paths of standard errors, by the name of their series.
function chart(title, series, rows = data.reports, errors = {}) {
  const lines = Object.entries(series)
    .map(([name, path]) => [name, rows.map((row) => [row.round, at(row, path), at(row, errors[name] || "") || 0]).filter(([, value]) => Number.isFinite(value))])
    .filter(([, points]) => points.length > 0);
  if (lines.length === 0) return null;
  const values = lines.flatMap(([, points]) => points.flatMap(([, value, error]) => [value - error, value + error]));
  let [least, most] = [Math.min(...values), Math.max(...values)];
  const space = Math.abs(most) / 2 || 1;
  if (least === most) [least, most] = [least - space, most + space];
  const rounds = rows.map((row) => row.round);
  const [first, last] = [Math.min(...rounds), Math.max(...rounds)];
  const svg = draw("svg", { viewBox: "0 0 320 132", role: "img", "aria-label": title });
  const [x0, x1, y0, y1] = frame(svg, least, most, first, last);
  const x = (round) => (last === first ? (x0 + x1) / 2 : x0 + ((x1 - x0) * (round - first)) / (last - first));
  const y = (value) => y1 - ((y1 - y0) * (value - least)) / (most - least);
  const legend = make("div", { class: "legend" });
  lines.forEach(([name, points], place) => {
    const colour = `c${place % 6}`;
    if (points.length === 1) svg.append(draw("circle", { class: colour, cx: x(points[0][0]), cy: y(points[0][1]), r: 2 }));
    else svg.append(draw("polyline", { class: `series ${colour}`, points: points.map(([round, value]) => `${x(round)},${y(value)}`).join(" ") }));
    for (const [round, value, error] of points) {
      if (error > 0) svg.append(draw("line", { class: `error ${colour}`, x1: x(round), x2: x(round), y1: y(value - error), y2: y(value + error) }));
    }
    legend.append(make("span", { class: colour }, name));
  });
  const cursor = draw("line", { class: "cursor", y1: y0, y2: y1, visibility: "hidden" });
  svg.append(cursor);
  const tell = (round) => {
    [...legend.children].forEach((child, place) => {
      const [name, points] = lines[place];
      const found = points.find(([number]) => number === round);
      child.textContent = round === null || found === undefined ? name : `${name} ${short(found[1])}${found[2] > 0 ? ` \u00b1 ${short(found[2])}` : ""}`;
    });
    cursor.setAttribute("visibility", round === null ? "hidden" : "visible");
    if (round !== null) { cursor.setAttribute("x1", x(round)); cursor.setAttribute("x2", x(round)); }
    caption.textContent = round === null ? title : `${title}: round ${round}`;
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const place = ((event.clientX - box.left) / box.width) * 320;
    tell(rounds.reduce((best, round) => (Math.abs(x(round) - place) < Math.abs(x(best) - place) ? round : best), rounds[0]));
  });
  svg.addEventListener("pointerleave", () => tell(null));
  const made = figure(title, svg, legend);
  const caption = made.firstChild;
  return made;
}

// The largest k is that of the spec.
function evaluationChart(name) {
  const results = data.evaluations.filter((result) => result.name === name).sort((one, other) => one.round - other.round);
  const k = results[results.length - 1].responsesPerPrompt;
  const [average, passed] = [`avg@${k}`, `pass@${k}`];
  return chart(`Evaluation ${name}`, { [average]: "average", [passed]: `passAt.${k}.value` }, results, { [average]: "averageError", [passed]: `passAt.${k}.error` });
}

// --- histograms ---

function histogram(title, values, colour) {
  const svg = draw("svg", { viewBox: "0 0 320 132", role: "img", "aria-label": title });
  if (values.length === 0) return figure(`${title}: none`, svg);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const bins = least === most ? 1 : Math.min(24, Math.max(6, Math.ceil(Math.sqrt(values.length))));
  const counts = new Array(bins).fill(0);
  for (const value of values) counts[least === most ? 0 : Math.min(bins - 1, Math.floor((bins * (value - least)) / (most - least)))] += 1;
  const highest = Math.max(...counts);
  const [x0, x1, y0, y1] = frame(svg, 0, highest, least, most);
  const width = (x1 - x0) / bins;
  counts.forEach((count, place) => {
    const height = ((y1 - y0) * count) / highest;
    const bar = draw("rect", { class: `bar ${colour}`, x: x0 + place * width + 0.5, y: y1 - height, width: Math.max(1, width - 1), height: height });
    const step = (most - least) / bins;
    bar.append(draw("title", {}, `${short(least + place * step)} to ${short(least + (place + 1) * step)}: ${count}`));
    svg.append(bar);
  });
  return figure(`${title} (${values.length})`, svg);
}

// --- samples ---

// The last message of the prompt: the first ones are often alike.
function asked(sample) {
  const last = sample.prompt[sample.prompt.length - 1];
  return ((last && last.content) || "").slice(-160);
}

function card(sample) {
  const outcome = [sample.outcome, sample.reason, sample.cause].filter(Boolean).join(": ");
  const terms = Object.entries(sample.rewards || {}).map(([name, value]) => `${name} ${short(value)}`).join(", ");
  const reward = sample.reward === undefined ? "no reward" : `reward ${short(sample.reward)}`;
  const head = make("summary", {},
    make("span", {}, `round ${sample.round}`),
    make("span", {}, `${sample.promptId}.${sample.sample}`),
    make("span", { class: "outcome" }, outcome),
    make("span", {}, terms ? `${reward} (${terms})` : reward),
    make("span", {}, `${sample.tokens} tokens`),
    ...(sample.episode ? [make("span", {}, `${sample.episode.environment}: ${turnsOf(sample).length} turns`)] : []),
    make("span", { class: "asked" }, asked(sample)),
    make("span", { class: "start" }, sample.response.slice(0, 160)));
  const node = make("details", { class: sample.outcome }, head);
  node.addEventListener("toggle", () => { if (node.open && node.childElementCount === 1) node.append(body(sample)); });
  return node;
}

// --- turns of an episode ---

const turnsOf = (sample) => (sample.episode && sample.episode.turns) || [];

function spoken(kind, head, text, calls) {
  const lines = (calls || []).map((call) => {
    const took = call.seconds === undefined ? "" : `, ${short(call.seconds)} s`;
    return make("p", { class: "call", dir: "auto" }, `${call.name}(${call.arguments || ""})${took}`);
  });
  return make("div", { class: `turn ${kind}` }, make("p", { class: "role" }, head), ...(text ? [make("pre", { dir: "auto" }, text)] : []), ...lines);
}

function conversation(sample) {
  const turns = turnsOf(sample);
  const places = new Map(turns.map((turn, place) => [turn.node, place + 1]));
  const names = new Map(turns.flatMap((turn) => (turn.calls || []).map((call) => [call.id, call.name])));
  const speaker = (message) => (message.role === "assistant" ? "assistant, not sampled" : message.role === "tool" && names.has(message.callId) ? `tool ${names.get(message.callId)}` : message.role);
  let before = 0;
  return turns.flatMap((turn, place) => {
    const parts = [];
    if (turn.after !== before) parts.push(make("p", { class: "branch" }, places.has(turn.after) ? `branch: goes on from turn ${places.get(turn.after)}` : "branch: from the beginning"));
    before = turn.node;
    for (const message of turn.messages || []) parts.push(spoken(`given ${["system", "user", "tool"].includes(message.role) ? message.role : "other"}`, speaker(message), message.content, message.calls));
    if (turn.given) parts.push(spoken("given other", "given as tokens", turn.given));
    const seconds = turn.modelSeconds === undefined ? [] : [`${short(turn.outsideSeconds || 0)} s outside, ${short(turn.modelSeconds)} s in the model`];
    const head = [`assistant, turn ${place + 1}`, `${turn.sampledTokens} tokens sampled after ${turn.givenTokens} given`, `end ${turn.finish}`, `weights ${turn.weightVersion}`, ...seconds];
    parts.push(spoken("sampled", head.join(" · "), turn.sampled, turn.calls));
    return parts;
  });
}

function episodeFacts(episode) {
  const metrics = Object.entries(episode.metrics || {}).map(([name, value]) => `${name} ${short(value)}`).join(", ");
  return [["environment", episode.environment], ["episode", [episode.state || "not ended", episode.end].filter(Boolean).join(": ")],
    ["forks", episode.forks], ["tools", (episode.tools || []).join(", ")], ["metrics", metrics]];
}

const words = (sample) => [sample.response, ...sample.prompt.map((message) => message.content || ""),
  ...turnsOf(sample).flatMap((turn) => [turn.given || "", ...(turn.messages || []).map((message) => message.content || "")])];

function body(sample) {
  const parts = turnsOf(sample).length > 0 ? conversation(sample) : [
    ...sample.prompt.flatMap((message) => [make("p", { class: "role" }, message.role || ""), make("pre", { dir: "auto" }, message.content || "")]),
    make("p", { class: "role" }, "response"), make("pre", { dir: "auto" }, sample.response)];
  const facts = [
    ...(sample.episode ? episodeFacts(sample.episode) : []),
    ["end", sample.finish || "stopped before its end"], ["advantage", sample.advantage], ["weights", (sample.weightVersions || []).join(", ")],
    ["staleness", sample.staleness], ["replica", sample.replica], ["attempt", sample.attempt],
  ].filter(([, value]) => value !== undefined && value !== "");
  parts.push(make("p", { class: "facts" }, facts.map(([name, value]) => `${name} ${typeof value === "number" ? short(value) : value}`).join(" · ")));
  return make("div", { class: "body" }, ...parts);
}

// A sample of an evaluation is known by its prompt: evaluation:NAME/ROUND.RECORD.
const TRAINING = "training";
function setOf(sample) {
  const found = /^evaluation:([^/]+)\//.exec(sample.promptId);
  return found === null ? TRAINING : `evaluation ${found[1]}`;
}

const USED = ["trained", "evaluated"];
const ORDERS = {
  newest: (one, other) => other.round - one.round,
  best: (one, other) => (other.reward ?? -Infinity) - (one.reward ?? -Infinity),
  worst: (one, other) => (one.reward ?? Infinity) - (other.reward ?? Infinity),
  longest: (one, other) => other.tokens - one.tokens,
};

function chosen() {
  const wanted = byId("search").value.toLowerCase();
  const [set, round, outcome] = ["set", "round", "outcome"].map((name) => byId(name).value);
  const [least, most] = ["least", "most"].map((name) => (byId(name).value === "" ? null : Number(byId(name).value)));
  const holds = (sample) =>
    (set === "" || setOf(sample) === set) &&
    (round === "" || sample.round === Number(round)) &&
    (outcome === "" || (outcome === "lost" ? !USED.includes(sample.outcome) : sample.outcome === outcome)) &&
    (least === null || (sample.reward !== undefined && sample.reward >= least)) &&
    (most === null || (sample.reward !== undefined && sample.reward <= most)) &&
    (wanted === "" || words(sample).some((text) => text.toLowerCase().includes(wanted)));
  return data.samples.filter(holds).sort(ORDERS[byId("order").value]);
}

let shown = CARDS;
function show() {
  const found = chosen();
  byId("list").replaceChildren(...found.slice(0, shown).map(card));
  byId("more").hidden = found.length <= shown;
  byId("count").textContent = `${found.length} of ${data.samples.length} samples` + (data.leftOut ? `; ${data.leftOut} older ones are left out` : "");
  byId("histograms").replaceChildren(
    histogram("Reward", found.map((sample) => sample.reward).filter((value) => value !== undefined), "c0"),
    histogram("Tokens of responses", found.map((sample) => sample.tokens), "c2"));
}

function options(select, values) {
  byId(select).append(...values.map(([value, text]) => make("option", { value: value }, text)));
}

function start() {
  const last = data.reports.length ? data.reports[data.reports.length - 1] : null;
  byId("summary").textContent = last === null ? "no round is closed" : `round ${last.round}` + (Number.isFinite(last.reward) ? `, reward ${short(last.reward)}` : "");
  const evaluated = [...new Set(data.evaluations.map((result) => result.name))].map(evaluationChart);
  byId("curves").append(...[...evaluated, ...CHARTS.map(([title, series]) => chart(title, series))].filter((made) => made !== null));
  const sets = [...new Set(data.samples.map(setOf))].sort((one, other) => (other === TRAINING) - (one === TRAINING) || (one < other ? -1 : 1));
  options("set", [["", "all"], ...sets.map((name) => [name, name])]);
  if (sets[0] === TRAINING) byId("set").value = TRAINING;
  const rounds = [...new Set(data.samples.map((sample) => sample.round))].sort((one, other) => other - one);
  options("round", [["", "all"], ...rounds.map((round) => [round, round])]);
  options("outcome", [["", "all"], ["trained", "trained"], ["lost", "not trained"], ...["evaluated", "filtered", "requeued", "aborted", "failed"].map((name) => [name, name])]);
  byId("filters").addEventListener("input", () => { shown = CARDS; show(); });
  byId("filters").addEventListener("submit", (event) => event.preventDefault());
  byId("more").addEventListener("click", () => { shown += CARDS; show(); });
  show();
}

start();
