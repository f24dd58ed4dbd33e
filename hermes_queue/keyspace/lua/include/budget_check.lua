-- @lazy budget_pause, budget_check
-- Pauses runs that have spent a budget.
local BUDGET_WARN = 0.8

local function budget_pause(run, r, reason)
  redis.call('HSET', run, 'state', 'paused', 'paused_by', 'budget', 'reason', reason)
  r.state = 'paused'
  return reason
end

-- Pause a run that has spent a budget; warn once when little is left. Returns the warning or ''.
-- `quiet`: the caller cannot report a warning, so it is left to a later call.
local function budget_check(run, r, now, quiet)
  local warning = ''
  local function check(name, spent)
    local budget = tonumber(r['budget:' .. name])
    if spent >= budget then
      if r.state == 'active' then
        warning = budget_pause(run, r, string.format('budget spent: %s %.6g of %.6g', name, spent, budget))
      end
    elseif spent >= BUDGET_WARN * budget and warning == '' and not quiet
      and redis.call('HSETNX', run, 'warned:' .. name, '1') == 1 then
      warning = string.format('%.0f %% of the budget is spent: %s %.6g of %.6g',
        100 * spent / budget, name, spent, budget)
    end
  end
  for _, name in ipairs(AMOUNTS) do
    if r['budget:' .. name] then check(name, tonumber(r['spent:' .. name] or '0')) end
    if r['budget:' .. name] and name == 'cost_usd' and r.unpriced and r.state == 'active' then
      warning = budget_pause(run, r, 'budget: the cost of ' .. r.unpriced
        .. ' trajectories is unknown, so that cost_usd cannot be kept')
    end
  end
  if r['budget:wall_s'] then check('wall_s', now - tonumber(r.created or now)) end
  return warning
end
