-- Budgets that jobs of several runs share: of an env, a team or a model.
--
-- `budgets` (hash) has their names, <kind>:<name>. budget:{name} (hash): limit:<amount>, spent:<amount> in the
-- current window, reserved:<amount> for running jobs, all:<amount> and settled over its life, window_s ('' =
-- spending never expires), window = its number, born = time at which it was set up. traj:{id} has `shared` while it
-- runs: what is reserved and in which budgets, JSON; `room` while it waits: names of budgets whose turn it was.
local SHARED = {'cost_usd', 'tokens', 'slot_s'}
local BUDGET_MARK = '$budget:'  -- in `paced`, before the name of a budget for which jobs wait; no run is called so
local HELD_S = 7776000
local SHARED_MOST = 1e15  -- of one job; its JSON may say anything

-- The account, with the spending of the current window. A clock that was set back begins a window, too.
local function shared_account(name)
  local key = prefix .. 'budget:' .. name
  local a = hash(key, 'born', 'window_s', 'window', 'settled', 'running', 'limit:cost_usd', 'spent:cost_usd', 'reserved:cost_usd',
    'all:cost_usd', 'limit:tokens', 'spent:tokens', 'reserved:tokens', 'all:tokens', 'limit:slot_s', 'spent:slot_s',
    'reserved:slot_s', 'all:slot_s')
  a.key = key
  local window_s = tonumber(a.window_s or '')
  local window = window_s and window_s > 0 and string.format('%.0f', math.floor(now / window_s))
  if window and a.window ~= window then
    redis.call('HSET', key, 'window', window)
    redis.call('HDEL', key, 'spent:cost_usd', 'spent:tokens', 'spent:slot_s')
    for _, amount in ipairs(SHARED) do a['spent:' .. amount] = nil end
  end
  return a
end

local function shared_amount(value)
  value = tonumber(value)
  if not value or value ~= value then return 0 end
  return math.min(math.max(value, 0), SHARED_MOST)
end

-- What a job may need: what its limits allow, or the average if that is more.
local function shared_want(a, limits)
  local settled, want = math.max(1, tonumber(a.settled or '0') or 1), {}
  for _, amount in ipairs(SHARED) do
    want[amount] = math.max(shared_amount(limits[amount]), shared_amount(a['all:' .. amount]) / settled)
  end
  return want
end

-- Nil, or why there is no room for `want` beside `planned`. One job alone has room while anything is left:
-- else one that may need more than the whole budget would wait for ever.
local function shared_full(a, want, planned)
  local is_alone = (tonumber(a.running or '0') or 0) <= 0 and not next(planned)
  for _, amount in ipairs(SHARED) do
    local limit = tonumber(a['limit:' .. amount] or '')
    if limit then
      local spent = tonumber(a['spent:' .. amount] or '0') or 0
      local reserved = math.max(0, tonumber(a['reserved:' .. amount] or '0') or 0) + (planned[amount] or 0)
      if spent >= limit or not is_alone and spent + reserved + want[amount] > limit * (1 + 1e-9) then
        return string.format('%s: %.6g of %.6g spent, %.6g reserved', amount, spent, limit, reserved)
      end
    end
  end
end

-- A job's own limits and the names of budgets that may be meant for it, from its JSON.
local function shared_facts(raw, team)
  local whole, job = pcall(cjson.decode, raw or '')
  if not whole or type(job) ~= 'table' then return {}, {} end
  local limits = type(job.limits) == 'table' and job.limits or {}
  local agent, names = type(job.agent) == 'table' and job.agent or {}, {}
  for kind, name in pairs({env = job.env, team = team or job.team, model = agent.model}) do
    if type(name) == 'string' then names[#names + 1] = kind .. ':' .. name end
  end
  table.sort(names)
  return {cost_usd = limits.max_cost_usd, tokens = limits.max_tokens}, names
end
