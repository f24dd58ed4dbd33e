-- Where a queued job may stand.

local function literal(text) return (string.gsub(text, '[%*%?%[%]%^\\]', '\\%0')) end

local function score_in(key, id) return type(redis.pcall('ZSCORE', key, id)) == 'string' end

-- Names of the budgets for which jobs wait.
local budgets
local function budgets_awaited()
  if budgets then return budgets end
  budgets = {}
  for _, name in ipairs(redis.call('ZRANGE', paced_runs, 0, -1)) do
    budgets[#budgets + 1] = string.match(name, '^%$budget:(.*)$')
  end
  return budgets
end

-- The tick visits leaves that are listed: one that holds jobs is.
local listed = {}
local function list(leaf)
  if listed[leaf] then return end
  listed[leaf] = true
  local leaves = prefix .. 'sched:leaves'
  if healing('ZADD', leaves, 'NX', stamp(now), leaf) == 1 then redis.call('EXPIRE', leaves, KEPT_S) end
end

local function stands(id, leaf)
  if leaf and parts_of_leaf(leaf) and score_in(jobs_of(leaf), id) then
    list(leaf)
    return true
  end
  local run = prefix .. 'run:' .. run_of(id)
  if score_in(delayed, id) or score_in(waiting, id) or score_in(run .. ':held', id)
    or redis.pcall('SISMEMBER', run .. ':parked', id) == 1 then return true end
  for _, name in ipairs(budgets_awaited()) do
    if score_in(prefix .. 'budget-held:' .. name, id) then return true end
  end
  return false
end
