-- Argo CD health of an RLJob (resource.customizations.health.rljob.dev_RLJob). Argo CD runs it with the live object in `obj`.
--
-- The rules, first match wins:
--   being deleted, no status yet, or a status of an older generation   Progressing
--   Failed or Stalled                                                  Degraded
--   Complete                                                           Healthy
--   Suspended                                                          Suspended
--   Ready (all members up, rounds progressing)                         Healthy
--   anything else                                                      Progressing
-- A job that is both suspended and stalled (its spec was edited into an invalid one) is shown as Degraded: it needs a human.

local function condition(kind)
  for _, c in ipairs(obj.status.conditions or {}) do
    if c.type == kind then return c end
  end
  return nil
end

local function is_true(kind)
  local c = condition(kind)
  return c ~= nil and c.status == "True"
end

local function text(kind)
  local c = condition(kind)
  if c == nil then return "" end
  local reason, message = c.reason or "", c.message or ""
  if reason ~= "" and message ~= "" then return reason .. ": " .. message end
  return reason .. message
end

-- "round 7 of 24", when the coordinator has reported one.
local function progress()
  local runtime = obj.status.runtime
  if runtime == nil or runtime.round == nil then return "" end
  if runtime.rounds == nil then return "round " .. string.format("%d", runtime.round) end
  return "round " .. string.format("%d of %d", runtime.round, runtime.rounds)
end

local function health(status, message)
  return { status = status, message = message }
end

if obj.metadata.deletionTimestamp ~= nil then
  return health("Progressing", "being deleted")
end
if obj.status == nil or obj.status.observedGeneration == nil then
  return health("Progressing", "waiting for the operator")
end
if obj.metadata.generation ~= nil and obj.status.observedGeneration < obj.metadata.generation then
  return health("Progressing", "waiting for the operator to see the newest spec")
end
for _, kind in ipairs({ "Failed", "Stalled" }) do
  if is_true(kind) then return health("Degraded", text(kind)) end
end
if is_true("Complete") then return health("Healthy", text("Complete")) end
if is_true("Suspended") then return health("Suspended", text("Suspended")) end
if is_true("Ready") then
  local where = progress()
  return health("Healthy", where ~= "" and where or text("Ready"))
end
return health("Progressing", text(is_true("Reconciling") and "Reconciling" or "Ready"))
