-- What a run may spend: set aside when a job begins, settled when its attempt ends.
--
-- run:{id} holds, for the amounts cost_usd and tokens, budget:<amount>, spent:<amount> and
-- reserved:<amount>; budget:wall_s counts from `created`. `settled` trajectories have ended.
-- traj:{id} holds what is reserved for it while it runs (JSON).
local AMOUNTS = {'cost_usd', 'tokens'}
local BUDGET_WARN = 0.8
local ROUNDING = 1e-9  -- sums of decimal fractions may be off by so much

local function budget_pause(run, reason)
  redis.call('HSET', run, 'state', 'paused', 'paused_by', 'budget', 'reason', reason)
  return reason
end

-- Pause a run that has spent a budget; say once that little is left. Returns what to say or ''.
-- `quiet`: nobody listens, so the warning is left to a later call.
local function budget_check(run, now, quiet)
  local r = redis.call('HMGET', run, 'state', 'created', 'budget:wall_s', 'unpriced')
  local said = ''
  local function check(name, spent, budget)
    if spent >= budget then
      if r[1] == 'active' then
        r[1] = 'paused'
        said = budget_pause(run, string.format('budget spent: %s %.6g of %.6g', name, spent, budget))
      end
    elseif spent >= BUDGET_WARN * budget and said == '' and not quiet
      and redis.call('HSETNX', run, 'warned:' .. name, '1') == 1 then
      said = string.format('%.0f %% of the budget is spent: %s %.6g of %.6g',
        100 * spent / budget, name, spent, budget)
    end
  end
  for _, name in ipairs(AMOUNTS) do
    local a = redis.call('HMGET', run, 'budget:' .. name, 'spent:' .. name)
    if a[1] then check(name, tonumber(a[2] or '0'), tonumber(a[1])) end
    if a[1] and name == 'cost_usd' and r[4] and r[1] == 'active' then
      r[1] = 'paused'
      said = budget_pause(run, 'budget: the cost of ' .. r[4]
        .. ' trajectories is unknown, so that cost_usd cannot be kept')
    end
  end
  if r[3] then check('wall_s', now - tonumber(r[2] or now), tonumber(r[3])) end
  return said
end

-- Set aside for a job what its limits allow it, or what trajectories of the run spend on average.
-- Returns nil, or why it does not begin: `paused` (the run is, now) or `held` (others that run
-- may leave enough when they end); and what to say or ''.
local function budget_reserve(run, traj, job, now)
  local b = redis.call('HMGET', run, 'budget:cost_usd', 'budget:tokens', 'budget:wall_s',
    'settled', 'running')
  if not (b[1] or b[2] or b[3]) then return nil, '' end
  local said = budget_check(run, now)
  if redis.call('HGET', run, 'state') == 'paused' then return 'paused', said end
  local limits = cjson.decode(job)['limits'] or {}
  local limit = {cost_usd = tonumber(limits['max_cost_usd']), tokens = tonumber(limits['max_tokens'])}
  local settled = math.max(1, tonumber(b[4] or '0'))
  local wanted, any = {}, false
  for i, name in ipairs(AMOUNTS) do
    if b[i] then
      local a = redis.call('HMGET', run, 'spent:' .. name, 'reserved:' .. name)
      local spent, reserved = tonumber(a[1] or '0'), tonumber(a[2] or '0')
      local want = math.max(limit[name] or 0, spent / settled)
      if spent + reserved + want > tonumber(b[i]) + ROUNDING then
        if tonumber(b[5] or '0') > 0 then return 'held', said end
        local why = budget_pause(run, string.format(
          'budget nearly spent: %s %.6g of %.6g, and the next trajectory may need %.6g',
          name, spent, tonumber(b[i]), want))
        return 'paused', said == '' and why or said .. '; ' .. why
      end
      wanted[name], any = want, true
    end
  end
  for name, want in pairs(wanted) do redis.call('HINCRBYFLOAT', run, 'reserved:' .. name, want) end
  if any then redis.call('HSET', traj, 'reserved', cjson.encode(wanted)) end
  return nil, said
end

-- An attempt has ended. `spent` is {cost_usd, tokens}, cost_usd '' when nobody knows the price;
-- without it nobody knows what the attempt spent, and what was set aside counts as spent.
-- Returns what to say or '', which it is when `spent` is missing.
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
