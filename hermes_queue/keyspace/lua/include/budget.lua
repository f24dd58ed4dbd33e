-- @include hash, leased, shared_budget, shared_settle
-- The budget of a run: reserved when a job begins, settled when its attempt ends.
--
-- run:{id} holds, for the amounts cost_usd, tokens and slot_s, budget:<amount>, spent:<amount> and
-- reserved:<amount>; budget:wall_s counts from `created`. `settled` = number of ended trajectories.
-- traj:{id} holds its reservation while it runs (JSON).
local AMOUNTS = {'cost_usd', 'tokens', 'slot_s'}
local BUDGET_WARN, ROUNDING = 0.8, 1e-9  -- tolerance for sums of decimal fractions
local ACCOUNTS = {'state', 'created', 'team', 'policy_version', 'max_ahead', 'weight', 'max_running', 'unpriced',
  'settled', 'running', 'budget:wall_s', 'budget:cost_usd', 'spent:cost_usd', 'reserved:cost_usd', 'budget:tokens', 'spent:tokens', 'reserved:tokens',
  'budget:slot_s', 'spent:slot_s', 'reserved:slot_s'}

-- These fields of a run; nil if the run is unknown. The functions below keep what they change in it.
local function accounts(run)
  local r = hash(run, unpack(ACCOUNTS))
  return next(r) and r
end
-- The same; nil of a run whose key is no hash, too: what runs ends all the same.
local function readable_accounts(run)
  local whole, r = pcall(accounts, run)
  return whole and r or nil
end
local function is_budgeted(r)
  return r and (r['budget:cost_usd'] or r['budget:tokens'] or r['budget:slot_s'] or r['budget:wall_s'])
end

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
-- Settle an attempt that has ended, in the accounts of its run (nil = unknown run). `reserved` is what
-- was reserved for it (JSON) or nil; the caller removes it. `spent` is {cost_usd, tokens}, cost_usd '' = price
-- unknown; `held_s`: of its slot. Without `spent` the reservation counts as spent, but for what its journal has
-- `noted` (or nil): that is booked with the next attempt. Returns a warning or ''; always '' without `spent`.
local function book(run, r, reserved, spent, now, noted, held_s)
  reserved = reserved and cjson.decode(reserved) or {}
  for i, name in ipairs(AMOUNTS) do
    local aside = reserved[name] or 0
    local amount = math.max(0, aside - (noted and tonumber(noted[name]) or 0))
    if name == 'slot_s' then amount = held_s elseif spent then amount = tonumber(spent[i]) or 0 end
    if aside ~= 0 then redis.call('HINCRBYFLOAT', run, 'reserved:' .. name, -aside) end
    if amount ~= 0 then r['spent:' .. name] = redis.call('HINCRBYFLOAT', run, 'spent:' .. name, amount) end
  end
  if spent and spent[1] == '' then r.unpriced = redis.call('HINCRBY', run, 'unpriced', 1) end
  return budget_check(run, r, now, not spent)
end

-- A producer could write any sums into the run: those are not kept then, and the trajectory ends all the same.
local function budget_book(run, r, ...)
  if not r then return '' end
  local whole, warning = pcall(book, run, r, ...)
  return whole and warning or ''
end

-- The same for a trajectory of which nothing was read yet.
local function budget_settle(run, traj, spent, now, noted)
  local job = hash(traj, 'reserved', 'begun', 'shared')
  if job.reserved or job.shared then redis.call('HDEL', traj, 'reserved', 'shared') end
  local held_s = leased_s(job.begun, now)
  local r = readable_accounts(run)
  shared_settle(job.shared, job.shared and redis.call('HGET', traj, 'job'), r, spent, held_s, noted)
  return budget_book(run, r, job.reserved, spent, now, noted, held_s)
end
