-- @include hash
-- The budget of a run: reserved when a job begins, settled when its attempt ends.
--
-- run:{id} holds, for the amounts cost_usd and tokens, budget:<amount>, spent:<amount> and
-- reserved:<amount>; budget:wall_s counts from `created`. `settled` = number of ended trajectories.
-- traj:{id} holds its reservation while it runs (JSON).
local AMOUNTS = {'cost_usd', 'tokens'}
local BUDGET_WARN = 0.8
local ROUNDING = 1e-9  -- tolerance for sums of decimal fractions

local function budget_pause(run, reason)
  redis.call('HSET', run, 'state', 'paused', 'paused_by', 'budget', 'reason', reason)
  return reason
end

-- Pause a run that has spent a budget; warn once when little is left. Returns the warning or ''.
-- `quiet`: the caller cannot report a warning, so it is left to a later call.
local function budget_check(run, now, quiet)
  local r = hash(run, 'state', 'created', 'budget:wall_s', 'unpriced')
  local warning = ''
  local function check(name, spent, budget)
    if spent >= budget then
      if r.state == 'active' then
        r.state = 'paused'
        warning = budget_pause(run, string.format('budget spent: %s %.6g of %.6g', name, spent, budget))
      end
    elseif spent >= BUDGET_WARN * budget and warning == '' and not quiet
      and redis.call('HSETNX', run, 'warned:' .. name, '1') == 1 then
      warning = string.format('%.0f %% of the budget is spent: %s %.6g of %.6g',
        100 * spent / budget, name, spent, budget)
    end
  end
  for _, name in ipairs(AMOUNTS) do
    local a = redis.call('HMGET', run, 'budget:' .. name, 'spent:' .. name)
    if a[1] then check(name, tonumber(a[2] or '0'), tonumber(a[1])) end
    if a[1] and name == 'cost_usd' and r.unpriced and r.state == 'active' then
      r.state = 'paused'
      warning = budget_pause(run, 'budget: the cost of ' .. r.unpriced
        .. ' trajectories is unknown, so that cost_usd cannot be kept')
    end
  end
  if r['budget:wall_s'] then check('wall_s', now - tonumber(r.created or now), tonumber(r['budget:wall_s'])) end
  return warning
end

-- Settle an attempt that has ended. `spent` is {cost_usd, tokens}, cost_usd '' = price unknown. Without
-- `spent` the reservation counts as spent, because nothing is known about the attempt.
-- Returns a warning or ''; always '' without `spent`.
local function budget_settle(run, traj, spent, now)
  local raw = redis.call('HGET', traj, 'reserved')
  local reserved = raw and cjson.decode(raw) or {}
  if raw then redis.call('HDEL', traj, 'reserved') end
  if redis.call('EXISTS', run) == 0 then return '' end
  for i, name in ipairs(AMOUNTS) do
    local aside = reserved[name] or 0
    local amount = aside
    if spent then amount = tonumber(spent[i]) or 0 end
    if aside ~= 0 then redis.call('HINCRBYFLOAT', run, 'reserved:' .. name, -aside) end
    if amount ~= 0 then redis.call('HINCRBYFLOAT', run, 'spent:' .. name, amount) end
  end
  if spent and spent[1] == '' then redis.call('HINCRBY', run, 'unpriced', 1) end
  return budget_check(run, now, not spent)
end
